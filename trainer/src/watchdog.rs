//! A thread of each rank that checks that training makes progress. If not, it records collectives
//! in the checkpoints' `flight-recorder/attempt-<a>-rank-<r>.json`.
//!
//! The operator decides that a gang is stalled, and the agent gives up a rank.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fs_err as fs;
use serde_json::{Value, json};
use torch_ext::FlightRecorder;

use crate::metrics::Reporter;
use ::agent::pulse::{GIVEN_UP, Patience, Pulse};

/// How often it checks. Agents kill stuck ranks as early as a second after asking them to stop.
const CHECK_INTERVAL: Duration = Duration::from_millis(200);
/// How long a rank may be stuck: less than the operator waits (`policy/stall.rs`) by default.
const STALLED: Patience = Patience {
    steps: 10.0,
    least_seconds: 60.0,
};
/// After a request to stop: half of what the agent waits.
const STOPPING: Patience = Patience {
    steps: GIVEN_UP.steps / 2.0,
    least_seconds: GIVEN_UP.least_seconds / 2.0,
};

/// Folder of records, in the checkpoint folder.
const FOLDER: &str = "flight-recorder";
/// How many of its latest attempts' records a rank keeps.
const KEEP: usize = 3;

/// What the thread needs.
#[derive(Debug)]
pub(crate) struct Watchdog {
    pub(crate) reporter: Reporter,
    pub(crate) stop: Arc<AtomicBool>,
    pub(crate) recorder: FlightRecorder,
    pub(crate) records: Records,
}

impl Watchdog {
    /// Watches for the rest of the process's life. Ranks must have run each group's first collective.
    pub(crate) fn start(self) {
        let thread = std::thread::Builder::new().name("watchdog".into());
        if let Err(error) = thread.spawn(move || self.watch()) {
            tracing::warn!("failed to start the watchdog, so stalls will not be recorded: {error}");
        }
    }

    fn watch(&self) {
        let mut recorded = None;
        loop {
            std::thread::sleep(CHECK_INTERVAL);
            let pulse = self.reporter.pulse();
            let told_to_stop = self.stop.load(Ordering::Relaxed);
            if recorded != Some(pulse.moves) && is_due(&pulse, told_to_stop) {
                recorded = Some(pulse.moves);
                self.record(&pulse, told_to_stop);
            }
        }
    }

    /// If storage hangs, only this thread hangs with it.
    fn record(&self, pulse: &Pulse, told_to_stop: bool) {
        let step = pulse.step.unwrap_or(0);
        let idle_seconds = pulse.idle().as_secs_f64();
        let (begun, ended) = self.recorder.reductions_by_messages();
        let record = json!({
            "attempt": self.records.attempt,
            "rank": self.records.rank,
            "time": jiff::Timestamp::now().to_string(),
            "activity": pulse.activity,
            "step": step,
            "idleSeconds": idle_seconds,
            "medianStepSeconds": pulse.median_step(),
            "toldToStop": told_to_stop,
            "messages": {"begun": begun, "ended": ended},
            "gloo": parsed(self.recorder.gloo()),
            "nccl": self.recorder.nccl().map(parsed),
        });
        match self.records.write(&record) {
            Ok(path) => tracing::warn!(
                "no progress for {idle_seconds:.0} s after step {step}: this rank's latest collectives are in {}",
                path.display()
            ),
            Err(error) => tracing::warn!(
                "no progress for {idle_seconds:.0} s after step {step}; failed to write this rank's latest collectives: {error}"
            ),
        }
    }
}

fn is_due(pulse: &Pulse, told_to_stop: bool) -> bool {
    let patience = if told_to_stop { STOPPING } else { STALLED };
    patience.is_over(pulse.activity, pulse.idle().as_secs_f64(), pulse.median_step())
}

/// A recorder's JSON, or the error that replaces it.
fn parsed(record: Result<String, torch_ext::Error>) -> Value {
    match record {
        Ok(text) => serde_json::from_str(&text).unwrap_or(Value::String(text)),
        Err(error) => json!({"error": error.to_string()}),
    }
}

/// The files of one rank's records.
#[derive(Debug)]
pub(crate) struct Records {
    folder: PathBuf,
    attempt: u32,
    rank: u32,
}

impl Records {
    pub(crate) fn new(checkpoints: &Path, attempt: u32, rank: u32) -> Self {
        Self {
            folder: checkpoints.join(FOLDER),
            attempt,
            rank,
        }
    }

