//! The operator's report on a job.

mod time_spent;
mod waiting;

use std::collections::BTreeMap;

use contract::{ActivationCheckpointing, Measurement, Memory, Progress};
use k8s_openapi::api::core::v1::Toleration;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::conditions::{reasons, types};
pub use time_spent::{AttemptTime, TimeSpentStatus};
pub use waiting::{LeftOverGpus, OverduePod, Refusal, RejectedGroup, RejectedNodes, WaitStatus};

/// ViTTrainingJobStatus is the operator's report on a job.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = contract::schema::signed_integers)]
pub struct ViTTrainingJobStatus {
    /// phase is the state in one word.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// conditions are Placed, Running, Suspended, Complete, Failed and, with measure, Measured;
    /// Reconciled only while the operator cannot reconcile the job.
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// observedGeneration is the generation of the spec that this status describes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// attempt counts gangs from 1. It increases with every restart, resume and change of size.
    pub attempt: i32,
    /// restarts is how many times the gang was replaced after a failure, over the whole job.
    #[schemars(range(min = 0))]
    pub restarts: i32,
    /// restartsSinceCheckpoint counts restarts since the last new checkpoint, without failed starts;
    /// failurePolicy.maxRestarts limits it.
    #[schemars(range(min = 0))]
    pub restarts_since_checkpoint: i32,
    /// failedStarts counts attempts that failed as StartFailed since the gang last ran. They do not count in
    /// restartsSinceCheckpoint, and failurePolicy.maxRestarts limits them only after half an hour.
    #[schemars(range(min = 0))]
    #[serde(default)]
    pub failed_starts: i32,
    /// startFailedSince is when the first of them failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_failed_since: Option<Time>,
    /// selector matches the job's pods, for the scale subresource.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// startTime is when the first gang was created, or the first one after the job was suspended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// completionTime is when the job succeeded or failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_time: Option<Time>,
    /// admission is the quota granted by Kueue (scheduling.queueName); absent until then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admission: Option<AdmissionStatus>,
    /// admittedPod is what admission adds to the pods; absent if nothing that matters to placement.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admitted_pod: Option<AdmittedPod>,
    /// placement has the gang's nodes and GPUs, the rejected groups, and what the job waits for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub placement: Option<PlacementStatus>,
    /// workers counts the gang's pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workers: Option<WorkersStatus>,
    /// progress is rank 0's last report.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<ProgressStatus>,
    /// measurement is the result of a job with measure, once it has succeeded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measurement: Option<Box<Measurement>>,
    /// timeSpent is the job's time by activity, over all attempts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_spent: Option<TimeSpentStatus>,
    /// lastCheckpoint is the newest complete checkpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_checkpoint: Option<CheckpointStatus>,
    /// lastFailure is the failure that ended the last failed attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_failure: Option<FailureStatus>,
    /// outOfMemory is the strategy with which an attempt ran out of memory. Later attempts use one
    /// that needs less, if one exists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub out_of_memory: Option<StrategyStatus>,
    /// stragglers are the ranks of the latest gang that stay slower than the others, which wait for them in every step.
    #[x_kube(merge_strategy = ListMerge::Map(vec!["rank".into()]))]
    #[schemars(length(max = 16))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stragglers: Vec<StragglerStatus>,
    /// failedNodes are nodes where attempts failed in the last hour, perhaps because of the node.
    #[x_kube(merge_strategy = ListMerge::Map(vec!["node".into()]))]
    #[schemars(length(max = 16))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed_nodes: Vec<FailedNodeStatus>,
    /// slowNodes are the nodes on which a rank of an earlier gang was slow. Each is removed an hour
    /// after that gang was replaced, or when the gang that trains then ends.
    #[x_kube(merge_strategy = ListMerge::Map(vec!["node".into()]))]
    #[schemars(length(max = 16))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub slow_nodes: Vec<SlowNodeStatus>,
}

impl ViTTrainingJobStatus {
    /// The condition of that type ([`conditions::types`](crate::conditions::types)).
    pub fn condition(&self, type_: &str) -> Option<&Condition> {
        self.conditions.iter().find(|condition| condition.type_ == type_)
    }

