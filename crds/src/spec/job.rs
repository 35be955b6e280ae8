use std::time::Duration;

use contract::Measurement;
use kube::core::Rule;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    Checkpoint, Data, Elastic, External, Measure, Model, Parallelism, Placement, Training, Workers, external,
    multiple, same, settled,
};
use crate::status::ViTTrainingJobStatus;

/// Fields whose product is the number of ranks per model replica.
const REPLICA: &[&str] = &["parallelism.sequence", "parallelism.tensor"];

/// ViTTrainingJob trains a Vision Transformer data-parallel on identical GPUs.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "vit-operator.dev",
    version = "v1alpha1",
    kind = "ViTTrainingJob",
    plural = "vittrainingjobs",
    shortname = "vtj",
    category = "all",
    namespaced,
    doc = "ViTTrainingJob trains a Vision Transformer data-parallel on identical GPUs.",
    derive = "PartialEq",
    status = "ViTTrainingJobStatus",
    validation = Rule::new("size(self.metadata.name) <= 50").message("metadata.name must have at most 50 characters, because pod host names contain it"),
    validation = Rule::new("self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')").message("metadata.name must be lower-case letters, digits and '-', starting with a letter, because a Service has that name"),
    validation = Rule::new(same("managedBy")).message("managedBy cannot be changed; create a new job"),
    validation = settled(&["image", "imagePullPolicy", "imagePullSecrets"]),
    validation = settled(&["external"]),
    validation = settled(&["model"]),
    validation = settled(&["data"]),
    validation = settled(&["training"]),
    validation = settled(&["parallelism"]),
    validation = settled(&["placement"]),
    validation = settled(&["checkpoint"]),
    validation = settled(&["measure"]),
    validation = settled(&["scheduling"]),
    validation = settled(&["workers.gpusPerNode", "workers.gpuResource", "workers.device"]),
    validation = settled(&["workers.resources", "workers.nodeSelector", "workers.tolerations"]),
    validation = settled(&["workers.env", "workers.envFrom"]),
    validation = settled(&["workers.podLabels", "workers.podAnnotations"]),
    validation = settled(&["workers.volumes", "workers.volumeMounts"]),
    validation = settled(&["workers.priorityClassName"]),
    validation = settled(&["workers.serviceAccountName", "workers.runtimeClassName", "workers.hostNetwork"]),
    validation = settled(&["workers.runAsUser", "workers.fsGroup", "workers.supplementalGroups", "workers.capabilities"]),
    scale(
        spec_replicas_path = ".spec.workers.nodes",
        status_replicas_path = ".status.workers.desired",
        label_selector_path = ".status.selector"
    ),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Progress", type_ = "integer", description = "Percent of all optimizer steps", json_path = ".status.progress.percent"),
    printcolumn(name = "Epoch", type_ = "integer", description = "Epochs finished", json_path = ".status.progress.epoch"),
    printcolumn(name = "Images/s", type_ = "number", description = "Training images per second over all ranks", json_path = ".status.progress.imagesPerSecond"),
    printcolumn(name = "Sync", type_ = "number", description = "Share of step time spent waiting for synchronization, 0 to 1", json_path = ".status.progress.syncShare"),
    printcolumn(name = "Nodes", type_ = "integer", description = "Nodes of the gang; 0 while it holds no GPUs", json_path = ".status.workers.desired"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "GPU", type_ = "string", priority = 1, json_path = ".status.placement.group.product"),
    printcolumn(name = "Loss", type_ = "number", priority = 1, json_path = ".status.progress.loss"),
    printcolumn(name = "Accuracy", type_ = "number", description = "Held-out accuracy, 0 to 1", priority = 1, json_path = ".status.progress.validationAccuracy"),
    printcolumn(name = "Attempt", type_ = "integer", priority = 1, json_path = ".status.attempt"),
    printcolumn(name = "Failure", type_ = "string", priority = 1, json_path = ".status.lastFailure.class"),
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(transform = contract::schema::signed_integers)]
#[x_kube(
    validation = Rule::new("self.data.format != 'cifar10' || self.model.numClasses >= 10").message("model.numClasses must be at least 10 for data.format cifar10"),
    validation = Rule::new("self.data.format != 'cifar100' || self.model.numClasses >= 100").message("model.numClasses must be at least 100 for data.format cifar100"),
    validation = Rule::new("!(self.data.format in ['cifar10', 'cifar100']) || self.model.channels == 3").message("model.channels must be 3 for CIFAR images"),
    validation = Rule::new("!(self.data.format in ['imageFolder', 'parquet', 'webDataset']) || self.model.channels in [1, 3] || (has(self.data.pixelType) && self.data.pixelType == 'float32')").message("model.channels must be 1 or 3 for image files, unless data.pixelType is float32"),
    validation = Rule::new("self.model.channels == 3 || (!has(self.data.augmentation.randAugment) && !self.data.augmentation.threeAugment && self.data.augmentation.colorJitter == 0.0)").message("model.channels must be 3 for colorJitter, randAugment and threeAugment of data.augmentation"),
    validation = Rule::new("(self.data.augmentation.mixup == 0.0 && self.data.augmentation.cutmix == 0.0) || self.data.augmentation.mixupProbability == 0.0 || self.training.microBatchSize % 2 == 0").message("training.microBatchSize must be even for mixup and cutmix, which mix pairs of images"),
    validation = multiple("self.parallelism.acrossNodes", &["workers.gpusPerNode"], REPLICA, " unless parallelism.acrossNodes is true"),
    validation = multiple("!self.parallelism.acrossNodes", &["workers.nodes", "workers.gpusPerNode"], REPLICA, ""),
    validation = multiple("!has(self.model.heads)", &["model.heads"], REPLICA, ", because ranks also split the heads"),
    validation = Rule::new("self.parallelism.tensor == 1 || self.training.activationCheckpointing != 'selective'").message("training.activationCheckpointing must be none or block with parallelism.tensor above 1"),
    validation = Rule::new("[1, self.model.channels].exists(n, size(self.data.normalization.mean) == n) && [1, self.model.channels].exists(n, size(self.data.normalization.std) == n)").message("data.normalization.mean and std must have one value, or one for each of model.channels"),
    validation = Rule::new("!has(self.elastic) || self.workers.nodes == oldSelf.workers.nodes").message("workers.nodes cannot be changed while elastic is given, because it sets the global batch; change elastic"),
    validation = Rule::new("!has(self.elastic) || (self.elastic.minNodes <= self.workers.nodes && (!has(self.elastic.maxNodes) || self.elastic.maxNodes >= self.workers.nodes))").message("elastic.minNodes must be at most workers.nodes, and elastic.maxNodes at least that"),
    validation = external::divides_itself(),
    validation = external::shares_evenly(),
    validation = external::fetches_itself(),
    validation = measurable(),
    validation = Rule::new("has(self.checkpoint.volume) || !has(self.elastic)").message("elastic needs checkpoint.volume: a gang of another size continues from a checkpoint"),
    validation = Rule::new("has(self.checkpoint.volume) || self.checkpoint.writers != 'EveryRank'").message("checkpoint.writers EveryRank needs checkpoint.volume, which all ranks share"),
    validation = Rule::new("self.data.format == 'synthetic' || self.data.path != self.checkpoint.path").message("data.path and checkpoint.path must be different folders"),
    validation = Rule::new("!self.workers.volumeMounts.exists(m, m.mountPath == self.checkpoint.path || (self.data.format != 'synthetic' && m.mountPath == self.data.path))").message(super::reserved::STORAGE_MESSAGE)
)]
pub struct ViTTrainingJobSpec {
    /// image is the container image of the trainer: vit-trainer's, or the one for external.
    #[schemars(length(min = 1, max = 512))]
    pub image: String,
    /// imagePullPolicy says when kubelets pull the image: Always, IfNotPresent or Never.
    #[serde(default)]
    pub image_pull_policy: super::ImagePullPolicy,
    /// imagePullSecrets are Secrets in the job's namespace with credentials for the image's registry.
    #[serde(default)]
    #[schemars(length(max = 8))]
    pub image_pull_secrets: Vec<super::ImagePullSecret>,
    /// external is a trainer to run instead of vit-trainer: a script under torchrun, DeepSpeed or
    /// Accelerate. It gets identical GPUs, gang restarts and progress reports as vit-trainer does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub external: Option<External>,
    /// model is the Vision Transformer to train.
    pub model: Model,
    /// data is the data set.
    pub data: Data,
    /// training sets epochs, batches and the optimizer.
    pub training: Training,
    /// parallelism sets the sharding over the ranks and the reduction of gradients.
    #[serde(default)]
    pub parallelism: Parallelism,
    /// workers sets the number of pods, their GPUs and other pod settings.
    pub workers: Workers,
    /// elastic lets the gang train on fewer or more nodes than workers.nodes, with the same global
    /// batch: ranks compute more or fewer micro-batches per step, or smaller ones. Numbers of nodes
    /// that cannot share the images of a step evenly are left out. A gang uses as many free nodes
    /// as possible, preferably with the same kind of GPU as before. It grows after a new
    /// checkpoint, if no waiting job could use the nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub elastic: Option<Elastic>,
    /// placement says which GPUs are suitable.
    #[serde(default)]
    pub placement: Placement,
    /// scheduling sets queue, scheduler and start timeout of the pods.
    #[serde(default)]
    pub scheduling: Scheduling,
    /// checkpoint sets where training state is saved, and whether a job resumes from it.
    pub checkpoint: Checkpoint,
    /// measure has the job report its step times in status.measurement and the condition Measured.
    /// Times of several attempts cannot be combined: a job that resumed from a checkpoint measures
    /// nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measure: Option<Measure>,
    /// failurePolicy sets how often and where the gang is restarted, and what counts as a failure.
    #[serde(default)]
    pub failure_policy: FailurePolicy,
    /// managedBy names the controller of the job, such as kueue.x-k8s.io/multikueue, which runs it
    /// in another cluster. This operator runs only jobs without it or with
    /// vit-operator.dev/vit-operator.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 63),
        regex(pattern = "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9._-]+$")
    )]
    pub managed_by: Option<String>,
    /// suspend checkpoints and stops the job, and releases its GPUs, until it is set to false
    /// again.
    #[serde(default)]
    pub suspend: bool,
    /// ttlSecondsAfterFinished is how long a finished job is kept; by default until it is deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub ttl_seconds_after_finished: Option<i32>,
    /// activeDeadlineSeconds is how long the job may run before it is stopped and fails. It starts
    /// with the first gang, also after a suspension or an eviction. Waiting for the first GPUs does
    /// not count.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub active_deadline_seconds: Option<i32>,
}

