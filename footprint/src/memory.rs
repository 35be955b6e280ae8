//! Bytes of memory by kind.
//!
//! Weights, gradients and optimizer state are exact but for padding. Activations are what PyTorch's autograd saves of the
//! trainer's `model/block.rs`, whose tests compare both with what is allocated.

use contract::{ActivationCheckpointing, Optimizer, Precision, RunConfig};

use crate::shape::{FULL, HALF, Shape, Units, patches, ranks, values_of_patch};

/// Bytes on the rank that takes the most, at the step's peak. Less is taken before the first step.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Footprint {
    /// What the model computes with; at stage 3 the rank's shard and the units that are computed.
    pub weights: f64,
    /// Of weights.
    pub gradients: f64,
    /// Moments, masters in 32 bits, and the average of the weights.
    pub optimizer: f64,
    /// What the forward pass keeps for the backward pass.
    pub activations: f64,
    /// What is there for a moment: gradients of activations, and messages.
    pub working: f64,
}

/// The memory that a job takes of a rank.
pub fn footprint(config: &RunConfig) -> Footprint {
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
    // At stage 1 they are reduced, and given back, in the last micro-batch.
    let raw = match stage {
        0 => weight * all,
        1 if training.gradient_accumulation_steps > 1 => weight * all,
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

impl Footprint {
    /// The most that is taken at one time.
    pub fn total(&self) -> f64 {
        self.weights + self.gradients + self.optimizer + self.activations + self.working
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::at_stage;

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
