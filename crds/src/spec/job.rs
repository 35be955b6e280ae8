use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Checkpoint, Data, Model, Placement, Training, Workers};
use crate::status::ViTTrainingJobStatus;

/// ViTTrainingJob trains a Vision Transformer data-parallel on a set of like GPUs.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "vit-operator.dev",
    version = "v1alpha1",
    kind = "ViTTrainingJob",
    plural = "vittrainingjobs",
    shortname = "vtj",
    category = "all",
    namespaced,
    doc = "ViTTrainingJob trains a Vision Transformer data-parallel on a set of like GPUs.",
    derive = "PartialEq",
    status = "ViTTrainingJobStatus",
    validation = Rule::new("size(self.metadata.name) <= 50").message("metadata.name must have at most 50 characters, because pod host names are made from it"),
    validation = Rule::new("self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')").message("metadata.name must be lower-case letters, digits and '-', starting with a letter, because a Service has that name"),
    scale(
        spec_replicas_path = ".spec.workers.nodes",
        status_replicas_path = ".status.workers.desired",
        label_selector_path = ".status.selector"
    ),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Progress", type_ = "integer", description = "Percent of all optimizer steps", json_path = ".status.progress.percent"),
    printcolumn(name = "Epoch", type_ = "integer", description = "Epochs finished", json_path = ".status.progress.epoch"),
    printcolumn(name = "Images/s", type_ = "number", description = "Training images a second over all ranks", json_path = ".status.progress.imagesPerSecond"),
    printcolumn(name = "Sync", type_ = "number", description = "Share of step time spent waiting for synchronisation, 0 to 1", json_path = ".status.progress.syncShare"),
    printcolumn(name = "Nodes", type_ = "integer", json_path = ".spec.workers.nodes"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "GPU", type_ = "string", priority = 1, json_path = ".status.placement.group.product"),
    printcolumn(name = "Loss", type_ = "number", priority = 1, json_path = ".status.progress.loss"),
    printcolumn(name = "Accuracy", type_ = "number", description = "Held-out accuracy, 0 to 1", priority = 1, json_path = ".status.progress.validationAccuracy"),
    printcolumn(name = "Attempt", type_ = "integer", priority = 1, json_path = ".status.attempt"),
    printcolumn(name = "Failure", type_ = "string", priority = 1, json_path = ".status.lastFailure.class"),
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(
    validation = Rule::new("self.image == oldSelf.image && self.imagePullPolicy == oldSelf.imagePullPolicy && self.imagePullSecrets == oldSelf.imagePullSecrets").message("image, imagePullPolicy and imagePullSecrets cannot be changed; create a new job"),
    validation = Rule::new("self.model == oldSelf.model").message("model cannot be changed; create a new job"),
    validation = Rule::new("self.data == oldSelf.data").message("data cannot be changed; create a new job"),
    validation = Rule::new("self.training == oldSelf.training").message("training cannot be changed; create a new job"),
    validation = Rule::new("self.parallelism == oldSelf.parallelism").message("parallelism cannot be changed; create a new job"),
    validation = Rule::new("self.placement == oldSelf.placement").message("placement cannot be changed; create a new job"),
    validation = Rule::new("self.checkpoint == oldSelf.checkpoint").message("checkpoint cannot be changed; create a new job"),
    validation = Rule::new("self.data.format != 'cifar10' || self.model.numClasses >= 10").message("model.numClasses must be at least 10 for data.format cifar10"),
    validation = Rule::new("self.data.format != 'cifar100' || self.model.numClasses >= 100").message("model.numClasses must be at least 100 for data.format cifar100"),
    validation = Rule::new("self.data.format == 'synthetic' || self.model.channels == 3").message("model.channels must be 3 for CIFAR images"),
    validation = Rule::new("!has(self.data.volume) || self.data.path != self.checkpoint.path").message("data.path and checkpoint.path must be different folders")
)]
pub struct ViTTrainingJobSpec {
    /// image is the container image of the trainer.
    #[schemars(length(min = 1, max = 512))]
    pub image: String,
    /// imagePullPolicy says when kubelets pull the image: Always, IfNotPresent or Never.
    #[serde(default)]
    pub image_pull_policy: super::ImagePullPolicy,
    /// imagePullSecrets are names of Secrets in the job's namespace with credentials for the image's registry.
    #[serde(default)]
    #[schemars(length(max = 8), inner(length(min = 1, max = 253)))]
    pub image_pull_secrets: Vec<String>,
    /// model is the Vision Transformer that is trained.
    pub model: Model,
    /// data is the data set.
    pub data: Data,
    /// training sets epochs, batches and the optimizer.
    pub training: Training,
    /// parallelism sets how gradients are reduced over the ranks.
    #[serde(default)]
    pub parallelism: Parallelism,
    /// workers sets how many pods there are, with how many GPUs each, and what else they get.
    pub workers: Workers,
    /// placement says which GPUs will do.
    #[serde(default)]
    pub placement: Placement,
    /// checkpoint sets where the state of training is kept, and whether it is continued from.
    pub checkpoint: Checkpoint,
    /// failurePolicy bounds how often the gang is restarted.
    #[serde(default)]
    pub failure_policy: FailurePolicy,
    /// suspend stops the job after a checkpoint and gives its GPUs back, until it is set to false again.
    #[serde(default)]
    pub suspend: bool,
    /// ttlSecondsAfterFinished is how long a finished job is kept, in seconds; without it, until someone deletes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub ttl_seconds_after_finished: Option<i32>,
}

/// Parallelism sets how gradients are reduced over the ranks.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Parallelism {
    /// bucketMegabytes is the size in MiB at which a bucket of gradients is reduced while backward goes on
    /// (bucket_cap_mb of PyTorch's DDP): smaller buckets start earlier, larger ones use the network better.
    #[serde(default = "default_bucket_megabytes")]
    #[schemars(range(min = 1, max = 1024))]
    pub bucket_megabytes: i32,
}

fn default_bucket_megabytes() -> i32 {
    25
}

impl Default for Parallelism {
    fn default() -> Self {
        Self {
            bucket_megabytes: default_bucket_megabytes(),
        }
    }
}

/// FailurePolicy bounds how often the gang is restarted.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FailurePolicy {
    /// maxRestarts is how many times the gang is restarted without a new checkpoint in between; each new checkpoint
    /// starts the count afresh. Failures that would only repeat (wrong configuration, bad data, out of memory, a loss
    /// that is not finite) are never retried.
    #[serde(default = "default_max_restarts")]
    #[schemars(range(min = 0, max = 1000))]
    pub max_restarts: i32,
}

fn default_max_restarts() -> i32 {
    5
}

impl Default for FailurePolicy {
    fn default() -> Self {
        Self {
            max_restarts: default_max_restarts(),
        }
    }
}
