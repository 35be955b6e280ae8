use contract::Measurement;
use kube::core::Rule;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    Checkpoint, Data, Elastic, External, GradientCompression, Model, OffloadTo, Placement, Training, Workers,
    external, multiple, unchanged,
};
use crate::status::ViTTrainingJobStatus;

/// The ranks that compute one replica of the model together.
const REPLICA: &[&str] = &["parallelism.sequence", "parallelism.tensor"];

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
    printcolumn(name = "Nodes", type_ = "integer", description = "Nodes of the gang; 0 while it holds no GPUs", json_path = ".status.workers.desired"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "GPU", type_ = "string", priority = 1, json_path = ".status.placement.group.product"),
    printcolumn(name = "Loss", type_ = "number", priority = 1, json_path = ".status.progress.loss"),
    printcolumn(name = "Accuracy", type_ = "number", description = "Held-out accuracy, 0 to 1", priority = 1, json_path = ".status.progress.validationAccuracy"),
    printcolumn(name = "Attempt", type_ = "integer", priority = 1, json_path = ".status.attempt"),
    printcolumn(name = "Failure", type_ = "string", priority = 1, json_path = ".status.lastFailure.class"),
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(
    validation = unchanged(&["image", "imagePullPolicy", "imagePullSecrets"]),
    validation = unchanged(&["external"]),
    validation = unchanged(&["managedBy"]),
    validation = unchanged(&["model"]),
    validation = unchanged(&["data"]),
    validation = unchanged(&["training"]),
    validation = unchanged(&["parallelism"]),
    validation = unchanged(&["placement"]),
    validation = unchanged(&["checkpoint"]),
    validation = unchanged(&["measure"]),
    validation = unchanged(&["scheduling"]),
    validation = unchanged(&["failurePolicy"]),
    validation = unchanged(&["activeDeadlineSeconds"]),
    validation = Rule::new("self.data.format != 'cifar10' || self.model.numClasses >= 10").message("model.numClasses must be at least 10 for data.format cifar10"),
    validation = Rule::new("self.data.format != 'cifar100' || self.model.numClasses >= 100").message("model.numClasses must be at least 100 for data.format cifar100"),
    validation = Rule::new("!(self.data.format in ['cifar10', 'cifar100']) || self.model.channels == 3").message("model.channels must be 3 for CIFAR images"),
    validation = Rule::new("!(self.data.format in ['imageFolder', 'parquet', 'webDataset']) || self.model.channels in [1, 3] || (has(self.data.pixelType) && self.data.pixelType == 'float32')").message("model.channels must be 1 or 3 for image files, unless data.pixelType is float32"),
    validation = Rule::new("self.model.channels == 3 || (!has(self.data.augmentation.randAugment) && !self.data.augmentation.threeAugment && self.data.augmentation.colorJitter == 0.0)").message("model.channels must be 3 for colorJitter, randAugment and threeAugment of data.augmentation"),
    validation = Rule::new("(self.data.augmentation.mixup == 0.0 && self.data.augmentation.cutmix == 0.0) || self.data.augmentation.mixupProbability == 0.0 || self.training.microBatchSize % 2 == 0").message("training.microBatchSize must be even for mixup and cutmix, which mix pairs of images"),
    validation = multiple("self.parallelism.acrossNodes", &["workers.gpusPerNode"], REPLICA, " unless parallelism.acrossNodes is true"),
    validation = multiple("!self.parallelism.acrossNodes", &["workers.nodes", "workers.gpusPerNode"], REPLICA, ""),
    validation = multiple("!has(self.model.heads)", &["model.heads"], REPLICA, ", because ranks divide the heads too"),
    validation = Rule::new("self.parallelism.tensor == 1 || self.training.activationCheckpointing != 'selective'").message("training.activationCheckpointing must be none or block with parallelism.tensor above 1"),
    validation = Rule::new("[1, self.model.channels].exists(n, size(self.data.normalization.mean) == n) && [1, self.model.channels].exists(n, size(self.data.normalization.std) == n)").message("data.normalization.mean and std must have one value, or one for each of model.channels"),
    validation = Rule::new("!has(self.elastic) || self.workers.nodes == oldSelf.workers.nodes").message("workers.nodes cannot be changed while elastic is given, because it makes the global batch; change elastic"),
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
    /// image is the container image of the trainer: vit-trainer's, or the one that external is to run in.
    #[schemars(length(min = 1, max = 512))]
    pub image: String,
    /// imagePullPolicy says when kubelets pull the image: Always, IfNotPresent or Never.
    #[serde(default)]
    pub image_pull_policy: super::ImagePullPolicy,
    /// imagePullSecrets are Secrets in the job's namespace with credentials for the image's registry.
    #[serde(default)]
    #[schemars(length(max = 8))]
    pub image_pull_secrets: Vec<super::ImagePullSecret>,
    /// external is a trainer to run in place of vit-trainer: a script under torchrun, DeepSpeed or Accelerate, which gets like
    /// GPUs, is restarted as a gang, and tells of its progress, as vit-trainer does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub external: Option<External>,
    /// model is the Vision Transformer that is trained.
    pub model: Model,
    /// data is the data set.
    pub data: Data,
    /// training sets epochs, batches and the optimizer.
    pub training: Training,
    /// parallelism sets what is divided among the ranks, and how gradients are reduced over them.
    #[serde(default)]
    pub parallelism: Parallelism,
    /// workers sets how many pods there are, with how many GPUs each, and what else they get.
    pub workers: Workers,
    /// elastic lets the gang train on fewer or more nodes than workers.nodes. The global batch stays what workers.nodes
    /// makes it: on another number of nodes ranks take more or fewer micro-batches a step, or smaller ones, and numbers of
    /// nodes among which the images of a step cannot be shared evenly are left out. A gang takes as many nodes as are free,
    /// of the kind of GPUs that it had before where there are any, and grows after a new checkpoint, where more are free and
    /// no waiting job could use them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub elastic: Option<Elastic>,
    /// placement says which GPUs will do.
    #[serde(default)]
    pub placement: Placement,
    /// scheduling says when pods are created, how they get to their nodes, and how long that may take.
    #[serde(default)]
    pub scheduling: Scheduling,
    /// checkpoint sets where the state of training is kept, and whether it is continued from.
    pub checkpoint: Checkpoint,
    /// measure has the job tell at its end what its steps took: in status.measurement, and in the condition Measured. Times of
    /// several attempts do not belong together: a job that has continued from a checkpoint measures nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measure: Option<Measure>,
    /// failurePolicy says what counts as a failure, how often the gang is restarted, and where.
    #[serde(default)]
    pub failure_policy: FailurePolicy,
    /// managedBy names the controller that runs the job, such as kueue.x-k8s.io/multikueue, which runs it in another
    /// cluster. This operator leaves jobs of others alone; its own have vit-operator.dev/vit-operator here, or nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 63),
        regex(pattern = "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9._-]+$")
    )]
    pub managed_by: Option<String>,
    /// suspend stops the job after a checkpoint and gives its GPUs back, until it is set to false again.
    #[serde(default)]
    pub suspend: bool,
    /// ttlSecondsAfterFinished is how long a finished job is kept, in seconds; without it, until someone deletes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub ttl_seconds_after_finished: Option<i32>,
    /// activeDeadlineSeconds is how long the job may take, in seconds since its first gang was created, or since the
    /// first one after it was suspended or lost its quota; then it is stopped and fails. Waiting for the first GPUs does
    /// not count.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub active_deadline_seconds: Option<i32>,
}

