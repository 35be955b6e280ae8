//! Epochs, batches and the loss.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::rules::Rules;
use super::{Ema, LearningRateScaling, LossScale, Optimizer, Precision, Schedule};

/// Training settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TrainingConfig {
    /// Passes over the training images.
    pub epochs: u32,
    /// Images in a rank's forward pass.
    pub micro_batch_size: u32,
    /// Micro-batches per rank before gradients are reduced.
    pub gradient_accumulation_steps: u32,
    /// How ranks share the images of a step.
    #[serde(default)]
    pub balance: Balance,
    /// Seed of weights and of the order of images.
    pub seed: u64,
    /// The optimizer.
    pub optimizer: Optimizer,
    /// How the learning rate scales with the global batch.
    pub learning_rate_scaling: LearningRateScaling,
    /// Learning rate of a layer over that of the layer above it; 1 for the same rate everywhere.
    pub layer_decay: f64,
    /// Schedule of the learning rate.
    pub schedule: Schedule,
    /// The loss to minimize.
    #[serde(default)]
    pub loss: Loss,
    /// Weight of the uniform distribution in the target, 0..1.
    pub label_smoothing: f64,
    /// Weight of each class in the loss; equal by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class_weights: Option<ClassWeights>,
    /// Maximum global norm of the gradients; larger ones are scaled down to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clip_grad_norm: Option<f64>,
    /// Whether to log DeepSpeed's `wall_clock_breakdown` line.
    #[serde(default)]
    pub wall_clock_breakdown: bool,
    /// Number format.
    pub precision: Precision,
    /// Whether the model is in half precision, and the optimizer keeps 32-bit weights.
    pub master_weights: bool,
    /// Whether GPUs may round the inputs of matrix products to TensorFloat-32.
    #[serde(default)]
    pub tf32: bool,
    /// Implementation of attention on GPUs.
    #[serde(default)]
    pub attention_backend: AttentionBackend,
    /// Loss scale of [`Precision::Fp16`].
    pub loss_scale: LossScale,
    /// Average of the weights.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ema: Option<Ema>,
    /// What backward recomputes instead of keeping it.
    #[serde(default)]
    pub activation_checkpointing: ActivationCheckpointing,
}

/// Weight of each class in the training loss: the mean over images of weight times cross-entropy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ClassWeights {
    /// The same total weight for all classes: training images over classes and over images of the
    /// class (scikit-learn's `balanced`).
    Balanced,
    /// Weights in the order of class numbers.
    Values(Vec<f64>),
}

/// How ranks share the images of an optimizer step. The global batch is the same either way.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize, Deserialize, JsonSchema)]
pub enum Balance {
    /// All ranks have equal shares.
    #[default]
    Off,
    /// Shares in proportion to the speed of each rank.
    Weighted,
}

/// What backward recomputes instead of keeping it: less memory, more time.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum ActivationCheckpointing {
    /// Nothing.
    #[default]
    None,
    /// Whole blocks: one tensor per block is kept.
    Block,
    /// Norms and activation functions: outputs of matrix products and attention are kept.
    Selective,
}

/// The loss of training, mean over the images of a step.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Loss {
    /// Cross-entropy, for images that show one class.
    #[default]
    CrossEntropy,
    /// Binary cross-entropy, mean over the classes, for images with any number of classes. As
    /// PyTorch's `BCEWithLogitsLoss`.
    BinaryCrossEntropy,
}

/// Implementation of attention on GPUs. A CPU has one fused kernel.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum AttentionBackend {
    /// `FlashAttention`, else memory-efficient attention, else plain matrix products.
    #[default]
    Flash,
    /// cuDNN's, or the others if it does not apply or its gradient can be wrong in libtorch 2.11.
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
                "must be at least 0, and at least one above 0",
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
