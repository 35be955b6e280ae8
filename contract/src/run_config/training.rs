//! Epochs, batches and the loss.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::rules::Rules;
use super::{Ema, LearningRateScaling, LossScale, Optimizer, Precision, Schedule, ScheduleName};
use crate::schema::cel;

/// Training sets epochs, batches and the optimizer. One optimizer step uses microBatchSize x
/// gradientAccumulationSteps x nodes x gpusPerNode images, divided by parallelism.sequence and by
/// parallelism.tensor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(transform = cel(RULES))]
pub struct Training {
    /// epochs is the number of passes over the training images.
    #[schemars(range(min = 1, max = 100_000))]
    pub epochs: u32,
    /// microBatchSize is the number of images in a rank's forward pass; ranks of
    /// parallelism.sequence and parallelism.tensor share them.
    #[schemars(range(min = 1, max = 65536))]
    pub micro_batch_size: u32,
    /// gradientAccumulationSteps is the number of micro-batches per rank before gradients are
    /// reduced.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 65536))]
    pub gradient_accumulation_steps: u32,
    /// balance is how ranks share the images of an optimizer step. Off: evenly, so a step lasts as
    /// long as the slowest rank. Weighted: by each rank's measured speed, for different GPUs; a
    /// rank that would delay the others with a single image gets none. The step is the same except
    /// for the order of rounded sums, and no micro-batch exceeds microBatchSize.
    #[serde(default)]
    pub balance: Balance,
    /// seed of the weights and of the order of images.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub seed: u64,
    /// optimizer and its parameters.
    #[serde(default)]
    pub optimizer: Optimizer,
    /// learningRateScaling is how the learning rate scales with the global batch.
    #[serde(default)]
    pub learning_rate_scaling: LearningRateScaling,
    /// layerDecay is the learning rate of a layer over that of the layer above it: the classifier
    /// has the full rate, the patch embedding the lowest (timm's layer_decay).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.01, max = 1.0))]
    pub layer_decay: Option<f64>,
    /// schedule of the learning rate.
    #[serde(default)]
    pub schedule: Schedule,
    /// loss to minimize. crossEntropy is for images that each show one class. binaryCrossEntropy
    /// decides on each class separately, so an image may show any number of them; evaluation then
    /// also reports the mean average precision over the classes.
    #[serde(default)]
    pub loss: Loss,
    /// labelSmoothing is the weight of the uniform distribution in the target, at least 0 and below 1.
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 0.999))]
    pub label_smoothing: f64,
    /// classWeights is the weight of each class in the training loss, or with binaryCrossEntropy of
    /// the images that show it; equal by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class_weights: Option<ClassWeights>,
    /// clipGradNorm is the maximum global norm of the gradients; larger ones are scaled down to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1e-6, max = 1e6))]
    pub clip_grad_norm: Option<f64>,
    /// wallClockBreakdown adds the times of a step's parts to the log, in the format of DeepSpeed's
    /// wall_clock_breakdown.
    #[serde(default)]
    pub wall_clock_breakdown: bool,
    /// precision of matrix products: fp32, bf16 or fp16. Weights stay in 32 bits and are cast when
    /// used (autocast), unless masterWeights is set.
    #[serde(default)]
    pub precision: Precision,
    /// masterWeights keeps the model and its reduced gradients in half precision, and 32-bit
    /// weights and moments in the optimizer.
    #[serde(default)]
    pub master_weights: bool,
    /// tf32 lets GPUs from Ampere on round the inputs of fp32 matrix products to TensorFloat-32 (10
    /// bits of fraction instead of 23); sums, weights and everything else stay in 32 bits. Off by
    /// default, as in PyTorch. CPUs always compute in 32 bits.
    #[serde(default)]
    pub tf32: bool,
    /// attentionBackend is a GPU's implementation of attention. flash is FlashAttention, else
    /// memory-efficient attention (fp32, GPUs before Ampere), else plain matrix products. cudnn
    /// tries cuDNN's first, except for shapes whose gradient it can get wrong in libtorch 2.11. A
    /// CPU always uses its only fused kernel.
    #[serde(default)]
    pub attention_backend: AttentionBackend,
    /// lossScale of precision fp16, named as in DeepSpeed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<LossScale>,
    /// ema keeps an exponential moving average of the weights, which is evaluated and saved with
    /// them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ema: Option<Ema>,
    /// activationCheckpointing is the part of the forward pass that backward recomputes instead of
    /// keeping it: less memory, more time.
    #[serde(default)]
    pub activation_checkpointing: ActivationCheckpointing,
}

