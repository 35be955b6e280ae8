use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Training sets epochs, batches and the optimizer. One optimizer step sees
/// microBatchSize x gradientAccumulationSteps x nodes x gpusPerNode images.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(
    validation = Rule::new("self.schedule.warmupEpochs <= double(self.epochs)").message("schedule.warmupEpochs must be at most epochs")
)]
pub struct Training {
    /// epochs is the number of passes over the training images.
    #[schemars(range(min = 1, max = 100_000))]
    pub epochs: i32,
    /// microBatchSize is how many images a rank puts through the model at once.
    #[schemars(range(min = 1, max = 65536))]
    pub micro_batch_size: i32,
    /// gradientAccumulationSteps is how many micro-batches a rank accumulates before gradients are reduced once.
    #[serde(default = "default_accumulation")]
    #[schemars(range(min = 1, max = 65536))]
    pub gradient_accumulation_steps: i32,
    /// seed of the weights and of the order of images.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub seed: i64,
    /// optimizer and its parameters.
    #[serde(default)]
    pub optimizer: Optimizer,
    /// schedule of the learning rate.
    #[serde(default)]
    pub schedule: Schedule,
    /// labelSmoothing is the weight of the uniform distribution in the target, at least 0 and below 1.
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 0.999))]
    pub label_smoothing: f64,
    /// clipGradNorm is the largest global norm of the gradients; larger ones are scaled down to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1e-6, max = 1e6))]
    pub clip_grad_norm: Option<f64>,
}

fn default_accumulation() -> i32 {
    1
}

/// Optimizer and its parameters, named as in PyTorch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Optimizer {
    /// name of the optimizer: adamw.
    #[serde(default)]
    pub name: OptimizerName,
    /// learningRate at its peak.
    #[serde(default = "default_learning_rate")]
    #[schemars(range(min = 1e-9, max = 10.0))]
    pub learning_rate: f64,
    /// weightDecay, decoupled from the gradient; biases and norms are not decayed.
    #[serde(default = "default_weight_decay")]
    #[schemars(range(min = 0.0, max = 10.0))]
    pub weight_decay: f64,
    /// betas are the decay of the first and of the second moment.
    #[serde(default = "default_betas")]
    #[schemars(length(min = 2, max = 2), inner(range(min = 0.0, max = 0.999_999)))]
    pub betas: Vec<f64>,
    /// epsilon is added to the denominator.
    #[serde(default = "default_epsilon")]
    #[schemars(range(min = 1e-16, max = 1.0))]
    pub epsilon: f64,
}

fn default_learning_rate() -> f64 {
    1e-3
}

fn default_weight_decay() -> f64 {
    0.05
}

fn default_betas() -> Vec<f64> {
    vec![0.9, 0.999]
}

fn default_epsilon() -> f64 {
    1e-8
}

impl Default for Optimizer {
    fn default() -> Self {
        Self {
            name: OptimizerName::default(),
            learning_rate: default_learning_rate(),
            weight_decay: default_weight_decay(),
            betas: default_betas(),
            epsilon: default_epsilon(),
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
}

/// Schedule of the learning rate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Schedule {
    /// name: constant, or cosine (down to zero at the end).
    #[serde(default)]
    pub name: ScheduleName,
    /// warmupEpochs is over how many epochs the learning rate first rises linearly from zero; parts of epochs are fine.
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 100_000.0))]
    pub warmup_epochs: f64,
}

impl Default for Schedule {
    fn default() -> Self {
        Self {
            name: ScheduleName::default(),
            warmup_epochs: 0.0,
        }
    }
}

/// Shapes of a schedule.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum ScheduleName {
    /// Stays at its peak after the warm-up.
    Constant,
    /// Falls to zero along half a cosine after the warm-up.
    #[default]
    Cosine,
}
