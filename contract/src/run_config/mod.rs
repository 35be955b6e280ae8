//! The run configuration: a manifest with every default filled in and every preset resolved, as the trainer gets it.
//!
//! The operator renders it into a ConfigMap, `vit-trainer run` makes it from the same manifest. Field names are those
//! of the manifest, so that an error reads the same on both ways.

mod augmentation;
mod checkpoint;
mod data;
mod elastic;
mod model;
mod optimizer;
mod parallelism;
mod precision;
mod rules;
mod training;

use serde::{Deserialize, Serialize};

use rules::Rules;

pub use augmentation::{Augmentation, NoRandAugment, RandAugment, RandomCrop, RandomResizedCrop};
pub use checkpoint::{CheckpointConfig, Resume};
pub use data::{DataConfig, DataFormat, Interpolation, Normalization, Shards};
pub use elastic::BatchShare;
pub use model::{ModelConfig, Pooling};
pub use optimizer::{Course, LearningRateScaling, Optimizer, ScalingRule, Schedule};
pub use parallelism::{Device, GradientCompression, Parallelism};
pub use precision::{Ema, LossScaleConfig, Precision};
pub use rules::ConfigError;
pub use training::{ActivationCheckpointing, TrainingConfig};

/// Everything the agents and ranks of one job need to know, but for what differs by pod or attempt (that is in the
/// environment, see [`crate::environment`]).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RunConfig {
    /// The job, for logs and metric labels, and whose checkpoints are continued from.
    pub job: JobIdentity,
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

