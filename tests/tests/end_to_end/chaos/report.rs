//! The report of a chaos run: a table, and `target/chaos/report.json`.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use serde::Serialize;
use serde_json::json;

use super::fault::Fault;
use crate::context::Namespace;

/// Counters, serialized to the file.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Report {
    seed: u64,
    jobs_succeeded: u32,
    faults: usize,
    attempts: i64,
    steps: i64,
    /// Steps repeated because they came after the last checkpoint.
    steps_again: i64,
    /// Seconds from a fault until every job trained again, by faults.
    #[serde(skip)]
    recoveries: BTreeMap<String, Vec<f64>>,
}

#[derive(Serialize)]
struct Seconds {
    count: usize,
    p50: f64,
    p99: f64,
    max: f64,
}

impl Seconds {
    fn of(mut seconds: Vec<f64>) -> Self {
        seconds.sort_by(f64::total_cmp);
        // The nearest rank.
        let at = |percent: usize| seconds[(seconds.len() * percent).div_ceil(100).max(1) - 1];
        Self {
            count: seconds.len(),
            p50: at(50),
            p99: at(99),
            max: at(100),
        }
    }
}

impl Report {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            seed,
            ..Self::default()
        }
    }

    /// Records that every job trains again after these simultaneous faults.
    pub(crate) fn survived(&mut self, faults: &[Fault], seconds: f64) {
        self.faults += faults.len();
        let mut names: Vec<String> = faults.iter().map(|fault| format!("{fault:?}")).collect();
        names.sort();
        self.recoveries
            .entry(names.join(" + "))
            .or_default()
            .push(seconds);
    }

    /// Records a succeeded job. Its log must have every step; only steps after a checkpoint repeat.
    pub(crate) fn ended(&mut self, namespace: &Namespace<'_>, job: &str) -> Result<()> {
        let status = namespace.status(job)?;
        let steps = namespace.check_steps(job)?;
        self.jobs_succeeded += 1;
        self.attempts += i64::from(status.attempt);
        self.steps += steps.done;
        self.steps_again += steps.again;
        Ok(())
    }

    /// Prints a line of progress.
    #[expect(clippy::print_stderr, reason = "it shows progress over many minutes")]
    pub(crate) fn print_progress(&self, elapsed: Duration, of: Duration) {
        eprintln!(
            "chaos: {} of {} s, seed {}, {} rounds of faults survived, {} jobs succeeded",
            elapsed.as_secs(),
            of.as_secs(),
            self.seed,
            self.recoveries.values().map(Vec::len).sum::<usize>(),
            self.jobs_succeeded
        );
    }

    /// Prints the table and writes the file.
    #[expect(clippy::print_stdout, reason = "the result")]
    pub(crate) fn write(mut self, elapsed: Duration) -> Result<()> {
        let all: Vec<f64> = self.recoveries.values().flatten().copied().collect();
        let mut seconds: BTreeMap<String, Seconds> = std::mem::take(&mut self.recoveries)
            .into_iter()
            .map(|(faults, seconds)| (faults, Seconds::of(seconds)))
            .collect();
        let rounds = all.len();
        if rounds > 0 {
            seconds.insert("all".into(), Seconds::of(all));
        }
        println!(
            "{:<40} {:>5} {:>8} {:>8} {:>8}",
            "seconds to training again", "count", "p50", "p99", "max"
        );
        for (faults, Seconds { count, p50, p99, max }) in &seconds {
            println!("{faults:<40} {count:>5} {p50:>8.1} {p99:>8.1} {max:>8.1}");
        }
        println!(
            "{} faults in {rounds} rounds; {} jobs succeeded in {} attempts; {} of {} steps were repeated; no job got stuck, \
             no objects are left",
            self.faults, self.jobs_succeeded, self.attempts, self.steps_again, self.steps
        );
        let mut written = json!(self);
        written["seconds"] = json!(elapsed.as_secs_f64());
        written["rounds"] = json!(rounds);
        written["seconds_to_training_again"] = json!(seconds);
        let folder = vit_tests::root().join("target/chaos");
        fs_err::create_dir_all(&folder)?;
        fs_err::write(folder.join("report.json"), serde_json::to_vec_pretty(&written)?)?;
        Ok(())
    }
}
