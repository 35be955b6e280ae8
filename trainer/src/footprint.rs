//! What a job takes of each rank, by calculation: bytes of memory by kind, and bytes sent in a step.
//!
//! Weights, gradients and optimizer state are exact but for padding. Activations are what PyTorch's autograd saves of
//! `model/block.rs`; tests compare both with what is allocated.

use contract::{
    ActivationCheckpointing, GradientCompression, ModelConfig, Optimizer, Pooling, Precision, RunConfig,
};

const FULL: f64 = 4.0;
const HALF: f64 = 2.0;

/// Bytes on the rank that takes the most, at the step's peak.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Footprint {
    /// What the model computes with; at stage 3 the rank's shard and the units that are computed.
    pub(crate) weights: f64,
    /// Of weights.
    pub(crate) gradients: f64,
    /// Moments, masters in 32 bits, and the average of the weights.
    pub(crate) optimizer: f64,
    /// What the forward pass keeps for the backward pass.
    pub(crate) activations: f64,
    /// What is there for a moment: gradients of activations, and messages.
    pub(crate) working: f64,
}

/// Bytes that a rank sends in a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Sent {
    pub(crate) gradients: f64,
    pub(crate) weights: f64,
    pub(crate) activations: f64,
}

/// Parameters of which a rank has weights, by the unit that uses them.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Units {
    embedding: f64,
    block: f64,
    head: f64,
    blocks: f64,
}

impl Units {
    fn of(model: &ModelConfig, tensor: u32) -> Self {
        let [width, mlp, classes, tensor] =
            [model.hidden_size, model.mlp_size, model.num_classes, tensor].map(f64::from);
        let layer_scales = if model.layer_scale.is_some() {
            2.0 * width
        } else {
            0.0
        };
        let divided = 4.0 * width * width + 3.0 * width + 2.0 * width * mlp + mlp;
        Self {
            embedding: width * (values_of_patch(model) + 1.0 + embedded_tokens(model)),
            block: divided / tensor + 6.0 * width + layer_scales,
            head: 2.0 * width + width * classes + classes,
            blocks: f64::from(model.depth),
        }
    }

    fn all(self) -> f64 {
        self.embedding + self.blocks * self.block + self.head
    }

    fn largest(self) -> f64 {
        self.embedding.max(self.block).max(self.head)
    }
}

fn values_of_patch(model: &ModelConfig) -> f64 {
    f64::from(model.channels) * f64::from(model.patch_size).powi(2)
}

fn patches(model: &ModelConfig) -> f64 {
    f64::from(model.image_size / model.patch_size).powi(2)
}

/// Of each image.
fn tokens(model: &ModelConfig) -> f64 {
    patches(model) + f64::from(u8::from(model.pooling == Pooling::Token)) + f64::from(model.register_tokens)
}

/// Learned tokens, and places of the position embedding.
fn embedded_tokens(model: &ModelConfig) -> f64 {
    let class = f64::from(u8::from(model.pooling == Pooling::Token));
    let covered = if model.register_tokens > 0 { 0.0 } else { class };
    class + f64::from(model.register_tokens) + patches(model) + covered
}

/// How a rank computes.
struct Shape {
    /// Tokens of a rank's micro-batch.
    tokens: f64,
    /// Bytes of a value of a layer, and of the residual stream.
    value: f64,
    residual: f64,
    width: f64,
    /// A rank's part of the width of attention, and of the MLP's hidden values.
    attention: f64,
    hidden: f64,
}

impl Shape {
    fn of(config: &RunConfig) -> Self {
        let (model, parallelism) = (&config.model, &config.parallelism);
        let [width, mlp, tensor] = [model.hidden_size, model.mlp_size, parallelism.tensor].map(f64::from);
        let is_full = config.training.precision == Precision::Fp32;
        let share = (tokens(model) / f64::from(parallelism.sequence)).ceil();
        Self {
            tokens: f64::from(config.training.micro_batch_size) * share,
            value: if is_full { FULL } else { HALF },
            residual: if config.training.master_weights {
                HALF
            } else {
                FULL
            },
            width,
            attention: width / tensor,
            hidden: mlp / tensor,
        }
    }

