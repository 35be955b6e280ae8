//! One optimizer step.

use std::sync::atomic::Ordering;

use tch::{Kind, Tensor};
use torch_ext::{Measurement, Readback};

use super::Trainer;
use super::clock::StepClock;
use super::rank_report::RankReport;
use super::update::StepResult;
use crate::data::Batches;
use crate::error::TrainError;
use crate::evaluation;
use crate::metrics::{DeviceReport, StepReport, resident_bytes};
use crate::model::{DropSeed, Mode};
use crate::schedule::{StepSpan, learning_rate};

/// A step that has been launched: the device may still be computing it.
#[derive(Debug)]
pub(super) struct LaunchedStep {
    /// Position in the run.
    step: u64,
    epoch: u32,
    learning_rate: f64,
    /// Images that this rank took, alone or with others, and the number of micro-batches.
    images: u64,
    micro_batches: u32,
    result: Readback,
    /// `None` if gradients were not averaged.
    measurement: Option<Measurement>,
    clock: StepClock,
}

/// The decisions of all ranks in a step.
#[derive(Debug)]
pub(super) struct SettledStep {
    pub(super) stop: bool,
    /// Whether a checkpoint is to be taken after the step that follows.
    pub(super) save: bool,
    pub(super) report: StepReport,
}

impl Trainer {
    /// Launches a step and settles the previous one: the host runs one step ahead of the device.
    pub(super) fn step(&mut self, batches: &mut Batches) -> Result<Option<SettledStep>, TrainError> {
        let mut clock = match &self.launched {
            Some(before) => before.clock.following()?,
            None => StepClock::start(self.accelerator.device())?,
        };
        self.sync.begin()?;
        let micro_batches = self.micro_batches();
        self.accumulate_gradients(&micro_batches, batches, &mut clock)?;
        let (sums, measurement) = self.sync.finish()?;
        clock.backward()?;

        let learning_rate = self.learning_rate();
        let result = Readback::begin(&self.update_weights(learning_rate, &sums)?)?;
        self.position.step += 1;
        self.position.images_into_epoch += self.config.global_batch_size();
        clock.optimizer()?;

        let launched = LaunchedStep {
            step: self.position.step,
            epoch: self.position.epoch,
            learning_rate,
            images: micro_batches.iter().sum(),
            micro_batches: u32::try_from(micro_batches.len()).expect("a rank's step has few"),
            result,
            measurement,
            clock,
        };
        let before = self.launched.replace(launched);
        before.map(|before| self.settle_step(before)).transpose()
    }

    /// Waits for the step launched last, if it is not settled.
    pub(super) fn settle(&mut self) -> Result<Option<SettledStep>, TrainError> {
        let launched = self.launched.take();
        launched.map(|launched| self.settle_step(launched)).transpose()
    }

    /// Every rank has the same numbers and the same gradients, so every rank decides the same.
    fn settle_step(&mut self, launched: LaunchedStep) -> Result<SettledStep, TrainError> {
        let LaunchedStep { step, epoch, .. } = launched;
        let numbers = launched.result.wait()?;
        // Results computed without a peer are invalid.
        if let Some(rank) = self.lost.get() {
            let error = format!("step {step} (epoch {epoch}) was running");
            return Err(TrainError::PeerLost { rank, error });
        }
        let result = StepResult::from_numbers(&numbers, self.position.loss_scale.is_some());
        self.require_finite(step, epoch, &result, self.position.loss_scale)?;
        let agreed = &result.agreed;
        self.data.train.readable().check(agreed.left_out)?;
        if agreed.images_differ {
            return Err(TrainError::DifferentImages);
        }
        self.position.updates = result.updates;
        self.position.loss_scale = result.loss_scale.and_then(Result::ok);
        self.position.correct += agreed.correct;
        self.position.counted += agreed.images;

        let sync = launched.measurement.map(Measurement::times).transpose()?;
        let phases = launched.clock.end(&sync.unwrap_or_default())?;
        // A rank without images has no compute time.
        self.compute_seconds = if launched.images > 0 {
            phases.compute()
        } else {
            0.0
        };
        if sync.is_some() {
            self.observer.compute_times(&agreed.compute_seconds);
            self.rebalance(step, &agreed.compute_seconds);
        }
        let report = StepReport {
            step,
            epoch,
            // Images shared with other ranks count once over all of them.
            images: launched.images as f64 / f64::from(self.config.parallelism.ranks_per_replica()),
            micro_batches: launched.micro_batches,
            phases,
            sync: sync.unwrap_or_default(),
            slowdown_seconds: 0.0,
            loss: agreed.loss,
            train_accuracy: self.position.correct as f64 / self.position.counted as f64,
            learning_rate: launched.learning_rate,
            loss_scale: self.position.loss_scale.map(|scale| scale.scale),
            skipped_steps: self.position.loss_scale.map_or(0, |scale| scale.skipped),
            resident_bytes: resident_bytes(),
            device: self.device_report()?,
        };
        self.observer.step(&report);
        Ok(SettledStep {
            stop: agreed.stop,
            save: agreed.save,
            report,
        })
    }

