//! From the manifest as it was written to a job that can be run: defaults filled in, presets resolved, every rule
//! checked. All of a user's errors are found here, and all at once.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use contract::{
    AdamW, CheckpointConfig, ConfigError, DataConfig, JobName, ModelConfig, ModelPreset, RunConfig,
    TrainingConfig, preset,
};
use k8s_openapi::api::core::v1::{EnvVar, ResourceRequirements, Toleration};
use kube::ResourceExt;

use crate::spec::{self, ViTTrainingJob, Volume};

/// A job that can be run. It can only be made by [`validate`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ValidatedJob {
    /// What the trainer gets. Holds the job's name, and the size of the gang as `nodes` x `ranks_per_node`.
    pub run_config: RunConfig,
    /// What goes into every pod.
    pub pod: PodSettings,
    /// Which GPUs will do.
    pub placement: PlacementRules,
    /// Restarts without a new checkpoint in between.
    pub max_restarts: u32,
    /// Whether the job is to hold no GPUs.
    pub suspend: bool,
    /// Seconds a finished job is kept; `None` is for ever.
    pub ttl_seconds_after_finished: Option<u32>,
}

/// What goes into every pod of a job.
#[derive(Clone, Debug, PartialEq)]
pub struct PodSettings {
    /// Container image of the trainer.
    pub image: String,
    /// When kubelets pull it.
    pub image_pull_policy: spec::ImagePullPolicy,
    /// Names of Secrets with credentials for its registry.
    pub image_pull_secrets: Vec<String>,
    /// Name of the extended resource by which nodes count GPUs.
    pub gpu_resource: String,
    /// Further requests and limits.
    pub resources: ResourceRequirements,
    /// Labels that nodes must have.
    pub node_selector: BTreeMap<String, String>,
    /// Taints that do not matter.
    pub tolerations: Vec<Toleration>,
    /// Further environment variables.
    pub env: Vec<EnvVar>,
    /// Priority class.
    pub priority_class_name: Option<String>,
    /// User id of the trainer.
    pub run_as_user: Option<i64>,
    /// Group that owns volumes.
    pub fs_group: Option<i64>,
    /// Where the data set is mounted, read-only.
    pub data: Option<Mount>,
    /// Where checkpoints are mounted.
    pub checkpoint: Mount,
}

/// A volume and the folder at which pods mount it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Mount {
    /// The storage.
    pub volume: Volume,
    /// Folder in the container.
    pub path: String,
}

/// Which GPUs will do.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct PlacementRules {
    /// Products that will do; any if empty.
    pub products: BTreeSet<String>,
    /// Least memory of a GPU in MiB.
    pub min_memory_mebibytes: Option<i64>,
    /// Nodes that are not used.
    pub exclude_nodes: BTreeSet<String>,
}

/// Why a manifest cannot be run: every broken rule.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{}", .0.iter().map(|error| format!("spec.{error}")).collect::<Vec<_>>().join("; "))]
pub struct InvalidJob(pub Vec<ConfigError>);

impl ValidatedJob {
    /// Pods in the gang, one a node.
    pub fn nodes(&self) -> u32 {
        self.run_config.nodes
    }

    /// GPUs of each pod.
    pub fn gpus_per_node(&self) -> u32 {
        self.run_config.ranks_per_node
    }
}

/// Checks every rule and fills in every default.
pub fn validate(job: &ViTTrainingJob) -> Result<ValidatedJob, InvalidJob> {
    let spec = &job.spec;
    let mut errors = Vec::new();
    let name = JobName {
        namespace: job.namespace().unwrap_or_else(|| "default".into()),
        name: job.name_any(),
    };
    let run_config = RunConfig {
        model: model(&spec.model, &mut errors),
        data: data(&spec.data, &mut errors),
        training: training(&spec.training, &mut errors),
        parallelism: contract::Parallelism {
            bucket_megabytes: count(spec.parallelism.bucket_megabytes),
        },
        nodes: count(spec.workers.nodes),
        ranks_per_node: count(spec.workers.gpus_per_node),
        device: match spec.workers.device {
            spec::Device::Auto => contract::Device::Auto,
            spec::Device::Cuda => contract::Device::Cuda,
            spec::Device::Cpu => contract::Device::Cpu,
        },
        checkpoint: CheckpointConfig {
            path: Path::new(&spec.checkpoint.path).join(&name.name),
            keep: count(spec.checkpoint.keep),
            resume: match spec.checkpoint.resume {
                spec::Resume::Auto => contract::Resume::Auto,
                spec::Resume::Never => contract::Resume::Never,
            },
        },
        job: name,
    };
    errors.extend(run_config.errors());
    volume("checkpoint.volume", &spec.checkpoint.volume, &mut errors);
    if let Some(entry) = spec
        .workers
        .env
        .iter()
        .find(|entry| entry.name.starts_with("VIT_"))
    {
        errors.push(ConfigError {
            field: "workers.env",
            value: entry.name.clone(),
            expected: "names that start with VIT_ are taken by the operator".into(),
        });
    }
    if !errors.is_empty() {
        return Err(InvalidJob(errors));
    }
    Ok(ValidatedJob {
        run_config,
        pod: pod_settings(spec),
        placement: PlacementRules {
            products: spec.placement.gpu.products.iter().cloned().collect(),
            min_memory_mebibytes: spec.placement.gpu.min_memory_mebibytes,
            exclude_nodes: spec.placement.exclude_nodes.iter().cloned().collect(),
        },
        max_restarts: count(spec.failure_policy.max_restarts),
        suspend: spec.suspend,
        ttl_seconds_after_finished: spec.ttl_seconds_after_finished.map(count),
    })
}

