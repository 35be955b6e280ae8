//! The training loop of one rank.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use contract::RunConfig;
use tch::{Kind, Reduction, Tensor};
use torch_ext::Reducer;
use torch_ext::optim::{global_norm, scale, zero};

use crate::checkpoint::{CheckpointFolder, Position, State};
use crate::data::{DataError, Dataset, EpochOrder};
use crate::distributed::{Accelerator, Place, World};
use crate::error::TrainError;
use crate::evaluate::evaluate;
use crate::metrics::{Observer, Phases, RunShape, StepReport, resident_bytes};
use crate::model::VisionTransformer;
use crate::optim::AdamW;
use crate::rank::Reporter;
use crate::resume::{named, restore, share_start, total_steps};
use crate::schedule::{StepSpan, learning_rate};

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
    train: Dataset,
    validation: Option<Dataset>,
    model: VisionTransformer,
    parameters: Vec<Tensor>,
    optimizer: AdamW,
    reducer: Reducer,
    /// Only rank 0 touches storage.
    checkpoints: Option<CheckpointFolder>,
    position: Position,
    validation_accuracy: Option<f64>,
    observer: Observer,
    stop: Arc<AtomicBool>,
}

/// What a step adds up over the ranks while gradients are reduced. All ranks then know the same, so that all take the
/// same decisions, and no step needs another collective.
const ARRIVAL_NUMBERS: usize = 5;

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
        let splits = crate::data::load(&config.data, &config.model, config.training.seed)?;
        let (images, global_batch_size) = (splits.train.len(), config.global_batch_size());
        if images < global_batch_size {
            return Err(DataError::TooSmall {
                images,
                global_batch_size,
            }
            .into());
        }

        let world = World::join(place, accelerator)?;
        let model = VisionTransformer::new(&config.model, config.training.seed, device);
        let parameters = model.parameters().tensors();
        let mut optimizer = AdamW::new(&config.training.optimizer, model.parameters());

        let checkpoints = world
            .is_first()
            .then(|| CheckpointFolder::open(&config.checkpoint.path, config.checkpoint.keep))
            .transpose()?;
        let restored = match &checkpoints {
            Some(folder) => restore(folder, &config, place.attempt, &model, &optimizer)?,
            None => None,
        };
        let position = share_start(&world, restored.as_ref(), &parameters, &optimizer)?;
        optimizer.continue_after(position.step);

        let reducer = world.reducer(&parameters, config.parallelism.bucket_megabytes)?;
        let shape = RunShape {
            attempt: place.attempt,
            total_epochs: config.training.epochs,
            total_steps: total_steps(position, config.training.epochs, images, global_batch_size),
            world_size: world.size,
            global_batch_size,
            train_images: images,
        };
        let validation_accuracy = restored.as_ref().and_then(|(state, _)| state.validation_accuracy);
        let observer = Observer::new(
            shape,
            reporter,
            checkpoints.is_some().then_some(config.checkpoint.path.as_path()),
            position,
            validation_accuracy,
            restored.as_ref().map(|(_, path)| path.as_path()),
        )
        .map_err(crate::checkpoint::CheckpointError::Folder)?;
        let mut trainer = Self {
            train: splits.train.to_device(device),
            validation: splits.validation.map(|data| data.to_device(device)),
            config,
            world,
            accelerator,
            model,
            parameters,
            optimizer,
            reducer,
            checkpoints,
            position,
            validation_accuracy,
            observer,
            stop,
        };
        trainer.warm_up()?;
        Ok(trainer)
    }

    /// Trains to the last epoch, or until told to stop.
    pub(crate) fn train(&mut self) -> Result<Outcome, TrainError> {
        while self.position.epoch < self.config.training.epochs {
            if self.train_epoch()? {
                self.save()?;
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
            self.save()?;
            if stop && self.position.epoch < self.config.training.epochs {
                return Ok(Outcome::Stopped);
            }
        }
        Ok(Outcome::Done)
    }

    /// The steps that are left of the running epoch. Whether to stop.
    fn train_epoch(&mut self) -> Result<bool, TrainError> {
        let images = self.train.len();
        let batch = self.config.global_batch_size();
        let order = EpochOrder::new(self.config.training.seed, self.position.epoch, images);
        while self.position.images_into_epoch + batch <= images {
            if self.step(&order)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// One optimizer step over all ranks. Whether to stop after it.
    fn step(&mut self, order: &EpochOrder) -> Result<bool, TrainError> {
        let training = self.config.training.clone();
        let mut clock = Clock::start();
        let mut phases = Phases::default();

        let places = self.places_of_step();
        let indices = order.slice(places);
        zero(&self.gradients())?;
        let mut loss_sum = Tensor::zeros([], (Kind::Double, self.accelerator.device()));
        let mut correct = Tensor::zeros([], (Kind::Int64, self.accelerator.device()));
        let micro_batches = indices.chunks(training.micro_batch_size as usize);
        let last = micro_batches.len() - 1;
        for (index, indices) in micro_batches.enumerate() {
            let (images, labels) = self.train.batch(indices, self.config.model.image_size);
            phases.data += clock.lap();

            let logits = self.model.forward(&images);
            let loss = logits.f_cross_entropy_loss(
                &labels,
                None::<&Tensor>,
                Reduction::Mean,
                -100,
                training.label_smoothing,
            )?;
            loss_sum += loss.detach().to_kind(Kind::Double) * indices.len() as f64;
            correct += logits.argmax(1, false).eq_tensor(&labels).sum(Kind::Int64);
            phases.forward += clock.lap();

            if index == last {
                self.reducer
                    .prepare(&self.arrival(&loss_sum, &correct, self.local_images()))?;
            }
            (loss / f64::from(training.gradient_accumulation_steps)).f_backward()?;
            if index < last {
                phases.backward += clock.lap();
            }
        }
        let ([stop_requests, not_finite, loss_sum, correct, counted], sync) = self.reducer.finish()?;
        phases.sync_exposed = sync.exposed;
        phases.sync_straggler = sync.straggler;
        phases.backward += (clock.lap() - sync.exposed - sync.straggler).max(0.0);

        // Every rank has the same numbers and the same gradients, so every rank decides the same.
        let step = self.position.step + 1;
        let epoch = self.position.epoch;
        let loss = loss_sum / counted;
        if not_finite > 0.0 || !loss.is_finite() {
            return Err(TrainError::LossNotFinite { step, epoch, loss });
        }
        let gradients = self.gradients();
        let norm = global_norm(&gradients)?;
        if !norm.is_finite() {
            return Err(TrainError::GradientNotFinite {
                step,
                epoch,
                norm,
                loss,
            });
        }
        if let Some(limit) = training.clip_grad_norm
            && norm > limit
        {
            scale(&gradients, limit / norm)?;
        }
        let rate = learning_rate(
            &training.schedule,
            training.optimizer.learning_rate,
            training.epochs,
            self.span_of_step(),
        );
        self.optimizer.step(rate)?;
        self.advance(correct as u64, counted as u64);
        phases.optimizer = clock.lap();

        self.observer.step(&StepReport {
            step,
            epoch,
            images: self.local_images(),
            phases,
            sync: sync.into(),
            loss,
            train_accuracy: self.position.correct as f64 / self.position.counted as f64,
            learning_rate: rate,
            resident_bytes: resident_bytes(),
        });
        Ok(stop_requests > 0.0)
    }

    /// Numbers for the arrival all-reduce: stop requests, ranks whose loss is not finite, sum of losses, images
    /// classified right, images.
    fn arrival(&self, loss_sum: &Tensor, correct: &Tensor, images: u64) -> Tensor {
        let number = |value: f64| Tensor::full([], value, (Kind::Double, self.accelerator.device()));
        let numbers: [Tensor; ARRIVAL_NUMBERS] = [
            number(f64::from(self.stop.load(Ordering::Relaxed))),
            loss_sum.isfinite().logical_not().to_kind(Kind::Double),
            loss_sum.shallow_clone(),
            correct.to_kind(Kind::Double),
            number(images as f64),
        ];
        Tensor::stack(&numbers, 0)
    }

    /// Images of a step that this rank takes.
    fn local_images(&self) -> u64 {
        self.config.global_batch_size() / u64::from(self.world.size)
    }

    /// Places in the epoch's order of this rank's images of the next step.
    fn places_of_step(&self) -> Range<u64> {
        let start = self.position.images_into_epoch + u64::from(self.world.rank) * self.local_images();
        start..start + self.local_images()
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

    fn gradients(&self) -> Vec<Tensor> {
        self.parameters.iter().map(Tensor::grad).collect()
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
            let arrival = Tensor::zeros([ARRIVAL_NUMBERS as i64], (Kind::Double, tch::Device::Cpu));
            self.reducer.prepare(&arrival)?;
            self.model.forward(&images).sum(Kind::Float).f_backward()?;
            self.reducer.finish::<ARRIVAL_NUMBERS>()?;
        }
        Ok(())
    }

    /// Accuracy on the held-out images. Whether some rank was told to stop meanwhile.
    fn evaluate(&mut self) -> Result<bool, TrainError> {
        let Some(data) = &self.validation else {
            return Ok(false);
        };
        let start = Instant::now();
        let counts = evaluate(
            &self.world,
            &self.model,
            data,
            self.config.model.image_size,
            self.config.training.micro_batch_size,
            self.stop.load(Ordering::Relaxed),
        )?;
        self.validation_accuracy = Some(counts.correct as f64 / counts.counted as f64);
        self.observer.evaluation(self.position, counts, start.elapsed());
        Ok(counts.stop_requests > 0)
    }

    /// Writes a checkpoint on rank 0; every rank returns once it is complete.
    fn save(&mut self) -> Result<(), TrainError> {
        if let Some(folder) = &self.checkpoints {
            let start = Instant::now();
            let state = State::new(self.position, self.config.model.clone(), self.validation_accuracy);
            let path = folder.save(&state, &named(&self.model), &self.optimizer.state())?;
            self.observer.checkpoint(self.position, &path, start.elapsed());
        }
        self.world.barrier()
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