    /// Sums the gradients of this rank's micro-batches. Those of the last one are averaged over the
    /// ranks as soon as they are ready.
    fn accumulate_gradients(
        &mut self,
        micro_batches: &[u64],
        batches: &mut Batches,
        clock: &mut StepClock,
    ) -> Result<(), TrainError> {
        self.trained.weights.zero_gradients()?;
        let mut loss_sum = Tensor::zeros([], (Kind::Double, self.accelerator.device()));
        let mut correct = Tensor::zeros([], (Kind::Int64, self.accelerator.device()));
        let local_images = micro_batches.iter().sum();
        let mut done = 0;
        let mut digest = crc32fast::Hasher::new();
        for (index, images) in micro_batches.iter().copied().enumerate() {
            let is_last = index + 1 == micro_batches.len();
            let batch = self.batch_of(images, batches)?;
            digest.update(&batch.digest.to_le_bytes());
            clock.data()?;

            let mode = Mode::Train(self.drop_seed(done));
            done += images;
            let logits = self
                .slowdown
                .around(images, || self.trained.forward(&batch.images, mode))?;
            let loss = batch.loss(&logits, self.config.training.label_smoothing)?;
            loss_sum += loss.detach().to_kind(Kind::Double) * images as f64;
            if images > 0 {
                correct += evaluation::correct(&logits, &batch.labels)?;
            }
            clock.forward()?;

            if is_last {
                let report = RankReport {
                    stop: self.stop.load(Ordering::Relaxed),
                    save: self.save_is_due_after(self.position.step + 2)?,
                    loss_sum: loss_sum.shallow_clone(),
                    correct: correct.shallow_clone(),
                    images: local_images,
                    left_out: self.left_out(batches),
                    disagreement: self.world.mesh.disagreement(digest.clone().finalize()),
                    compute_seconds: self.compute_seconds,
                };
                self.sync.prepare(report.to_tensor(
                    (self.world.rank, self.world.size),
                    self.world.mesh.is_first_of_replica(),
                ))?;
            }
            self.updates
                .scaled(loss, self.parts_of_mean(images))
                .f_backward()?;
            if !is_last {
                self.trained.weights.sum_gradients(index, micro_batches.len())?;
                clock.backward()?;
            }
        }
        Ok(())
    }

    /// The state of this rank's GPU; `None` on the CPU.
    fn device_report(&self) -> Result<Option<DeviceReport>, TrainError> {
        let memory_peak_bytes = self.accelerator.peak_bytes()?;
        Ok(memory_peak_bytes.map(|memory_peak_bytes| DeviceReport {
            memory_peak_bytes,
            peak_flops: self.gpu.as_ref().and_then(|gpu| gpu.peak_flops),
            reading: self.gpu.as_ref().and_then(|gpu| gpu.monitor.newest()),
        }))
    }

    /// Seeds the branches that images drop after `done` earlier images of this rank in this step.
    fn drop_seed(&self, done: u64) -> DropSeed {
        DropSeed {
            seed: self.config.training.seed,
            step: self.position.step,
            place: self.shares().before(self.world.mesh.data.rank) + done,
        }
    }

    /// Divisor for the mean loss of `images` images. Summed over the micro-batches of a replica and
    /// averaged over replicas, the quotients give the mean loss of the step.
    fn parts_of_mean(&self, images: u64) -> f64 {
        let weight = images.max(1) * u64::from(self.world.mesh.data.size);
        self.config.global_batch_size() as f64 / weight as f64
    }

    /// Learning rate of the next step.
    fn learning_rate(&self) -> f64 {
        let training = &self.config.training;
        let peak = training.peak_learning_rate(self.config.global_batch_size());
        learning_rate(&training.schedule, peak, training.epochs, self.span_of_step())
    }

    /// Position of the next step in the run.
    fn span_of_step(&self) -> StepSpan {
        let epochs =
            |images: u64| f64::from(self.position.epoch) + images as f64 / self.data.train.len() as f64;
        let start = self.position.images_into_epoch;
        StepSpan {
            start: epochs(start),
            end: epochs(start + self.config.global_batch_size()),
        }
    }
}
