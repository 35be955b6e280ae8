//! The optimizer, and scaling and schedule of its learning rate.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::rules::Rules;
use crate::schema::cel;

/// Optimizer and its parameters, named as in PyTorch.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[schemars(transform = cel(OPTIMIZER_RULES))]
pub struct Optimizer {
    /// name of the optimizer: adamw, sgd or lamb.
    pub name: OptimizerName,
    /// learningRate at its peak, before learningRateScaling.
    #[schemars(range(min = 1e-9, max = 100.0))]
    pub learning_rate: f64,
    /// weightDecay, not applied to biases, norms, the class token and the position embedding. adamw
    /// subtracts it from the weights, sgd adds it to the gradient, lamb to the step scaled by the
    /// trust ratio.
    #[schemars(range(min = 0.0, max = 10.0))]
    pub weight_decay: f64,
    /// betas of adamw and lamb are the decay of the first and second moment; 0.9 and 0.999 by
    /// default.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(inner(range(min = 0.0, max = 0.999_999)))]
    pub betas: Option<[f64; 2]>,
    /// epsilon of adamw and lamb is added to the denominator; by default 1e-8 for adamw and 1e-6
    /// for lamb.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1e-16, max = 1.0))]
    pub epsilon: Option<f64>,
    /// momentum of sgd is the share of the previous step that is repeated; 0.9 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 0.999_999))]
    pub momentum: Option<f64>,
    /// nesterov uses Nesterov momentum in sgd; false by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nesterov: Option<bool>,
}

impl Default for Optimizer {
    fn default() -> Self {
        Self {
            name: OptimizerName::default(),
            learning_rate: 1e-3,
            weight_decay: 0.05,
            betas: None,
            epsilon: None,
            momentum: None,
            nesterov: None,
        }
    }
}

/// Optimizers.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum OptimizerName {
    /// AdamW, arXiv 1711.05101.
    #[default]
    Adamw,
    /// SGD with momentum.
    Sgd,
    /// LAMB, arXiv 1904.00962.
    Lamb,
}

impl Optimizer {
    /// betas, by default PyTorch's.
    pub fn betas(&self) -> [f64; 2] {
        self.betas.unwrap_or([0.9, 0.999])
    }

    /// epsilon, by default PyTorch's for AdamW and timm's for LAMB.
    pub fn epsilon(&self) -> f64 {
        let is_lamb = self.name == OptimizerName::Lamb;
        self.epsilon.unwrap_or(if is_lamb { 1e-6 } else { 1e-8 })
    }

    /// momentum, by default timm's.
    pub fn momentum(&self) -> f64 {
        self.momentum.unwrap_or(0.9)
    }

    /// nesterov, by default off.
    pub fn nesterov(&self) -> bool {
        self.nesterov.unwrap_or_default()
    }

    /// Sets all parameters that the optimizer has.
    pub(super) fn fill_in(&mut self) {
        if self.name == OptimizerName::Sgd {
            (self.momentum, self.nesterov) = (Some(self.momentum()), Some(self.nesterov()));
        } else {
            (self.betas, self.epsilon) = (Some(self.betas()), Some(self.epsilon()));
        }
    }
}

/// What the API server checks, and [`Optimizer::check`] elsewhere.
const OPTIMIZER_RULES: &[(&str, &str)] = &[
    (
        "self.name == 'sgd' || !(has(self.momentum) || has(self.nesterov))",
        "momentum and nesterov are parameters of sgd",
    ),
    (
        "self.name != 'sgd' || !(has(self.betas) || has(self.epsilon))",
        "betas and epsilon are parameters of adamw and lamb",
    ),
];

impl Optimizer {
    pub(super) fn check(&self, rules: &mut Rules) {
        let is_sgd = self.name == OptimizerName::Sgd;
        for (field, is_wrong, owners) in [
            (
                "training.optimizer.betas",
                is_sgd && self.betas.is_some(),
                "adamw and lamb",
            ),
            (
                "training.optimizer.epsilon",
                is_sgd && self.epsilon.is_some(),
                "adamw and lamb",
            ),
            (
                "training.optimizer.momentum",
                !is_sgd && self.momentum.is_some(),
                "sgd",
            ),
            (
                "training.optimizer.nesterov",
                !is_sgd && self.nesterov.is_some(),
                "sgd",
            ),
        ] {
            rules.require(
                !is_wrong,
                field,
                "given",
                format!("is a parameter of {owners} only"),
            );
        }
        rules.require(
            !is_sgd || !self.nesterov() || self.momentum() > 0.0,
            "training.optimizer.nesterov",
            true,
            "needs training.optimizer.momentum above 0",
        );
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
}

/// Schedule of the learning rate.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[schemars(transform = cel(SCHEDULE_RULES))]
pub struct Schedule {
    /// name: constant, cosine (down to minLearningRate at the end), or step.
    pub name: ScheduleName,
    /// warmupEpochs is the number of epochs, or a fraction, of linear warmup from zero.
    #[schemars(range(min = 0.0, max = 100_000.0))]
    pub warmup_epochs: f64,
    /// minLearningRate is the minimum learning rate after warmup.
    #[schemars(range(min = 0.0, max = 10.0))]
    pub min_learning_rate: f64,
    /// decayEpochs of the schedule step is the number of epochs between two decays after warmup.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1e-3, max = 100_000.0))]
    pub decay_epochs: Option<f64>,
    /// decayRate of the schedule step is the factor of a decay; 0.1 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1e-6, max = 1.0))]
    pub decay_rate: Option<f64>,
}

/// Shapes of a schedule.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum ScheduleName {
    /// Stays at its peak after warmup.
    Constant,
    /// Decreases to the minimum learning rate along half a cosine after warmup.
    #[default]
    Cosine,
    /// Is multiplied by a factor at regular intervals.
    Step,
}

impl Schedule {
    /// The factor of a decay of [`ScheduleName::Step`]: given, or that of timm and PyTorch.
    pub fn decay_rate(&self) -> f64 {
        self.decay_rate.unwrap_or(0.1)
    }
}

/// What the API server checks, and [`Schedule::check`] elsewhere.
const SCHEDULE_RULES: &[(&str, &str)] = &[
    (
        "(self.name == 'step') == has(self.decayEpochs)",
        "the schedule step needs decayEpochs; other schedules do not have it",
    ),
    (
        "self.name == 'step' || !has(self.decayRate)",
        "decayRate is a parameter of the schedule step",
    ),
];

impl Schedule {
    pub(super) fn check(&self, epochs: u32, peak: f64, rules: &mut Rules) {
        rules.require(
            self.warmup_epochs <= f64::from(epochs),
            "training.schedule.warmupEpochs",
            self.warmup_epochs,
            format!("must be between 0 and training.epochs ({epochs})"),
        );
        rules.require(
            self.min_learning_rate <= peak,
            "training.schedule.minLearningRate",
            self.min_learning_rate,
            format!("must be between 0 and the learning rate at its peak ({peak})"),
        );
        let is_step = self.name == ScheduleName::Step;
        rules.require(
            !is_step || self.decay_epochs.is_some(),
            "training.schedule.decayEpochs",
            "missing",
            "the schedule step needs the number of epochs between two decays",
        );
        for (field, given) in [
            ("training.schedule.decayEpochs", self.decay_epochs),
            ("training.schedule.decayRate", self.decay_rate),
        ] {
            let Some(value) = given else { continue };
            rules.require(is_step, field, value, "is a parameter of the schedule step only");
        }
    }
}
