//! Parameters and activations of a model on a rank.

use contract::architecture::{BlockSpec, EmbeddingSpec, HeadSpec, ParameterSpec};
use contract::{ActivationCheckpointing, ModelConfig, Precision, RunConfig};

pub(crate) const FULL: f64 = 4.0;
pub(crate) const HALF: f64 = 2.0;

/// A rank's parameters by unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Units {
    pub(crate) embedding: f64,
    pub(crate) block: f64,
    pub(crate) head: f64,
    pub(crate) blocks: f64,
}

impl Units {
    pub(crate) fn of(model: &ModelConfig, tensor: u32) -> Self {
        let count = |parameters: &mut dyn Iterator<Item = &ParameterSpec>| {
            parameters.map(|parameter| parameter.values(tensor)).sum()
        };
        Self {
            embedding: count(&mut EmbeddingSpec::of(model).parameters()),
            block: count(&mut BlockSpec::of(model, 0).parameters()),
            head: count(&mut HeadSpec::of(model).parameters()),
            blocks: f64::from(model.depth),
        }
    }

    pub(crate) fn all(self) -> f64 {
        self.embedding + self.blocks * self.block + self.head
    }

    pub(crate) fn largest(self) -> f64 {
        self.embedding.max(self.block).max(self.head)
    }
}

/// Sizes of a rank's computation.
pub(crate) struct Shape {
    /// Tokens of a rank's micro-batch.
    pub(crate) tokens: f64,
    /// Bytes per value of a layer and of the residual stream.
    pub(crate) value: f64,
    pub(crate) residual: f64,
    pub(crate) width: f64,
    /// A rank's share of attention's width and of the MLP's hidden values.
    pub(crate) attention: f64,
    pub(crate) hidden: f64,
}

impl Shape {
    pub(crate) fn of(config: &RunConfig) -> Self {
        let (model, parallelism) = (&config.model, &config.parallelism);
        let [width, mlp, tensor] = [model.hidden_size, model.mlp_size, parallelism.tensor].map(f64::from);
        let is_full = config.training.precision == Precision::Fp32;
        let share = (EmbeddingSpec::of(model).tokens() as f64 / f64::from(parallelism.sequence)).ceil();
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

    /// Bytes that a block keeps per token.
    pub(crate) fn of_block(&self, checkpointing: ActivationCheckpointing, has_layer_scale: bool) -> f64 {
        let input = self.residual * self.width;
        let scaled = if has_layer_scale {
            2.0 * self.value * self.width
        } else {
            0.0
        };
        // Queries, keys, values and attention's output; the stream between the branches; the MLP's
        // hidden values.
        let kept = 2.0 * input + self.value * (4.0 * self.attention + self.hidden) + scaled;
        match checkpointing {
            ActivationCheckpointing::Block => input,
            ActivationCheckpointing::Selective => kept,
            // Normed values of both branches, and hidden values after their activation.
            ActivationCheckpointing::None => kept + self.value * (2.0 * self.width + self.hidden),
        }
    }

    /// Bytes per token of simultaneous gradients of activations: of hidden values, whose
    /// activations are freed one after the other, and of the stream.
    pub(crate) fn in_flight(&self) -> f64 {
        self.value * self.hidden + 2.0 * self.residual * self.width
    }
}

/// Number of ranks over which training state is sharded, or averaged if not sharded.
pub(crate) fn ranks(config: &RunConfig) -> f64 {
    f64::from(config.parallelism.shards(config.nodes, config.ranks_per_node))
}

/// Parameters of a model.
pub fn parameters(model: &ModelConfig) -> f64 {
    Units::of(model, 1).all()
}
