//! Bytes of memory by kind.
//!
//! Weights, gradients and optimizer state are exact except for padding. Activations are those saved
//! by PyTorch's autograd in the trainer's `model/block.rs`. Its tests compare both with actual
//! allocations.

use contract::architecture::EmbeddingSpec;
use contract::{
    ActivationCheckpointing, Device, OffloadTo, OptimizerName, Parallelism, Precision, RunConfig,
};

use crate::shape::{FULL, HALF, Shape, Units, ranks};

/// Bytes on the rank with the most, at the step's peak. Before the first step it is less.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Footprint {
    /// Weights for computation; at stage 3 the rank's shard and the gathered units.
    pub weights: f64,
    /// Gradients of weights.
    pub gradients: f64,
    /// Moments, masters in 32 bits, and the average of the weights.
    pub optimizer: f64,
    /// Activations kept for the backward pass.
    pub activations: f64,
    /// Temporary tensors: gradients of activations, and messages.
    pub working: f64,
    /// Estimate of GPU memory for NCCL's communicators, which is not in the total. Tensors can use
    /// a GPU's memory less this and CUDA's own.
    pub communicators: f64,
    /// Additional host memory: offloaded state, and buffers for its gradients.
    pub host: f64,
}

/// GPU memory of a communicator: the published maximum, for four A100 on `NVLink`
/// (NVIDIA/nccl#964). It grows with NCCL's channels; over sockets, which have two, it is 18 MB.
const COMMUNICATOR: f64 = 688.0 * 1024.0 * 1024.0;

/// The memory of a job's rank.
pub fn footprint(config: &RunConfig) -> Footprint {
    let training = &config.training;
    let units = Units::of(&config.model, config.parallelism.tensor);
    // What is frozen has neither gradients nor optimizer state, and is whole on each rank.
    let trained = units.trained(&config.model);
    let frozen = units.all() - trained;
    let two_units = (2.0 * units.largest()).min(trained);
    let is_half = training.master_weights;
    let weight = if is_half { HALF } else { FULL };
    let (ranks, stage) = (ranks(config), config.parallelism.zero_stage);
    // A single rank shards nothing.
    let (stage, shard) = if ranks > 1.0 && stage > 0 {
        (stage, trained / ranks)
    } else {
        (0, trained)
    };
    let moments = match training.optimizer.name {
        OptimizerName::Adamw | OptimizerName::Lamb => 2.0,
        OptimizerName::Sgd => f64::from(u8::from(training.optimizer.momentum() > 0.0)),
    };
    let averages = f64::from(u8::from(training.ema.is_some()));
    let is_offloaded = config.parallelism.offload.optimizer == OffloadTo::Cpu;
    // In full precision the weights are the masters, except at stage 3, with a separate shard, and
    // with masters in host memory.
    let masters = if is_half || is_offloaded {
        FULL * shard
    } else {
        0.0
    };
    let keeps = stage < 3 || !config.parallelism.reshard_after_forward;
    let gathered = if keeps {
        weight * trained
    } else {
        weight * two_units
    };
    let are_weights_offloaded = stage == 3 && config.parallelism.offload.parameters == OffloadTo::Cpu;
    let shard_of_weights = if stage == 3 && (is_offloaded || !is_half) && !are_weights_offloaded {
        weight * shard
    } else {
        0.0
    };
    // With offloading, whole gradients are converted to 32 bits only in host memory.
    let reduced = match (stage, is_half && !is_offloaded) {
        (0, false) => 0.0,
        _ => FULL * shard,
    };
    let optimizer = masters + FULL * (moments + averages) * shard;
    let room = if is_offloaded { FULL * shard } else { 0.0 };
    // In 32 bits ranks gather the masters.
    let beside_masters = if are_weights_offloaded && is_half {
        HALF * shard
    } else {
        0.0
    };
    // CPUs have only host memory.
    let (optimizer, host) = match config.device {
        Device::Cpu => (optimizer + room + beside_masters, 0.0),
        _ if is_offloaded => (0.0, optimizer + room + beside_masters),
        _ => (optimizer, 0.0),
    };
    // At stage 1 they are reduced and freed in the last micro-batch.
    let raw = match stage {
        0 => weight * trained,
        1 if training.gradient_accumulation_steps > 1 => weight * trained,
        _ => weight * two_units,
    };
    // In half precision, gradients of several micro-batches are summed in 32 bits, in a separate
    // buffer unless one for whole 32-bit gradients exists.
    let is_summed_apart =
        is_half && training.gradient_accumulation_steps > 2 && (stage == 1 || stage == 0 && is_offloaded);
    let summed = if is_summed_apart { FULL * trained } else { 0.0 };
    // Autocast keeps cast weights until backward has used them.
    let cast = if training.precision != Precision::Fp32 && !is_half {
        HALF * trained
    } else {
        0.0
    };
    let messages = if stage > 0 { weight * two_units } else { 0.0 };
    let (activations, in_flight) = activations(config);
    Footprint {
        weights: weight * frozen + gathered + shard_of_weights + cast,
        gradients: raw + reduced + summed,
        optimizer,
        activations,
        working: messages + in_flight,
        communicators: COMMUNICATOR * f64::from(communicators(config)),
        host,
    }
}

