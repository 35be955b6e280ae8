//! One optimizer step.

use std::sync::atomic::Ordering;

use tch::{Kind, Tensor};
use torch_ext::SyncTimes;
use torch_ext::optim::zero;

use super::Trainer;
use super::arrival::{Agreed, Arrival};
use super::clock::StepClock;
use crate::data::Batches;
use crate::error::TrainError;
use crate::evaluation;
use crate::metrics::{DeviceReport, Phases, StepReport, resident_bytes};
use crate::model::{DropSeed, Mode};
use crate::schedule::{StepSpan, learning_rate};

impl Trainer {
    /// One optimizer step over all ranks. Whether to stop after it.
    pub(super) fn step(&mut self, batches: &mut Batches) -> Result<bool, TrainError> {
        let mut clock = StepClock::start();
        let own_loss = self.accumulate_gradients(batches, &mut clock)?;
        let agreed = Agreed::from_sums(&self.sync.finish()?);
        clock.backward();

        // Every rank has the same numbers and the same gradients, so every rank decides the same.
        self.require_finite_loss(&own_loss, &agreed)?;
        self.data.train.readable().check(agreed.left_out)?;
        let learning_rate = self.learning_rate();
        self.update_weights(learning_rate, agreed.loss)?;
        self.advance(&agreed);
        clock.optimizer();

        // After the update, beside which the ranks have compared their times.
        let sync = self.sync.times()?;
        let phases = clock.end(&sync);
        self.compute_seconds = phases.compute();
        self.report(&agreed, learning_rate, phases, sync)?;
        Ok(agreed.stop)
    }

    /// Adds up the gradients of this rank's micro-batches. Those of the last one are averaged over the ranks as soon as they
    /// are ready. Gives the sum of the images' losses.
    fn accumulate_gradients(
        &mut self,
        batches: &mut Batches,
        clock: &mut StepClock,
    ) -> Result<Tensor, TrainError> {
        zero(&self.trained.weights.raw_gradients())?;
        let mut loss_sum = Tensor::zeros([], (Kind::Double, self.accelerator.device()));
        let mut correct = Tensor::zeros([], (Kind::Int64, self.accelerator.device()));
        let last = self.config.training.gradient_accumulation_steps - 1;
        for index in 0..=last {
            let batch = batches.next()?.expect("the epoch's order holds this step");
            clock.data();

            let mode = Mode::Train(self.drop_seed(index));
            let logits = self.trained.forward(&batch.images, mode)?;
            let loss = batch.loss(&logits, self.config.training.label_smoothing)?;
            let images = f64::from(self.config.training.micro_batch_size);
            loss_sum += loss.detach().to_kind(Kind::Double) * images;
            correct += evaluation::correct(&logits, &batch.labels)?;
            clock.forward();

            if index == last {
                let arrival = Arrival {
                    stop: self.stop.load(Ordering::Relaxed),
                    loss_sum: loss_sum.shallow_clone(),
                    correct: correct.shallow_clone(),
                    images: self.local_images(),
                    left_out: batches.left_out(),
                    compute_seconds: self.compute_seconds,
                };
                self.sync
                    .prepare(arrival.to_tensor(self.world.rank, self.world.size))?;
            }
            (loss * self.loss_factor()).f_backward()?;
            if index < last {
                clock.backward();
            }
        }
        Ok(loss_sum)
    }

    fn report(
        &mut self,
        agreed: &Agreed,
        learning_rate: f64,
        phases: Phases,
        sync: SyncTimes,
    ) -> Result<(), TrainError> {
        if self.sync.is_on {
            self.observer.compute_times(&agreed.compute_seconds);
        }
        self.observer.step(&StepReport {
            step: self.position.step,
            epoch: self.position.epoch,
            images: self.local_images(),
            phases,
            sync,
            loss: agreed.loss,
            train_accuracy: self.position.correct as f64 / self.position.counted as f64,
            learning_rate,
            loss_scale: self.position.loss_scale.map(|scale| scale.scale),
            skipped_steps: self.position.loss_scale.map_or(0, |scale| scale.skipped),
            resident_bytes: resident_bytes(),
            device: self.device_report()?,
        });
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
            place: u64::from(self.world.rank) * self.local_images() + before,
        }
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
        let epochs =
            |images: u64| f64::from(self.position.epoch) + images as f64 / self.data.train.len() as f64;
        let start = self.position.images_into_epoch;
        StepSpan {
            start: epochs(start),
            end: epochs(start + self.config.global_batch_size()),
        }
    }

    fn advance(&mut self, agreed: &Agreed) {
        self.position.step += 1;
        self.position.images_into_epoch += self.config.global_batch_size();
        self.position.correct += agreed.correct;
        self.position.counted += agreed.images;
    }
}
