//! The optimizer, and scaling and schedule of its learning rate.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::rules::Rules;

/// The optimizer. Parameters are named as in PyTorch and timm.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(
    tag = "name",
    rename_all = "camelCase",
    rename_all_fields = "camelCase",
    deny_unknown_fields
)]
pub enum Optimizer {
    /// AdamW (arXiv 1711.05101), as `torch.optim.AdamW`.
    Adamw {
        /// Peak learning rate.
        learning_rate: f64,
        /// Decoupled weight decay; not applied to biases and norms.
        weight_decay: f64,
        /// Decay of the first and second moment.
        betas: [f64; 2],
        /// Added to the denominator.
        epsilon: f64,
    },
    /// SGD with momentum, as `torch.optim.SGD`.
    Sgd {
        /// Peak learning rate.
        learning_rate: f64,
        /// Added to the gradient in proportion to the weight; not applied to biases and norms.
        weight_decay: f64,
        /// Share of the previous step that is repeated.
        momentum: f64,
        /// Whether to use Nesterov momentum.
        nesterov: bool,
    },
    /// LAMB (arXiv 1904.00962), as timm's `Lamb` with its defaults: gradients are first scaled down
    /// to a global norm of 1, and weights without decay use Adam's step without a trust ratio.
    Lamb {
        /// Peak learning rate.
        learning_rate: f64,
        /// Part of the step that the trust ratio scales; not applied to biases and norms.
        weight_decay: f64,
        /// Decay of the first and second moment.
        betas: [f64; 2],
        /// Added to the denominator.
        epsilon: f64,
    },
}

impl Optimizer {
    /// Configured learning rate, before scaling with the batch.
    pub fn learning_rate(&self) -> f64 {
        match self {
            Self::Adamw { learning_rate, .. }
            | Self::Sgd { learning_rate, .. }
            | Self::Lamb { learning_rate, .. } => *learning_rate,
        }
    }

    /// Weight decay.
    pub fn weight_decay(&self) -> f64 {
        match self {
            Self::Adamw { weight_decay, .. }
            | Self::Sgd { weight_decay, .. }
            | Self::Lamb { weight_decay, .. } => *weight_decay,
        }
    }

    pub(super) fn check(&self, rules: &mut Rules) {
        rules.above_zero("training.optimizer.learningRate", self.learning_rate());
        rules.require(
            self.weight_decay().is_finite() && self.weight_decay() >= 0.0,
            "training.optimizer.weightDecay",
            self.weight_decay(),
            "must be at least 0",
        );
        match self {
            Self::Adamw { betas, epsilon, .. } | Self::Lamb { betas, epsilon, .. } => {
                rules.above_zero("training.optimizer.epsilon", *epsilon);
                for beta in betas {
                    rules.require(
                        (0.0..1.0).contains(beta),
                        "training.optimizer.betas",
                        beta,
                        "each must be at least 0 and below 1",
                    );
                }
            }
            Self::Sgd {
                momentum, nesterov, ..
            } => {
                rules.below_one("training.optimizer.momentum", *momentum);
                rules.require(
                    !nesterov || *momentum > 0.0,
                    "training.optimizer.nesterov",
                    nesterov,
                    "needs training.optimizer.momentum above 0",
                );
            }
        }
    }
}

/// LearningRateScaling scales the learning rate with the global batch, which is microBatchSize x
/// gradientAccumulationSteps x nodes x gpusPerNode, divided by parallelism.sequence and by
/// parallelism.tensor.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct LearningRateScaling {
    /// rule: none, linear, or sqrt.
    pub rule: ScalingRule,
    /// referenceBatchSize is the global batch to which optimizer.learningRate applies.
    #[schemars(range(min = 1, max = 1_048_576))]
    pub reference_batch_size: u32,
}

impl Default for LearningRateScaling {
    fn default() -> Self {
        Self {
            rule: ScalingRule::default(),
            reference_batch_size: 256,
        }
    }
}

/// Rules for scaling the learning rate with the global batch.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum ScalingRule {
    /// Not at all.
    #[default]
    None,
    /// In proportion (arXiv 1706.02677).
    Linear,
    /// With the square root.
    Sqrt,
}

impl LearningRateScaling {
    /// Factor of the learning rate at a global batch.
    pub fn factor(self, global_batch_size: u64) -> f64 {
        let ratio = global_batch_size as f64 / f64::from(self.reference_batch_size);
        match self.rule {
            ScalingRule::None => 1.0,
            ScalingRule::Linear => ratio,
            ScalingRule::Sqrt => ratio.sqrt(),
        }
    }

    pub(super) fn check(self, rules: &mut Rules) {
        rules.positive(
            "training.learningRateScaling.referenceBatchSize",
            self.reference_batch_size,
        );
    }
}

/// Schedule of the learning rate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Schedule {
    /// Its course after warmup.
    pub course: Course,
    /// Epochs of linear warmup from zero.
    pub warmup_epochs: f64,
    /// Minimum learning rate after warmup.
    pub min_learning_rate: f64,
}

/// Course of the learning rate after warmup.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(
    tag = "name",
    rename_all = "camelCase",
    rename_all_fields = "camelCase",
    deny_unknown_fields
)]
pub enum Course {
    /// Stays at its peak.
    Constant,
    /// Decreases to the minimum learning rate along half a cosine (arXiv 1608.03983).
    Cosine,
    /// Is multiplied by a factor at regular intervals.
    Step {
        /// Epochs between two decays.
        decay_epochs: f64,
        /// The factor.
        decay_rate: f64,
    },
}

impl Schedule {
    pub(super) fn check(&self, epochs: u32, peak: f64, rules: &mut Rules) {
        rules.require(
            self.warmup_epochs >= 0.0 && self.warmup_epochs <= f64::from(epochs),
            "training.schedule.warmupEpochs",
            self.warmup_epochs,
            format!("must be between 0 and training.epochs ({epochs})"),
        );
        rules.require(
            self.min_learning_rate >= 0.0 && (self.min_learning_rate <= peak || !peak.is_finite()),
            "training.schedule.minLearningRate",
            self.min_learning_rate,
            format!("must be between 0 and the learning rate at its peak ({peak})"),
        );
        if let Course::Step {
            decay_epochs,
            decay_rate,
        } = self.course
        {
            rules.above_zero("training.schedule.decayEpochs", decay_epochs);
            rules.share("training.schedule.decayRate", decay_rate);
        }
    }
}
