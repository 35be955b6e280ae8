//! The trainer's run configuration: a manifest with defaults filled in and presets resolved.
//!
//! The operator renders it into a ConfigMap; `vit-trainer run` builds it from the same manifest.
//! Fields have the manifest's names, so errors read the same in both cases. Sections that need no
//! translation are the manifest's own types, with its texts, bounds and rules.

mod augmentation;
mod checkpoint;
mod data;
mod elastic;
mod measure;
mod model;
mod optimizer;
mod parallelism;
mod precision;
mod release;
mod rules;
mod training;

use serde::{Deserialize, Serialize};

use rules::Rules;

pub use augmentation::*;
pub use checkpoint::*;
pub use data::*;
pub use measure::*;
pub use model::*;
pub use optimizer::*;
pub use parallelism::*;
pub use precision::*;
pub use release::Release;
pub use rules::ConfigError;
pub use training::*;

/// The configuration of a job's agents and ranks, except for values per pod or attempt, which are
/// in the environment (see [`crate::environment`]).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RunConfig {
    /// The release that wrote it.
    #[serde(default = "Release::first")]
    pub version: Release,
    /// The job, for logs, metric labels and checkpoints.
    pub job: JobIdentity,
    /// The network.
    pub model: ModelConfig,
    /// The data set.
    pub data: DataConfig,
    /// Epochs, batches, optimizer.
    pub training: Training,
    /// How gradients are reduced.
    pub parallelism: Parallelism,
    /// Pods in the gang.
    pub nodes: u32,
    /// Ranks in each pod: one per GPU.
    pub ranks_per_node: u32,
    /// Where tensors are.
    pub device: Device,
    /// Location and schedule of checkpoints.
    pub checkpoint: CheckpointConfig,
    /// Whether the run measures itself. `None` is not serialized, for trainers that do not know the
    /// field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measure: Option<Measure>,
}

/// Identity of a job.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct JobIdentity {
    /// Kubernetes namespace; `local` outside a cluster.
    pub namespace: String,
    /// Name within it.
    pub name: String,
    /// Distinguishes successive jobs of the same name; `None` outside a cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
}

impl RunConfig {
    /// Number of ranks.
    pub fn world_size(&self) -> u32 {
        self.nodes * self.ranks_per_node
    }

    /// The data-parallel size.
    pub fn replicas(&self) -> u32 {
        self.world_size() / self.parallelism.ranks_per_replica().max(1)
    }

    /// Images of one optimizer step over all ranks.
    pub fn global_batch_size(&self) -> u64 {
        u64::from(self.training.micro_batch_size)
            * u64::from(self.training.gradient_accumulation_steps)
            * u64::from(self.replicas())
    }

    /// Every broken rule between fields; empty for a valid configuration. Bounds of single fields are
    /// in the schema.
    pub fn errors(&self) -> Vec<ConfigError> {
        let mut rules = Rules::default();
        self.model.check(&mut rules);
        self.training
            .check(self.global_batch_size(), self.model.num_classes, &mut rules);
        self.parallelism
            .check(&self.model, (self.nodes, self.ranks_per_node), &mut rules);
        rules.require(
            self.parallelism.tensor == 1
                || self.training.activation_checkpointing != ActivationCheckpointing::Selective,
            "training.activationCheckpointing",
            "selective",
            "must be none or block with parallelism.tensor above 1",
        );
        rules.positive("workers.nodes", self.nodes);
        rules.positive("workers.gpusPerNode", self.ranks_per_node);
        self.data.check(&self.model, &self.training, &mut rules);
        rules.0
    }
}

