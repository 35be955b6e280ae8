//! Agents' reports in the form of the status.

use contract::{Progress, SlowRank};
use crds::status::{CheckpointStatus, ProgressStatus, StragglerStatus, ViTTrainingJobStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::numbers::rounded;

pub(super) fn record_progress(status: &mut ViTTrainingJobStatus, progress: &Progress) {
    status.restarts_since_checkpoint = status.failures_since_checkpoint(Some(progress));
    if let Some(checkpoint) = &progress.last_checkpoint
        && status.has_new_checkpoint(progress)
    {
        status.last_checkpoint = Some(CheckpointStatus {
            step: signed(checkpoint.step),
            path: checkpoint.path.clone(),
            time: time(&checkpoint.time),
        });
    }
    status.progress = Some(ProgressStatus {
        epoch: count(progress.epoch as usize),
        total_epochs: count(progress.total_epochs as usize),
        step: signed(progress.step),
        total_steps: signed(progress.total_steps),
        percent: i32::from(progress.percent()),
        loss: progress.loss.map(|loss| rounded(loss, 4)),
        train_accuracy: progress.train_accuracy.map(|accuracy| rounded(accuracy, 4)),
        validation_accuracy: progress.validation_accuracy.map(|accuracy| rounded(accuracy, 4)),
        validation_mean_average_precision: progress
            .validation_mean_average_precision
            .map(|precision| rounded(precision, 4)),
        ema_validation_accuracy: progress
            .ema_validation_accuracy
            .map(|accuracy| rounded(accuracy, 4)),
        images_per_second: progress.images_per_second.map(|rate| rounded(rate, 1)),
        sync_share: progress.sync_share.map(|share| rounded(share, 4)),
        slowdown: progress.slowdown.map(|slowdown| rounded(slowdown, 3)),
        idle_ranks: progress
            .idle_ranks
            .iter()
            .map(|rank| count(*rank as usize))
            .collect(),
        eta_seconds: progress.eta_seconds.map(signed),
        updated_at: time(&progress.updated_at),
    });
}

/// Stragglers with their nodes.
pub(super) fn with_nodes(
    stragglers: &[SlowRank],
    status: &ViTTrainingJobStatus,
    workers: &crds::spec::Workers,
) -> Vec<StragglerStatus> {
    let nodes = status.nodes();
    let ranks_per_node = u32::try_from(workers.gpus_per_node).unwrap_or(1).max(1);
    stragglers
        .iter()
        .map(|slow| StragglerStatus {
            rank: count(slow.rank as usize),
            node: nodes.get((slow.rank / ranks_per_node) as usize).cloned(),
            slowdown: rounded(slow.slowdown, 2),
            saved_seconds: slow
                .saved_seconds
                .map(|seconds| rounded(seconds, 4))
                .filter(|seconds| *seconds > 0.0),
        })
        .collect()
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

pub(super) fn count(value: usize) -> i32 {
    i32::try_from(value).unwrap_or(i32::MAX)
}

fn time(text: &str) -> Option<Time> {
    text.parse().ok().map(Time)
}
