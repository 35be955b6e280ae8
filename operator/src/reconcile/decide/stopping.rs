//! The end of a gang: its root failure, the release of its GPUs, and the back-off before the next.

use contract::FailureClass;
use contract::exit::ExitCode;
use crds::Phase;
use crds::conditions::{reasons, types};
use crds::status::ViTTrainingJobStatus;
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt as _;

use super::super::next::Next;
use super::super::pace::IN_MOTION;
use super::super::step::{Step, Write};
use super::{end, std_duration, wait};
use crate::build::workload;
use crate::policy::failure::{Failure, failure_of, is_echo, root_cause};
use crate::policy::gang::{PodId, PodState, PodView, Trainer};
use crate::policy::restart::{
    SETTLE, STOP_AFTER_FAILURE_SECONDS, Verdict, back_off, back_off_of_start, pause_over_quota,
};
use crate::reconcile::observation::Observation;

/// How long a pod may take to end after its trainer.
pub(super) const ENDING: SignedDuration = SignedDuration::from_secs(30);
/// The signal that ends a pod after its grace period.
const SIGKILL: u8 = 9;

/// While only an echo of a failed attempt is known: ends it again if the cause has appeared, or
/// rests while it still may. `verdict` is by the failures since the last checkpoint.
pub(super) fn settle(
    seen: &Observation,
    status: &ViTTrainingJobStatus,
    verdict: impl Fn(&Failure, i32) -> Verdict,
) -> Option<Step> {
    let known = status.failure_of_attempt()?;
    let seen_at = known.time.as_ref()?.0;
    let trainer = match seen.job.spec.external {
        None => Trainer::Own,
        Some(_) => Trainer::External,
    };
    let exit_code = known.exit_code.and_then(|code| u8::try_from(code).ok());
    let mut classes = FailureClass::ALL.iter();
    let may_be_echo =
        classes.any(|class| class.as_str() == known.class && is_echo(*class, exit_code, trainer));
    // Only the pod shows whether it stopped by itself.
    let is_known = |failure: &Failure| {
        Some(&failure.pod) == known.pod.as_ref() && failure.exit_code == exit_code && failure.is_echo
    };
    let mut failures = seen.gang(status.attempt).filter_map(failure_of);
    if !may_be_echo && !failures.any(|failure| is_known(&failure)) {
        return None;
    }
    // The operator may have ended what it deleted and ends later. Both times are in whole seconds.
    let is_early = |pod: &PodView, ended| pod.deletion_timestamp.is_none() || ended < seen_at + SETTLE;
    let cause = seen
        .gang(status.attempt)
        .filter_map(|pod| Some((pod, failure_of(pod)?)))
        .filter(|(pod, failure)| !failure.is_echo && failure.finished_at.is_some_and(|at| is_early(pod, at)))
        .map(|(_, failure)| failure)
        .min_by_key(|failure| failure.finished_at);
    let silent = || {
        let mut present = seen.pods.iter().filter(|pod| pod.attempt == status.attempt);
        present.find_map(|pod| fallen_silent(seen, pod))
    };
    if let Some(failure) = cause.or_else(silent) {
        let has_failed = status.phase == Some(Phase::Failed);
        // A restart was counted with the echo, the end of the job was not.
        let failures = status.restarts_since_checkpoint + i32::from(has_failed);
        let verdict = match verdict(&failure, failures) {
            // A job that is over stays over, even with a larger budget; only the blame moves.
            Verdict::Restart if has_failed => Verdict::Exhausted,
            verdict => verdict,
        };
        return Some(end(seen, &failure, verdict, true));
    }
    let left = (seen_at + SETTLE).duration_since(seen.now);
    let may_come = seen
        .gang(status.attempt)
        .any(|pod| !pod.has_ended() && pod.deletion_timestamp.is_none() && !pod.lost);
    (left.is_positive() && may_come).then(|| Next::of(seen).record(std_duration(left)))
}

