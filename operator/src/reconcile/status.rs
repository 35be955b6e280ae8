//! What of a status is written: the error of a failed call, and whether it is news.

use crds::Phase;
use crds::conditions::types::{RECONCILED, RUNNING};
use crds::conditions::{self, reasons};
use crds::status::{PlacementStatus, Refusal, RejectedGroup, StragglerStatus, ViTTrainingJobStatus};

use super::observation::Observation;

/// The status with why a call failed, if one did, also in `Running` of a starting gang.
pub(crate) fn with_error(
    observation: &Observation,
    mut status: ViTTrainingJobStatus,
    why: Option<&str>,
) -> ViTTrainingJobStatus {
    let Some(why) = why else {
        status.conditions.retain(|condition| {
            condition.type_ != RECONCILED || condition.reason == reasons::NOT_RESTARTABLE
        });
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

/// Whether a status differs only in counters: progress, time spent, stragglers' slowdowns, ready
/// pods, and the numbers and names in the reasons why a gang waits.
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
    let counting = match next.phase {
        Some(Phase::Starting) => {
            without.workers = last.workers;
            reasons::PODS_STARTING
        }
        Some(Phase::Running) => {
            without.workers = last.workers;
            reasons::ALL_PODS_READY
        }
        Some(Phase::Pending) => {
            if without.placement.as_ref().map(why) == last.placement.as_ref().map(why) {
                without.placement.clone_from(&last.placement);
            }
            reasons::NO_FITTING_GROUP
        }
        _ => return without == *last,
    };
    for condition in &mut without.conditions {
        let known = last.condition(&condition.type_);
        if let Some(known) = known.filter(|known| known.reason == counting && condition.reason == counting) {
            condition.message.clone_from(&known.message);
        }
    }
    without == *last
}

/// Why a gang waits: what it needs and which groups reject it for which reasons, without the number
/// and names of nodes, jobs and pods.
fn why(placement: &PlacementStatus) -> impl PartialEq + use<> {
    let group = |group: &RejectedGroup| {
        let codes: Vec<Refusal> = group.reasons.iter().map(|nodes| nodes.code).collect();
        (group.group.clone(), group.largest_domain.is_some(), codes)
    };
    let wait = placement.wait.as_ref().map(|wait| {
        let has_overdue = !wait.overdue_pods.is_empty();
        let is_held_back = wait.held_back_for.is_some();
        (
            wait.nodes,
            wait.max_nodes,
            wait.reserved_nodes > 0,
            is_held_back,
            has_overdue,
        )
    });
    (
        placement.rejected_groups.iter().map(group).collect::<Vec<_>>(),
        wait,
    )
}

#[cfg(test)]
mod tests;
