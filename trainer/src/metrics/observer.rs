//! Turns what happens in training into reports to the agent and lines of the log.

use std::path::Path;
use std::time::Duration;

use contract::{CheckpointRecord, Progress};

use super::log::{Log, Record};
use super::window::{Summary, Window};
use super::{Report, StepReport};
use crate::checkpoint::Position;
use crate::evaluate::Counts;
use crate::rank::Reporter;

/// Sizes of a run that do not change while it lasts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunShape {
    pub(crate) attempt: u32,
    pub(crate) total_epochs: u32,
    pub(crate) total_steps: u64,
    pub(crate) world_size: u32,
    pub(crate) global_batch_size: u64,
    pub(crate) train_images: u64,
}

/// Watches one rank's training.
#[derive(Debug)]
pub(crate) struct Observer {
    shape: RunShape,
    reporter: Reporter,
    window: Window,
    /// Only rank 0 speaks for the run.
    run: Option<RunObserver>,
}

#[derive(Debug)]
struct RunObserver {
    log: Log,
    progress: Progress,
}

/// The present time, RFC 3339 in UTC.
pub(super) fn now() -> String {
    jiff::Timestamp::now().to_string()
}

impl Observer {
    /// `log_folder` is given to rank 0 only, which thereby speaks for the run.
    pub(crate) fn new(
        shape: RunShape,
        reporter: Reporter,
        log_folder: Option<&Path>,
        start: Position,
        validation_accuracy: Option<f64>,
        resumed_from: Option<&Path>,
    ) -> std::io::Result<Self> {
        let run = match log_folder {
            None => None,
            Some(folder) => {
                let mut log = Log::open(folder, shape.attempt)?;
                log.write(&Record::Start {
                    step: start.step,
                    total_steps: shape.total_steps,
                    world_size: shape.world_size,
                    global_batch_size: shape.global_batch_size,
                    train_images: shape.train_images,
                });
                let progress = Progress {
                    attempt: shape.attempt,
                    epoch: start.epoch,
                    total_epochs: shape.total_epochs,
                    step: start.step,
                    total_steps: shape.total_steps,
                    validation_accuracy,
                    last_checkpoint: resumed_from.map(|path| CheckpointRecord {
                        step: start.step,
                        path: path.display().to_string(),
                        time: now(),
                    }),
                    ..Progress::default()
                };
                Some(RunObserver { log, progress })
            }
        };
        let mut observer = Self {
            shape,
            reporter,
            window: Window::new(),
            run,
        };
        observer.send_progress();
        Ok(observer)
    }

    /// A step is done.
    pub(crate) fn step(&mut self, step: &StepReport) {
        self.window.add(step);
        if self.window.is_due() || step.step == self.shape.total_steps {
            self.flush(step);
        }
        self.reporter.send(&Report::Step(*step));
    }

    fn flush(&mut self, step: &StepReport) {
        let Some(summary) = self.window.take() else { return };
        let Some(run) = &mut self.run else { return };
        let Summary {
            loss,
            images_per_second,
            step_seconds,
            phases,
            sync,
            sync_share,
        } = summary;
        let images_per_second = images_per_second * f64::from(self.shape.world_size);
        run.log.write(&Record::Train {
            epoch: step.epoch,
            step: step.step,
            loss,
            accuracy: step.train_accuracy,
            learning_rate: step.learning_rate,
            images_per_second,
            step_seconds,
            phases,
            sync,
        });
        let remaining = self.shape.total_steps.saturating_sub(step.step);
        run.progress = Progress {
            epoch: step.epoch,
            step: step.step,
            loss: Some(loss),
            train_accuracy: Some(step.train_accuracy),
            images_per_second: Some(images_per_second),
            sync_share: Some(sync_share),
            eta_seconds: Some((remaining as f64 * step_seconds).ceil() as u64),
            ..run.progress.clone()
        };
        self.send_progress();
    }

    /// Held-out images were classified.
    pub(crate) fn evaluation(&mut self, position: Position, counts: Counts, took: Duration) {
        let Some(run) = &mut self.run else { return };
        let accuracy = counts.correct as f64 / counts.counted.max(1) as f64;
        run.log.write(&Record::Evaluation {
            epoch: position.epoch,
            step: position.step,
            correct: counts.correct,
            images: counts.counted,
            accuracy,
            seconds: took.as_secs_f64(),
        });
        run.progress.epoch = position.epoch;
        run.progress.step = position.step;
        run.progress.validation_accuracy = Some(accuracy);
        self.send_progress();
    }

    /// A checkpoint is complete on storage.
    pub(crate) fn checkpoint(&mut self, position: Position, path: &Path, took: Duration) {
        let Some(run) = &mut self.run else { return };
        let path = path.display().to_string();
        run.log.write(&Record::Checkpoint {
            step: position.step,
            path: path.clone(),
            seconds: took.as_secs_f64(),
        });
        run.progress.epoch = position.epoch;
        run.progress.step = position.step;
        run.progress.last_checkpoint = Some(CheckpointRecord {
            step: position.step,
            path,
            time: now(),
        });
        self.send_progress();
    }

    fn send_progress(&mut self) {
        if let Some(run) = &mut self.run {
            run.progress.updated_at = now();
            self.reporter.send(&Report::Progress(run.progress.clone()));
        }
    }
}