    /// The nodes where the latest gang was placed.
    pub fn nodes(&self) -> &[String] {
        self.placement
            .as_ref()
            .map_or(&[], |placement| placement.nodes.as_slice())
    }

    /// Whether the job failed because its manifest could not be run.
    pub fn was_refused(&self) -> bool {
        self.condition(types::FAILED)
            .is_some_and(|failed| failed.status == "True" && failed.reason == reasons::INVALID_SPEC)
    }

    /// Whether the job pauses before its next try to start, and gets no GPUs meanwhile.
    pub fn is_paused(&self) -> bool {
        let is_pause =
            |placed: &Condition| [reasons::QUOTA_EXCEEDED, reasons::START_FAILING].contains(&&*placed.reason);
        self.phase == Some(Phase::Pending) && self.condition(types::PLACED).is_some_and(is_pause)
    }

    /// When the attempt was placed.
    pub fn placed_at(&self) -> Option<&Time> {
        self.placement.as_ref()?.time.as_ref()
    }

    /// How the latest attempt failed, if it did.
    pub fn failure_of_attempt(&self) -> Option<&FailureStatus> {
        self.last_failure
            .as_ref()
            .filter(|failure| failure.attempt == self.attempt)
    }

    /// Whether a progress report has a newer checkpoint than the status.
    pub fn has_new_checkpoint(&self, progress: &Progress) -> bool {
        let known = self.last_checkpoint.as_ref().map(|checkpoint| checkpoint.step);
        let told = progress.last_checkpoint.as_ref();
        told.is_some_and(|checkpoint| i64::try_from(checkpoint.step).ok() > known)
    }

    /// Failed attempts since the last new checkpoint, which may be in a report that the status
    /// lacks.
    pub fn failures_since_checkpoint(&self, progress: Option<&Progress>) -> i32 {
        if progress.is_some_and(|progress| self.has_new_checkpoint(progress)) {
            0
        } else {
            self.restarts_since_checkpoint
        }
    }
}

/// phase is the state of the job in one word.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq, Serialize, Deserialize, JsonSchema)]
pub enum Phase {
    /// Waits for GPUs.
    Pending,
    /// Has GPUs; pods are being scheduled and started.
    Starting,
    /// Every pod runs.
    Running,
    /// An attempt ended; its pods are being replaced.
    Restarting,
    /// Being suspended; pods save a checkpoint and stop.
    Suspending,
    /// Suspended; holds no GPUs.
    Suspended,
    /// All epochs are done.
    Succeeded,
    /// Failed, and is not retried.
    Failed,
}

impl Phase {
    /// Every phase.
    pub const ALL: [Self; 8] = [
        Self::Pending,
        Self::Starting,
        Self::Running,
        Self::Restarting,
        Self::Suspending,
        Self::Suspended,
        Self::Succeeded,
        Self::Failed,
    ];

    /// Whether the job has finished.
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }

    /// The phase as in the status.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Starting => "Starting",
            Self::Running => "Running",
            Self::Restarting => "Restarting",
            Self::Suspending => "Suspending",
            Self::Suspended => "Suspended",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
        }
    }
}

/// AdmissionStatus is the quota that Kueue has granted a job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AdmissionStatus {
    /// clusterQueue is the ClusterQueue whose quota the job uses.
    pub cluster_queue: String,
    /// flavors are the ResourceFlavors of that quota.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub flavors: Vec<String>,
    /// nodes is the number of nodes that the quota covers: the most that an elastic gang may have.
    pub nodes: i32,
    /// nodeSelector are labels that nodes must have in addition to workers.nodeSelector.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// tolerations are those of the flavors, in addition to workers.tolerations.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<Toleration>,
    /// podLabels are labels that an admission check adds.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub pod_labels: BTreeMap<String, String>,
    /// podAnnotations are annotations that an admission check adds, such as an autoscaler's.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub pod_annotations: BTreeMap<String, String>,
    /// time at which the operator saw the admission.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<Time>,
}

