//! The training loop of one rank.

mod balance;
mod clock;
mod measure;
mod parallelize;
mod plan;
mod rank_report;
mod saving;
mod shares;
mod start;
mod step;
mod sync;
mod trained;
mod update;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use contract::gpu::peak_flops;
use contract::{Activity, RunConfig};
use torch_ext::{FlightRecorder, GpuIdentity, Member};

use crate::checkpoint::{CheckpointError, Position, Validation};
use crate::data::{Batches, DataIdentity, Splits};
use crate::distributed::{Accelerator, LostPeer, Place, World, rendezvous_timeout};
use crate::error::TrainError;
use crate::evaluation::{Parts, evaluate};
use crate::gpu::GpuMonitor;
use crate::metrics::{Observer, Report, Reporter, RunShape};
use crate::slowdown::Slowdown;
use balance::{Balancer, Shares};
use saving::Saver;
use start::{Start, total_steps};
use step::LaunchedStep;
use sync::StepSync;
use trained::Trained;
use update::Updates;

pub(crate) use plan::{Distribution, Plan, RankResult};

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Outcome {
    Done,
    /// Told to stop; the state is saved.
    Stopped,
}

#[derive(Debug)]
pub(crate) struct Trainer {
    config: RunConfig,
    world: World,
    accelerator: Accelerator,
    data: Splits,
    data_identity: DataIdentity,
    trained: Trained,
    sync: StepSync,
    updates: Updates,
    /// The step launched last, until it is settled.
    launched: Option<LaunchedStep>,
    /// How many ranks write checkpoints; the saver of this rank if it is one of them.
    writers: u32,
    saver: Option<Saver>,
    position: Position,
    /// Position of the newest snapshot, or of the checkpoint that training continued from.
    saved: Option<Position>,
    validation: Validation,
    observer: Observer,
    stop: Arc<AtomicBool>,
    lost: LostPeer,
    /// Compute time of this rank in the step settled last, without waiting for others.
    compute_seconds: f64,
    /// Equal shares of a step.
    even: Shares,
    /// Sets other shares, if they depend on the speed of ranks.
    balancer: Option<Balancer>,
    /// Whether shares changed since the current batches were made.
    shares_changed: bool,
    /// Images skipped in this epoch before the current batches.
    left_out: u64,
    slowdown: Slowdown,
    gpu: Option<Gpu>,
}

/// This rank's GPU.
#[derive(Debug)]
struct Gpu {
    /// Dense half-precision peak, FLOP/s, if the product is known.
    peak_flops: Option<f64>,
    monitor: GpuMonitor,
}

impl Gpu {
    fn new(identity: &GpuIdentity) -> Result<Self, TrainError> {
        Ok(Self {
            peak_flops: peak_flops(&identity.product),
            monitor: GpuMonitor::start(identity.uuid).map_err(TrainError::system(
                "failed to start a thread that reads the GPU's load",
            ))?,
        })
    }
}

