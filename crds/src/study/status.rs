//! What the operator reports about a study.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// ViTScalingStudyStatus is what the operator tells about a study. What its runs measured is in the ConfigMap NAME-results.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ViTScalingStudyStatus {
    /// phase is the state in one word.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<StudyPhase>,
    /// conditions are Running, Suspended, Complete and Failed; and Reconciled while the operator cannot do what is to be done.
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// observedGeneration is the generation of the spec that this status is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// startTime is when the first run was created.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// completionTime is when the last run ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_time: Option<Time>,
    /// runs counts the runs that the study needs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runs: Option<RunsStatus>,
    /// current is the run that is under way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current: Option<CurrentRun>,
    /// nodes are those on which runs are measured, for each way in which variants choose nodes. The first run of the most nodes
    /// gets them from the planner; runs of fewer nodes take the first of them.
    #[x_kube(merge_strategy = ListMerge::Map(vec!["key".into()]))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<StudyNodes>,
    /// points are what was measured, as medians over repetitions, in the order of the manifest.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub points: Vec<PointStatus>,
}

impl ViTScalingStudyStatus {
    /// Every node on which the study measures.
    pub fn all_nodes(&self) -> impl Iterator<Item = &String> {
        self.nodes.iter().flat_map(|nodes| &nodes.nodes)
    }

    /// The condition of that type ([`conditions::types`](crate::conditions::types)).
    pub fn condition(&self, type_: &str) -> Option<&Condition> {
        self.conditions.iter().find(|condition| condition.type_ == type_)
    }
}

/// phase is the state of the study in one word.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq, Serialize, Deserialize, JsonSchema)]
pub enum StudyPhase {
    /// No run trains: one waits for GPUs, or is about to start.
    Pending,
    /// A run trains.
    Running,
    /// Suspended; no run is under way.
    Suspended,
    /// Every run was measured.
    Succeeded,
    /// The manifest cannot be run, or every run is over and some failed.
    Failed,
}

impl StudyPhase {
    /// Whether the study is over.
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }

    /// The word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Running => "Running",
            Self::Suspended => "Suspended",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
        }
    }
}

/// RunsStatus counts the runs of a study: each point's, as often as it is repeated; points that are the same share theirs.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RunsStatus {
    /// total is the number of runs: one for each repetition of each distinct point.
    pub total: i32,
    /// measured is the number of those that were measured.
    pub measured: i32,
    /// failed is the number of those that failed and are not tried again.
    pub failed: i32,
    /// summary is measured/total.
    pub summary: String,
}

/// CurrentRun is the run that is under way.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CurrentRun {
    /// run tells in few words what is measured: sweep, ranks and batch.
    pub run: String,
    /// repetition of it, from 1.
    pub repetition: i32,
    /// job is the name of the ViTTrainingJob.
    pub job: String,
}

/// StudyNodes are the nodes of runs that choose nodes in the same way.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StudyNodes {
    /// key tells one way to choose nodes from others.
    pub key: String,
    /// nodes in the order of their node rank.
    pub nodes: Vec<String>,
}

/// PointStatus is what a point has measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PointStatus {
    /// sweep that the point is of.
    pub sweep: String,
    /// ranks that it trains on.
    pub ranks: i32,
    /// microBatchSize of each rank.
    pub micro_batch_size: i32,
    /// gradientAccumulationSteps of a step.
    pub gradient_accumulation_steps: i32,
    /// variant, where the sweep has some.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub variant: Option<String>,
    /// measured is the number of repetitions that were measured.
    pub measured: i32,
    /// imagesPerSecond over all ranks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub images_per_second: Option<f64>,
    /// stepMilliseconds is the time of a step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step_milliseconds: Option<f64>,
    /// syncShare is the share of a step spent waiting for synchronisation, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sync_share: Option<f64>,
    /// efficiency is images/s over those of the sweep's fewest ranks, per rank, 0 to 1; of modes Strong and Weak.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub efficiency: Option<f64>,
    /// failure is why a repetition was not measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}