    /// What a block keeps of each token.
    fn of_block(&self, checkpointing: ActivationCheckpointing, has_layer_scale: bool) -> f64 {
        let input = self.residual * self.width;
        let scaled = if has_layer_scale {
            2.0 * self.value * self.width
        } else {
            0.0
        };
        // Queries, keys, values and what attention mixes; the stream between the branches; the MLP's hidden values.
        let kept = 2.0 * input + self.value * (4.0 * self.attention + self.hidden) + scaled;
        match checkpointing {
            ActivationCheckpointing::Block => input,
            ActivationCheckpointing::Selective => kept,
            // Normed values of both branches, and hidden values after their activation.
            ActivationCheckpointing::None => kept + self.value * (2.0 * self.width + self.hidden),
        }
    }

    /// Gradients of activations that are there at once, of each token: those of hidden values, whose activations are no longer
    /// needed one after the other, and of the stream.
    fn in_flight(&self) -> f64 {
        self.value * self.hidden + 2.0 * self.residual * self.width
    }
}

/// Ranks among which training state is divided, or averaged where it is not.
fn ranks(config: &RunConfig) -> f64 {
    f64::from(config.parallelism.shards(config.nodes, config.ranks_per_node))
}

pub(crate) fn footprint(config: &RunConfig) -> Footprint {
    let training = &config.training;
    let units = Units::of(&config.model, config.parallelism.tensor);
    let (all, two_units) = (units.all(), 2.0 * units.largest());
    let is_half = training.master_weights;
    let weight = if is_half { HALF } else { FULL };
    let (ranks, stage) = (ranks(config), config.parallelism.zero_stage);
    // Of one rank nothing is divided.
    let (stage, shard) = if ranks > 1.0 && stage > 0 {
        (stage, all / ranks)
    } else {
        (0, all)
    };
    let moments = match training.optimizer {
        Optimizer::Adamw { .. } | Optimizer::Lamb { .. } => 2.0,
        Optimizer::Sgd { momentum, .. } => f64::from(u8::from(momentum > 0.0)),
    };
    let averages = f64::from(u8::from(training.ema.is_some()));
    // In full precision the weights are their own masters, but at stage 3, where the rank's shard is apart.
    let masters = if is_half { FULL * shard } else { 0.0 };
    let keeps = stage < 3 || !config.parallelism.reshard_after_forward;
    let gathered = if keeps { weight * all } else { weight * two_units };
    let shard_of_weights = if stage == 3 && !is_half { FULL * shard } else { 0.0 };
    let reduced = match (stage, is_half) {
        (0, false) => 0.0,
        _ => FULL * shard,
    };
    let raw = match stage {
        0 | 1 => weight * all,
        _ => weight * two_units,
    };
    // Autocast keeps the weights that it has cast until the backward pass is done with them.
    let cast = if training.precision != Precision::Fp32 && !is_half {
        HALF * all
    } else {
        0.0
    };
    let messages = if stage > 0 { weight * two_units } else { 0.0 };
    let (activations, in_flight) = activations(config);
    Footprint {
        weights: gathered + shard_of_weights + cast,
        gradients: raw + reduced,
        optimizer: masters + FULL * (moments + averages) * shard,
        activations,
        working: messages + in_flight,
    }
}

/// What the forward pass of a micro-batch keeps, and what comes on top for a moment.
fn activations(config: &RunConfig) -> (f64, f64) {
    let (model, shape) = (&config.model, Shape::of(config));
    let checkpointing = config.training.activation_checkpointing;
    let has_layer_scale = model.layer_scale.is_some();
    let of_block = |checkpointing| shape.tokens * shape.of_block(checkpointing, has_layer_scale);
    let images = f64::from(config.training.micro_batch_size);
    // The images themselves, and their patches in the kind of the layers.
    let embedding = images * patches(model) * values_of_patch(model) * (FULL + shape.value);
    let again = match checkpointing {
        ActivationCheckpointing::Block => of_block(ActivationCheckpointing::None) - of_block(checkpointing),
        _ => 0.0,
    };
    let kept = embedding + f64::from(model.depth) * of_block(checkpointing);
    (kept, again + shape.tokens * shape.in_flight())
}

