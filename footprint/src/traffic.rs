//! Bytes sent in a step.

use contract::{ActivationCheckpointing, GradientCompression, RunConfig};

use crate::shape::{FULL, HALF, Shape, Units, ranks};

/// Bytes that a rank sends in a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Sent {
    /// To average gradients.
    pub gradients: f64,
    /// To gather weights.
    pub weights: f64,
    /// To exchange activations in model parallelism.
    pub activations: f64,
    /// Gradients and weights that all ranks of a node send to other nodes.
    pub off_node: f64,
}

/// Bytes that a rank of a job sends in a step.
pub fn sent(config: &RunConfig) -> Sent {
    let (model, shape) = (&config.model, Shape::of(config));
    let parallelism = &config.parallelism;
    let trained = Units::of(model, parallelism.tensor).trained(model);
    let weight = if config.training.master_weights {
        HALF
    } else {
        FULL
    };
    let gradient = match parallelism.compress_gradients {
        GradientCompression::None => weight,
        GradientCompression::Bf16 => HALF,
    };
    // A ring's share of the data of a reduce-scatter or all-gather.
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
    // Forward, backward, and another forward pass for recomputation.
    let (forward, backward) = match config.training.activation_checkpointing {
        ActivationCheckpointing::Block => (2.0, 1.0),
        _ => (1.0, 1.0),
    };
    let trained_blocks = f64::from(model.trained_blocks());
    let of_blocks = f64::from(model.depth) - trained_blocks + trained_blocks * (forward + backward);
    let in_blocks = passes * of_blocks * shape.tokens * shape.value;
    let exchanged = 4.0 * shape.attention * of_ring(f64::from(parallelism.sequence));
    let added_up = 2.0 * 2.0 * shape.width * of_ring(f64::from(parallelism.tensor));
    // Shards that several nodes have are reduced over them once per step, in 32 bits.
    let alike = f64::from(config.world_size() / parallelism.tensor) / ranks(config);
    let between_nodes = 2.0 * FULL * trained / ranks(config) * of_ring(alike);
    // Rings follow the order of ranks, so each leaves a node once: one per part of the heads, or
    // one per rank if shards have separate rings between nodes.
    let averaged = reduced * gradient * trained * ring;
    let gathered = gathered * weight * trained * ring;
    let off_node = match (config.nodes, parallelism.shard_within_node) {
        (1, _) => 0.0,
        (_, false) => f64::from(parallelism.tensor) * (averaged + gathered),
        (_, true) => f64::from(config.ranks_per_node) * between_nodes,
    };
    Sent {
        gradients: averaged + between_nodes,
        weights: gathered,
        activations: in_blocks * (exchanged + added_up),
        off_node,
    }
}

impl Sent {
    /// Sum of all bytes.
    pub fn total(&self) -> f64 {
        self.gradients + self.weights + self.activations
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::at_stage;

    #[test]
    fn what_is_sent_is_what_rings_send() {
        let n = Units::of(&at_stage(0, false).model, 1).all();
        let gb = |config: &RunConfig| sent(config).total() / n;
        assert!((gb(&at_stage(0, false)) - 2.0 * 4.0 * 0.75).abs() < 1e-9);
        assert!((gb(&at_stage(1, true)) - 2.0 * 2.0 * 0.75).abs() < 1e-9);
        let mut config = at_stage(3, true);
        config.training.gradient_accumulation_steps = 2;
        assert!((gb(&config) - 2.0 * 3.0 * 2.0 * 0.75).abs() < 1e-9);
        // On nodes of two ranks: the same within a node, and half of each 32-bit gradient between
        // two nodes.
        let mut config = at_stage(3, true);
        (config.nodes, config.ranks_per_node) = (2, 2);
        config.training.gradient_accumulation_steps = 2;
        config.parallelism.shard_within_node = true;
        assert!((gb(&config) - (2.0 * 3.0 * 2.0 * 0.5 + 2.0 * 4.0 / 2.0 * 0.5)).abs() < 1e-9);
        // Two ranks exchange half of three activations and of one, back and forth, in each of 12
        // blocks.
        let mut config = at_stage(0, false);
        config.training.micro_batch_size = 1;
        config.training.gradient_accumulation_steps = 1;
        config.parallelism.sequence = 2;
        let expected = 12.0 * 2.0 * 99.0 * 768.0 * 4.0 * 4.0 / 2.0;
        assert!((sent(&config).activations - expected).abs() < 1.0);
        // Frozen blocks have a forward pass alone, and send no gradients.
        config.model.train_last_blocks = Some(3);
        let share = (9.0 + 3.0 * 2.0) / (12.0 * 2.0);
        assert!((sent(&config).activations - share * expected).abs() < 1.0);
        let parameters = 3.0 * 7_087_872.0 + 2.0 * 768.0 + 769.0 * 1000.0;
        assert!((sent(&config).gradients - 2.0 * 4.0 * 0.75 * parameters).abs() < 1.0);
    }
}
