//! What a job has spent its time on.

use contract::operator_metrics::TIME_PARTS;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Phase;

/// TimeSpentStatus is what a job has spent its time on since it got its first GPUs, over all attempts; time in which it was
/// suspended does not count. It is written with other changes, and of a job that waits as it was when it began to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TimeSpentStatus {
    /// updatedAt is until when time is accounted for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub updated_at: Option<MicroTime>,
    /// effectiveRatio is the share of useful steps, 0 to 1 (effective training time ratio).
    pub effective_ratio: f64,
    /// usefulSeconds are those of optimizer steps, without steps that an earlier attempt had done already.
    pub useful_seconds: f64,
    /// repeatedSeconds are those of steps that were done again after a restart, because no checkpoint had them.
    pub repeated_seconds: f64,
    /// queueSeconds are those of waiting for GPUs after the first ones.
    pub queue_seconds: f64,
    /// startSeconds are those until a gang that has GPUs trains: pods, images, data, weights.
    pub start_seconds: f64,
    /// restartSeconds are those from the last sign of a gang until its pods are gone.
    pub restart_seconds: f64,
    /// evaluationSeconds are those of classifying held-out images.
    pub evaluation_seconds: f64,
    /// checkpointSeconds are those in which training stood still for a checkpoint.
    pub checkpoint_seconds: f64,
    /// otherSeconds are all others in which a gang trained: between steps, and of its end.
    pub other_seconds: f64,
    /// reachedStep is the last step that an earlier attempt has told of.
    pub reached_step: i64,
    /// attempt is what of all that is the latest attempt's.
    pub attempt: AttemptTime,
}

/// AttemptTime is what the latest attempt has told of its time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AttemptTime {
    /// stepSeconds are those of optimizer steps.
    pub step_seconds: f64,
    /// repeatedSeconds are those of steps that an earlier attempt had done already.
    pub repeated_seconds: f64,
    /// evaluationSeconds are those of classifying held-out images.
    pub evaluation_seconds: f64,
    /// checkpointSeconds are those in which training stood still for a checkpoint.
    pub checkpoint_seconds: f64,
    /// runningSeconds are those in which its gang has run.
    pub running_seconds: f64,
    /// startSeconds are those of them before it took its first step.
    pub start_seconds: f64,
    /// otherSeconds are those of them that are in no other part.
    pub other_seconds: f64,
}

impl TimeSpentStatus {
    /// Every part by its name, as metrics have it.
    pub fn parts(&self) -> [(&'static str, f64); 8] {
        let [
            useful,
            repeated,
            queue,
            start,
            restart,
            evaluation,
            checkpoint,
            other,
        ] = TIME_PARTS;
        [
            (useful, self.useful_seconds),
            (repeated, self.repeated_seconds),
            (queue, self.queue_seconds),
            (start, self.start_seconds),
            (restart, self.restart_seconds),
            (evaluation, self.evaluation_seconds),
            (checkpoint, self.checkpoint_seconds),
            (other, self.other_seconds),
        ]
    }

    /// Seconds of all parts.
    pub fn total(&self) -> f64 {
        self.parts().iter().map(|(_, seconds)| seconds).sum()
    }

    /// With the time since then of a job in this phase, of which nobody tells any more.
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
