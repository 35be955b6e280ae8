//! Epochs, batches and the loss.

use serde::{Deserialize, Serialize};

use super::rules::Rules;
use super::{Ema, LearningRateScaling, LossScaleConfig, Optimizer, Precision, Schedule};

/// How the model is trained.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TrainingConfig {
    /// Passes over the training images.
    pub epochs: u32,
    /// Images a rank puts through the model at once.
    pub micro_batch_size: u32,
    /// Micro-batches a rank accumulates before gradients are reduced.
    pub gradient_accumulation_steps: u32,
    /// How the images of a step are shared among the ranks.
    #[serde(default)]
    pub balance: Balance,
    /// Seed of weights and of the order of images.
    pub seed: u64,
    /// The optimizer.
    pub optimizer: Optimizer,
    /// How the learning rate grows with the global batch.
    pub learning_rate_scaling: LearningRateScaling,
    /// The learning rate of a layer is this times the one of the layer above it; 1 for the same rate everywhere.
    pub layer_decay: f64,
    /// How the learning rate moves.
    pub schedule: Schedule,
    /// What training makes small.
    #[serde(default)]
    pub loss: Loss,
    /// Weight of the uniform distribution in the target, 0..1.
    pub label_smoothing: f64,
    /// How much each class counts in the loss; all the same if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class_weights: Option<ClassWeights>,
    /// Largest global norm of the gradients; larger ones are scaled down to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clip_grad_norm: Option<f64>,
    /// Whether the line that DeepSpeed prints under `wall_clock_breakdown` is logged.
    #[serde(default)]
    pub wall_clock_breakdown: bool,
    /// Number format.
    pub precision: Precision,
    /// Whether the model itself is in half precision, and the optimizer keeps weights in 32 bits.
    pub master_weights: bool,
    /// Whether GPUs may round the inputs of matrix products to TensorFloat-32.
    #[serde(default)]
    pub tf32: bool,
    /// What GPUs compute attention with.
    #[serde(default)]
    pub attention_backend: AttentionBackend,
    /// Loss scale of [`Precision::Fp16`].
    pub loss_scale: LossScaleConfig,
    /// Average of the weights.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ema: Option<Ema>,
    /// What the backward pass computes again in place of keeping it.
    #[serde(default)]
    pub activation_checkpointing: ActivationCheckpointing,
}

/// How much each class counts in the loss of training: the mean over images of the weight times the cross-entropy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ClassWeights {
    /// All classes together the same: a weight is the number of training images over that of classes and over that of images of the
    /// class (scikit-learn's `balanced`).
    Balanced,
    /// These, in the order of class numbers.
    Values(Vec<f64>),
}

/// How the images of an optimizer step are shared among the ranks. The global batch is the same either way.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Balance {
    /// Every rank takes as many as every other.
    #[default]
    Off,
    /// Every rank takes as many as it can process in the time that the others need for theirs.
    Weighted,
}

/// What the backward pass computes again in place of keeping it: less memory for more time.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum ActivationCheckpointing {
    /// Nothing.
    #[default]
    None,
    /// Each block whole: one tensor a block is kept.
    Block,
    /// Norms and activation functions: what matrix products and attention gave is kept.
    Selective,
}

/// The loss of training, mean over the images of a step.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum Loss {
    /// Of the one class that an image shows.
    #[default]
    CrossEntropy,
    /// Whether an image shows a class, for each class alone, mean over these: of any number of classes. As PyTorch's
    /// `BCEWithLogitsLoss`.
    BinaryCrossEntropy,
}

/// What a GPU computes attention with. A CPU has one fused kernel.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum AttentionBackend {
    /// `FlashAttention`; where it does not apply memory-efficient attention, then plain matrix products.
    #[default]
    Flash,
    /// cuDNN's, and the others where it does not apply or its gradient can be wrong in libtorch 2.11.
    Cudnn,
}

impl TrainingConfig {
    /// The learning rate at the schedule's peak, for a global batch.
    pub fn peak_learning_rate(&self, global_batch_size: u64) -> f64 {
        self.optimizer.learning_rate() * self.learning_rate_scaling.factor(global_batch_size)
    }

    pub(super) fn check(&self, global_batch_size: u64, classes: u32, rules: &mut Rules) {
        rules.positive("training.epochs", self.epochs);
        rules.positive("training.microBatchSize", self.micro_batch_size);
        rules.positive(
            "training.gradientAccumulationSteps",
            self.gradient_accumulation_steps,
        );
        rules.below_one("training.labelSmoothing", self.label_smoothing);
        if let Some(ClassWeights::Values(values)) = &self.class_weights {
            rules.require(
                values.len() == classes as usize,
                "training.classWeights.values",
                format!("a list of {}", values.len()),
                format!("must have one for each of model.numClasses ({classes})"),
            );
            let is_weight = |value: &f64| value.is_finite() && *value >= 0.0;
            rules.require(
                values.iter().all(is_weight) && values.iter().any(|value| *value > 0.0),
                "training.classWeights.values",
                format!("{values:?}"),
                "must be at least 0, and one above it",
            );
        }
        if let Some(norm) = self.clip_grad_norm {
            rules.above_zero("training.clipGradNorm", norm);
        }
        self.optimizer.check(rules);
        self.learning_rate_scaling.check(rules);
        rules.share("training.layerDecay", self.layer_decay);
        if global_batch_size > 0 && self.learning_rate_scaling.reference_batch_size > 0 {
            let peak = self.peak_learning_rate(global_batch_size);
            self.schedule.check(self.epochs, peak, rules);
        }
        rules.require(
            !self.master_weights || self.precision != Precision::Fp32,
            "training.masterWeights",
            self.master_weights,
            "needs training.precision bf16 or fp16: fp32 weights are their own masters",
        );
        rules.require(
            !self.tf32 || self.precision == Precision::Fp32,
            "training.tf32",
            self.tf32,
            "needs training.precision fp32: bf16 and fp16 have fewer bits already",
        );
        self.loss_scale.check(rules);
        if let Some(ema) = &self.ema {
            ema.check(rules);
        }
    }
}