/// The rule that what a job measures fits its last message.
fn measurable() -> Rule {
    let most = Measurement::MOST_EPOCHS;
    let message =
        format!("training.epochs must be at most {most} with measure: a pod's last message holds no more");
    Rule::new(format!("!has(self.measure) || self.training.epochs <= {most}")).message(message.as_str())
}

/// Measure has a job tell what its steps took.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Measure {
    /// warmupSteps are the steps at the start that times leave out.
    #[serde(default)]
    #[schemars(range(min = 0, max = 1_000_000))]
    pub warmup_steps: i32,
}

/// What [`ViTTrainingJobSpec::managed_by`] says of the jobs that this project's operator runs, or nothing.
pub const CONTROLLER: &str = "vit-operator.dev/vit-operator";

impl ViTTrainingJob {
    /// Whether this project's operator is to run the job.
    pub fn is_for_vit_operator(&self) -> bool {
        is_for_vit_operator(self.spec.managed_by.as_deref())
    }
}

/// Whether a job whose `spec.managedBy` is this is for this project's operator to run.
pub fn is_for_vit_operator(managed_by: Option<&str>) -> bool {
    managed_by.is_none_or(|controller| controller == CONTROLLER)
}

/// Parallelism sets what is divided among the ranks, and how gradients are reduced over them.
#[derive(KubeSchema, Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(
    validation = Rule::new("self.reshardAfterForward || self.zeroStage == 3 || self.strategy == 'Auto'").message("parallelism.reshardAfterForward false needs parallelism.zeroStage 3: at the other stages weights are never given back"),
    validation = Rule::new("!self.shardWithinNode || self.zeroStage > 0 || self.strategy == 'Auto'").message("parallelism.shardWithinNode needs parallelism.zeroStage 1, 2 or 3: at stage 0 nothing is divided"),
    validation = Rule::new("!self.shardWithinNode || !self.acrossNodes").message("parallelism.shardWithinNode must be false with parallelism.acrossNodes"),
    validation = Rule::new("self.offload.parameters == 'None' || (self.offload.optimizer == 'CPU' && (self.zeroStage == 3 || self.strategy == 'Auto'))").message("parallelism.offload.parameters CPU needs parallelism.zeroStage 3 and parallelism.offload.optimizer CPU"),
    validation = Rule::new("self.strategy == 'Manual' || (self.zeroStage == 0 && self.reshardAfterForward && !self.shardWithinNode && self.sequence == 1 && self.tensor == 1)").message("parallelism.strategy Auto chooses zeroStage, reshardAfterForward, shardWithinNode, sequence and tensor: leave them out"),
)]
pub struct Parallelism {
    /// strategy says who chooses zeroStage, reshardAfterForward, shardWithinNode, sequence and tensor: Manual takes those
    /// given here. Auto chooses, each time the gang gets its GPUs, what vit-trainer plan recommends for their memory, with
    /// more activationCheckpointing where nothing fits otherwise; the global batch stays the same, and
    /// status.placement.strategy tells what was chosen.
    #[serde(default)]
    pub strategy: Strategy,
    /// zeroStage says what is divided among the ranks, as DeepSpeed's stage of the same name: 0 nothing, 1 optimizer state and
    /// fp32 master weights, 2 gradients too, 3 weights too (PyTorch's FSDP). Each stage takes less memory than the one before
    /// and trains the same model. Checkpoints are the same at any stage.
    #[serde(default)]
    #[schemars(range(min = 0, max = 3))]
    pub zero_stage: i32,
    /// reshardAfterForward says at zeroStage 3 whether a block's weights are given back after its forward pass and gathered
    /// again for its backward pass, which takes less memory and more communication than to keep them.
    #[serde(default = "yes")]
    pub reshard_after_forward: bool,
    /// shardWithinNode says from zeroStage 1 on that only the ranks of a node divide training state among them, and every node
    /// has all of it (hybrid sharding: HSDP in PyTorch, MiCS in DeepSpeed). Weights are then gathered within nodes, and
    /// between nodes travels only the sum of each rank's part of the gradients; it takes more memory.
    #[serde(default)]
    pub shard_within_node: bool,
    /// sequence is the number of ranks that divide the tokens of each image among them, and the heads while they attend
    /// (DeepSpeed-Ulysses, arXiv 2309.14509): for images with so many patches that activations do not fit on one GPU.
    /// microBatchSize counts the images of such ranks together. It divides the model's heads.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 64))]
    pub sequence: i32,
    /// tensor is the number of ranks that divide the heads of each block and the hidden values of its MLP among them
    /// (Megatron-LM's tensor parallelism, arXiv 1909.08053), and with them most weights. microBatchSize counts the images of
    /// such ranks together. sequence x tensor divides the model's heads.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 64))]
    pub tensor: i32,
    /// acrossNodes allows ranks that compute a model together (sequence x tensor) to be on several nodes. Otherwise
    /// sequence x tensor divides workers.gpusPerNode, because they exchange activations several times in each block. With
    /// placement.topology the nodes of such ranks are of one domain where they can be.
    #[serde(default)]
    pub across_nodes: bool,
    /// offload says what is kept in the pod's memory and computed by its processors in place of the GPU's.
    #[serde(default)]
    pub offload: Offload,
    /// bucketMegabytes is, at zeroStage 0, the largest size in MiB of a bucket of gradients, each of which is reduced while
    /// backward goes on (bucket_cap_mb of PyTorch's DDP): smaller buckets start earlier, larger ones use the network better.
    /// Where it would make fewer than 16 buckets, they are a sixteenth of the gradients instead, and at least 1 MiB. At the
    /// other stages a bucket is a block of the model.
    #[serde(default = "default_bucket_megabytes")]
    #[schemars(range(min = 1, max = 1024))]
    pub bucket_megabytes: i32,
    /// compressGradients is the form in which gradients are sent: none (their own type), or bf16, which halves the bytes
    /// of fp32 gradients and rounds them to 8 bits of mantissa; weights and moments keep their precision.
    #[serde(default)]
    pub compress_gradients: GradientCompression,
}

