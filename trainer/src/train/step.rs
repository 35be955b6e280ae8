//! One optimizer step.

use std::sync::atomic::Ordering;
use std::time::Instant;

use tch::{Kind, Reduction, Tensor};
use torch_ext::SyncTimes;
use torch_ext::optim::zero;

use super::Trainer;
use crate::data::{Batches, Targets};
use crate::error::TrainError;
use crate::metrics::{DeviceReport, Phases, StepReport, resident_bytes};
use crate::model::{DropSeed, Mode};
use crate::schedule::{StepSpan, learning_rate};

/// What a step adds up over the ranks while gradients are reduced, before each rank's compute time. All ranks then know
/// the same, so that all take the same decisions, and no step needs another collective.
const ARRIVAL_NUMBERS: usize = 6;

impl Trainer {
    /// One optimizer step over all ranks. Whether to stop after it.
    pub(super) fn step(&mut self, batches: &mut Batches) -> Result<bool, TrainError> {
        let training = self.config.training.clone();
        let mut clock = Clock::start();
        let mut phases = Phases::default();

        zero(&self.weights.raw_gradients())?;
        let mut loss_sum = Tensor::zeros([], (Kind::Double, self.accelerator.device()));
        let mut correct = Tensor::zeros([], (Kind::Int64, self.accelerator.device()));
        let last = training.gradient_accumulation_steps - 1;
        for index in 0..=last {
            let batch = batches.next()?.expect("the epoch's order holds this step");
            phases.data += clock.lap();

            let mode = Mode::Train(self.drop_seed(index));
            let logits = self.precision.forward(&self.model, &batch.images, mode)?;
            let (targets, label_smoothing) = match &batch.targets {
                Targets::Classes => (&batch.labels, training.label_smoothing),
                Targets::Distribution(targets) => (targets, 0.0),
            };
            let loss = logits.f_cross_entropy_loss(
                targets,
                None::<&Tensor>,
                Reduction::Mean,
                -100,
                label_smoothing,
            )?;
            loss_sum += loss.detach().to_kind(Kind::Double) * f64::from(training.micro_batch_size);
            correct += logits.argmax(1, false).eq_tensor(&batch.labels).sum(Kind::Int64);
            phases.forward += clock.lap();

            if index == last && self.synchronize {
                self.reducer
                    .prepare(&self.arrival(&loss_sum, &correct, batches.left_out()))?;
            }
            (loss * self.loss_factor()).f_backward()?;
            if index < last {
                phases.backward += clock.lap();
            }
        }
        let sums = if self.synchronize {
            self.reducer.finish()?
        } else {
            let own = self.arrival(&loss_sum, &correct, batches.left_out());
            Vec::<f64>::try_from(own)?
        };
        let (numbers, compute_seconds) = sums
            .split_first_chunk::<ARRIVAL_NUMBERS>()
            .expect("an arrival has these numbers");
        let [stop_requests, not_finite, losses, correct, counted, left_out] = *numbers;
        let last_backward = clock.lap();

        // Every rank has the same numbers and the same gradients, so every rank decides the same.
        self.require_finite_loss(&loss_sum, not_finite)?;
        batches.readable().check(left_out as u64)?;
        let loss = losses / counted;
        let rate = self.learning_rate();
        self.update_weights(rate, loss)?;
        self.advance(correct as u64, counted as u64);
        phases.optimizer = clock.lap();
        // After the update, beside which the ranks have compared their times.
        let sync = if self.synchronize {
            self.reducer.times()?
        } else {
            SyncTimes::default()
        };
        phases.sync_exposed = sync.exposed;
        phases.sync_straggler = sync.straggler;
        phases.backward += (last_backward - sync.exposed - sync.straggler).max(0.0);
        self.compute_seconds = phases.compute();

        if self.synchronize {
            self.observer.compute_times(compute_seconds);
        }
        self.observer.step(&StepReport {
            step: self.position.step,
            epoch: self.position.epoch,
            images: self.local_images(),
            phases,
            sync: sync.into(),
            loss,
            train_accuracy: self.position.correct as f64 / self.position.counted as f64,
            learning_rate: rate,
            loss_scale: self.position.loss_scale.map(|scale| scale.scale),
            skipped_steps: self.position.loss_scale.map_or(0, |scale| scale.skipped),
            resident_bytes: resident_bytes(),
            device: self.device_report()?,
        });
        Ok(stop_requests > 0.0)
    }