pub(crate) fn sent(config: &RunConfig) -> Sent {
    let (model, shape) = (&config.model, Shape::of(config));
    let parallelism = &config.parallelism;
    let all = Units::of(model, parallelism.tensor).all();
    let weight = if config.training.master_weights {
        HALF
    } else {
        FULL
    };
    let gradient = match parallelism.compress_gradients {
        GradientCompression::None => weight,
        GradientCompression::Bf16 => HALF,
    };
    // A ring sends this share of what is reduced to shards, or gathered from them.
    let of_ring = |ranks: f64| (ranks - 1.0) / ranks;
    let ring = of_ring(ranks(config));
    let passes = f64::from(config.training.gradient_accumulation_steps);
    let (reduced, gathered) = match (parallelism.zero_stage, parallelism.reshard_after_forward) {
        (0, _) => (2.0, 0.0),
        (1, _) => (1.0, 1.0),
        (2, _) => (passes, 1.0),
        (_, false) => (passes, passes),
        (_, true) => (passes, 2.0 * passes),
    };
    // Forward, backward, and forward once more where that is computed again.
    let (forward, backward) = match config.training.activation_checkpointing {
        ActivationCheckpointing::Block => (2.0, 1.0),
        _ => (1.0, 1.0),
    };
    let in_blocks = passes * f64::from(model.depth) * shape.tokens * shape.value * (forward + backward);
    let exchanged = 4.0 * shape.attention * of_ring(f64::from(parallelism.sequence));
    let added_up = 2.0 * 2.0 * shape.width * of_ring(f64::from(parallelism.tensor));
    // Shards that several nodes have are summed up over them once a step, in 32 bits.
    let alike = f64::from(config.world_size() / parallelism.tensor) / ranks(config);
    let between_nodes = 2.0 * FULL * all / ranks(config) * of_ring(alike);
    Sent {
        gradients: reduced * gradient * all * ring + between_nodes,
        weights: gathered * weight * all * ring,
        activations: in_blocks * (exchanged + added_up),
    }
}

impl Footprint {
    pub(crate) fn total(&self) -> f64 {
        self.weights + self.gradients + self.optimizer + self.activations + self.working
    }
}

