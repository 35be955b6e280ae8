use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    ActivationCheckpointing, AttentionBackend, Balance, Ema, LearningRateScaling, Loss, LossScale, Precision,
};

/// Training sets epochs, batches and the optimizer. One optimizer step uses microBatchSize x
/// gradientAccumulationSteps x nodes x gpusPerNode images, divided by parallelism.sequence and by
/// parallelism.tensor.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(
    validation = Rule::new("self.schedule.warmupEpochs <= double(self.epochs)").message("schedule.warmupEpochs must be at most epochs"),
    validation = Rule::new("!self.masterWeights || self.precision != 'fp32'").message("masterWeights needs precision bf16 or fp16"),
    validation = Rule::new("!self.tf32 || self.precision == 'fp32'").message("tf32 needs precision fp32"),
    validation = Rule::new("!has(self.lossScale) || self.precision == 'fp16'").message("lossScale needs precision fp16")
)]
pub struct Training {
    /// epochs is the number of passes over the training images.
    #[schemars(range(min = 1, max = 100_000))]
    pub epochs: i32,
    /// microBatchSize is the number of images in a rank's forward pass; ranks of
    /// parallelism.sequence and parallelism.tensor share them.
    #[schemars(range(min = 1, max = 65536))]
    pub micro_batch_size: i32,
    /// gradientAccumulationSteps is the number of micro-batches per rank before gradients are
    /// reduced.
    #[serde(default = "default_accumulation")]
    #[schemars(range(min = 1, max = 65536))]
    pub gradient_accumulation_steps: i32,
    /// balance is how ranks share the images of an optimizer step. Off: evenly, so a step lasts as
    /// long as the slowest rank. Weighted: by each rank's measured speed, for different GPUs; a
    /// rank that would delay the others with a single image gets none. The step is the same except
    /// for the order of rounded sums, and no micro-batch exceeds microBatchSize.
    #[serde(default)]
    pub balance: Balance,
    /// seed of the weights and of the order of images.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub seed: i64,
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

fn default_accumulation() -> i32 {
    1
}

/// Optimizer and its parameters, named as in PyTorch.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(
    validation = Rule::new("self.name == 'sgd' || !(has(self.momentum) || has(self.nesterov))").message("momentum and nesterov are parameters of sgd"),
    validation = Rule::new("self.name != 'sgd' || !(has(self.betas) || has(self.epsilon))").message("betas and epsilon are parameters of adamw and lamb")
)]
pub struct Optimizer {
    /// name of the optimizer: adamw, sgd or lamb.
    #[serde(default)]
    pub name: OptimizerName,
    /// learningRate at its peak, before learningRateScaling.
    #[serde(default = "default_learning_rate")]
    #[schemars(range(min = 1e-9, max = 100.0))]
    pub learning_rate: f64,
    /// weightDecay, not applied to biases, norms, the class token and the position embedding. adamw
    /// subtracts it from the weights, sgd adds it to the gradient, lamb to the step scaled by the
    /// trust ratio.
    #[serde(default = "default_weight_decay")]
    #[schemars(range(min = 0.0, max = 10.0))]
    pub weight_decay: f64,
    /// betas of adamw and lamb are the decay of the first and second moment; 0.9 and 0.999 by
    /// default.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 2, max = 2), inner(range(min = 0.0, max = 0.999_999)))]
    pub betas: Option<Vec<f64>>,
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

fn default_learning_rate() -> f64 {
    1e-3
}

fn default_weight_decay() -> f64 {
    0.05
}

impl Default for Optimizer {
    fn default() -> Self {
        Self {
            name: OptimizerName::default(),
            learning_rate: default_learning_rate(),
            weight_decay: default_weight_decay(),
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

/// ClassWeights weights the classes in the training loss: the mean over images of weight times
/// cross-entropy.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(
    validation = Rule::new("self.balanced != has(self.values)").message("set balanced to true or give values, but not both")
)]
pub struct ClassWeights {
    /// balanced gives all classes the same total weight: training images over classes and over
    /// images of the class, as in scikit-learn. With binaryCrossEntropy it makes the images that
    /// show a class count as much as the others: images without the class over images with it. The
    /// labels of all training images are read before the first step.
    #[serde(default)]
    pub balanced: bool,
    /// values are the weights of the classes, by class number.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 100_000), inner(range(min = 0.0, max = 1e9)))]
    pub values: Option<Vec<f64>>,
}

/// Schedule of the learning rate.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(
    validation = Rule::new("(self.name == 'step') == has(self.decayEpochs)").message("the schedule step needs decayEpochs; other schedules do not have it"),
    validation = Rule::new("self.name == 'step' || !has(self.decayRate)").message("decayRate is a parameter of the schedule step")
)]
pub struct Schedule {
    /// name: constant, cosine (down to minLearningRate at the end), or step.
    #[serde(default)]
    pub name: ScheduleName,
    /// warmupEpochs is the number of epochs, or a fraction, of linear warmup from zero.
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 100_000.0))]
    pub warmup_epochs: f64,
    /// minLearningRate is the minimum learning rate after warmup.
    #[serde(default)]
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
