//! When checkpoints are due, besides at the end of an epoch.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use contract::CheckpointConfig;

/// The clock of `checkpoint.everySteps` and `checkpoint.everySeconds`, and whether someone asked for a
/// checkpoint. Only rank 0 has one, and notifies the others.
#[derive(Debug)]
pub(crate) struct Cadence {
    every_steps: Option<u64>,
    every: Option<Duration>,
    last_step: u64,
    last_time: Instant,
    /// Whether one is wanted now.
    asked: Arc<AtomicBool>,
}

impl Cadence {
    /// Starts at the step from which training starts.
    pub(crate) fn new(config: &CheckpointConfig, step: u64, asked: Arc<AtomicBool>) -> Self {
        Self {
            every_steps: config.every_steps.map(u64::from),
            every: config
                .every_seconds
                .map(|seconds| Duration::from_secs(seconds.into())),
            last_step: step,
            last_time: Instant::now(),
            asked,
        }
    }

    /// Whether a checkpoint is due after `step`: `everySteps` or `everySeconds` have passed since
    /// the last one, or someone asked for it. It stays due until it is taken.
    pub(crate) fn is_due(&self, step: u64) -> bool {
        let by_steps = self
            .every_steps
            .is_some_and(|every| step / every > self.last_step / every);
        let is_asked = self.asked.load(Ordering::Relaxed);
        is_asked || by_steps || self.every.is_some_and(|every| self.last_time.elapsed() >= every)
    }

    /// Records that a checkpoint of `step` was taken.
    pub(crate) fn taken(&mut self, step: u64) {
        self.last_step = step;
        self.last_time = Instant::now();
        self.asked.store(false, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cadence(every_steps: Option<u32>, every_seconds: Option<u32>) -> Cadence {
        let config = CheckpointConfig {
            path: "/checkpoints".into(),
            keep: 1,
            every_steps,
            every_seconds,
            resume: contract::Resume::Auto,
            writers: contract::CheckpointWriters::Auto,
        };
        Cadence::new(&config, 0, Arc::default())
    }

    #[test]
    fn steps_count_in_multiples_and_one_put_off_stays_due() {
        let mut cadence = cadence(Some(10), None);
        let due = |cadence: &Cadence, steps: std::ops::RangeInclusive<u64>| -> Vec<u64> {
            steps.filter(|step| cadence.is_due(*step)).collect()
        };
        assert_eq!(due(&cadence, 1..=12), [10, 11, 12]);
        cadence.taken(13);
        assert_eq!(due(&cadence, 14..=21), [20, 21]);
        cadence.taken(20);
        assert_eq!(due(&cadence, 21..=29), [] as [u64; 0]);
    }

    #[test]
    fn one_that_is_asked_for_is_due_once() {
        let mut cadence = cadence(None, None);
        assert!(!cadence.is_due(1));
        cadence.asked.store(true, Ordering::Relaxed);
        assert!(cadence.is_due(2) && cadence.is_due(3));
        cadence.taken(3);
        assert!(!cadence.is_due(4));
    }

    #[test]
    fn seconds_count_from_the_last_checkpoint() {
        let mut cadence = cadence(None, Some(600));
        assert!(!cadence.is_due(1_000_000));
        cadence.last_time -= Duration::from_secs(600);
        assert!(cadence.is_due(1));
        cadence.taken(1);
        assert!(!cadence.is_due(2));
    }
}