/// The rule that a measurement fits a pod's termination message.
fn measurable() -> Rule {
    let most = Measurement::MOST_EPOCHS;
    let message =
        format!("training.epochs must be at most {most} with measure: a termination message holds no more");
    Rule::new(format!("!has(self.measure) || self.training.epochs <= {most}")).message(message.as_str())
}

/// Value of [`ViTTrainingJobSpec::managed_by`] for this project's operator; it may also be absent.
pub const CONTROLLER: &str = "vit-operator.dev/vit-operator";

impl ViTTrainingJob {
    /// Whether this project's operator runs the job.
    pub fn is_for_vit_operator(&self) -> bool {
        is_for_vit_operator(self.spec.managed_by.as_deref())
    }
}

/// Whether this project's operator runs jobs with this `spec.managedBy`.
pub fn is_for_vit_operator(managed_by: Option<&str>) -> bool {
    managed_by.is_none_or(|controller| controller == CONTROLLER)
}

/// Scheduling sets queue, scheduler and time limits before the job trains.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Scheduling {
    /// queueName is the LocalQueue of Kueue (0.15 or newer) in which the job waits for quota. Once
    /// Kueue has admitted its Workload, which has the job's name, it gets GPUs on nodes of the
    /// assigned flavors. If Kueue evicts it, the gang saves, stops and waits again. Without a
    /// queue, a job needs only free GPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")
    )]
    pub queue_name: Option<String>,
    /// schedulerName is the scheduler that binds the pods to the chosen nodes; kube-scheduler by
    /// default.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub scheduler_name: Option<String>,
    /// startTimeoutSeconds is how long a gang may take from placement until every pod is ready,
    /// including image pulls. Then, or sooner if a pod is refused by kube-scheduler for a minute or
    /// lacks its volumes for three, the attempt fails and releases its GPUs.
    #[schemars(range(min = 10, max = 86_400))]
    pub start_timeout_seconds: i32,
    /// pendingTimeoutSeconds is how long the job may wait for quota and GPUs until its first gang is placed. Then it fails.
    /// Unlimited by default. Time spent suspended does not count.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 604_800))]
    pub pending_timeout_seconds: Option<i32>,
}