/// Offload says what is in the pod's memory and not in that of its GPUs.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Offload {
    /// optimizer says where the optimizer runs and where its state is: moments, fp32 weights and their average (ema). None is the
    /// GPU. CPU is the pod's processors and memory, as with DeepSpeed's offload_optimizer: the GPU holds weights, gradients and
    /// activations only, and each step waits for the copies and for the processors. The model that is trained is the same. Ask
    /// for the memory in workers.resources. With workers.device cpu it only takes more memory.
    #[serde(default)]
    pub optimizer: OffloadTo,
    /// parameters says where each rank's shard of the weights is at zeroStage 3. None is the GPU. CPU is the pod's memory, as with
    /// DeepSpeed's offload_param: a block's shards are copied to the GPUs when ranks gather it. It needs optimizer CPU, and more
    /// than one rank.
    #[serde(default)]
    pub parameters: OffloadTo,
}

fn yes() -> bool {
    true
}

fn one() -> i32 {
    1
}

fn default_bucket_megabytes() -> i32 {
    25
}

/// Strategy says who chooses what is divided among the ranks.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize, Deserialize, JsonSchema)]
pub enum Strategy {
    /// The manifest.
    #[default]
    Manual,
    /// The operator, by the memory of the GPUs.
    Auto,
}