/// Counts are signed in the schema, as Kubernetes wants it; a negative one becomes 0, which the rules then refuse.
fn count(value: i32) -> u32 {
    u32::try_from(value).unwrap_or(0)
}

fn model(model: &spec::Model, errors: &mut Vec<ConfigError>) -> ModelConfig {
    let preset = model.name.as_deref().and_then(ModelPreset::by_name);
    if let (Some(name), None) = (&model.name, &preset) {
        let known = preset::PRESETS
            .iter()
            .map(|preset| preset.name)
            .collect::<Vec<_>>()
            .join(", ");
        errors.push(ConfigError {
            field: "model.name",
            value: name.clone(),
            expected: format!("must be one of {known}; or leave it out and give the sizes"),
        });
    }
    let size = |given: Option<i32>, of_preset: fn(ModelPreset) -> u32| {
        given.map(count).or_else(|| preset.map(of_preset)).unwrap_or(0)
    };
    let hidden_size = size(model.hidden_size, |preset| preset.hidden_size);
    // A preset's MLP belongs to its own width: with another width the usual four times that is meant.
    let mlp_size = match (model.mlp_size, preset) {
        (Some(mlp_size), _) => count(mlp_size),
        (None, Some(preset)) if preset.hidden_size == hidden_size => preset.mlp_size,
        (None, _) => 4 * hidden_size,
    };
    ModelConfig {
        image_size: size(model.image_size, |preset| preset.image_size),
        patch_size: size(model.patch_size, |preset| preset.patch_size),
        hidden_size,
        depth: size(model.depth, |preset| preset.depth),
        heads: size(model.heads, |preset| preset.heads),
        mlp_size,
        num_classes: count(model.num_classes),
        channels: count(model.channels),
        pooling: match model.pooling {
            spec::Pooling::Token => contract::Pooling::Token,
            spec::Pooling::Average => contract::Pooling::Average,
        },
    }
}

fn data(data: &spec::Data, errors: &mut Vec<ConfigError>) -> DataConfig {
    let format = match data.format {
        spec::DataFormat::Cifar10 => contract::DataFormat::Cifar10,
        spec::DataFormat::Cifar100 => contract::DataFormat::Cifar100,
        spec::DataFormat::Synthetic => contract::DataFormat::Synthetic,
    };
    let has_files = format != contract::DataFormat::Synthetic;
    match &data.volume {
        Some(files) => volume("data.volume", files, errors),
        None if has_files => errors.push(ConfigError {
            field: "data.volume",
            value: "missing".into(),
            expected: "must say where the files are, for every format but synthetic".into(),
        }),
        None => {}
    }
    DataConfig {
        format,
        path: has_files.then(|| data.path.clone().into()),
        synthetic_images: data
            .synthetic_images
            .map(|images| u64::try_from(images).unwrap_or(0)),
    }
}

fn volume(field: &'static str, volume: &Volume, errors: &mut Vec<ConfigError>) {
    if volume.persistent_volume_claim.is_some() == volume.host_path.is_some() {
        errors.push(ConfigError {
            field,
            value: if volume.host_path.is_some() {
                "two sources"
            } else {
                "without a source"
            }
            .into(),
            expected: "give exactly one of persistentVolumeClaim and hostPath".into(),
        });
    }
}

fn training(training: &spec::Training, errors: &mut Vec<ConfigError>) -> TrainingConfig {
    let spec::OptimizerName::Adamw = training.optimizer.name;
    let betas = <[f64; 2]>::try_from(training.optimizer.betas.as_slice()).unwrap_or_else(|_| {
        errors.push(ConfigError {
            field: "training.optimizer.betas",
            value: format!("a list of {}", training.optimizer.betas.len()),
            expected: "must be two numbers, the decay of the first and of the second moment".into(),
        });
        [0.9, 0.999]
    });
    let warmup_epochs = training.schedule.warmup_epochs;
    TrainingConfig {
        epochs: count(training.epochs),
        micro_batch_size: count(training.micro_batch_size),
        gradient_accumulation_steps: count(training.gradient_accumulation_steps),
        seed: u64::try_from(training.seed).unwrap_or(0),
        optimizer: AdamW {
            learning_rate: training.optimizer.learning_rate,
            weight_decay: training.optimizer.weight_decay,
            betas,
            epsilon: training.optimizer.epsilon,
        },
        schedule: match training.schedule.name {
            spec::ScheduleName::Constant => contract::Schedule::Constant { warmup_epochs },
            spec::ScheduleName::Cosine => contract::Schedule::Cosine { warmup_epochs },
        },
        label_smoothing: training.label_smoothing,
        clip_grad_norm: training.clip_grad_norm,
    }
}