    /// Writes this attempt's record atomically, and removes this rank's oldest ones.
    fn write(&self, record: &Value) -> std::io::Result<PathBuf> {
        fs::create_dir_all(&self.folder)?;
        let name = format!("attempt-{}-rank-{}.json", self.attempt, self.rank);
        let partial = self.folder.join(format!(".partial-{name}"));
        let path = self.folder.join(name);
        let text = serde_json::to_vec(record)?;
        let written = fs::File::create(&partial).and_then(|mut file| {
            file.write_all(&text)?;
            file.sync_all()?;
            fs::rename(&partial, &path)
        });
        if let Err(error) = written {
            // A partial file would use space.
            let _ = fs::remove_file(&partial);
            return Err(error);
        }
        if let Err(error) = self.prune() {
            tracing::warn!("failed to remove an old record of collectives: {error}");
        }
        Ok(path)
    }

    fn prune(&self) -> std::io::Result<()> {
        let mut own = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str());
            if let Some((attempt, rank)) = name.and_then(attempt_and_rank)
                && rank == self.rank
            {
                own.push((attempt, path));
            }
        }
        own.sort();
        let old = own.len().saturating_sub(KEEP);
        own.iter()
            .take(old)
            .try_for_each(|(_, path)| fs::remove_file(path))
    }
}

fn attempt_and_rank(name: &str) -> Option<(u32, u32)> {
    let numbers = name.strip_prefix("attempt-")?.strip_suffix(".json")?;
    let (attempt, rank) = numbers.split_once("-rank-")?;
    Some((attempt.parse().ok()?, rank.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use contract::Activity;

    use super::*;

    #[test]
    fn a_rank_is_due_after_a_minute_or_as_it_is_told_to_stop_before_its_agent_ends_it() {
        let still_for = |seconds, step: f64| {
            let mut pulse = Pulse::default();
            pulse.stepped(7, step);
            pulse.age(Duration::from_secs(seconds));
            pulse
        };
        assert!(!is_due(&still_for(50, 0.2), false));
        assert!(is_due(&still_for(60, 0.2), false));
        assert!(!is_due(&still_for(90, 10.0), false));
        assert!(is_due(&still_for(100, 10.0), false));
        for (seconds, step) in [(5, 0.2), (50, 10.0)] {
            let pulse = still_for(seconds, step);
            assert!(is_due(&pulse, true) && !is_due(&pulse, false));
            let idle = pulse.idle().as_secs_f64();
            assert!(!GIVEN_UP.is_over(pulse.activity, idle, pulse.median_step()));
        }
        assert!(!is_due(&still_for(4, 0.2), true));
        let mut saving = still_for(0, 0.2);
        saving.turned_to(Activity::Checkpointing);
        saving.age(Duration::from_secs(1000));
        assert!(!is_due(&saving, true), "storage may take any time");
    }

    #[test]
    fn a_rank_keeps_its_latest_records_and_leaves_those_of_others() {
        let place = tempfile::tempdir().expect("a folder");
        // Sorted as numbers, two digits come after one.
        for attempt in [2, 8, 9, 10, 11] {
            for rank in [0, 1] {
                let written = Records::new(place.path(), attempt, rank).write(&json!({"rank": rank}));
                written.expect("writes");
            }
        }
        Records::new(place.path(), 12, 1)
            .write(&json!({}))
            .expect("writes");
        let again = Records::new(place.path(), 12, 1).write(&json!({"step": 7}));
        let text = fs::read_to_string(again.expect("writes")).expect("reads");
        assert_eq!(text, r#"{"step":7}"#);
        let mut names: Vec<_> = fs::read_dir(place.path().join(FOLDER))
            .expect("a folder")
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .collect();
        names.sort();
        let expected = [(10, 0), (10, 1), (11, 0), (11, 1), (12, 1), (9, 0)];
        assert_eq!(
            names,
            expected.map(|(attempt, rank)| format!("attempt-{attempt}-rank-{rank}.json"))
        );
    }

    #[test]
    fn storage_that_takes_no_record_is_an_error_and_keeps_the_record_before() {
        let place = tempfile::tempdir().expect("a folder");
        let records = Records::new(place.path(), 1, 0);
        let path = records.write(&json!({"step": 1})).expect("writes");
        // In place of the file that becomes the record.
        let partial = place.path().join(FOLDER).join(".partial-attempt-1-rank-0.json");
        fs::create_dir(&partial).expect("a folder");
        let error = records
            .write(&json!({"step": 2}))
            .expect_err("a folder is in the way");
        assert!(
            error.to_string().contains(".partial-attempt-1-rank-0.json"),
            "{error}"
        );
        assert_eq!(fs::read_to_string(path).expect("reads"), r#"{"step":1}"#);

        let file = place.path().join("file");
        fs::write(&file, "").expect("writes");
        Records::new(&file, 1, 0)
            .write(&json!({}))
            .expect_err("no folder");
    }
}
