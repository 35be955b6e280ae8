//! The run configuration: a manifest with every default filled in and every preset resolved, as the trainer gets it.
//!
//! The operator renders it into a ConfigMap, `vit-trainer run` makes it from the same manifest. Field names are those
//! of the manifest, so that an error reads the same on both ways.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Everything the agents and ranks of one job need to know, but for what differs by pod or attempt (that is in the
/// environment, see [`crate::environment`]).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RunConfig {
    /// The job, for logs and metric labels.
    pub job: JobName,
    /// The network.
    pub model: ModelConfig,
    /// The data set.
    pub data: DataConfig,
    /// Epochs, batches, optimizer.
    pub training: TrainingConfig,
    /// How gradients are reduced.
    pub parallelism: Parallelism,
    /// Pods in the gang.
    pub nodes: u32,
    /// Ranks in each pod: one a GPU.
    pub ranks_per_node: u32,
    /// Where tensors live.
    pub device: Device,
    /// Where and how checkpoints are kept.
    pub checkpoint: CheckpointConfig,
}

/// Namespace and name of a job.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct JobName {
    /// Kubernetes namespace; `local` outside a cluster.
    pub namespace: String,
    /// Name within it.
    pub name: String,
}

/// A Vision Transformer. Lengths in pixels and in channels of the residual stream.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ModelConfig {
    /// Side of the square input, pixels; images of another size are resized to it.
    pub image_size: u32,
    /// Side of a square patch, pixels.
    pub patch_size: u32,
    /// Width of the residual stream.
    pub hidden_size: u32,
    /// Transformer blocks.
    pub depth: u32,
    /// Attention heads of a block.
    pub heads: u32,
    /// Width of the hidden layer of a block's MLP.
    pub mlp_size: u32,
    /// Classes of the classifier.
    pub num_classes: u32,
    /// Channels of the input.
    pub channels: u32,
    /// What the classifier reads.
    pub pooling: Pooling,
}

/// What the classifier reads from the last block.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Pooling {
    /// The class token.
    Token,
    /// The mean over all patches; there is no class token.
    Average,
}

/// A data set.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DataConfig {
    /// Layout of the files.
    pub format: DataFormat,
    /// Folder that holds the files; `None` for [`DataFormat::Synthetic`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<PathBuf>,
    /// Training images of [`DataFormat::Synthetic`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub synthetic_images: Option<u64>,
}

/// Layout of a data set.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum DataFormat {
    /// CIFAR-10 binary version: `data_batch_1.bin` to `data_batch_5.bin` and `test_batch.bin`, records of 3,073 bytes.
    Cifar10,
    /// CIFAR-100 binary version: `train.bin` and `test.bin`, records of 3,074 bytes (coarse label, fine label, pixels).
    Cifar100,
    /// Random images with random labels, made in memory: to measure, not to learn from.
    Synthetic,
}

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
    /// Seed of weights and of the order of images.
    pub seed: u64,
    /// The optimizer.
    pub optimizer: AdamW,
    /// How the learning rate moves.
    pub schedule: Schedule,
    /// Weight of the uniform distribution in the target, 0..1.
    pub label_smoothing: f64,
    /// Largest global norm of the gradients; larger ones are scaled down to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clip_grad_norm: Option<f64>,
}

/// AdamW (arXiv 1711.05101), as `torch.optim.AdamW` names its parameters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AdamW {
    /// Peak learning rate.
    pub learning_rate: f64,
    /// Decoupled weight decay; not applied to biases and norms.
    pub weight_decay: f64,
    /// Decay of the first and second moment.
    pub betas: [f64; 2],
    /// Added to the denominator.
    pub epsilon: f64,
}

/// How the learning rate moves over the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(
    tag = "name",
    rename_all = "camelCase",
    rename_all_fields = "camelCase",
    deny_unknown_fields
)]
pub enum Schedule {
    /// Stays at its peak after the warm-up.
    Constant {
        /// Epochs of linear warm-up from zero.
        warmup_epochs: f64,
    },
    /// Falls to zero along half a cosine after the warm-up.
    Cosine {
        /// Epochs of linear warm-up from zero.
        warmup_epochs: f64,
    },
}

impl Schedule {
    /// Epochs of linear warm-up from zero.
    pub fn warmup_epochs(&self) -> f64 {
        match self {
            Self::Constant { warmup_epochs } | Self::Cosine { warmup_epochs } => *warmup_epochs,
        }
    }
}

/// How gradients are reduced over the ranks.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Parallelism {
    /// Size at which a bucket of gradients is closed and reduced, in MiB (`bucket_cap_mb` of PyTorch's DDP).
    pub bucket_megabytes: u32,
}

/// Where tensors live.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Device {
    /// The GPUs of a machine that has some; one that cannot be used is
    /// [`ExitCode::DeviceFault`](crate::ExitCode::DeviceFault). The CPU, with a warning, where there are none.
    Auto,
    /// A GPU, or [`ExitCode::DeviceFault`](crate::ExitCode::DeviceFault).
    Cuda,
    /// The CPU.
    Cpu,
}