impl Trainer {
    /// Loads the data, connects to the other ranks, and gives all of them rank 0's weights: random
    /// ones, or those of the newest checkpoint. Training reacts to `stop` from here on.
    pub(crate) fn new(
        config: RunConfig,
        place: &Place,
        reporter: Reporter,
        stop: Arc<AtomicBool>,
        lost: &LostPeer,
    ) -> Result<Self, TrainError> {
        let accelerator = Accelerator::find(config.device, place.local_rank)?;
        let device = accelerator.device();
        // Before connecting: bad data is this rank's own error, not a lost peer.
        let data = crate::data::load(&config, device)?;
        data.require_a_step(config.global_batch_size())?;
        if place.rank == 0 {
            data.tell_passed_over();
        }

        let to_agent = reporter.clone();
        let tell = move |peer| to_agent.send(&Report::LostPeer { peer });
        let world = World::join(
            place,
            (&config.parallelism, config.ranks_per_node),
            accelerator,
            rendezvous_timeout(&config.data),
            lost,
            tell,
        )?;
        let data_identity = data.identity();
        require_same_data(&world, &data_identity)?;
        let (trained, sync) = Trained::new(&config, device, &world)?;
        let start = Start::find(&world, &config, place.attempt, (&trained, &data_identity), lost)?;
        let identity = accelerator.identity()?;
        let observer = observer(
            &config,
            (place.attempt, place.rank),
            (data.train.len(), identity.as_ref().map(|gpu| gpu.product.clone())),
            &start,
            reporter,
        )?;
        let mut trainer = Self {
            even: Shares::even(config.global_batch_size(), world.mesh.data.size),
            balancer: None,
            shares_changed: false,
            left_out: 0,
            slowdown: Slowdown::from_environment(place.rank, apart(&world, &config), device)?,
            config,
            world,
            accelerator,
            data,
            data_identity,
            trained,
            sync,
            updates: Updates::new(&start.position, device),
            launched: None,
            writers: start.writers,
            saver: start.saver,
            position: start.position,
            saved: start.is_restored.then_some(start.position),
            validation: start.validation,
            observer,
            stop,
            lost: lost.clone(),
            compute_seconds: 0.0,
            gpu: identity.as_ref().map(Gpu::new).transpose()?,
        };
        trainer.warm_up()?;
        trainer.accelerator.use_own_kernels();
        Ok(trainer)
    }

    /// The recorder of the collectives of this rank's groups, each of which has run one.
    pub(crate) fn flight_recorder(&self) -> FlightRecorder {
        self.accelerator.flight_recorder()
    }

    /// Trains to the last epoch, or until told to stop.
    pub(crate) fn train(&mut self) -> Result<Outcome, TrainError> {
        let outcome = self.train_epochs();
        if outcome.is_err() {
            self.finish_save_after_failure();
        }
        outcome
    }

    /// All ranks have finished: the end of this one is not a lost peer.
    pub(crate) fn leave(&mut self) {
        self.world.leave();
    }

    fn train_epochs(&mut self) -> Result<Outcome, TrainError> {
        let mut batches = None;
        while self.has_an_epoch() {
            let stop = self.train_epoch(batches)?;
            self.observer.epoch_ends();
            if stop {
                self.save_and_wait()?;
                return Ok(Outcome::Stopped);
            }
            let end_of_epoch = self.position;
            self.position = Position {
                epoch: self.position.epoch + 1,
                images_into_epoch: 0,
                correct: 0,
                counted: 0,
                ..self.position
            };
            // Its first images are read during the evaluation.
            batches = self.has_an_epoch().then(|| self.rest_of_epoch()).transpose()?;
            if !self.evaluate()? {
                // The next attempt begins with this evaluation.
                self.position = end_of_epoch;
                self.save_and_wait()?;
                return Ok(Outcome::Stopped);
            }
            self.begin_save_together()?;
        }
        self.save_and_wait()?;
        Ok(Outcome::Done)
    }

    fn has_an_epoch(&self) -> bool {
        self.position.epoch < self.config.training.epochs
    }

    /// The remaining steps of the running epoch, with `batches` if they are being prepared already.
    /// All steps are settled at the end. Returns whether to stop.
    fn train_epoch(&mut self, batches: Option<Batches>) -> Result<bool, TrainError> {
        let mut batches = batches.map_or_else(|| self.rest_of_epoch(), Ok)?;
        let mut stop = false;
        while self.epoch_has_a_step() && !stop {
            self.follow_shares(&mut batches)?;
            let Some(before) = self.step(&mut batches)? else {
                continue;
            };
            stop = before.stop;
            // The end of the epoch has its own checkpoint, after the evaluation.
            if before.save && self.epoch_has_a_step() {
                stop |= self.settle()?.is_some_and(|settled| settled.stop);
                self.save()?;
            }
        }
        Ok(stop | self.settle()?.is_some_and(|settled| settled.stop))
    }