fn one() -> u32 {
    1
}

/// ClassWeights weights the classes in the training loss: the mean over images of weight times
/// cross-entropy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[schemars(transform = cel(CLASS_WEIGHTS_RULES))]
pub struct ClassWeights {
    /// balanced gives all classes the same total weight: training images over classes and over
    /// images of the class, as in scikit-learn. With binaryCrossEntropy it makes the images that
    /// show a class count as much as the others: images without the class over images with it. The
    /// labels of all training images are read before the first step.
    pub balanced: bool,
    /// values are the weights of the classes, by class number.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 100_000), inner(range(min = 0.0, max = 1e9)))]
    pub values: Option<Vec<f64>>,
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

impl Training {
    /// The learning rate at the schedule's peak, for a global batch.
    pub fn peak_learning_rate(&self, global_batch_size: u64) -> f64 {
        self.optimizer.learning_rate * self.learning_rate_scaling.factor(global_batch_size)
    }

    /// Sets the parameters of the optimizer and of the schedule that have defaults.
    pub fn fill_in(&mut self) {
        self.optimizer.fill_in();
        if self.schedule.name == ScheduleName::Step {
            self.schedule.decay_rate = Some(self.schedule.decay_rate());
        }
    }
}

/// What the API server checks, and [`Training::check`] elsewhere.
const RULES: &[(&str, &str)] = &[
    (
        "self.schedule.warmupEpochs <= double(self.epochs)",
        "schedule.warmupEpochs must be at most epochs",
    ),
    (
        "!self.masterWeights || self.precision != 'fp32'",
        "masterWeights needs precision bf16 or fp16",
    ),
    (
        "!self.tf32 || self.precision == 'fp32'",
        "tf32 needs precision fp32",
    ),
    (
        "!has(self.lossScale) || self.precision == 'fp16'",
        "lossScale needs precision fp16",
    ),
];
const CLASS_WEIGHTS_RULES: &[(&str, &str)] = &[(
    "self.balanced != has(self.values)",
    "set balanced to true or give values, but not both",
)];

impl Training {
    pub(super) fn check(&self, global_batch_size: u64, classes: u32, rules: &mut Rules) {
        if let Some(weights) = &self.class_weights {
            weights.check(classes, rules);
        }
        self.optimizer.check(rules);
        if global_batch_size > 0 {
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
        rules.require(
            self.loss_scale.is_none() || self.precision == Precision::Fp16,
            "training.lossScale",
            "given",
            "needs training.precision fp16: other formats have no loss scale",
        );
        if let Some(scale) = &self.loss_scale {
            scale.check(rules);
        }
    }
}

impl ClassWeights {
    fn check(&self, classes: u32, rules: &mut Rules) {
        rules.require(
            self.balanced != self.values.is_some(),
            "training.classWeights",
            if self.balanced {
                "balanced with values"
            } else {
                "empty"
            },
            "set balanced to true or give values, but not both",
        );
        let Some(values) = &self.values else { return };
        rules.require(
            values.len() == classes as usize,
            "training.classWeights.values",
            format!("a list of {}", values.len()),
            format!("must have one for each of model.numClasses ({classes})"),
        );
        rules.require(
            values.iter().any(|value| *value > 0.0),
            "training.classWeights.values",
            format!("{values:?}"),
            "must be at least 0, and at least one above 0",
        );
    }
}