/// Whether a field need not be serialized, for trainers that do not know it.
fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    pub(super) fn config() -> RunConfig {
        let config = json!({
            "job": {"namespace": "default", "name": "digits", "uid": "6f0c2b9e"},
            "model": {
                "imageSize": 32, "patchSize": 8, "hiddenSize": 64, "depth": 2, "heads": 4, "mlpSize": 256,
                "numClasses": 10, "channels": 3, "pooling": "average",
            },
            "data": DataConfig { path: Some("/data".into()), ..DataConfig::plain(DataFormat::Cifar10) },
            "training": {
                "epochs": 2, "microBatchSize": 8, "gradientAccumulationSteps": 3, "schedule": {"warmupEpochs": 1.0},
                "labelSmoothing": 0.1,
            },
            "parallelism": {"bucketMegabytes": 25, "compressGradients": "bf16"},
            "nodes": 2, "ranksPerNode": 2, "device": "auto",
            "checkpoint": {"path": "/checkpoints", "keep": 2, "everySteps": 500, "resume": "Auto"},
        });
        serde_json::from_value(config).expect("a configuration")
    }

    /// Number of shards of training state.
    fn shards(shard_within_node: bool) -> u32 {
        let config = config();
        let settings = Parallelism {
            shard_within_node,
            ..config.parallelism
        };
        settings.shards(config.nodes, config.ranks_per_node)
    }

    fn messages(config: &RunConfig) -> Vec<String> {
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
        assert_eq!((shards(false), shards(true)), (4, 2));
        let mut divided = config();
        divided.parallelism.sequence = 2;
        assert_eq!(divided.errors(), []);
        assert_eq!((divided.replicas(), divided.global_batch_size()), (2, 48));
    }

    #[test]
    fn an_unknown_field_is_refused_by_name() {
        let mut json = serde_json::to_value(config()).expect("serializes");
        json["training"]["learningRate"] = 0.1.into();
        let error = serde_json::from_value::<RunConfig>(json).expect_err("refused");
        assert!(error.to_string().contains("learningRate"), "{error}");
    }

    /// Changed fields, and the resulting errors.
    const BROKEN: &str = r#"
model.heads = 5
  model.hiddenSize is 64: must be a multiple of model.heads (5)
model.numClasses = 9
  model.numClasses is 9: must be at least 10, the number of classes of the data set
training.schedule.warmupEpochs = 3.0
  training.schedule.warmupEpochs is 3: must be between 0 and training.epochs (2)
training.schedule.minLearningRate = 0.01
  training.schedule.minLearningRate is 0.01: must be between 0 and the learning rate at its peak (0.001)
parallelism.zeroStage = 2
parallelism.reshardAfterForward = false
  parallelism.reshardAfterForward is false: needs parallelism.zeroStage 3: other stages never free weights
parallelism.shardWithinNode = true
  parallelism.shardWithinNode is true: needs parallelism.zeroStage 1, 2 or 3: stage 0 shards nothing
parallelism.zeroStage = 1
parallelism.shardWithinNode = true
parallelism.acrossNodes = true
  parallelism.shardWithinNode is true: must be false with parallelism.acrossNodes: it keeps the ranks of a replica on one node
parallelism.zeroStage = 1
parallelism.shardWithinNode = true
ranksPerNode = 1
  workers.gpusPerNode is 1: must be above parallelism.tensor (1) for parallelism.shardWithinNode: it shards training state over a node's ranks
parallelism.offload = {"optimizer": "None", "parameters": "CPU"}
  parallelism.offload.parameters is CPU: needs parallelism.zeroStage 3 and parallelism.offload.optimizer CPU: other stages keep all weights on each device
parallelism.zeroStage = 3
parallelism.offload = {"optimizer": "CPU", "parameters": "CPU"}
nodes = 1
ranksPerNode = 1
  parallelism.offload.parameters is CPU: needs several ranks: a single one computes with all weights
parallelism.sequence = 3
  model.heads is 4: must be a multiple of parallelism.sequence x parallelism.tensor (3)
  workers.gpusPerNode is 2: must be a multiple of parallelism.sequence x parallelism.tensor (3) unless parallelism.acrossNodes is true
parallelism.tensor = 2
parallelism.sequence = 2
  workers.gpusPerNode is 2: must be a multiple of parallelism.sequence x parallelism.tensor (4) unless parallelism.acrossNodes is true