/// Where and how checkpoints are kept.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CheckpointConfig {
    /// Folder of this job's checkpoints, shared by all its pods.
    pub path: PathBuf,
    /// Complete checkpoints that are kept; older ones are removed.
    pub keep: u32,
    /// Whether a run continues from a checkpoint that is there.
    pub resume: Resume,
}

/// Whether a run continues from a checkpoint that is there.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Resume {
    /// Continue from the newest complete one, if there is one.
    Auto,
    /// The first attempt starts afresh, and fails with [`ExitCode::BadConfig`](crate::ExitCode::BadConfig) where
    /// checkpoints of an earlier run are in the way; later attempts of the same job continue.
    Never,
}

/// A value that breaks a rule.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{field} is {value}: {expected}")]
pub struct ConfigError {
    /// Path of the field, as in the manifest's spec.
    pub field: &'static str,
    /// The value it has.
    pub value: String,
    /// What would be right.
    pub expected: String,
}

impl RunConfig {
    /// Number of ranks.
    pub fn world_size(&self) -> u32 {
        self.nodes * self.ranks_per_node
    }

    /// Images of one optimizer step over all ranks.
    pub fn global_batch_size(&self) -> u64 {
        u64::from(self.training.micro_batch_size)
            * u64::from(self.training.gradient_accumulation_steps)
            * u64::from(self.world_size())
    }

    /// Every rule that a value breaks; empty where the configuration can be trained.
    pub fn errors(&self) -> Vec<ConfigError> {
        let mut errors = Rules::default();
        let model = &self.model;
        errors.positive("model.imageSize", model.image_size);
        errors.positive("model.patchSize", model.patch_size);
        errors.positive("model.hiddenSize", model.hidden_size);
        errors.positive("model.depth", model.depth);
        errors.positive("model.heads", model.heads);
        errors.positive("model.mlpSize", model.mlp_size);
        errors.positive("model.channels", model.channels);
        errors.require(
            model.num_classes >= 2,
            "model.numClasses",
            model.num_classes,
            || "must be at least 2".into(),
        );
        errors.divides(
            "model.patchSize",
            model.patch_size,
            "model.imageSize",
            model.image_size,
        );
        errors.divides("model.heads", model.heads, "model.hiddenSize", model.hidden_size);

        let training = &self.training;
        errors.positive("training.epochs", training.epochs);
        errors.positive("training.microBatchSize", training.micro_batch_size);
        errors.positive(
            "training.gradientAccumulationSteps",
            training.gradient_accumulation_steps,
        );
        let warmup = training.schedule.warmup_epochs();
        errors.require(
            warmup >= 0.0 && warmup <= f64::from(training.epochs),
            "training.schedule.warmupEpochs",
            warmup,
            || format!("must be between 0 and training.epochs ({})", training.epochs),
        );
        errors.require(
            (0.0..1.0).contains(&training.label_smoothing),
            "training.labelSmoothing",
            training.label_smoothing,
            || "must be at least 0 and below 1".into(),
        );
        if let Some(norm) = training.clip_grad_norm {
            errors.above_zero("training.clipGradNorm", norm);
        }
        let optimizer = &training.optimizer;
        errors.above_zero("training.optimizer.learningRate", optimizer.learning_rate);
        errors.above_zero("training.optimizer.epsilon", optimizer.epsilon);
        errors.require(
            optimizer.weight_decay.is_finite() && optimizer.weight_decay >= 0.0,
            "training.optimizer.weightDecay",
            optimizer.weight_decay,
            || "must be at least 0".into(),
        );
        for beta in optimizer.betas {
            errors.require(
                (0.0..1.0).contains(&beta),
                "training.optimizer.betas",
                beta,
                || "each must be at least 0 and below 1".into(),
            );
        }

        errors.positive("parallelism.bucketMegabytes", self.parallelism.bucket_megabytes);
        errors.positive("workers.nodes", self.nodes);
        errors.positive("workers.gpusPerNode", self.ranks_per_node);
        errors.positive("checkpoint.keep", self.checkpoint.keep);
        self.data_errors(&mut errors);
        errors.0
    }

    fn data_errors(&self, errors: &mut Rules) {
        let data = &self.data;
        match data.format {
            DataFormat::Cifar10 | DataFormat::Cifar100 => {
                errors.require(data.path.is_some(), "data.path", "missing", || {
                    "must name the folder of the data set".into()
                });
                errors.require(
                    self.model.channels == 3,
                    "model.channels",
                    self.model.channels,
                    || "must be 3: CIFAR images have 3 channels".into(),
                );
                let classes = if data.format == DataFormat::Cifar10 {
                    10
                } else {
                    100
                };
                errors.require(
                    self.model.num_classes >= classes,
                    "model.numClasses",
                    self.model.num_classes,
                    || format!("must be at least {classes}, the classes of the data set"),
                );
            }
            DataFormat::Synthetic => {
                errors.require(
                    data.synthetic_images.is_some_and(|images| images > 0),
                    "data.syntheticImages",
                    data.synthetic_images
                        .map_or_else(|| "missing".to_owned(), |images| images.to_string()),
                    || "must be at least 1 for synthetic data".into(),
                );
            }
        }
    }
}

