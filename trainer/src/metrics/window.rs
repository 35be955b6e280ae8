//! Steps since the last line of the log, added up.

use std::time::{Duration, Instant};

use torch_ext::SyncTimes;

use super::{Phases, StepReport};

/// Least time between two lines of the log and two progress records.
const INTERVAL: Duration = Duration::from_millis(500);

/// Sums over the steps since the last line.
#[derive(Debug)]
pub(super) struct Window {
    since: Instant,
    steps: u64,
    images: u64,
    loss: f64,
    phases: Phases,
    sync: SyncTimes,
}

/// Means over a window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Summary {
    /// Steps that were added.
    pub(super) steps: u64,
    /// Mean loss.
    pub(super) loss: f64,
    /// Images a second of one rank.
    pub(super) images_per_second: f64,
    /// Mean seconds of a step.
    pub(super) step_seconds: f64,
    /// Mean seconds of each phase.
    pub(super) phases: Phases,
    /// Mean cost of a step.
    pub(super) sync: SyncTimes,
    /// Share of the steps' time that waited for synchronisation, 0..1.
    pub(super) sync_share: f64,
}

impl Window {
    pub(super) fn new() -> Self {
        Self {
            since: Instant::now(),
            steps: 0,
            images: 0,
            loss: 0.0,
            phases: Phases::default(),
            sync: SyncTimes::default(),
        }
    }

    pub(super) fn add(&mut self, step: &StepReport) {
        self.steps += 1;
        self.images += step.images;
        self.loss += step.loss;
        self.phases += step.phases;
        self.sync += step.sync;
    }

    /// Whether it is time for a line.
    pub(super) fn is_due(&self) -> bool {
        self.since.elapsed() >= INTERVAL
    }

    /// The means, starting anew; `None` where no step was added.
    pub(super) fn take(&mut self) -> Option<Summary> {
        let Self {
            since: _,
            steps,
            images,
            loss,
            phases,
            sync,
        } = std::mem::replace(self, Self::new());
        if steps == 0 {
            return None;
        }
        let count = steps as f64;
        let seconds = phases.sum().max(f64::MIN_POSITIVE);
        Some(Summary {
            steps,
            loss: loss / count,
            images_per_second: images as f64 / seconds,
            step_seconds: seconds / count,
            phases: phases.mean(count),
            sync: sync.mean(count),
            sync_share: (sync.exposed + sync.straggler) / seconds,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_gives_means_and_starts_anew() {
        let step = |loss, backward, sync_exposed| StepReport {
            step: 1,
            epoch: 0,
            images: 8,
            phases: Phases {
                backward,
                sync_exposed,
                ..Phases::default()
            },
            sync: SyncTimes {
                total: 2.0 * sync_exposed,
                exposed: sync_exposed,
                straggler: 0.0,
                bytes: 100,
            },
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
        assert!((summary.images_per_second - 2.0).abs() < 1e-12);
        assert_eq!(summary.steps, 2);
        assert!((summary.step_seconds - 4.0).abs() < 1e-12);
        assert!((summary.sync_share - 0.25).abs() < 1e-12);
        assert_eq!(
            summary.sync,
            SyncTimes {
                total: 2.0,
                exposed: 1.0,
                straggler: 0.0,
                bytes: 100
            }
        );
        assert_eq!(window.take(), None);
    }
}
