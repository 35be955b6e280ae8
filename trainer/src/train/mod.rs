//! The training loop of one rank.

mod bench;
mod saving;
mod step;
mod update;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use contract::{Activity, RunConfig};
use tch::{Kind, Tensor};
use torch_ext::Reducer;

use crate::checkpoint::{CheckpointFolder, Owner, Position};
use crate::data::{Batches, DataError, DataSet, Share};
use crate::distributed::{Accelerator, Place, World};
use crate::error::TrainError;
use crate::evaluate::evaluate;
use crate::flops;
use crate::metrics::{Observer, RunShape};
use crate::model::{DropSeed, Mode, VisionTransformer};
use crate::optim::{Average, Optimizer};
use crate::precision::{Precision, TrainedWeights};
use crate::rank::Reporter;
use crate::resume::{Tensors, restore, share_start, start_from_pretrained, total_steps};
use saving::Saver;

/// How training ended well.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Outcome {
    /// All epochs are done.
    Done,
    /// Told to stop, and saved.
    Stopped,
}

/// Everything one rank trains with.
#[derive(Debug)]
pub(crate) struct Trainer {
    config: RunConfig,
    world: World,
    accelerator: Accelerator,
    train: DataSet,
    validation: Option<DataSet>,
    model: VisionTransformer,
    precision: Precision,
    weights: TrainedWeights,
    optimizer: Optimizer,
    average: Option<Average>,
    reducer: Reducer,
    /// Only rank 0 touches storage.
    saver: Option<Saver>,
    position: Position,
    validation_accuracy: Option<f64>,
    observer: Observer,
    stop: Arc<AtomicBool>,
    /// What the last step took this rank, without waiting for others.
    compute_seconds: f64,
    /// Dense bf16 peak of this rank's GPU, FLOP/s, where its product is known.
    peak_flops: Option<f64>,
    /// Whether steps reduce gradients over the ranks; always but in measurements of what that costs.
    synchronize: bool,
}

impl Trainer {
    /// Loads the data, meets the other ranks, and gives all of them rank 0's weights: random ones, or those of the
    /// newest checkpoint. Training from here on reacts to `stop`.
    pub(crate) fn new(
        config: RunConfig,
        place: &Place,
        reporter: Reporter,
        stop: Arc<AtomicBool>,
    ) -> Result<Self, TrainError> {
        let accelerator = Accelerator::find(config.device, place.local_rank)?;
        let device = accelerator.device();
        // Before meeting the others: what is wrong with the data is this rank's own error, not a peer's.
        let splits = crate::data::load(&config, device)?;
        let (images, global_batch_size) = (splits.train.len(), config.global_batch_size());
        if images < global_batch_size {
            return Err(DataError::TooSmall {
                images,
                global_batch_size,
            }
            .into());
        }

        let world = World::join(place, accelerator)?;
        let mut model = VisionTransformer::new(&config.model, config.training.seed, device);
        model.checkpoint_activations(config.training.activation_checkpointing);
        if world.is_first() {
            start_from_pretrained(&config, &model)?;
        }
        let precision = Precision::new(&config.training);
        let weights = TrainedWeights::new(model.parameters(), precision);
        let optimizer = Optimizer::new(&config.training, model.parameters(), &weights);
        let average = config
            .training
            .ema
            .map(|ema| Average::new(ema, &config.model, device));

        let tensors = Tensors::of(&weights, &optimizer, average.as_ref());
        let checkpoints = world
            .is_first()
            .then(|| {
                let owner = Owner::new(config.job.uid.clone(), place.attempt);
                CheckpointFolder::open(&config.checkpoint.path, config.checkpoint.keep, owner)
            })
            .transpose()?;
        let restored = match &checkpoints {
            Some(folder) => restore(folder, &config, &tensors)?,
            None => None,
        };
        let position = share_start(&world, restored.as_ref(), &config.training, &weights, &tensors)?;

        let saver =
            checkpoints.map(|folder| Saver::new(folder, &config.checkpoint, position, restored.is_some()));
        let reducer = world.reducer(weights.model(), &config.parallelism)?;
        let shape = RunShape {
            attempt: place.attempt,
            total_epochs: config.training.epochs,
            total_steps: total_steps(position, config.training.epochs, images, global_batch_size),
            world_size: world.size,
            global_batch_size,
            train_images: images,
            wall_clock_breakdown: config
                .training
                .wall_clock_breakdown
                .then_some(config.training.gradient_accumulation_steps),
        };
        let validation_accuracy = restored.as_ref().and_then(|(state, _)| state.validation_accuracy);
        let observer = Observer::new(
            shape,
            reporter,
            saver.is_some().then_some(config.checkpoint.path.as_path()),
            position,
            validation_accuracy,
            restored.as_ref().map(|(_, path)| path.as_path()),
        )
        .map_err(crate::checkpoint::CheckpointError::Folder)?;
        let mut trainer = Self {
            train: splits.train,
            validation: splits.validation,
            config,
            world,
            accelerator,
            model,
            precision,
            weights,
            optimizer,
            average,
            reducer,
            saver,
            position,
            validation_accuracy,
            observer,
            stop,
            compute_seconds: 0.0,
            peak_flops: accelerator.product().as_deref().and_then(flops::peak),
            synchronize: true,
        };
        trainer.warm_up()?;
        Ok(trainer)
    }

