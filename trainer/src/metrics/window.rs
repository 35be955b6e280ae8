//! Sums over the steps since the last log line.

use std::time::{Duration, Instant};

use torch_ext::SyncTimes;

use super::{Phases, StepReport};

/// Least time between log lines, and between progress records.
const INTERVAL: Duration = Duration::from_millis(500);

/// Sums over the steps since the last line.
#[derive(Debug)]
pub(super) struct Window {
    since: Instant,
    steps: u64,
    micro_batches: u64,
    loss: f64,
    phases: Phases,
    sync: SyncTimes,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Summary {
    pub(super) steps: u64,
    pub(super) loss: f64,
    /// Per step.
    pub(super) micro_batches: f64,
    pub(super) step_seconds: f64,
    pub(super) phases: Phases,
    pub(super) sync: SyncTimes,
    /// Share of the steps' time spent waiting for synchronization, 0..1.
    pub(super) sync_share: f64,
}

impl Window {
    pub(super) fn new() -> Self {
        Self {
            since: Instant::now(),
            steps: 0,
            micro_batches: 0,
            loss: 0.0,
            phases: Phases::default(),
            sync: SyncTimes::default(),
        }
    }

    pub(super) fn add(&mut self, step: &StepReport) {
        self.steps += 1;
        self.micro_batches += u64::from(step.micro_batches);
        self.loss += step.loss;
        self.phases += step.phases;
        self.sync += step.sync;
    }

    pub(super) fn is_due(&self) -> bool {
        self.since.elapsed() >= INTERVAL
    }

    /// Returns the means and starts again; `None` without steps.
    pub(super) fn take(&mut self) -> Option<Summary> {
        let done = std::mem::replace(self, Self::new());
        if done.steps == 0 {
            return None;
        }
        let count = done.steps as f64;
        let seconds = done.phases.sum().max(f64::MIN_POSITIVE);
        Some(Summary {
            steps: done.steps,
            loss: done.loss / count,
            micro_batches: done.micro_batches as f64 / count,
            step_seconds: seconds / count,
            phases: done.phases.mean(count),
            sync: done.sync.mean(count),
            sync_share: (done.sync.all.exposed + done.sync.all.straggler) / seconds,
        })
    }
}

#[cfg(test)]
mod tests {
    use torch_ext::SyncCost;

    use super::*;

    #[test]
    fn a_window_gives_means_and_starts_anew() {
        let cost = |exposed| SyncCost {
            total: 2.0 * exposed,
            exposed,
            straggler: 0.0,
            bytes: 100,
            collectives: 2,
        };
        let step = |loss, backward, sync_exposed| StepReport {
            step: 1,
            epoch: 0,
            images: 8.0,
            micro_batches: 2,
            phases: Phases {
                backward,
                sync_exposed,
                ..Phases::default()
            },
            sync: SyncTimes {
                all: cost(sync_exposed),
                all_gather: cost(sync_exposed),
                ..SyncTimes::default()
            },
            slowdown_seconds: 0.0,
            loss,
            train_accuracy: 0.5,
            learning_rate: 0.1,
            loss_scale: None,
            skipped_steps: 0,
            resident_bytes: None,
            device: None,
        };
        let mut window = Window::new();
        window.add(&step(1.0, 1.0, 1.0));
        window.add(&step(3.0, 5.0, 1.0));
        let summary = window.take().expect("two steps");
        assert!((summary.loss - 2.0).abs() < 1e-12);
        assert!((summary.micro_batches - 2.0).abs() < 1e-12);
        assert_eq!(summary.steps, 2);
        assert!((summary.step_seconds - 4.0).abs() < 1e-12);
        assert!((summary.sync_share - 0.25).abs() < 1e-12);
        assert_eq!(
            summary.sync,
            SyncTimes {
                all: cost(1.0),
                all_gather: cost(1.0),
                ..SyncTimes::default()
            }
        );
        assert_eq!(window.take(), None);
    }
}
