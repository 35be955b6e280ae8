//! Turns training events into reports to the agent and log lines.

use std::cell::Cell;
use std::path::Path;
use std::time::{Duration, Instant};

use contract::progress::MOST_SLOW_RANKS;
use contract::{Activity, CheckpointRecord, Progress, Spent};

use super::breakdown::Breakdown;
use super::compute::{ComputeTimes, saved_without};
use super::log::{Log, Record};
use super::window::Window;
use super::{CheckpointCost, Report, Reporter, StepReport, now};
use crate::checkpoint::{Position, Validation, Written};
use crate::evaluation::Counts;

/// Constant properties of a run.
#[derive(Clone, Debug)]
pub(crate) struct RunShape {
    pub(crate) rank: u32,
    pub(crate) attempt: u32,
    pub(crate) total_epochs: u32,
    pub(crate) total_steps: u64,
    pub(crate) world_size: u32,
    pub(crate) global_batch_size: u64,
    pub(crate) train_images: u64,
    /// Product of rank 0's GPU; `None` on the CPU, or if unknown.
    pub(crate) device: Option<String>,
    /// Initial steps that a measurement leaves out; a log line ends with the last one.
    pub(crate) warmup_steps: u64,
    /// Whether to log step times as DeepSpeed does.
    pub(crate) wall_clock_breakdown: bool,
}

/// Observes the training of one rank.
#[derive(Debug)]
pub(crate) struct Observer {
    shape: RunShape,
    reporter: Reporter,
    window: Window,
    /// The newest step, if the window holds it.
    newest: Option<StepReport>,
    /// Seconds by which steps since the last report would have been shorter without this rank.
    slowdown_seconds: f64,
    /// Time spent before the current activity, and when that started.
    spent: Cell<Spent>,
    activity: Cell<(Activity, Instant)>,
    /// Only on rank 0, which reports for the run.
    run: Option<RunObserver>,
}

#[derive(Debug)]
struct RunObserver {
    log: Log,
    progress: Progress,
    compute_times: ComputeTimes,
}

/// A running checkpoint write, for as long as it lives.
#[derive(Debug)]
pub(crate) struct Writing(Reporter);

impl Drop for Writing {
    fn drop(&mut self) {
        self.0.send(&Report::Writing { under_way: false });
    }
}