/// AdmittedPod is what webhooks, policies, LimitRanges and RuntimeClasses add to the job's pods, found by
/// a dry run before the first placement, which takes it into account.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AdmittedPod {
    /// requests are added to the manifest's.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub requests: BTreeMap<String, Quantity>,
    /// nodeSelector are labels that nodes must have in addition to workers.nodeSelector.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// tolerations in addition to workers.tolerations.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<Toleration>,
    /// containers are the names of added ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub containers: Vec<String>,
}

/// PlacementStatus has the gang's nodes and GPUs, the rejected groups, and what the job waits for.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlacementStatus {
    /// group is the chosen group of identical GPUs; absent if the gang's GPUs are of several kinds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<GpuGroup>,
    /// mixed are the kinds of GPUs of a mixed gang, which placement.homogeneity allows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mixed: Vec<MixedGroup>,
    /// topology lists the parts of the cluster over which the gang is spread.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub topology: Vec<TopologySpread>,
    /// nodes are the gang's nodes, in the order of node ranks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<String>,
    /// strategy is the choice of parallelism.strategy Auto for these GPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strategy: Option<StrategyStatus>,
    /// time of the decision.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<Time>,
    /// rejectedGroups are the groups that were not chosen, with reasons; at most 32.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rejected_groups: Vec<RejectedGroup>,
    /// wait is what a job waits for that fits nowhere; its counts and names are updated within a minute, or
    /// more if many jobs wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait: Option<WaitStatus>,
}

/// StrategyStatus is a gang's parallelism strategy.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StrategyStatus {
    /// name describes the strategy in a few words, as vit-trainer plan does.
    pub name: String,
    /// zeroStage is the stage of sharding, as in parallelism.zeroStage.
    pub zero_stage: i32,
    /// shardWithinNode says whether state is sharded only within each node.
    pub shard_within_node: bool,
    /// sequence is the number of ranks that share an image's tokens.
    pub sequence: i32,
    /// tensor is the number of ranks that share a block's heads.
    pub tensor: i32,
    /// activationCheckpointing says which activations are recomputed.
    pub activation_checkpointing: ActivationCheckpointing,
    /// memoryMebibytes is the calculated peak of tensor memory per rank, in MiB.
    pub memory_mebibytes: i64,
    /// availableMebibytes is each rank's memory for tensors in MiB; absent if unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub available_mebibytes: Option<i64>,
}

/// MixedGroup is one kind of GPU in a mixed gang.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MixedGroup {
    /// group has the properties that these GPUs share.
    pub group: GpuGroup,
    /// nodes is the number of the gang's nodes that have them.
    pub nodes: i32,
}

/// TopologySpread lists the values of a node label over which the gang is spread.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TopologySpread {
    /// key is the node label.
    pub key: String,
    /// domains are its values on the gang's nodes, in the order of ranks; nodes without the label are left out.
    /// At most 32.
    pub domains: Vec<String>,
}

/// GpuGroup has the properties that identical GPUs share.
#[derive(Clone, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GpuGroup {
    /// product is the GPU's product name, from the node's label.
    pub product: String,
    /// productLabel is that product's label; products of different labels are not compared.
    pub product_label: String,
    /// memoryMebibytes is the memory of one GPU in MiB, if a label has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_mebibytes: Option<i64>,
    /// gpusPerNode is the number of GPUs of each node.
    pub gpus_per_node: i64,
    /// driverMajor is the major version of the GPU driver, if a label has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver_major: Option<String>,
    /// sharingStrategy is how pods share a GPU (time-slicing or mps), if a label has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sharing_strategy: Option<String>,
    /// replicas is how many pods share a GPU, if they do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i64>,
    /// labels are the values of the labels of placement.groupBy.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

/// WorkersStatus counts the gang's pods.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkersStatus {
    /// desired is the number of pods of the gang; 0 while the job holds no GPUs.
    pub desired: i32,
    /// ready is the number of ready pods.
    pub ready: i32,
    /// failed is the number of pods that failed in the current attempt.
    pub failed: i32,
}