impl Default for Scheduling {
    fn default() -> Self {
        Self {
            queue_name: None,
            scheduler_name: None,
            start_timeout_seconds: 900,
            pending_timeout_seconds: None,
        }
    }
}

/// FailurePolicy sets how often and where the gang is restarted, and what counts as a failure.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct FailurePolicy {
    /// maxRestarts is how many times the gang is restarted without a new checkpoint, which resets
    /// the count. Failed starts are counted apart and retried for at least half an hour, unless it is 0.
    /// Failures that would only repeat (wrong configuration, bad data, out of memory, a
    /// non-finite loss) are not retried. Exception: out of memory with parallelism.strategy Auto,
    /// while a strategy needs less.
    #[schemars(range(min = 0, max = 1000))]
    pub max_restarts: i32,
    /// nodeLostSeconds is how long a node may be not ready before its pods count as lost. Then the
    /// gang restarts elsewhere, and the pods are deleted without waiting for the kubelet. Pods on a
    /// ready node that exceed their deletion time by as much, with a process that cannot be killed,
    /// are not waited for either. Such a pod keeps its GPUs until it ends.
    #[schemars(range(min = 1, max = 86_400))]
    pub node_lost_seconds: i32,
    /// stallTimeoutSeconds is how long a running gang may finish neither a step nor an evaluation
    /// batch. The default is 10 times the median of its latest steps and at least 300. Then the
    /// gang restarts from the last checkpoint, if the agents confirm that all ranks are stuck.
    /// Startup and checkpoints do not count.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 5, max = 86_400))]
    pub stall_timeout_seconds: Option<i32>,
    /// excludeFailedNodes says whether the next gangs avoid nodes on which attempts failed: after
    /// one DeviceFault, or after two failures that may lie with the node (Killed, Crashed, PodLost,
    /// StartFailed, Stalled), until an hour has passed without another. Bad data at the start of an
    /// attempt count too, and are retried elsewhere, if they are on a hostPath on which the job has
    /// trained before. A gang that fits nowhere else uses such nodes anyway.
    pub exclude_failed_nodes: bool,
    /// excludeStragglers says whether the next gangs avoid the nodes of stragglers
    /// (status.stragglers, status.slowNodes) for an hour, if they fit elsewhere, an elastic gang in
    /// any size. No gang is stopped for being slow.
    pub exclude_stragglers: bool,
    /// keepFailedPods is how many pods are kept for their logs until the job is deleted: those blamed
    /// for the last failures, one for each failed attempt.
    #[schemars(range(min = 0, max = 16))]
    pub keep_failed_pods: i32,
}

impl FailurePolicy {
    /// [`Self::node_lost_seconds`]; zero if it is negative, which the schema refuses.
    pub fn node_lost_after(&self) -> Duration {
        Duration::from_secs(u64::try_from(self.node_lost_seconds).unwrap_or(0))
    }
}

impl Default for FailurePolicy {
    fn default() -> Self {
        Self {
            max_restarts: 5,
            node_lost_seconds: 30,
            stall_timeout_seconds: None,
            exclude_failed_nodes: true,
            exclude_stragglers: false,
            keep_failed_pods: 0,
        }
    }
}