/// Collects broken rules.
#[derive(Default)]
struct Rules(Vec<ConfigError>);

impl Rules {
    fn require(
        &mut self,
        holds: bool,
        field: &'static str,
        value: impl std::fmt::Display,
        expected: impl FnOnce() -> String,
    ) {
        if !holds {
            self.0.push(ConfigError {
                field,
                value: value.to_string(),
                expected: expected(),
            });
        }
    }

    fn positive(&mut self, field: &'static str, value: u32) {
        self.require(value > 0, field, value, || "must be at least 1".into());
    }

    fn above_zero(&mut self, field: &'static str, value: f64) {
        self.require(value.is_finite() && value > 0.0, field, value, || {
            "must be above 0".into()
        });
    }

    fn divides(&mut self, part: &'static str, divisor: u32, whole: &'static str, value: u32) {
        self.require(
            divisor == 0 || value.is_multiple_of(divisor),
            whole,
            value,
            || format!("must be a multiple of {part} ({divisor})"),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> RunConfig {
        RunConfig {
            job: JobName {
                namespace: "default".into(),
                name: "digits".into(),
            },
            model: ModelConfig {
                image_size: 32,
                patch_size: 8,
                hidden_size: 64,
                depth: 2,
                heads: 4,
                mlp_size: 256,
                num_classes: 10,
                channels: 3,
                pooling: Pooling::Average,
            },
            data: DataConfig {
                format: DataFormat::Cifar10,
                path: Some("/data".into()),
                synthetic_images: None,
            },
            training: TrainingConfig {
                epochs: 2,
                micro_batch_size: 8,
                gradient_accumulation_steps: 3,
                seed: 0,
                optimizer: AdamW {
                    learning_rate: 1e-3,
                    weight_decay: 0.05,
                    betas: [0.9, 0.999],
                    epsilon: 1e-8,
                },
                schedule: Schedule::Cosine { warmup_epochs: 1.0 },
                label_smoothing: 0.1,
                clip_grad_norm: None,
            },
            parallelism: Parallelism { bucket_megabytes: 25 },
            nodes: 2,
            ranks_per_node: 2,
            device: Device::Auto,
            checkpoint: CheckpointConfig {
                path: "/checkpoints".into(),
                keep: 2,
                resume: Resume::Auto,
            },
        }
    }

    fn messages(change: impl FnOnce(&mut RunConfig)) -> Vec<String> {
        let mut config = config();
        change(&mut config);
        config.errors().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_sound_configuration_has_no_errors_and_reads_back() {
        assert_eq!(config().errors(), []);
        let json = serde_json::to_string(&config()).expect("serializes");
        assert_eq!(
            serde_json::from_str::<RunConfig>(&json).expect("reads back"),
            config()
        );
        assert_eq!((config().world_size(), config().global_batch_size()), (4, 96));
    }

    #[test]
    fn an_unknown_field_is_refused_by_name() {
        let mut json = serde_json::to_value(config()).expect("serializes");
        json["training"]["learningRate"] = 0.1.into();
        let error = serde_json::from_value::<RunConfig>(json).expect_err("refused");
        assert!(error.to_string().contains("learningRate"), "{error}");
    }

    #[test]
    fn each_error_names_field_value_and_what_would_be_right() {
        assert_eq!(
            messages(|config| config.model.heads = 5),
            ["model.hiddenSize is 64: must be a multiple of model.heads (5)"]
        );
        assert_eq!(
            messages(|config| config.model.num_classes = 9),
            ["model.numClasses is 9: must be at least 10, the classes of the data set"]
        );
        assert_eq!(
            messages(|config| config.training.schedule = Schedule::Constant { warmup_epochs: 3.0 }),
            ["training.schedule.warmupEpochs is 3: must be between 0 and training.epochs (2)"]
        );
        assert_eq!(
            messages(|config| config.training.optimizer.learning_rate = f64::NAN),
            ["training.optimizer.learningRate is NaN: must be above 0"]
        );
        assert_eq!(
            messages(|config| config.data = DataConfig {
                format: DataFormat::Synthetic,
                path: None,
                synthetic_images: None
            }),
            ["data.syntheticImages is missing: must be at least 1 for synthetic data"]
        );
    }

    #[test]
    fn zero_is_never_a_divisor() {
        assert_eq!(
            messages(|config| config.model.patch_size = 0),
            ["model.patchSize is 0: must be at least 1"]
        );
    }
}