/// ProgressStatus is rank 0's last report.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProgressStatus {
    /// epoch is the number of epochs finished.
    pub epoch: i32,
    /// totalEpochs is the number of epochs of the run.
    pub total_epochs: i32,
    /// step is the number of optimizer steps finished.
    pub step: i64,
    /// totalSteps is the number of optimizer steps of the run.
    pub total_steps: i64,
    /// percent of the steps that are done.
    pub percent: i32,
    /// loss is the recent mean training loss.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    /// trainAccuracy is the share of this epoch's training images classified right, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub train_accuracy: Option<f64>,
    /// validationAccuracy is the share of held-out images classified right at the last evaluation, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub validation_accuracy: Option<f64>,
    /// validationMeanAveragePrecision is the average precision at the last evaluation, averaged
    /// over the classes, 0 to 1; with training.loss binaryCrossEntropy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub validation_mean_average_precision: Option<f64>,
    /// emaValidationAccuracy is validationAccuracy with averaged weights, if training.ema is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ema_validation_accuracy: Option<f64>,
    /// imagesPerSecond over all ranks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub images_per_second: Option<f64>,
    /// syncShare is the share of step time spent waiting for synchronization (exposed communication
    /// and slower ranks), 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sync_share: Option<f64>,
    /// slowdown is the recent step time over the step time if every rank computed as fast as the
    /// median one; 1 without slower ranks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slowdown: Option<f64>,
    /// idleRanks are ranks that get no images, because even one would delay the others
    /// (training.balance Weighted); at most the first 16.
    #[schemars(length(max = 16))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub idle_ranks: Vec<i32>,
    /// etaSeconds is the time to the end of the run at the current speed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eta_seconds: Option<i64>,
    /// updatedAt is when rank 0 reported it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub updated_at: Option<Time>,
}

/// CheckpointStatus is a complete checkpoint.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CheckpointStatus {
    /// step is the number of optimizer steps it holds.
    pub step: i64,
    /// path of its folder, as the pods see it.
    pub path: String,
    /// time it was completed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<Time>,
}

/// FailureStatus is the failure that ended an attempt, from the first rank that failed.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FailureStatus {
    /// attempt that failed.
    pub attempt: i32,
    /// rank that failed, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<i32>,
    /// pod that failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// node it was on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// exitCode of the rank, 128 + n for signal n.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// class of the failure: BadConfig, BadData, PeerLost, DeviceFault, OutOfMemory, Diverged, Storage, Killed, Crashed,
    /// PodLost, StartFailed or Stalled.
    pub class: String,
    /// memory that ran out, if that is known to be the cause: GPU, or Host for the pod's memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Memory>,
    /// message from the trainer or the kubelet.
    pub message: String,
    /// time at which the operator saw the failure; the wait before the next attempt starts here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<Time>,
}

/// StragglerStatus is a rank that stays slower than the others.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StragglerStatus {
    /// rank that is slow.
    #[schemars(range(min = 0))]
    pub rank: i32,
    /// node it is on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// slowdown is its compute time per step (data, forward and backward, without waiting) over the
    /// median of the other ranks, as last reported. A rank is listed while the mean over half a
    /// minute is above 1.33, until it is below 1.2.
    pub slowdown: f64,
    /// savedSeconds is how much shorter a step would be without the rank: its compute time beyond
    /// the next slowest rank, as last reported. Absent if other ranks are as slow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub saved_seconds: Option<f64>,
}

/// SlowNodeStatus is a node on which a rank stayed slower than the others.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SlowNodeStatus {
    /// node is its name.
    pub node: String,
    /// slowdown is that of its slowest rank, as last reported; see status.stragglers.
    pub slowdown: f64,
    /// avoidedUntil is until when gangs avoid the node if possible
    /// (failurePolicy.excludeStragglers). A gang that trains then does not grow onto it later.
    pub avoided_until: Time,
}

/// FailedNodeStatus is a node on which attempts failed.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FailedNodeStatus {
    /// node is its name.
    pub node: String,
    /// failures counts the attempts that failed there, each within an hour of the previous one.
    #[schemars(range(min = 1))]
    pub failures: i32,
    /// class of the last one.
    pub class: String,
    /// time of the last one.
    pub time: Time,
    /// avoidedUntil is until when gangs avoid the node if possible, with
    /// failurePolicy.excludeFailedNodes; absent after a single failure that may be chance.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub avoided_until: Option<Time>,
}