impl Default for Parallelism {
    fn default() -> Self {
        Self {
            strategy: Strategy::default(),
            zero_stage: 0,
            reshard_after_forward: yes(),
            shard_within_node: false,
            sequence: one(),
            tensor: one(),
            across_nodes: false,
            offload: Offload::default(),
            bucket_megabytes: default_bucket_megabytes(),
            compress_gradients: GradientCompression::default(),
        }
    }
}

/// Scheduling says when pods are created, how they get to their nodes, and how long that may take.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Scheduling {
    /// queueName is the LocalQueue of Kueue (0.15 or newer) in the job's namespace in which the job waits for quota: it gets
    /// GPUs once Kueue has admitted its Workload, which has the job's name, and on nodes of the flavors that Kueue assigned.
    /// Where Kueue takes the quota back, the gang saves, stops, and waits again. Without a queue, free GPUs are all it takes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")
    )]
    pub queue_name: Option<String>,
    /// schedulerName is the scheduler that binds the pods to the nodes that were chosen; kube-scheduler if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub scheduler_name: Option<String>,
    /// startTimeoutSeconds is how long a gang may take from its placement until every pod is ready, in seconds, image
    /// pulls included. After it the gang gives its GPUs back, which counts as a failure of the attempt.
    #[schemars(range(min = 10, max = 86_400))]
    pub start_timeout_seconds: i32,
}

impl Default for Scheduling {
    fn default() -> Self {
        Self {
            queue_name: None,
            scheduler_name: None,
            start_timeout_seconds: 900,
        }
    }
}

/// FailurePolicy says what counts as a failure, how often the gang is restarted, and where.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct FailurePolicy {
    /// maxRestarts is how many times the gang is restarted without a new checkpoint in between; each new checkpoint
    /// starts the count afresh. Failures that would only repeat (wrong configuration, bad data, out of memory, a loss
    /// that is not finite) are never retried, but for out of memory with parallelism.strategy Auto, while a strategy takes less.
    #[schemars(range(min = 0, max = 1000))]
    pub max_restarts: i32,
    /// nodeLostSeconds is how long a node may be not ready before its pods count as lost, in seconds. Their gang then
    /// trains again elsewhere, and the pods are deleted without waiting for the node's kubelet. A pod of a ready node that is
    /// still there so long after it should have been deleted, because its process cannot be killed, is not waited for either:
    /// it keeps its GPUs until it ends, and its gang trains again on others.
    #[schemars(range(min = 1, max = 86_400))]
    pub node_lost_seconds: i32,
    /// stallTimeoutSeconds is how long a running gang may finish no step, and no batch of an evaluation, in seconds; without
    /// it, 10 times the median time of its latest steps and at least 300. Then the gang trains again from the last
    /// checkpoint, if the agents of its pods confirm that no rank gets on. Time in which the job starts or takes a checkpoint
    /// does not count.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 5, max = 86_400))]
    pub stall_timeout_seconds: Option<i32>,
    /// excludeFailedNodes says whether the job's next gangs do without nodes on which its attempts failed: at once after a
    /// DeviceFault, else after two failures that may be the node's (Killed, Crashed, PodLost, StartFailed, Stalled), and
    /// until an hour has gone by without another. Bad data at the start of an attempt are the node's, too, and tried again
    /// elsewhere, where they are a hostPath that the job has trained on before. A gang that fits nowhere else uses such nodes
    /// nevertheless.
    pub exclude_failed_nodes: bool,
    /// excludeStragglers says whether the next gangs do without the nodes of ranks that stayed slower than the others
    /// (status.stragglers, status.slowNodes), for an hour and if they fit elsewhere, an elastic gang in any of its sizes. No
    /// gang is stopped for being slow.
    pub exclude_stragglers: bool,
}

impl Default for FailurePolicy {
    fn default() -> Self {
        Self {
            max_restarts: 5,
            node_lost_seconds: 30,
            stall_timeout_seconds: None,
            exclude_failed_nodes: true,
            exclude_stragglers: false,
        }
    }
}
