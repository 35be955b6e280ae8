//! What of a status is written: the error of a failed call, and whether it is news.

use crds::Phase;
use crds::conditions::types::{RECONCILED, RUNNING};
use crds::conditions::{self, reasons};
use crds::status::{StragglerStatus, ViTTrainingJobStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::observation::Observation;

/// The status with why a call failed, if one did, also in `Running` of a starting gang.
pub(crate) fn with_error(
    observation: &Observation,
    mut status: ViTTrainingJobStatus,
    why: Option<&str>,
) -> ViTTrainingJobStatus {
    let Some(why) = why else {
        status
            .conditions
            .retain(|condition| condition.type_ != RECONCILED);
        return status;
    };
    let is_starting = status.phase == Some(Phase::Starting);
    let cause = (reasons::RECONCILE_FAILED, why);
    for type_ in [RECONCILED].into_iter().chain(is_starting.then_some(RUNNING)) {
        let generation = observation.job.metadata.generation;
        let condition = conditions::condition(type_, false, cause, generation, observation.now);
        conditions::set(&mut status.conditions, condition);
    }
    status
}

/// Whether a status differs only in counters: progress, time spent, stragglers' slowdowns, and
/// ready pods of a starting gang.
pub(crate) fn only_counters_changed(last: &ViTTrainingJobStatus, next: &ViTTrainingJobStatus) -> bool {
    if last.phase != next.phase || last.attempt != next.attempt {
        return false;
    }
    let mut without = next.clone();
    without.progress.clone_from(&last.progress);
    without.time_spent.clone_from(&last.time_spent);
    // A new straggler is news; slowdowns change with every step.
    for straggler in &mut without.stragglers {
        let same = |known: &&StragglerStatus| (known.rank, &known.node) == (straggler.rank, &straggler.node);
        if let Some(known) = last.stragglers.iter().find(same) {
            straggler.slowdown = known.slowdown;
            straggler.saved_seconds = known.saved_seconds;
        }
    }
    if next.phase == Some(Phase::Starting) {
        without.workers = last.workers;
        let reason = |condition: &Condition| (condition.type_.clone(), condition.reason.clone());
        for condition in &mut without.conditions {
            let is_start = condition.reason == reasons::PODS_STARTING;
            let known = last
                .conditions
                .iter()
                .find(|known| is_start && reason(known) == reason(condition));
            if let Some(known) = known {
                condition.message.clone_from(&known.message);
            }
        }
    }
    without == *last
}

#[cfg(test)]
mod tests;