fn pod_settings(spec: &spec::ViTTrainingJobSpec) -> PodSettings {
    let workers = &spec.workers;
    PodSettings {
        image: spec.image.clone(),
        image_pull_policy: spec.image_pull_policy,
        image_pull_secrets: spec.image_pull_secrets.clone(),
        gpu_resource: workers.gpu_resource.clone(),
        resources: workers.resources.clone(),
        node_selector: workers.node_selector.clone(),
        tolerations: workers.tolerations.clone(),
        env: workers.env.clone(),
        priority_class_name: workers.priority_class_name.clone(),
        run_as_user: workers.run_as_user,
        fs_group: workers.fs_group,
        data: spec.data.volume.clone().map(|volume| Mount {
            volume,
            path: spec.data.path.clone(),
        }),
        checkpoint: Mount {
            volume: spec.checkpoint.volume.clone(),
            path: spec.checkpoint.path.clone(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFEST: &str = r"
apiVersion: vit-operator.dev/v1alpha1
kind: ViTTrainingJob
metadata: {name: digits, namespace: research}
spec:
  image: localhost/vit-trainer:dev
  model: {name: vit_tiny_patch16_224, numClasses: 10}
  data: {format: cifar10, volume: {persistentVolumeClaim: {claimName: digits}}}
  training: {epochs: 3, microBatchSize: 16}
  workers: {nodes: 2}
  checkpoint: {volume: {hostPath: {path: /srv/checkpoints}}}
";

    fn job(change: impl FnOnce(&mut ViTTrainingJob)) -> ViTTrainingJob {
        let mut job = serde_saphyr::from_str(MANIFEST).expect("the manifest parses");
        change(&mut job);
        job
    }

    fn errors(change: impl FnOnce(&mut ViTTrainingJob)) -> String {
        validate(&job(change)).expect_err("refused").to_string()
    }

    #[test]
    fn presets_and_defaults_are_filled_in() {
        let valid = validate(&job(|_| {})).expect("valid");
        let config = &valid.run_config;
        assert_eq!(
            (
                config.model.hidden_size,
                config.model.depth,
                config.model.mlp_size
            ),
            (192, 12, 768)
        );
        assert_eq!(config.checkpoint.path, Path::new("/checkpoints/digits"));
        assert_eq!(
            config.training.schedule,
            contract::Schedule::Cosine { warmup_epochs: 0.0 }
        );
        assert_eq!(
            (config.job.namespace.as_str(), config.world_size()),
            ("research", 2)
        );
        assert_eq!(valid.pod.data.expect("data is mounted").path, "/data");
        assert_eq!(valid.max_restarts, 5);
    }

    #[test]
    fn sizes_beside_a_preset_replace_its_own() {
        let valid = validate(&job(|job| {
            job.spec.model.hidden_size = Some(96);
            job.spec.model.image_size = Some(32);
        }))
        .expect("valid");
        let model = valid.run_config.model;
        assert_eq!(
            (model.hidden_size, model.mlp_size, model.image_size, model.heads),
            (96, 384, 32, 3)
        );
    }

    #[test]
    fn an_unknown_preset_is_refused_with_the_known_ones() {
        let message = errors(|job| job.spec.model.name = Some("vit_mega".into()));
        assert!(
            message.starts_with("spec.model.name is vit_mega: must be one of vit_tiny_patch16_224,"),
            "{message}"
        );
    }

    #[test]
    fn what_a_preset_and_own_sizes_break_together_is_found() {
        assert_eq!(
            errors(|job| job.spec.model.image_size = Some(100)),
            "spec.model.imageSize is 100: must be a multiple of model.patchSize (16)"
        );
    }

    #[test]
    fn all_errors_are_told_at_once() {
        let message = errors(|job| {
            job.spec.workers.nodes = -1;
            job.spec.training.optimizer.betas = vec![0.9];
            job.spec.checkpoint.volume.host_path = None;
            job.spec.data.volume = None;
        });
        for part in [
            "spec.workers.nodes",
            "spec.training.optimizer.betas",
            "spec.checkpoint.volume",
            "spec.data.volume",
        ] {
            assert!(message.contains(part), "{part} is not in: {message}");
        }
    }

    #[test]
    fn an_unknown_field_is_refused_by_name() {
        let manifest = MANIFEST.replace("epochs: 3", "epochs: 3, epoch: 4");
        let error = serde_saphyr::from_str::<ViTTrainingJob>(&manifest)
            .expect_err("refused")
            .to_string();
        assert!(error.contains("epoch"), "{error}");
    }
}