/// Number of a rank's NCCL communicators: all ranks; its sequence group; its tensor group and the
/// ranks with the same heads; with partial sharding, its sharding group and the ranks with the same
/// shard.
fn communicators(config: &RunConfig) -> u32 {
    let Parallelism { sequence, tensor, .. } = config.parallelism;
    if config.device == Device::Cpu || config.world_size() == 1 {
        return 0;
    }
    let shards = config.parallelism.shards(config.nodes, config.ranks_per_node);
    let is_hybrid = shards * tensor < config.world_size();
    1 + u32::from(sequence > 1) + 2 * u32::from(tensor > 1) + 2 * u32::from(is_hybrid)
}

/// Kept activations of a micro-batch, and temporary ones on top.
fn activations(config: &RunConfig) -> (f64, f64) {
    let (model, shape) = (&config.model, Shape::of(config));
    let checkpointing = config.training.activation_checkpointing;
    let of_block = |checkpointing| shape.tokens * shape.of_block(checkpointing, model);
    let images = f64::from(config.training.micro_batch_size);
    let is_frozen = model.train_last_blocks.is_some();
    // The images, and their patches in the layers' format.
    let of_patches = if is_frozen { 0.0 } else { shape.value };
    let embedding = images * EmbeddingSpec::of(model).pixels() * (FULL + of_patches);
    let again = match checkpointing {
        ActivationCheckpointing::Block => of_block(ActivationCheckpointing::None) - of_block(checkpointing),
        _ => 0.0,
    };
    let trained = model.trained_blocks();
    let blocks = f64::from(trained) * of_block(checkpointing);
    let before = if is_frozen {
        0.0
    } else {
        shape.before_blocks(model)
    };
    let after = match model.train_last_blocks {
        Some(0) => 0.0,
        _ => shape.after_blocks(model),
    };
    let [before, after] = [before, after].map(|bytes| shape.tokens * bytes);
    let in_flight = match model.train_last_blocks {
        Some(0) => 0.0,
        _ => (again - after).max(0.0) + shape.tokens * shape.in_flight(model.architecture.mlp),
    };
    // Frozen blocks keep nothing, but each of them is computed before anything is kept.
    let forward = if trained < model.depth {
        shape.tokens * shape.forward(model.architecture.mlp)
    } else {
        0.0
    };
    let kept = before + blocks + after;
    (embedding + kept, in_flight.max(forward - kept))
}

impl Footprint {
    /// Peak of tensors in the rank's own memory.
    pub fn total(&self) -> f64 {
        self.weights + self.gradients + self.optimizer + self.activations + self.working
    }
}

#[cfg(test)]
mod tests {
    use contract::Offload;

    use super::*;
    use crate::fixtures::{at_stage, job};

