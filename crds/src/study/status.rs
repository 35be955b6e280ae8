//! The operator's report on a study.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// ViTScalingStudyStatus reports on a study; measurements are in the status of its jobs.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ViTScalingStudyStatus {
    /// phase is the state in one word.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<StudyPhase>,
    /// conditions are Running, Suspended, Complete and Failed; Reconciled only after an error.
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// observedGeneration is the generation of the spec that this status describes.
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
    /// current is the run in progress.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current: Option<CurrentRun>,
    /// points are the measurements, as medians over repetitions, in the order of the manifest.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub points: Vec<PointStatus>,
}

impl ViTScalingStudyStatus {
    /// The condition of that type ([`conditions::types`](crate::conditions::types)).
    pub fn condition(&self, type_: &str) -> Option<&Condition> {
        self.conditions.iter().find(|condition| condition.type_ == type_)
    }
}

/// phase is the state of the study in one word.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq, Serialize, Deserialize, JsonSchema)]
pub enum StudyPhase {
    /// No run trains: one waits for GPUs or is about to start.
    Pending,
    /// A run trains.
    Running,
    /// Suspended; no run is in progress.
    Suspended,
    /// Every run was measured.
    Succeeded,
    /// The manifest is invalid, or every run has ended and some failed.
    Failed,
}

impl StudyPhase {
    /// Whether the study has ended.
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }

    /// The phase as in the status.
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

/// RunsStatus counts the runs of a study: the repetitions of all distinct points.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RunsStatus {
    /// total is the number of runs: one for each repetition of each distinct point.
    pub total: i32,
    /// measured is the number of measured runs.
    pub measured: i32,
    /// failed is the number of runs that failed and are not retried.
    pub failed: i32,
    /// summary is measured/total.
    pub summary: String,
}

/// CurrentRun is the run in progress.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CurrentRun {
    /// run describes the measured point in a few words: sweep, ranks and batch.
    pub run: String,
    /// repetition of it, from 1.
    pub repetition: i32,
    /// job is the name of the ViTTrainingJob.
    pub job: String,
}

/// PointStatus is the measurement of a point.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PointStatus {
    /// sweep of the point.
    pub sweep: String,
    /// ranks that it trains on.
    pub ranks: i32,
    /// microBatchSize of each rank.
    pub micro_batch_size: i32,
    /// gradientAccumulationSteps of a step.
    pub gradient_accumulation_steps: i32,
    /// variant, if the sweep has variants.
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
    /// syncShare is the share of a step spent waiting for synchronization, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sync_share: Option<f64>,
    /// efficiency is images/s per rank over that of the fewest ranks, 0 to 1 (Strong and Weak).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub efficiency: Option<f64>,
    /// failure is why a repetition was not measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}