/// The failure of a pod whose end nobody reports: its node is gone, not ready, or cannot end it. It
/// is the cause if others lost a peer and none failed.
fn fallen_silent(seen: &Observation, pod: &PodView) -> Option<Failure> {
    // Its container may end before the kubelet reports the pod's end.
    if pod.has_ended() || pod.end.is_some() {
        return None;
    }
    if pod.lost {
        return failure_of(pod);
    }
    let node = pod.node.as_deref()?;
    let words = if seen.unready_nodes.contains_key(node) {
        format!("node {node} is not ready")
    } else if seen.is_overdue(pod) {
        format!("node {node} did not end the pod in time")
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

/// Records a gang that should have saved and stopped, but could not write or did not end in time.
pub(super) fn failed_stop(seen: &Observation, status: &ViTTrainingJobStatus) -> Option<Step> {
    if status.failure_of_attempt().is_some() {
        return None;
    }
    // A pod without a known end may have stopped cleanly.
    let did_not_stop = |pod: &&PodView| {
        let end = pod.end.as_deref();
        end.is_some_and(|end| match end.exit {
            ExitCode::Done | ExitCode::Stopped => false,
            ExitCode::Signal(number) => pod.trainer == Trainer::Own || number == SIGKILL,
            // Launchers exit with any code.
            _ => pod.trainer == Trainer::Own,
        })
    };
    let failure = root_cause(seen.gang(status.attempt).filter(did_not_stop))?;
    Some(Next::of(seen).failed_to_stop(&failure).record(IN_MOTION).urgent())
}

/// Deleted pods that a dead node's kubelet will not end.
pub(super) fn beyond_reach(seen: &Observation) -> Vec<PodId> {
    let node_lost_after = seen.job.spec.failure_policy.node_lost_after();
    let is_silent = |pod: &&PodView| {
        pod.deletion_timestamp.is_some() && seen.node_lost_for(pod, node_lost_after).is_some()
    };
    let silent = seen.pods.iter().filter(is_silent);
    silent.map(PodView::id).collect()
}

/// Deletes the pods of any gang, and waits until all GPUs are free; `None` once they are. Ended pods
/// hold no GPU. Pods on a missing or long unready node are not waited for: it gets no new pods. Nor
/// are overdue pods: their GPUs count as used.
pub(super) fn drain(seen: &Observation) -> Option<Step> {
    let kept = kept(seen);
    let goes = |pod: &&PodView| pod.deletion_timestamp.is_none() && !kept.contains(&pod.name.as_str());
    let mut pods: Vec<PodId> = seen.pods.iter().filter(goes).map(PodView::id).collect();
    pods.sort_unstable();
    let holding = seen.pods.iter().any(|pod| seen.holds_gpus(pod));
    let force = beyond_reach(seen);
    if pods.is_empty() && !holding && force.is_empty() {
        return None;
    }
    let mut writes: Vec<Write> = deletion(&seen.status(), pods, force).into_iter().collect();
    let workload = seen.queue.workload.as_ref();
    let not_ready = workload.and_then(|workload| workload::with_pods_ready(workload, false, seen.now));
    writes.extend(not_ready.map(|workload| Write::TryUpdateWorkload(workload.into())));
    Some(Next::of(seen).act(writes, IN_MOTION).urgent())
}

/// Pods that stay for their logs: those blamed for the last failed attempts. All others of earlier
/// attempts were deleted.
pub(super) fn kept(seen: &Observation) -> Vec<&str> {
    let status = seen.status();
    let most = usize::try_from(seen.job.spec.failure_policy.keep_failed_pods).unwrap_or(0);
    let Some(failure) = status.last_failure.filter(|_| most > 0) else {
        return vec![];
    };
    // The kubelet reports the container's end before the pod's.
    let is_ending = failure.time.is_some_and(|time| seen.now < time.0 + ENDING);
    let is_blamed = |pod: &&PodView| {
        let has_ended = pod.state == PodState::Failed || is_ending && pod.has_failed();
        let is_it = Some(&pod.name) == failure.pod.as_ref();
        has_ended && pod.deletion_timestamp.is_none() && (is_it || pod.attempt < failure.attempt)
    };
    let mut pods: Vec<&PodView> = seen.pods.iter().filter(is_blamed).collect();
    pods.sort_unstable_by_key(|pod| std::cmp::Reverse(pod.attempt));
    pods.into_iter().take(most).map(|pod| pod.name.as_str()).collect()
}

/// Deletes pods: of a failed attempt quickly, of others with the time to save a checkpoint, and those
/// that no kubelet will end by force.
pub(super) fn deletion(status: &ViTTrainingJobStatus, pods: Vec<PodId>, force: Vec<PodId>) -> Option<Write> {
    let grace = status.failure_of_attempt().map(|_| STOP_AFTER_FAILURE_SECONDS);
    let pods = pods.into_iter().map(|pod| (pod, grace));
    let all: Vec<_> = pods.chain(force.into_iter().map(|pod| (pod, Some(0)))).collect();
    (!all.is_empty()).then_some(Write::DeletePods(all))
}

/// The pause before the next attempt. From the second failed start on, others get the nodes meanwhile.
pub(super) fn backing_off(seen: &Observation, status: &ViTTrainingJobStatus) -> Option<Step> {
    let left = std_duration(end_of_back_off(status)?.duration_since(seen.now));
    let next = Next::of(seen);
    let is_paused = has_failed_to_start(status) && status.failed_starts > 1;
    let next = if is_paused { next.start_failing() } else { next };
    (!left.is_zero()).then(|| next.record(left))
}

fn has_failed_to_start(status: &ViTTrainingJobStatus) -> bool {
    let failure = status.failure_of_attempt();
    failure.is_some_and(|failure| failure.class == FailureClass::StartFailed.as_str())
}

fn end_of_back_off(status: &ViTTrainingJobStatus) -> Option<Timestamp> {
    let failed_at = status.failure_of_attempt()?.time.as_ref()?.0;
    Some(if has_failed_to_start(status) {
        failed_at + back_off_of_start(status.failed_starts)
    } else {
        failed_at + back_off(status.restarts_since_checkpoint)
    })
}

/// The pause of a job that is not planned before its next try.
pub(super) fn pausing(seen: &Observation, status: &ViTTrainingJobStatus) -> Option<Step> {
    let placed = status.condition(types::PLACED).filter(|_| status.is_paused())?;
    let until = if placed.reason == reasons::QUOTA_EXCEEDED {
        let uid = seen.job.uid().unwrap_or_default();
        placed.last_transition_time.0 + pause_over_quota(&uid, status.attempt)
    } else {
        end_of_back_off(status)?
    };
    let left = std_duration(until.duration_since(seen.now));
    let step = wait(seen, Next::of(seen), vec![]);
    let look_again = step.look_again.min(left);
    (!left.is_zero()).then_some(Step { look_again, ..step })
}
