//! One optimizer step.

use std::sync::atomic::Ordering;

use tch::{Kind, Tensor};
use torch_ext::{Measurement, Readback};

use super::Trainer;
use super::arrival::Arrival;
use super::clock::StepClock;
use super::update::Verdict;
use crate::data::Batches;
use crate::error::TrainError;
use crate::evaluation;
use crate::metrics::{DeviceReport, StepReport, resident_bytes};
use crate::model::{DropSeed, Mode};
use crate::schedule::{StepSpan, learning_rate};

/// A step that has been launched: the device may still be computing it.
#[derive(Debug)]
pub(super) struct Launched {
    /// Where it is in the run.
    step: u64,
    epoch: u32,
    learning_rate: f64,
    verdict: Readback,
    /// Nothing where gradients were not averaged.
    measurement: Option<Measurement>,
    clock: StepClock,
}

/// What ranks agreed on in a step.
#[derive(Debug)]
pub(super) struct Settled {
    pub(super) stop: bool,
    /// Whether a checkpoint is to be taken after the step that follows.
    pub(super) save: bool,
    pub(super) report: StepReport,
}

impl Trainer {
    /// Launches an optimizer step over all ranks, and settles the one before: the host runs one step ahead of the device.
    pub(super) fn step(&mut self, batches: &mut Batches) -> Result<Option<Settled>, TrainError> {
        let mut clock = StepClock::start(self.accelerator.device())?;
        self.sync.begin()?;
        self.accumulate_gradients(batches, &mut clock)?;
        let (sums, measurement) = self.sync.finish()?;
        clock.backward()?;

        let learning_rate = self.learning_rate();
        let verdict = Readback::begin(&self.update_weights(learning_rate, &sums)?)?;
        self.position.step += 1;
        self.position.images_into_epoch += self.config.global_batch_size();
        clock.optimizer()?;

        let launched = Launched {
            step: self.position.step,
            epoch: self.position.epoch,
            learning_rate,
            verdict,
            measurement,
            clock,
        };
        let before = self.launched.replace(launched);
        before.map(|before| self.settle_step(before)).transpose()
    }

    /// Waits for the step that was launched last, where it has not been settled.
    pub(super) fn settle(&mut self) -> Result<Option<Settled>, TrainError> {
        let launched = self.launched.take();
        launched.map(|launched| self.settle_step(launched)).transpose()
    }

    /// Every rank has the same numbers and the same gradients, so every rank decides the same.
    fn settle_step(&mut self, launched: Launched) -> Result<Settled, TrainError> {
        let Launched { step, epoch, .. } = launched;
        let numbers = launched.verdict.wait()?;
        // What a device has computed without a peer is worth nothing.
        if let Some(rank) = self.lost.get() {
            let error = format!("step {step} (epoch {epoch}) was under way");
            return Err(TrainError::PeerLost { rank, error });
        }
        let verdict = Verdict::from_numbers(&numbers, self.position.loss_scale.is_some());
        self.require_finite(step, epoch, &verdict, self.position.loss_scale)?;
        let agreed = &verdict.agreed;
        self.data.train.readable().check(agreed.left_out)?;
        self.position.updates = verdict.updates;
        self.position.loss_scale = verdict.loss_scale.and_then(Result::ok);
        self.position.correct += agreed.correct;
        self.position.counted += agreed.images;

        let sync = launched.measurement.map(Measurement::times).transpose()?;
        let phases = launched.clock.end(&sync.unwrap_or_default())?;
        self.compute_seconds = phases.compute();
        if sync.is_some() {
            self.observer.compute_times(&agreed.compute_seconds);
        }
        let report = StepReport {
            step,
            epoch,
            images: self.images_per_rank(),
            phases,
            sync: sync.unwrap_or_default(),
            loss: agreed.loss,
            train_accuracy: self.position.correct as f64 / self.position.counted as f64,
            learning_rate: launched.learning_rate,
            loss_scale: self.position.loss_scale.map(|scale| scale.scale),
            skipped_steps: self.position.loss_scale.map_or(0, |scale| scale.skipped),
            resident_bytes: resident_bytes(),
            device: self.device_report()?,
        };
        self.observer.step(&report);
        Ok(Settled {
            stop: agreed.stop,
            save: agreed.save,
            report,
        })
    }

    /// Adds up the gradients of this rank's micro-batches. Those of the last one are averaged over the ranks as soon as they
    /// are ready.
    fn accumulate_gradients(
        &mut self,
        batches: &mut Batches,
        clock: &mut StepClock,
    ) -> Result<(), TrainError> {
        self.trained.weights.zero_gradients()?;
        let mut loss_sum = Tensor::zeros([], (Kind::Double, self.accelerator.device()));
        let mut correct = Tensor::zeros([], (Kind::Int64, self.accelerator.device()));
        let micro_batches = self.config.training.gradient_accumulation_steps;
        let last = micro_batches - 1;
        for index in 0..micro_batches {
            let batch = batches.next()?.expect("the epoch's order holds this step");
            clock.data()?;

            let mode = Mode::Train(self.drop_seed(index));
            let logits = self.trained.forward(&batch.images, mode)?;
            let loss = batch.loss(&logits, self.config.training.label_smoothing)?;
            let images = f64::from(self.config.training.micro_batch_size);
            loss_sum += loss.detach().to_kind(Kind::Double) * images;
            correct += evaluation::correct(&logits, &batch.labels)?;
            clock.forward()?;

            if index == last {
                let arrival = Arrival {
                    stop: self.stop.load(Ordering::Relaxed),
                    save: self.save_is_due_after(self.position.step + 2)?,
                    loss_sum: loss_sum.shallow_clone(),
                    correct: correct.shallow_clone(),
                    images: self.local_images(),
                    left_out: batches.left_out(),
                    compute_seconds: self.compute_seconds,
                };
                self.sync.prepare(arrival.to_tensor(
                    (self.world.rank, self.world.size),
                    self.world.mesh.is_first_of_replica(),
                ))?;
            }
            self.updates.scaled(loss, micro_batches).f_backward()?;
            if index < last {
                clock.backward()?;
            }
        }
        Ok(())
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
            place: u64::from(self.world.mesh.data.rank) * self.local_images() + before,
        }
    }

    /// Images of a step that this rank takes, alone or together with others.
    pub(super) fn local_images(&self) -> u64 {
        self.config.global_batch_size() / u64::from(self.world.mesh.data.size)
    }

    /// This rank's part of the images of a step, where those that it takes together with others count once.
    pub(super) fn images_per_rank(&self) -> f64 {
        self.config.global_batch_size() as f64 / f64::from(self.world.size)
    }

    /// Learning rate of the next step.
    fn learning_rate(&self) -> f64 {
        let training = &self.config.training;
        let peak = training.peak_learning_rate(self.config.global_batch_size());
        learning_rate(&training.schedule, peak, training.epochs, self.span_of_step())
    }

    /// Where the next step lies in the run.
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