impl Observer {
    /// Only rank 0 has a `log_folder`, and so reports for the run.
    pub(crate) fn new(
        shape: RunShape,
        reporter: Reporter,
        log_folder: Option<&Path>,
        start: Position,
        validation: Validation,
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
                    device: shape.device.clone(),
                });
                let progress = Progress {
                    attempt: shape.attempt,
                    epoch: start.epoch,
                    total_epochs: shape.total_epochs,
                    step: start.step,
                    total_steps: shape.total_steps,
                    validation_accuracy: validation.accuracy,
                    validation_mean_average_precision: validation.mean_average_precision,
                    last_checkpoint: resumed_from.map(|path| CheckpointRecord {
                        step: start.step,
                        path: path.display().to_string(),
                        time: now(),
                    }),
                    ..Progress::default()
                };
                Some(RunObserver {
                    log,
                    progress,
                    compute_times: ComputeTimes::default(),
                })
            }
        };
        let mut observer = Self {
            shape,
            reporter,
            window: Window::new(),
            newest: None,
            slowdown_seconds: 0.0,
            spent: Cell::new(Spent {
                first_step: start.step,
                ..Spent::default()
            }),
            activity: Cell::new((Activity::default(), Instant::now())),
            run,
        };
        observer.send_progress();
        Ok(observer)
    }

    /// The training loop starts an activity, or makes progress in it.
    pub(crate) fn turn_to(&self, activity: Activity) {
        self.spent.set(self.spent());
        self.activity.set((activity, Instant::now()));
        self.reporter.send(&Report::Activity { activity });
    }

    /// The time spent until now.
    fn spent(&self) -> Spent {
        let mut spent = self.spent.get();
        let (activity, since) = self.activity.get();
        match activity {
            Activity::Evaluating => spent.evaluation_seconds += since.elapsed().as_secs_f64(),
            Activity::Checkpointing => spent.checkpoint_seconds += since.elapsed().as_secs_f64(),
            // Steps report their own time.
            Activity::Starting | Activity::Training => {}
        }
        spent
    }

    /// A checkpoint is being written until the returned value is dropped.
    pub(crate) fn writes(&self) -> Writing {
        self.reporter.send(&Report::Writing { under_way: true });
        Writing(self.reporter.clone())
    }

    /// Compute seconds of each rank in a step, before it waited for others.
    pub(crate) fn compute_times(&mut self, seconds: &[f64]) {
        self.slowdown_seconds += saved_without(seconds, self.shape.rank);
        if let Some(run) = &mut self.run {
            run.compute_times.add(seconds);
        }
    }

    /// Replicas take other shares of a step, as decided after `step`; `idle` ranks take none.
    pub(crate) fn shares(&mut self, step: u64, images: &[u64], mut idle: Vec<u32>) {
        if let Some(run) = &mut self.run {
            run.log.write(&Record::Shares {
                step,
                images: images.to_vec(),
            });
            idle.truncate(MOST_SLOW_RANKS);
            run.progress.idle_ranks = idle;
            self.send_progress();
        }
    }

    pub(crate) fn step(&mut self, step: &StepReport) {
        self.window.add(step);
        let spent = self.spent.get();
        self.spent.set(Spent {
            step_seconds: spent.step_seconds + step.phases.sum(),
            ..spent
        });
        self.newest = Some(step.clone());
        if self.window.is_due() || step.step == self.shape.warmup_steps {
            self.flush();
        }
        self.reporter.send(&Report::Step(StepReport {
            slowdown_seconds: std::mem::take(&mut self.slowdown_seconds),
            ..step.clone()
        }));
    }

    /// An epoch has no more steps: a log line never spans two epochs.
    pub(crate) fn epoch_ends(&mut self) {
        self.flush();
    }

    fn flush(&mut self) {
        let (Some(summary), Some(step)) = (self.window.take(), self.newest.take()) else {
            return;
        };
        let Some(run) = &mut self.run else { return };
        let images_per_second = self.shape.global_batch_size as f64 / summary.step_seconds;
        let breakdown = self
            .shape
            .wall_clock_breakdown
            .then(|| Breakdown::new(&summary.phases, summary.micro_batches));
        for line in breakdown.iter().flat_map(Breakdown::lines) {
            tracing::info!("{line}");
        }
        let slowness = run.compute_times.take();
        // The slowest rank's compute time is rank 0's plus its wait for others; the rest stays.
        let slowest = summary.phases.compute() + summary.phases.sync_straggler;
        let lost = slowness.lost.filter(|_| self.shape.world_size > 1);
        let slowdown = lost.map(|lost| summary.step_seconds / (summary.step_seconds - slowest * lost));
        run.log.write(&Record::Train {
            epoch: step.epoch,
            step: step.step,
            steps: summary.steps,
            loss: summary.loss,
            accuracy: step.train_accuracy,
            learning_rate: step.learning_rate,
            loss_scale: step.loss_scale,
            skipped_steps: step.loss_scale.map(|_| step.skipped_steps),
            images_per_second,
            step_seconds: summary.step_seconds,
            phases: summary.phases,
            ranks: slowness.compute.filter(|_| self.shape.world_size > 1),
            sync: Box::new(summary.sync),
            slowdown,
            resident_bytes: step.resident_bytes,
            device_memory_peak_bytes: step.device.as_ref().map(|device| device.memory_peak_bytes),
            gpu: step.device.and_then(|device| device.reading).map(Box::new),
            wall_clock_breakdown: breakdown,
        });
        let remaining = self.shape.total_steps.saturating_sub(step.step);
        run.progress = Progress {
            epoch: step.epoch,
            step: step.step,
            loss: Some(summary.loss),
            train_accuracy: Some(step.train_accuracy),
            images_per_second: Some(images_per_second),
            sync_share: Some(summary.sync_share),
            slowdown,
            slow_ranks: slowness.ranks,
            eta_seconds: Some((remaining as f64 * summary.step_seconds).ceil() as u64),
            ..run.progress.clone()
        };
        self.send_progress();
    }

    /// Held-out images were classified by the model and, if it exists, by the averaged weights.
    pub(crate) fn evaluation(
        &mut self,
        position: Position,
        counts: Counts,
        of_average: Option<Counts>,
        took: Duration,
    ) {
        let Some(run) = &mut self.run else { return };
        let accuracy = counts.accuracy();
        let ema_accuracy = of_average.map(Counts::accuracy);
        run.log.write(&Record::Evaluation {
            epoch: position.epoch,
            step: position.step,
            correct: counts.correct,
            images: counts.counted,
            accuracy,
            ema_correct: of_average.map(|counts| counts.correct),
            ema_accuracy,
            mean_average_precision: counts.mean_average_precision,
            ema_mean_average_precision: of_average.and_then(|counts| counts.mean_average_precision),
            seconds: took.as_secs_f64(),
        });
        run.progress.epoch = position.epoch;
        run.progress.step = position.step;
        run.progress.validation_accuracy = Some(accuracy);
        run.progress.ema_validation_accuracy = ema_accuracy;
        run.progress.validation_mean_average_precision = counts.mean_average_precision;
        self.send_progress();
    }

    /// A checkpoint is complete on storage. Training may have passed its step.
    pub(crate) fn checkpoint(&mut self, written: &Written) {
        let Some(run) = &mut self.run else { return };
        let Position { epoch, step, .. } = written.position;
        let path = written.path.display().to_string();
        let cost = CheckpointCost {
            snapshot_seconds: written.snapshot.as_secs_f64(),
            write_seconds: written.write.as_secs_f64(),
            bytes: written.bytes,
        };
        // The log must be complete up to a checkpoint before it is reported.
        run.log.write_now(&Record::Checkpoint {
            step,
            path: path.clone(),
            cost,
        });
        if step >= run.progress.step {
            run.progress.epoch = epoch;
            run.progress.step = step;
        }
        run.progress.last_checkpoint = Some(CheckpointRecord {
            step,
            path,
            time: now(),
        });
        self.reporter.send(&Report::Checkpoint(cost));
        self.send_progress();
    }

    fn send_progress(&mut self) {
        let spent = self.spent();
        if let Some(run) = &mut self.run {
            run.progress.spent = Some(spent);
            run.progress.updated_at = now();
            self.reporter.send(&Report::Progress(run.progress.clone()));
        }
    }
}
