//! How long each test of a suite took: a line when it ends, and a `JUnit` file under `target/junit`.

use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Instant;

use anyhow::Result;
use fs_err as fs;
use quick_junit::{NonSuccessKind, TestCase, TestCaseStatus, TestSuite};

use crate::operator::root;
use crate::progress::say;

/// The tests of one suite that have ended.
#[derive(Debug)]
pub struct Report {
    suite: &'static str,
    cases: Mutex<Vec<TestCase>>,
}

impl Report {
    /// An empty report.
    pub fn new(suite: &'static str) -> Self {
        Self {
            suite,
            cases: Mutex::default(),
        }
    }

    /// Runs a test, says how long it took, and keeps its outcome.
    pub fn time(&self, name: &str, test: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
        let began = Instant::now();
        let outcome = test();
        let took = began.elapsed();
        let (word, status) = match &outcome {
            Ok(()) => ("passed", TestCaseStatus::success()),
            Err(error) => {
                let mut status = TestCaseStatus::non_success(NonSuccessKind::Failure);
                status.set_description(error);
                ("failed", status)
            }
        };
        say(format_args!("{name} {word} in {:.1} s", took.as_secs_f64()));
        let mut case = TestCase::new(name, status);
        case.set_time(took);
        self.cases.lock().expect("no test holds it and panics").push(case);
        outcome
    }

    /// Writes `target/junit/SUITE.xml`.
    pub fn write(&self) -> Result<PathBuf> {
        let mut suite = TestSuite::new(self.suite);
        suite.add_test_cases(self.cases.lock().expect("no test holds it and panics").drain(..));
        let mut report = quick_junit::Report::new(self.suite);
        report.add_test_suite(suite);
        let folder = root().join("target/junit");
        fs::create_dir_all(&folder)?;
        let path = folder.join(format!("{}.xml", self.suite));
        fs::write(&path, report.to_string()?)?;
        Ok(path)
    }
}