/// Which job this is.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct JobIdentity {
    /// Kubernetes namespace; `local` outside a cluster.
    pub namespace: String,
    /// Name within it.
    pub name: String,
    /// Tells jobs of the same name apart, one after the other; `None` outside a cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
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
        let mut rules = Rules::default();
        self.model.check(&mut rules);
        self.training.check(self.global_batch_size(), &mut rules);
        self.parallelism.check(&mut rules);
        rules.positive("workers.nodes", self.nodes);
        rules.positive("workers.gpusPerNode", self.ranks_per_node);
        self.checkpoint.check(&mut rules);
        self.data.check(&self.model, &self.training, &mut rules);
        rules.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn config() -> RunConfig {
        RunConfig {
            job: JobIdentity {
                namespace: "default".into(),
                name: "digits".into(),
                uid: Some("6f0c2b9e".into()),
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
                register_tokens: 0,
                layer_scale: None,
                drop_path: 0.0,
                pretrained: None,
            },
            data: DataConfig {
                path: Some("/data".into()),
                ..DataConfig::plain(DataFormat::Cifar10)
            },
            training: TrainingConfig {
                epochs: 2,
                micro_batch_size: 8,
                gradient_accumulation_steps: 3,
                seed: 0,
                optimizer: adamw(1e-3),
                learning_rate_scaling: LearningRateScaling {
                    rule: ScalingRule::None,
                    reference_batch_size: 256,
                },
                layer_decay: 1.0,
                schedule: Schedule {
                    course: Course::Cosine,
                    warmup_epochs: 1.0,
                    min_learning_rate: 0.0,
                },
                label_smoothing: 0.1,
                clip_grad_norm: None,
                activation_checkpointing: ActivationCheckpointing::None,
                wall_clock_breakdown: false,
                precision: Precision::Fp32,
                master_weights: false,
                loss_scale: LossScaleConfig::default(),
                ema: None,
            },
            parallelism: Parallelism {
                bucket_megabytes: 25,
                compress_gradients: GradientCompression::Bf16,
            },
            nodes: 2,
            ranks_per_node: 2,
            device: Device::Auto,
            checkpoint: CheckpointConfig {
                path: "/checkpoints".into(),
                keep: 2,
                every_steps: Some(500),
                every_seconds: None,
                resume: Resume::Auto,
            },
        }
    }

    fn adamw(learning_rate: f64) -> Optimizer {
        Optimizer::Adamw {
            learning_rate,
            weight_decay: 0.05,
            betas: [0.9, 0.999],
            epsilon: 1e-8,
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
            messages(|config| config.training.schedule.warmup_epochs = 3.0),
            ["training.schedule.warmupEpochs is 3: must be between 0 and training.epochs (2)"]
        );
        assert_eq!(
            messages(|config| config.training.optimizer = adamw(f64::NAN)),
            ["training.optimizer.learningRate is NaN: must be above 0"]
        );
        assert_eq!(
            messages(|config| config.data = DataConfig::plain(DataFormat::Synthetic)),
            ["data.syntheticImages is missing: must be at least 1 for synthetic data"]
        );
    }

    #[test]
    fn an_interval_between_checkpoints_is_at_least_one() {
        assert_eq!(
            messages(|config| {
                config.checkpoint.every_steps = Some(0);
                config.checkpoint.every_seconds = Some(0);
            }),
            [
                "checkpoint.everySteps is 0: must be at least 1",
                "checkpoint.everySeconds is 0: must be at least 1"
            ]
        );
    }

    #[test]
    fn each_error_of_training_names_field_value_and_what_would_be_right() {
        type Change = fn(&mut TrainingConfig);
        let sgd = |momentum, nesterov| Optimizer::Sgd {
            learning_rate: 0.1,
            weight_decay: 0.0,
            momentum,
            nesterov,
        };
        let cases: [(Change, &str); 11] = [
            (
                |training| training.layer_decay = 0.0,
                "training.layerDecay is 0: must be above 0 and at most 1",
            ),
            (
                |training| training.learning_rate_scaling.reference_batch_size = 0,
                "training.learningRateScaling.referenceBatchSize is 0: must be at least 1",
            ),
            (
                |training| training.schedule.min_learning_rate = 0.01,
                "training.schedule.minLearningRate is 0.01: must be between 0 and the learning rate at its peak (0.001)",
            ),
            (
                |training| {
                    training.schedule.course = Course::Step {
                        decay_epochs: 0.0,
                        decay_rate: 0.1,
                    }
                },
                "training.schedule.decayEpochs is 0: must be above 0",
            ),
            (
                |training| {
                    training.schedule.course = Course::Step {
                        decay_epochs: 1.0,
                        decay_rate: 2.0,
                    }
                },
                "training.schedule.decayRate is 2: must be above 0 and at most 1",
            ),
            (
                |training| training.master_weights = true,
                "training.masterWeights is true: needs training.precision bf16 or fp16: fp32 weights are their own masters",
            ),
            (
                |training| training.loss_scale.initial_scale_power = 33,
                "training.lossScale.initialScalePower is 33: must be at most 32",
            ),
            (
                |training| training.loss_scale.min_loss_scale = 65_537,
                "training.lossScale.minLossScale is 65537: must be between 1 and 2 to the power of training.lossScale.initialScalePower (16)",
            ),
            (
                |training| training.loss_scale.hysteresis = 0,
                "training.lossScale.hysteresis is 0: must be at least 1",
            ),
            (
                |training| training.loss_scale.loss_scale_window = 0,
                "training.lossScale.lossScaleWindow is 0: must be at least 1",
            ),
            (
                |training| {
                    training.ema = Some(Ema {
                        decay: 1.0,
                        warmup: false,
                    });
                },
                "training.ema.decay is 1: must be at least 0 and below 1",
            ),
        ];
        for (change, expected) in cases {
            assert_eq!(messages(|config| change(&mut config.training)), [expected]);
        }
        assert_eq!(
            messages(|config| config.training.optimizer = sgd(0.0, true)),
            ["training.optimizer.nesterov is true: needs training.optimizer.momentum above 0"]
        );
        assert_eq!(
            messages(|config| config.training.optimizer = sgd(1.0, false)),
            ["training.optimizer.momentum is 1: must be at least 0 and below 1"]
        );
    }

    #[test]
    fn what_the_data_cannot_do_is_named() {
        let data = |change: fn(&mut DataConfig)| messages(|config| change(&mut config.data));
        assert_eq!(
            data(|data| data.fraction = 0.0),
            ["data.fraction is 0: must be above 0 and at most 1"]
        );
        assert_eq!(
            data(|data| data.normalization.mean = vec![0.1, 0.2]),
            [
                "data.normalization.mean is a list of 2: must have one value, or one for each of the 3 channels (model.channels)"
            ]
        );
        assert_eq!(
            data(|data| data.normalization.std = vec![0.0]),
            ["data.normalization.std is 0: must be above 0"]
        );
        assert_eq!(
            data(|data| data.format = DataFormat::WebDataset),
            ["data.shards is missing: must be given for format webDataset, and for no other"]
        );
        assert_eq!(
            data(|data| {
                data.augmentation.random_crop = Some(RandomCrop { padding: 4 });
                data.augmentation.random_resized_crop = Some(RandomResizedCrop {
                    scale: [0.5, 0.2],
                    ratio: [0.75, 1.5],
                    interpolation: Interpolation::Bicubic,
                });
            }),
            [
                "data.augmentation.randomResizedCrop.scale is 0.5, 0.2: must be two shares above 0 and at most 1, the smaller one first",
                "data.augmentation.randomCrop is given: give one of randomCrop and randomResizedCrop"
            ]
        );
        assert_eq!(
            messages(|config| {
                config.data.augmentation.cutmix = 1.0;
                config.training.micro_batch_size = 7;
            }),
            ["training.microBatchSize is 7: must be even for mixup and cutmix, which mix pairs of images"]
        );
        assert_eq!(
            messages(|config| {
                config.data.format = DataFormat::Numpy;
                config.data.augmentation.three_augment = true;
                config.model.channels = 5;
            }),
            [
                "model.channels is 5: must be 3 for colorJitter, randAugment and threeAugment of data.augmentation"
            ]
        );
        assert_eq!(
            messages(|config| {
                config.data.format = DataFormat::ImageFolder;
                config.model.channels = 4;
            }),
            [
                "model.channels is 4: must be 1 (grey) or 3 (red, green, blue) for JPEG and PNG files; format numpy takes any number"
            ]
        );
    }

    #[test]
    fn the_learning_rate_grows_with_the_global_batch_as_it_is_told() {
        // The global batch is 96.
        for (rule, expected) in [
            (ScalingRule::None, 1e-3),
            (ScalingRule::Linear, 4e-3),
            (ScalingRule::Sqrt, 2e-3),
        ] {
            let mut config = config();
            config.training.learning_rate_scaling = LearningRateScaling {
                rule,
                reference_batch_size: 24,
            };
            let peak = config.training.peak_learning_rate(config.global_batch_size());
            assert!((peak - expected).abs() < 1e-15, "{rule:?}: {peak}");
        }
    }

    #[test]
    fn zero_is_never_a_divisor() {
        assert_eq!(
            messages(|config| config.model.patch_size = 0),
            ["model.patchSize is 0: must be at least 1"]
        );
    }
}
