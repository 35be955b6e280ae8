//! Parameters and activations of a model on a rank.

use contract::architecture::{BlockSpec, EmbeddingSpec, HeadSpec, Mlp, ParameterSpec, Position};
use contract::{ActivationCheckpointing, ModelConfig, Pooling, Precision, RunConfig};

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

    /// Those that are trained.
    pub(crate) fn trained(self, model: &ModelConfig) -> f64 {
        match model.train_last_blocks {
            None => self.all(),
            Some(0) => classifiers(model),
            Some(blocks) => f64::from(blocks) * self.block + self.head,
        }
    }

    pub(crate) fn all(self) -> f64 {
        self.embedding + self.blocks * self.block + self.head
    }

    pub(crate) fn largest(self) -> f64 {
        self.embedding.max(self.block).max(self.head)
    }
}

/// Values of the classifiers.
fn classifiers(model: &ModelConfig) -> f64 {
    let head = HeadSpec::of(model);
    let parameters = head.parameters();
    let of_classifiers = parameters.filter(|parameter| model.is_trained(model.depth + 1, &parameter.name));
    of_classifiers.map(|parameter| parameter.values(1)).sum()
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
    pub(crate) fn of_block(&self, checkpointing: ActivationCheckpointing, model: &ModelConfig) -> f64 {
        let input = self.residual * self.width;
        let scaled = if model.layer_scale.is_some() {
            2.0 * self.value * self.width
        } else {
            0.0
        };
        // Queries and keys before and after they are rotated.
        let rotated = match model.architecture.position {
            Position::Rotary => 2.0,
            Position::Learned | Position::LearnedOfPatches => 0.0,
        };
        let mlp = &Kept::of(model.architecture.mlp);
        // Queries, keys, values and attention's output; the stream between the branches; the MLP's
        // hidden values.
        let kept = 2.0 * input
            + self.value * ((4.0 + rotated) * self.attention + mlp.selective * self.hidden)
            + scaled;
        match checkpointing {
            ActivationCheckpointing::Block => input,
            ActivationCheckpointing::Selective => kept,
            // Normed values of both branches, and hidden values after their activation.
            ActivationCheckpointing::None => {
                kept + self.value * (2.0 * self.width + (mlp.all - mlp.selective) * self.hidden)
            }
        }
    }

    /// Bytes per token that are kept before the blocks.
    pub(crate) fn before_blocks(&self, model: &ModelConfig) -> f64 {
        if model.architecture.input_norm {
            self.residual * self.width
        } else {
            0.0
        }
    }

    /// Bytes per token that are kept after the blocks, until their backward pass begins.
    pub(crate) fn after_blocks(&self, model: &ModelConfig) -> f64 {
        let normed = self.residual * self.width;
        match model.pooling {
            // Normed values, and the keys and values.
            Pooling::Attention => normed + 3.0 * self.value * self.width,
            Pooling::Average if model.architecture.norm_before_pooling => normed,
            Pooling::Average | Pooling::Token => 0.0,
        }
    }

    /// Bytes per token of a block's forward pass that keeps nothing: the stream before and after attention, normed
    /// values, the MLP's hidden values and its output.
    pub(crate) fn forward(&self, mlp: Mlp) -> f64 {
        2.0 * self.residual * self.width + self.value * (2.0 * self.width + Kept::of(mlp).all * self.hidden)
    }

    /// Bytes per token of simultaneous gradients of activations: of hidden values, whose
    /// activations are freed one after the other, and of the stream.
    pub(crate) fn in_flight(&self, mlp: Mlp) -> f64 {
        self.value * Kept::of(mlp).in_flight * self.hidden + 2.0 * self.residual * self.width
    }
}

/// Tensors of an MLP's hidden values.
struct Kept {
    /// Kept for the backward pass.
    all: f64,
    /// Of these, if it recomputes what `ActivationCheckpointing::Selective` means.
    selective: f64,
    /// Gradients beside them.
    in_flight: f64,
}

impl Kept {
    fn of(mlp: Mlp) -> Self {
        let (all, selective, in_flight) = match mlp {
            // Before and after the activation, which is recomputed.
            Mlp::Gelu => (2.0, 1.0, 1.0),
            Mlp::GeluTanh => (2.0, 2.0, 1.0),
            // Hidden values, their sigmoid, and the product.
            Mlp::QuickGelu => (3.0, 3.0, 1.0),
            // Both layers' outputs, the gates, and the product.
            Mlp::SwiGlu => (4.0, 4.0, 2.0),
        };
        Self {
            all,
            selective,
            in_flight,
        }
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
