//! A job's time by activity.

use contract::operator_metrics::TIME_PARTS;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Phase;

/// TimeSpentStatus is a job's time by activity since its first GPUs, without suspended time. It is
/// written with other changes: while a job waits, its times end where the wait began.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TimeSpentStatus {
    /// updatedAt is the end of the time accounted for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub updated_at: Option<MicroTime>,
    /// effectiveRatio is the share of time in useful steps, 0 to 1 (effective training time ratio).
    pub effective_ratio: f64,
    /// usefulSeconds is the time of optimizer steps that no earlier attempt had done.
    pub useful_seconds: f64,
    /// repeatedSeconds is the time of steps repeated because no checkpoint had them.
    pub repeated_seconds: f64,
    /// queueSeconds is the time of waiting for GPUs after the first ones.
    pub queue_seconds: f64,
    /// startSeconds is the time until a placed gang trains: pods, images, data, weights.
    pub start_seconds: f64,
    /// restartSeconds is the time from a gang's last report until its pods are gone.
    pub restart_seconds: f64,
    /// evaluationSeconds is the time of classifying held-out images.
    pub evaluation_seconds: f64,
    /// checkpointSeconds is the time that training paused for a checkpoint.
    pub checkpoint_seconds: f64,
    /// otherSeconds is the remaining time of running gangs: between steps, and at their end.
    pub other_seconds: f64,
    /// reachedStep is the last step that an earlier attempt reported.
    pub reached_step: i64,
    /// attempt is the latest attempt's part of these times.
    pub attempt: AttemptTime,
}

/// AttemptTime is the latest attempt's report of its time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AttemptTime {
    /// stepSeconds is the time of optimizer steps.
    pub step_seconds: f64,
    /// repeatedSeconds is the time of steps that repeat those of an earlier attempt.
    pub repeated_seconds: f64,
    /// evaluationSeconds is the time of classifying held-out images.
    pub evaluation_seconds: f64,
    /// checkpointSeconds is the time that training paused for a checkpoint.
    pub checkpoint_seconds: f64,
    /// runningSeconds is the time that its gang has run.
    pub running_seconds: f64,
    /// startSeconds is the part of runningSeconds before the first step.
    pub start_seconds: f64,
    /// otherSeconds is the part of runningSeconds in no other field.
    pub other_seconds: f64,
}

impl TimeSpentStatus {
    /// Every part with its name in metrics.
    pub fn parts(&self) -> [(&'static str, f64); 8] {
        let seconds = [
            self.useful_seconds,
            self.repeated_seconds,
            self.queue_seconds,
            self.start_seconds,
            self.restart_seconds,
            self.evaluation_seconds,
            self.checkpoint_seconds,
            self.other_seconds,
        ];
        std::array::from_fn(|part| (TIME_PARTS[part], seconds[part]))
    }

    /// Seconds of all parts.
    pub fn total(&self) -> f64 {
        self.parts().iter().map(|(_, seconds)| seconds).sum()
    }

    /// Adds the unreported time since `updated_at`, which counts by the job's phase.
    #[must_use]
    pub fn until(&self, now: Timestamp, phase: Option<Phase>) -> Self {
        let mut until = self.clone();
        let since = self.updated_at.as_ref().map_or(now, |time| time.0);
        let seconds = now.duration_since(since).as_secs_f64().max(0.0);
        match phase {
            Some(Phase::Pending) => until.queue_seconds += seconds,
            Some(Phase::Starting) => until.start_seconds += seconds,
            Some(Phase::Restarting | Phase::Suspending) => until.restart_seconds += seconds,
            Some(Phase::Running | Phase::Suspended | Phase::Succeeded | Phase::Failed) | None => {}
        }
        let all = until.total();
        until.effective_ratio = if all > 0.0 {
            until.useful_seconds / all
        } else {
            0.0
        };
        until.updated_at = Some(MicroTime(now));
        until
    }
}