parallelism.tensor = 2
model.mlpSize = 255
  model.mlpSize is 255: must be a multiple of parallelism.tensor (2)
parallelism.tensor = 2
training.activationCheckpointing = "selective"
  training.activationCheckpointing is selective: must be none or block with parallelism.tensor above 1
nodes = 3
ranksPerNode = 1
parallelism.sequence = 2
parallelism.acrossNodes = true
  workers.nodes x workers.gpusPerNode is 3: must be a multiple of parallelism.sequence x parallelism.tensor (2)
training.masterWeights = true
  training.masterWeights is true: needs training.precision bf16 or fp16: fp32 weights are their own masters
training.precision = "bf16"
training.tf32 = true
  training.tf32 is true: needs training.precision fp32: bf16 and fp16 have fewer bits already
training.precision = "fp16"
training.lossScale = {"minLossScale": 65537}
  training.lossScale.minLossScale is 65537: must be between 1 and 2 to the power of training.lossScale.initialScalePower (16)
training.classWeights = {"values": [1.0, 2.0]}
  training.classWeights.values is a list of 2: must have one for each of model.numClasses (10)
training.classWeights = {"values": [0, 0, 0, 0, 0, 0, 0, 0, 0, 0]}
  training.classWeights.values is [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]: must be at least 0, and at least one above 0
training.optimizer = {"name": "sgd", "learningRate": 0.1, "weightDecay": 0.0, "momentum": 0.0, "nesterov": true}
  training.optimizer.nesterov is true: needs training.optimizer.momentum above 0
data.format = "synthetic"
  data.syntheticImages is missing: must be at least 1 for synthetic data
data.normalization.mean = [0.1, 0.2]
  data.normalization.mean is a list of 2: must have one value, or one for each of the 3 channels (model.channels)
data.format = "webDataset"
  data.shards is missing: must be given for format webDataset, and for no other
data.augmentation.randomCrop = {"padding": 4}
data.augmentation.randomResizedCrop = {"scale": [0.5, 0.2], "ratio": [0.75, 1.5], "interpolation": "bicubic"}
  data.augmentation.randomResizedCrop.scale is 0.5, 0.2: must be two shares above 0 and at most 1, the smaller one first
  data.augmentation.randomCrop is given: give one of randomCrop and randomResizedCrop
data.augmentation.cutmix = 1.0
training.microBatchSize = 7
  training.microBatchSize is 7: must be even for mixup and cutmix, which mix pairs of images
data.format = "numpy"
data.augmentation.threeAugment = true
model.channels = 5
  model.channels is 5: must be 3 for colorJitter, randAugment and threeAugment of data.augmentation
data.format = "imageFolder"
model.channels = 4
  model.channels is 4: must be 1 (gray) or 3 (red, green, blue) for image files, unless data.pixelType is float32
data.format = "imageFolder"
data.pixelType = "float32"
data.augmentation.colorJitter = 0.3
  data.pixelType is float32: is not for colorJitter, randAugment and threeAugment of data.augmentation
data.pixelType = "float32"
  data.pixelType is float32: is for the formats imageFolder, parquet and webDataset
"#;

    #[test]
    fn each_error_names_field_value_and_what_would_be_right() {
        let mut lines = BROKEN.trim().lines().peekable();
        while lines.peek().is_some() {
            let mut changed = serde_json::to_value(config()).expect("serializes");
            while let Some(change) = lines.next_if(|line| !line.starts_with(' ')) {
                let (field, value) = change.split_once(" = ").expect("a field and its value");
                let place = field.split('.').fold(&mut changed, |place, key| &mut place[key]);
                *place = serde_json::from_str::<Value>(value).expect("JSON");
            }
            let said = std::iter::from_fn(|| lines.next_if(|line| line.starts_with(' ')));
            let said: Vec<&str> = said.map(str::trim).collect();
            let changed: RunConfig = serde_json::from_value(changed).expect("a configuration");
            assert_eq!(messages(&changed), said);
        }
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
}