    /// What there is to tell of this rank's GPU; `None` on the CPU.
    fn device_report(&self) -> Result<Option<DeviceReport>, TrainError> {
        let memory_peak_bytes = self.accelerator.peak_bytes()?;
        Ok(memory_peak_bytes.map(|memory_peak_bytes| DeviceReport {
            memory_peak_bytes,
            peak_flops: self.peak_flops,
        }))
    }

    /// Determines which branches the images of this step's `micro_batch` drop.
    fn drop_seed(&self, micro_batch: u32) -> DropSeed {
        let training = &self.config.training;
        let before = u64::from(micro_batch) * u64::from(training.micro_batch_size);
        DropSeed {
            seed: training.seed,
            step: self.position.step,
            place: u64::from(self.world.rank) * self.local_images() + before,
        }
    }

    /// Numbers for the arrival all-reduce: stop requests, ranks whose loss is not finite, sum of losses, images
    /// classified right, images, images left out so far in this epoch; then, by rank, the compute time of the step before.
    fn arrival(&self, loss_sum: &Tensor, correct: &Tensor, left_out: u64) -> Tensor {
        let number = |value: f64| Tensor::full([], value, (Kind::Double, self.accelerator.device()));
        let numbers: [Tensor; ARRIVAL_NUMBERS] = [
            number(f64::from(self.stop.load(Ordering::Relaxed))),
            loss_sum.isfinite().logical_not().to_kind(Kind::Double),
            loss_sum.shallow_clone(),
            correct.to_kind(Kind::Double),
            number(self.local_images() as f64),
            number(left_out as f64),
        ];
        let ranks = [i64::from(self.world.size)];
        let compute_seconds = Tensor::zeros(ranks, (Kind::Double, self.accelerator.device()));
        // In place on the device: copying it there would make the host wait.
        let _ = compute_seconds
            .get(i64::from(self.world.rank))
            .fill_(self.compute_seconds);
        Tensor::cat(&[Tensor::stack(&numbers, 0), compute_seconds], 0)
    }

    /// Images of a step that this rank takes.
    pub(super) fn local_images(&self) -> u64 {
        self.config.global_batch_size() / u64::from(self.world.size)
    }

    /// Learning rate of the next step.
    fn learning_rate(&self) -> f64 {
        let training = &self.config.training;
        let peak = training.peak_learning_rate(self.config.global_batch_size());
        learning_rate(&training.schedule, peak, training.epochs, self.span_of_step())
    }

    /// Where the next step lies in the run.
    fn span_of_step(&self) -> StepSpan {
        let epochs = |images: u64| f64::from(self.position.epoch) + images as f64 / self.train.len() as f64;
        let start = self.position.images_into_epoch;
        StepSpan {
            start: epochs(start),
            end: epochs(start + self.config.global_batch_size()),
        }
    }

    fn advance(&mut self, correct: u64, counted: u64) {
        self.position.step += 1;
        self.position.images_into_epoch += self.config.global_batch_size();
        self.position.correct += correct;
        self.position.counted += counted;
    }
}

/// Laps of wall-clock time.
struct Clock(Instant);

impl Clock {
    fn start() -> Self {
        Self(Instant::now())
    }

    /// Seconds since the last lap.
    fn lap(&mut self) -> f64 {
        let now = Instant::now();
        now.duration_since(std::mem::replace(&mut self.0, now))
            .as_secs_f64()
    }
}
