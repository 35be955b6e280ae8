//! Durations and failures of a suite's tests: a final table, and a `JUnit` file in `target/junit`.

use std::cmp::Reverse;
use std::sync::Mutex;
use std::time::Instant;

use anyhow::Result;
use fs_err as fs;
use quick_junit::{NonSuccessKind, TestCase, TestCaseStatus, TestSuite};

use crate::progress::say;
use crate::root;

/// Most lines shown of a failure: the last paragraph of its message, below the dumped state.
const LINES: usize = 10;

/// The finished tests of a suite.
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

    /// Runs a test and records its result and duration.
    pub fn time(&self, name: &str, test: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
        let began = Instant::now();
        let outcome = test();
        let took = began.elapsed();
        let status = match &outcome {
            Ok(()) => TestCaseStatus::success(),
            Err(error) => {
                let mut status = TestCaseStatus::non_success(NonSuccessKind::Failure);
                status.set_description(error);
                status
            }
        };
        let mut case = TestCase::new(name, status);
        case.set_time(took);
        self.cases
            .lock()
            .expect("no test panics while holding it")
            .push(case);
        outcome
    }

    /// Prints durations, longest first, and failures, and writes `target/junit/SUITE.xml`.
    pub fn write(&self) -> Result<()> {
        let mut cases = std::mem::take(&mut *self.cases.lock().expect("no test panics while holding it"));
        cases.sort_by_key(|case| Reverse(case.time));
        for case in &cases {
            let seconds = case.time.unwrap_or_default().as_secs_f64();
            say(format_args!("{seconds:7.1} s {}", &*case.name));
        }
        for case in &cases {
            if let TestCaseStatus::NonSuccess {
                description: Some(failure),
                ..
            } = &case.status
            {
                let why = failure.rsplit("\n\n").next().unwrap_or_default();
                let lines: Vec<&str> = why.lines().take(LINES).collect();
                say(format_args!("{} failed: {}", &*case.name, lines.join("\n")));
            }
        }
        let mut suite = TestSuite::new(self.suite);
        suite.add_test_cases(cases);
        let mut report = quick_junit::Report::new(self.suite);
        report.add_test_suite(suite);
        let folder = root().join("target/junit");
        fs::create_dir_all(&folder)?;
        fs::write(folder.join(format!("{}.xml", self.suite)), report.to_string()?)?;
        Ok(())
    }
}