    /// The numbers on simulated GPUs (trainer/tests/integration/gpus.rs).
    #[test]
    fn ranks_have_the_communicators_that_their_division_needs() {
        let of = |stage, shard_within_node, sequence, tensor| {
            let mut config = job("vit_base_patch16_224", 2, 2);
            config.parallelism = Parallelism {
                zero_stage: stage,
                shard_within_node,
                sequence,
                tensor,
                ..config.parallelism
            };
            config
        };
        for (config, expected) in [
            (of(0, false, 1, 1), 1),
            (of(3, false, 1, 1), 1),
            (of(3, true, 1, 1), 3),
            (of(0, false, 2, 1), 2),
            (of(1, false, 1, 2), 3),
            (job("vit_base_patch16_224", 1, 1), 0),
        ] {
            assert_eq!(communicators(&config), expected, "{:?}", config.parallelism);
            let bytes = footprint(&config).communicators;
            assert!((bytes - f64::from(expected) * 688.0 * f64::from(1 << 20)).abs() < 1.0);
            let on_cpus = RunConfig {
                device: Device::Cpu,
                ..config
            };
            assert!(footprint(&on_cpus).communicators < 1.0);
        }
    }

    #[test]
    fn an_offloaded_optimizer_takes_host_memory_alone() {
        let n = Units::of(&at_stage(0, false).model, 1).all();
        // Bytes per parameter: weights and whole gradients; state sharded by four on the GPU; host
        // memory.
        for (stage, masters, parameters, whole, divided, host) in [
            (0, false, OffloadTo::None, 8.0, 0.0, 16.0),
            (0, true, OffloadTo::None, 4.0, 0.0, 16.0),
            (1, false, OffloadTo::None, 8.0, 4.0, 16.0),
            (1, true, OffloadTo::None, 4.0, 4.0, 16.0),
            (3, false, OffloadTo::None, 0.0, 8.0, 16.0),
            (3, true, OffloadTo::None, 0.0, 6.0, 16.0),
            (3, false, OffloadTo::Cpu, 0.0, 4.0, 16.0),
            (3, true, OffloadTo::Cpu, 0.0, 4.0, 18.0),
        ] {
            let mut config = at_stage(stage, masters);
            config.training.gradient_accumulation_steps = 2;
            config.parallelism.offload = Offload {
                optimizer: OffloadTo::Cpu,
                parameters,
            };
            let found = footprint(&config);
            let ranks = if stage == 0 { 1.0 } else { 4.0 };
            let units = if stage == 3 {
                2.0 * if masters { HALF } else { FULL } * 2.0 * Units::of(&config.model, 1).largest()
            } else {
                0.0
            };
            let on_device = (found.weights + found.gradients - units) / n;
            assert!(
                (on_device - whole - divided / ranks).abs() < 1e-9,
                "stage {stage}, masters {masters}: {on_device}"
            );
            // Masters, two moments, and gradients in transit; also half-precision weights if
            // offloaded.
            assert!(
                found.optimizer == 0.0 && (found.host / n - host / ranks).abs() < 1e-9,
                "{found:?}"
            );
            config.device = Device::Cpu;
            let on_cpus = footprint(&config);
            assert_eq!((on_cpus.optimizer, on_cpus.host), (found.host, 0.0));
        }
    }

    #[test]
    fn training_state_takes_what_the_papers_say() {
        let n = Units::of(&at_stage(0, false).model, 1).all();
        let two_units = |config: &RunConfig| 2.0 * Units::of(&config.model, 1).largest();
        for (stage, micro_batches, full, half) in [
            (0, 1, 16.0, 20.0),
            (1, 2, 8.0 + 12.0 / 4.0, 4.0 + 16.0 / 4.0),
            (1, 1, 4.0 + 12.0 / 4.0, 2.0 + 16.0 / 4.0),
            (2, 2, 4.0 + 12.0 / 4.0, 2.0 + 16.0 / 4.0),
            (3, 2, 16.0 / 4.0, 16.0 / 4.0),
        ] {
            for (masters, of_each, weight) in [(false, full, FULL), (true, half, HALF)] {
                let mut config = at_stage(stage, masters);
                config.training.gradient_accumulation_steps = micro_batches;
                let Footprint {
                    weights,
                    gradients,
                    optimizer,
                    ..
                } = footprint(&config);
                // Gradients of two units from stage 2 on, weights of two at stage 3.
                let units = match (stage, micro_batches) {
                    (2, _) | (1, 1) => weight * two_units(&config),
                    (3, _) => 2.0 * weight * two_units(&config),
                    _ => 0.0,
                };
                let found = weights + gradients + optimizer - units;
                assert!(
                    (found / n - of_each).abs() < 1e-9,
                    "stage {stage}, masters {masters}: {}",
                    found / n
                );
            }
        }
    }
}
