//! The images and micro-batches of a step for this rank.

use contract::{Balance, ModelConfig, RunConfig};
use serde_json::{Value, json};
use tch::{Device, Kind, TchError, Tensor};

use super::Trainer;
use super::balance::{Balancer, Cost, ShareChange, Shares, Sizes};
use super::clock::StepClock;
use crate::data::{Batch, Batches, Share};
use crate::distributed::Mesh;
use crate::error::{TrainError, ranks_in_words};
use crate::model::{DropSeed, Mode};

/// The ZeRO stage from which every micro-batch has collectives.
const STAGE_OF_EACH_MICRO_BATCH: u8 = 2;

impl Trainer {
    /// Images of a step, by replica.
    pub(super) fn shares(&self) -> &Shares {
        self.balancer.as_ref().map_or(&self.even, Balancer::shares)
    }

    /// Shares for long work: without trials of idle replicas.
    pub(super) fn lasting_shares(&self) -> &Shares {
        self.balancer
            .as_ref()
            .map_or(&self.even, Balancer::lasting_shares)
    }

    /// This rank's part of every step.
    pub(super) fn share(&self) -> Share {
        let replica = self.world.mesh.data.rank;
        Share {
            step: self.shares().total(),
            before: self.shares().before(replica),
            micro_batches: self
                .micro_batches()
                .into_iter()
                .filter(|images| *images > 0)
                .collect(),
        }
    }

    /// Images per micro-batch of a step, with as few micro-batches as memory allows. If all ranks
    /// take part in each micro-batch, they have equally many; some may be empty.
    pub(super) fn micro_batches(&self) -> Vec<u64> {
        let replica = self.world.mesh.data.rank;
        let largest = u64::from(self.config.training.micro_batch_size);
        let count = if self.config.parallelism.zero_stage >= STAGE_OF_EACH_MICRO_BATCH {
            self.shares().most_micro_batches(largest)
        } else {
            self.shares().least_micro_batches(replica, largest).max(1)
        };
        self.shares().micro_batches(replica, count, self.quantum())
    }

    /// The next micro-batch, of `images` images.
    pub(super) fn batch_of(&self, images: u64, batches: &mut Batches) -> Result<Batch, TrainError> {
        if images == 0 {
            return Ok(Batch::empty(&self.config.model, self.accelerator.device())?);
        }
        Ok(batches.next()?.expect("the epoch's order holds this step"))
    }

    /// Images that must stay on one rank: a pair that is mixed.
    fn quantum(&self) -> u64 {
        if self.config.data.augmentation.mixes() {
            2
        } else {
            1
        }
    }

    /// Passes over blank images, whose gradients are discarded. After the first, the reducer
    /// rebuilds its buckets in the order in which gradients become ready. Left to the first real
    /// step, that would sum the gradients of a resumed run in another order. If shares depend on
    /// speed, later passes measure it. Emulated devices are calibrated first.
    pub(super) fn warm_up(&mut self) -> Result<(), TrainError> {
        // Two images: the sum over a batch of one is a view, and the reducer warns about it.
        const FEW: u32 = 2;
        // Fewer do not separate the time per image from the fixed time of a pass.
        const ENOUGH: u32 = 16;
        // The fastest counts: other work on the machine may delay one.
        const TIMED: u32 = 3;
        let micro_batch = self.config.training.micro_batch_size;
        let many = micro_batch.max(FEW);
        self.calibrate([many.max(ENOUGH), FEW])?;
        if self.config.training.balance == Balance::Off || self.world.mesh.data.size == 1 {
            self.blank_pass(FEW)?;
            self.blank_pass(FEW)?;
            return Ok(());
        }
        // Untimed, for the reason above.
        self.blank_pass(many)?;
        self.blank_pass(FEW)?;
        let mut times = Vec::new();
        for images in [many, FEW] {
            let mut seconds = f64::INFINITY;
            for _ in 0..TIMED {
                seconds = seconds.min(self.blank_pass(images)?);
            }
            times.push((
                u64::from(images),
                by_replica(&self.world.mesh, &self.world.gather(seconds)?),
            ));
        }
        let [(many, long), (few, short)] = &times[..] else {
            unreachable!("two sizes")
        };
        let of_replica = long.iter().zip(short);
        let costs = of_replica.map(|(long, short)| Cost::from_times([(*many, *long), (*few, *short)]));
        let sizes = Sizes {
            total: self.config.global_batch_size(),
            micro_batch: micro_batch.into(),
            quantum: self.quantum(),
        };
        let (balancer, change) = Balancer::new(costs.collect(), sizes, self.position.step);
        self.balancer = Some(balancer);
        if let Some(change) = change {
            self.report_shares(self.position.step, &change);
        }
        Ok(())
    }