    /// Trains to the last epoch, or until told to stop.
    pub(crate) fn train(&mut self) -> Result<Outcome, TrainError> {
        let outcome = self.train_epochs();
        if outcome.is_err() {
            self.finish_save_after_failure();
        }
        outcome
    }

    fn train_epochs(&mut self) -> Result<Outcome, TrainError> {
        while self.position.epoch < self.config.training.epochs {
            if self.train_epoch()? {
                self.save_and_wait()?;
                return Ok(Outcome::Stopped);
            }
            self.position = Position {
                epoch: self.position.epoch + 1,
                images_into_epoch: 0,
                correct: 0,
                counted: 0,
                ..self.position
            };
            let stop = self.evaluate()?;
            self.begin_save_together()?;
            if stop && self.position.epoch < self.config.training.epochs {
                self.save_and_wait()?;
                return Ok(Outcome::Stopped);
            }
        }
        self.save_and_wait()?;
        Ok(Outcome::Done)
    }

    /// The steps that are left of the running epoch. Whether to stop.
    fn train_epoch(&mut self) -> Result<bool, TrainError> {
        let mut batches = self.rest_of_epoch()?;
        while self.epoch_has_a_step() {
            if self.step(&mut batches)? {
                return Ok(true);
            }
            // The end of the epoch has a checkpoint of its own, after the evaluation.
            if self.epoch_has_a_step() {
                self.save_if_due()?;
            }
        }
        Ok(false)
    }

    /// Whether the running epoch has images for another step.
    fn epoch_has_a_step(&self) -> bool {
        self.position.images_into_epoch + self.config.global_batch_size() <= self.train.len()
    }

    /// This rank's micro-batches of what is left of the running epoch.
    fn rest_of_epoch(&self) -> Result<Batches, TrainError> {
        let share = Share {
            rank: self.world.rank,
            ranks: self.world.size,
            micro_batch: self.config.training.micro_batch_size,
            accumulation: self.config.training.gradient_accumulation_steps,
        };
        let Position {
            epoch,
            images_into_epoch,
            ..
        } = self.position;
        Ok(self.train.training(epoch, images_into_epoch, share)?)
    }

    /// Two passes over blank images, whose gradients are thrown away. After the first, the reducer rebuilds its
    /// buckets in the order in which gradients become ready; were that left to the first real step, a resumed run
    /// would add up that step's gradients in another order than the uninterrupted one.
    fn warm_up(&mut self) -> Result<(), TrainError> {
        let model = &self.config.model;
        // Two images: the sum over a batch of one is a view, of which the reducer warns.
        let shape = [2, model.channels, model.image_size, model.image_size].map(i64::from);
        let images = Tensor::zeros(shape, (Kind::Float, self.accelerator.device()));
        for _ in 0..2 {
            let arrival = Tensor::zeros([1], (Kind::Double, tch::Device::Cpu));
            self.reducer.prepare(&arrival)?;
            let mode = Mode::Train(DropSeed::default());
            let logits = self.precision.forward(&self.model, &images, mode)?;
            logits.sum(Kind::Float).f_backward()?;
            self.reducer.finish()?;
        }
        Ok(())
    }

    /// Accuracy on the held-out images. Whether some rank was told to stop meanwhile.
    fn evaluate(&mut self) -> Result<bool, TrainError> {
        let Some(data) = &self.validation else {
            return Ok(false);
        };
        self.observer.turn_to(Activity::Evaluating);
        let start = Instant::now();
        let evaluate = |model, precision, stop| {
            let training = &self.config.training;
            let batch_size = training.micro_batch_size;
            evaluate(&self.world, model, precision, data, batch_size, stop, || {
                self.observer.turn_to(Activity::Evaluating);
            })
        };
        let stop = self.stop.load(Ordering::Relaxed);
        let counts = evaluate(&self.model, self.precision, stop)?;
        let of_average = match &self.average {
            Some(average) => Some(evaluate(
                average.model(),
                self.precision.of_full_weights(),
                false,
            )?),
            None => None,
        };
        self.validation_accuracy = Some(counts.accuracy());
        self.observer
            .evaluation(self.position, counts, of_average, start.elapsed());
        self.observer.turn_to(Activity::Training);
        Ok(counts.stop_requests > 0)
    }
}
