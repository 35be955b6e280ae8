//! How a gang comes to its end: who is to blame, that it lets go of its GPUs, and when the next one may come.

use std::time::Duration;

use contract::exit::ExitCode;
use crds::Phase;
use crds::status::ViTTrainingJobStatus;

use super::Plan;
use crate::policy::failure::{Failure, failure_of, is_echo, root_cause};
use crate::policy::gang::{PodId, PodView, Trainer};
use crate::policy::restart::{SETTLE, Verdict, back_off};
use crate::reconcile::observation::Observation;

/// What ends a pod that has not ended in the time that it had.
const SIGKILL: u8 = 9;

/// While only an echo is known of a failed attempt: whether the cause has turned up, or still may. `verdict` decides about
/// the cause, by failures since the last checkpoint.
pub(super) fn settle(
    observation: &Observation,
    status: &ViTTrainingJobStatus,
    verdict: impl Fn(&Failure, i32) -> Verdict,
) -> Option<Plan> {
    let known = status.failure_of_attempt()?;
    let seen_at = known.time.as_ref()?.0;
    let trainer = match observation.job.spec.external {
        None => Trainer::Own,
        Some(_) => Trainer::External,
    };
    let exit_code = known.exit_code.and_then(|code| u8::try_from(code).ok());
    let may_be_echo = contract::FailureClass::ALL
        .iter()
        .any(|class| class.as_str() == known.class && is_echo(*class, exit_code, trainer));
    if !may_be_echo {
        return None;
    }
    // What ends later than that may have been ended by ourselves. Both times are in whole seconds.
    let cause = observation
        .gang(status.attempt)
        .filter_map(failure_of)
        .filter(|failure| !failure.is_echo && failure.finished_at.is_some_and(|time| time < seen_at + SETTLE))
        .min_by_key(|failure| failure.finished_at);
    let silent = || {
        let mut present = observation
            .pods
            .iter()
            .filter(|pod| pod.attempt == status.attempt);
        present.find_map(|pod| fallen_silent(observation, pod))
    };
    if let Some(failure) = cause.or_else(silent) {
        let has_failed = status.phase == Some(Phase::Failed);
        // A restart was counted when the echo was seen, the end of the job was not.
        let failures = status.restarts_since_checkpoint + i32::from(has_failed);
        return Some(Plan::End {
            verdict: match verdict(&failure, failures) {
                // What is over stays over, whatever its budget has become: only the blame moves.
                Verdict::Restart if has_failed => Verdict::Exhausted,
                verdict => verdict,
            },
            failure,
            again: true,
        });
    }
    let left = (seen_at + SETTLE).duration_since(observation.now);
    let may_come = observation
        .gang(status.attempt)
        .any(|pod| !pod.has_ended() && pod.deletion_timestamp.is_none() && !pod.lost);
    (left.is_positive() && may_come).then_some(Plan::Rest(Some(left)))
}

/// The failure of a pod whose end nobody tells: its node went away, is not ready, or cannot end it. Where others have lost a peer and
/// nobody has failed, that is the one.
fn fallen_silent(observation: &Observation, pod: &PodView) -> Option<Failure> {
    // Its container may have ended before its kubelet reported the pod's end.
    if pod.has_ended() || pod.end.is_some() {
        return None;
    }
    if pod.lost {
        return failure_of(pod);
    }
    let node = pod.node.as_deref()?;
    let words = if observation.unready_nodes.contains_key(node) {
        format!("node {node} is not ready")
    } else if observation.is_overdue(pod) {
        format!("node {node} has not ended it in the time it had")
    } else {
        return None;
    };
    failure_of(&lost(pod, words))
}

pub(super) fn lost(pod: &PodView, words: String) -> PodView {
    PodView {
        disruption: Some(words),
        lost: true,
        ..pod.clone()
    }
}

/// What became of a gang that was to save and stop, where it did neither: it could not write, or did not end in time.
pub(super) fn failed_stop(observation: &Observation, status: &ViTTrainingJobStatus) -> Option<Plan> {
    if status.failure_of_attempt().is_some() {
        return None;
    }
    // A pod of which no end is known may have stopped well.
    let did_not_stop = |pod: &&PodView| {
        let end = pod.end.as_deref();
        end.is_some_and(|end| match end.exit {
            ExitCode::Done | ExitCode::Stopped => false,
            ExitCode::Signal(number) => pod.trainer == Trainer::Own || number == SIGKILL,
            // Launchers end as they like.
            _ => pod.trainer == Trainer::Own,
        })
    };
    root_cause(observation.gang(status.attempt).filter(did_not_stop)).map(Plan::RecordFailedStop)
}

/// Pods that a dead node's kubelet will not end.
pub(super) fn beyond_reach(observation: &Observation, node_lost_after: Duration) -> Vec<PodId> {
    let is_silent = |pod: &&PodView| {
        pod.deletion_timestamp.is_some() && observation.node_lost_for(pod, node_lost_after).is_some()
    };
    let silent = observation.pods.iter().filter(is_silent);
    silent.map(PodView::id).collect()
}

/// Deletes what there is of any gang, with what was created and has not come into sight, and waits until all GPUs are free again;
/// `None` once they are. Pods that ended hold no GPU; those of a node that is gone, or silent for long, cannot be waited for: such
/// a node gets no new pods. Nor can those that do not end on a node that is there: their GPUs are in use, and nobody is placed on them.
pub(super) fn drain(observation: &Observation, node_lost_after: Duration) -> Option<Plan> {
    let unseen = observation.unseen_pods.iter().map(|(name, uid)| PodId {
        name: name.clone(),
        uid: uid.clone(),
    });
    let mut pods: Vec<PodId> = observation
        .pods
        .iter()
        .filter(|pod| pod.deletion_timestamp.is_none())
        .map(PodView::id)
        .chain(unseen)
        .collect();
    pods.sort_unstable();
    let holding = observation.pods.iter().any(|pod| observation.holds_gpus(pod));
    let force = beyond_reach(observation, node_lost_after);
    (!pods.is_empty() || holding || !force.is_empty()).then_some(Plan::Drain { pods, force })
}

pub(super) fn backing_off(observation: &Observation, status: &ViTTrainingJobStatus) -> Option<Plan> {
    let seen_at = status.failure_of_attempt()?.time.as_ref()?.0;
    let left = (seen_at + back_off(status.restarts_since_checkpoint)).duration_since(observation.now);
    left.is_positive().then_some(Plan::Rest(Some(left)))
}