    /// Measures the speed of this machine, to which the speeds of emulated devices refer.
    fn calibrate(&mut self, sizes: [u32; 2]) -> Result<(), TrainError> {
        let (trained, model) = (&self.trained, &self.config.model);
        let job = computation(&self.config);
        // After an update, ranks with sharded state gather weights in the next forward pass.
        let together = self.config.parallelism.zero_stage > 0;
        let device = self.accelerator.device();
        let sizes = sizes.map(u64::from);
        self.slowdown
            .calibrate(&self.world, (&job, together), sizes, |images| {
                let blank = blank(model, images, device)?;
                tch::no_grad(|| trained.forward(&blank, Mode::Evaluate)).map(drop)
            })
    }

    /// Seconds of compute until this rank's last gradient was ready.
    fn blank_pass(&mut self, images: u32) -> Result<f64, TrainError> {
        let blank = blank(&self.config.model, images.into(), self.accelerator.device())?;
        self.sync.begin()?;
        let mut clock = StepClock::start(self.accelerator.device())?;
        let report = Tensor::zeros([1], (Kind::Double, self.accelerator.device()));
        self.sync.prepare(report)?;
        let mode = Mode::Train(DropSeed::default());
        let logits = self
            .slowdown
            .around(images.into(), || self.trained.forward(&blank, mode))?;
        clock.forward()?;
        logits.sum(Kind::Float).f_backward()?;
        let (_, measurement) = self.sync.finish()?;
        clock.backward()?;
        self.accelerator.finish();
        let sync = measurement.map(torch_ext::Measurement::times).transpose()?;
        Ok(clock.end(&sync.unwrap_or_default())?.compute())
    }

    /// Adds the compute times that all ranks got with `step`. Every rank makes the same change, for
    /// the step launched next.
    pub(super) fn rebalance(&mut self, step: u64, compute_seconds: &[f64]) {
        let mesh = self.world.mesh;
        let Some(balancer) = &mut self.balancer else {
            return;
        };
        if let Some(change) = balancer.observe(step, by_replica(&mesh, compute_seconds)) {
            self.shares_changed = true;
            self.report_shares(step, &change);
        }
    }

    /// Replaces `batches` of old shares with batches for the rest of the epoch.
    pub(super) fn follow_shares(&mut self, batches: &mut Batches) -> Result<(), TrainError> {
        if self.shares_changed {
            let left_out = self.left_out + batches.left_out();
            *batches = self.rest_of_epoch()?;
            self.left_out = left_out;
        }
        Ok(())
    }

    /// Images of this rank skipped so far in this epoch because they cannot be read.
    pub(super) fn left_out(&self, batches: &Batches) -> u64 {
        self.left_out + batches.left_out()
    }

    fn report_shares(&mut self, step: u64, change: &ShareChange) {
        let (mesh, shares) = (self.world.mesh, self.shares().clone());
        let is_idle = |replica| {
            self.balancer
                .as_ref()
                .is_some_and(|balancer| balancer.is_idle(replica))
        };
        let idle: Vec<u32> = (0..self.world.size)
            .filter(|rank| is_idle(mesh.replica_of(*rank)))
            .collect();
        if self.world.is_first() {
            let ShareChange {
                before,
                seconds: [was, is],
            } = change;
            if self.balancer.as_ref().is_some_and(Balancer::is_trying) {
                tracing::info!(
                    "after step {step}: idle ranks get images for a few steps, to measure them again"
                );
            } else {
                tracing::info!(
                    "after step {step}: images per step by replica are now {shares} (was {before}); the slowest should compute for {is:.3} s (was {was:.3} s)"
                );
                if !idle.is_empty() {
                    tracing::warn!(
                        "no images go to {}, because even one would slow every step down",
                        ranks_in_words(&idle)
                    );
                }
            }
        }
        self.observer.shares(step, shares.as_slice(), idle);
    }
}

/// The settings of a job that determine the compute time of a forward pass.
fn computation(config: &RunConfig) -> Value {
    let mut model = json!(config.model);
    if let Some(fields) = model.as_object_mut() {
        fields.retain(|name, _| !["pretrained", "dropPath"].contains(&name.as_str()));
    }
    json!({
        "model": model,
        "precision": config.training.precision,
        "masterWeights": config.training.master_weights,
        "sequence": config.parallelism.sequence,
        "tensor": config.parallelism.tensor,
    })
}

/// `images` blank images.
fn blank(model: &ModelConfig, images: u64, device: Device) -> Result<Tensor, TchError> {
    let size = i64::from(model.image_size);
    let shape = [images.cast_signed(), model.channels.into(), size, size];
    Tensor::f_zeros(shape, (Kind::Float, device))
}

/// The longest time of the ranks of each replica.
fn by_replica(mesh: &Mesh, by_rank: &[f64]) -> Vec<f64> {
    let mut longest = vec![0.0_f64; mesh.data.size as usize];
    for (rank, seconds) in (0..).zip(by_rank) {
        let of_replica = &mut longest[mesh.replica_of(rank) as usize];
        *of_replica = of_replica.max(*seconds);
    }
    longest
}