    /// Whether the running epoch has images for another step.
    fn epoch_has_a_step(&self) -> bool {
        self.position.images_into_epoch + self.config.global_batch_size() <= self.data.train.len()
    }

    /// This rank's remaining micro-batches of the running epoch.
    fn rest_of_epoch(&mut self) -> Result<Batches, TrainError> {
        self.shares_changed = false;
        self.left_out = 0;
        let Position {
            epoch,
            images_into_epoch,
            ..
        } = self.position;
        Ok(self
            .data
            .train
            .training(epoch, images_into_epoch, &self.share())?)
    }

    /// Measures accuracy on the held-out images. Returns false if a rank was told to stop.
    fn evaluate(&mut self) -> Result<bool, TrainError> {
        let Some(data) = &self.data.validation else {
            return Ok(true);
        };
        self.observer.turn_to(Activity::Evaluating);
        let start = Instant::now();
        let parts = Parts::new(
            data.len(),
            self.lasting_shares().as_slice(),
            self.config.training.micro_batch_size,
        );
        let evaluate = || {
            let model = (&self.trained.model, self.trained.precision);
            let stop = || self.stop.load(Ordering::Relaxed);
            evaluate(&self.world, model, data, &parts, stop, || {
                self.observer.turn_to(Activity::Evaluating);
            })
        };
        let Some(counts) = evaluate()? else {
            return Ok(false);
        };
        let of_average = match &self.trained.average {
            Some(average) => {
                let weights = &self.trained.weights;
                let Some(counts) = weights.with_values(average.weights(), evaluate)? else {
                    return Ok(false);
                };
                Some(counts)
            }
            None => None,
        };
        self.validation = Validation {
            accuracy: Some(counts.accuracy()),
            mean_average_precision: counts.mean_average_precision,
        };
        self.observer
            .evaluation(self.position, counts, of_average, start.elapsed());
        self.observer.turn_to(Activity::Training);
        Ok(true)
    }
}

/// The observer of a run that begins at `start`. Rank 0 speaks for the run.
fn observer(
    config: &RunConfig,
    (attempt, rank): (u32, u32),
    (images, device): (u64, Option<String>),
    start: &Start,
    reporter: Reporter,
) -> Result<Observer, CheckpointError> {
    let (training, global_batch_size) = (&config.training, config.global_batch_size());
    let shape = RunShape {
        rank,
        attempt,
        total_epochs: training.epochs,
        total_steps: total_steps(start.position, training.epochs, images, global_batch_size),
        world_size: config.world_size(),
        global_batch_size,
        train_images: images,
        device,
        warmup_steps: config.measure.map_or(0, |measure| measure.warmup_steps.into()),
        wall_clock_breakdown: training.wall_clock_breakdown,
    };
    let log_folder = (rank == 0).then_some(config.checkpoint.path.as_path());
    let observer = Observer::new(
        shape,
        reporter,
        log_folder,
        start.position,
        start.validation,
        start.resumed_from.as_deref(),
    );
    observer.map_err(CheckpointError::Folder)
}

/// An error on every rank if one of them has different data than rank 0: it would take another
/// number of steps, or the same image twice.
fn require_same_data(world: &World, own: &DataIdentity) -> Result<(), TrainError> {
    let fingerprints = world.gather(f64::from(own.fingerprint))?;
    let images = world.gather(own.images as f64)?;
    let all = || fingerprints.iter().zip(&images);
    let first = all().next().expect("rank 0 is a rank");
    match all().position(|other| other != first) {
        None => Ok(()),
        Some(rank) => Err(TrainError::DifferentData {
            rank,
            images: images[rank] as u64,
            first_images: images[0] as u64,
        }),
    }
}

/// This rank among those whose forward passes do not wait for each other: replicas, or none if
/// weights are gathered in them.
fn apart(world: &World, config: &RunConfig) -> Member {
    if config.parallelism.zero_stage == 3 {
        Member { rank: 0, size: 1 }
    } else {
        world.mesh.data
    }
}