impl Sent {
    pub(crate) fn total(&self) -> f64 {
        self.gradients + self.weights + self.activations
    }
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, Tensor};
    use torch_ext::memory::Meter;

    use super::*;
    use crate::data::fixtures::config;
    use crate::model::fixtures::{preset, small};
    use crate::model::{DropSeed, Mode, VisionTransformer};

    const SYNTHETIC: &str = "{format: synthetic, syntheticImages: 64}";

    #[test]
    fn parameters_are_as_many_as_the_model_has() {
        for pooling in [Pooling::Token, Pooling::Average] {
            for (register_tokens, layer_scale) in [(0, None), (2, Some(0.1))] {
                let model = ModelConfig {
                    register_tokens,
                    layer_scale,
                    ..small(pooling)
                };
                let built = VisionTransformer::new(&model, 0, Device::Cpu);
                let count: usize = built.parameters().tensors().iter().map(Tensor::numel).sum();
                assert_eq!(Units::of(&model, 1).all() as usize, count, "{model:?}");
            }
        }
    }

    /// ViT-B/16 with `AdamW` on four ranks, at this stage of `ZeRO`.
    fn job(stage: u8, masters: bool) -> RunConfig {
        let mut config = config(SYNTHETIC);
        config.model = preset("vit_base_patch16_224");
        config.training.ema = None;
        (config.nodes, config.ranks_per_node) = (4, 1);
        config.parallelism.zero_stage = stage;
        if masters {
            (config.training.precision, config.training.master_weights) = (Precision::Bf16, true);
        }
        config
    }

    #[test]
    fn training_state_takes_what_the_papers_say() {
        let n = Units::of(&preset("vit_base_patch16_224"), 1).all();
        let two_units = |config: &RunConfig| 2.0 * Units::of(&config.model, 1).largest();
        for (stage, full, half) in [
            (0, 16.0, 20.0),
            (1, 8.0 + 12.0 / 4.0, 4.0 + 16.0 / 4.0),
            (2, 4.0 + 12.0 / 4.0, 2.0 + 16.0 / 4.0),
            (3, 16.0 / 4.0, 16.0 / 4.0),
        ] {
            for (masters, of_each, weight) in [(false, full, FULL), (true, half, HALF)] {
                let config = job(stage, masters);
                let Footprint {
                    weights,
                    gradients,
                    optimizer,
                    ..
                } = footprint(&config);
                // Gradients of two units from stage 2 on, weights of two at stage 3.
                let units = match stage {
                    2 => weight * two_units(&config),
                    3 => 2.0 * weight * two_units(&config),
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

    #[test]
    fn activations_are_those_that_autograd_keeps() {
        let model = ModelConfig {
            image_size: 64,
            hidden_size: 64,
            heads: 4,
            mlp_size: 256,
            depth: 4,
            ..small(Pooling::Average)
        };
        for checkpointing in [
            ActivationCheckpointing::None,
            ActivationCheckpointing::Selective,
            ActivationCheckpointing::Block,
        ] {
            check_activations(&model, checkpointing);
        }
    }

    fn check_activations(model: &ModelConfig, checkpointing: ActivationCheckpointing) {
        let mut config = config(SYNTHETIC);
        config.model = model.clone();
        config.training.micro_batch_size = 4;
        config.training.activation_checkpointing = checkpointing;
        let side = i64::from(model.image_size);
        let mut model = VisionTransformer::new(model, 0, Device::Cpu);
        model.checkpoint_activations(checkpointing);
        let meter = Meter::start().expect("counts");
        let images = Tensor::zeros(
            [4, i64::from(config.model.channels), side, side],
            (Kind::Float, Device::Cpu),
        );
        let logits = model
            .forward(&images, Mode::Train(DropSeed::default()))
            .expect("logits");
        let held = meter.held() as f64;
        let (expected, working) = activations(&config);
        let share = held / expected;
        assert!(
            (0.93..1.07).contains(&share),
            "{checkpointing:?}: {share} of what was expected"
        );
        logits.sum(Kind::Float).backward();
        // At the peak some gradients of weights have come on top, at most all of them.
        let gradients: usize = model.parameters().tensors().iter().map(Tensor::numel).sum();
        let (peak, expected) = (meter.peak() as f64, expected + working);
        let least = peak - FULL * gradients as f64;
        assert!(
            least < 1.05 * expected && expected < 1.05 * peak,
            "{checkpointing:?}: {least} to {peak} at the peak, and {expected} expected"
        );
    }

    #[test]
    fn what_is_sent_is_what_rings_send() {
        let n = Units::of(&preset("vit_base_patch16_224"), 1).all();
        let gb = |config: &RunConfig| sent(config).total() / n;
        assert!((gb(&job(0, false)) - 2.0 * 4.0 * 0.75).abs() < 1e-9);
        assert!((gb(&job(1, true)) - 2.0 * 2.0 * 0.75).abs() < 1e-9);
        let mut config = job(3, true);
        config.training.gradient_accumulation_steps = 2;
        assert!((gb(&config) - 2.0 * 3.0 * 2.0 * 0.75).abs() < 1e-9);
        // On nodes of two ranks: the same within a node, and half of 32 bits of each gradient between two nodes.
        let mut config = job(3, true);
        (config.nodes, config.ranks_per_node) = (2, 2);
        config.training.gradient_accumulation_steps = 2;
        config.parallelism.shard_within_node = true;
        assert!((gb(&config) - (2.0 * 3.0 * 2.0 * 0.5 + 2.0 * 4.0 / 2.0 * 0.5)).abs() < 1e-9);
        // Two ranks exchange half of three activations and of one, forth and back, in each of 12 blocks.
        let mut config = job(0, false);
        config.training.micro_batch_size = 1;
        config.training.gradient_accumulation_steps = 1;
        config.parallelism.sequence = 2;
        let expected = 12.0 * 2.0 * 99.0 * 768.0 * 4.0 * 4.0 / 2.0;
        assert!((sent(&config).activations - expected).abs() < 1.0);
    }
}
