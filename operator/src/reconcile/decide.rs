//! The next step of one job: a pure function of the observation.
//!
//! ```text
//!              +------------------------------- Suspended <--- Suspending <--+
//!              v                                                             | spec.suspend
//!   (new) -> Pending --place--> Starting --all pods ready--> Running --------+
//!              ^                   |                            |
//!              |                   +---a pod failed, or another size wanted--+--> Failed
//!              |                                 v
//!              +---- no group fits -------- Restarting --place--> Starting
//! ```
//! A Failed job whose `spec.suspend` is set becomes Suspended, and can be resumed.
//!
//! A job that names a queue of Kueue is Pending until it gets quota, and again after an eviction. A
//! gang over a quota of its namespace is Pending, and one whose starts fail, until the next try.
//!
//! A step that only writes the status comes before one that destroys evidence or holds GPUs: a
//! failure is recorded before its pods are deleted, a placement before its pods are created. So an
//! operator that stops in between continues there.

mod follow;
mod gang;
mod over;
mod queue;
mod stopping;

use std::time::Duration;

use contract::FailureClass;
use crds::conditions::{reasons, types};
use crds::status::ViTTrainingJobStatus;
use crds::{InvalidJob, Phase, ValidatedJob};
use jiff::SignedDuration;
use planner::Decision;
use planner::policy::placement::Placement;

use super::next::Next;
use super::observation::Observation;
use super::pace::{IN_MOTION, RESTING, WAITING};
use super::poll::PROGRESS_INTERVAL;
use super::step::{Step, Write};
use crate::error::{CATCH_UP, Error};
use crate::policy::admission::admission_state;
use crate::policy::failure::{Failure, root_cause};
use crate::policy::gang::PodView;
use crate::policy::restart::Verdict;
use crate::policy::suspend::{StopReason, stop_wanted};
use crate::policy::{deadline, strategy, waiting};
use follow::{follow, verdict_on};
use over::after_the_end;
use queue::queue;
use stopping::{backing_off, drain, failed_stop, pausing, settle};

/// Decides. `place` finds and promises GPUs for an attempt, unless `seen` is outdated; `growth` returns
/// the nodes to which an elastic gang could grow.
pub(crate) fn decide(
    seen: &Observation,
    valid: &Result<ValidatedJob, InvalidJob>,
    place: impl FnOnce(i32) -> Option<Decision>,
    growth: impl FnOnce() -> Option<usize>,
) -> Step {
    let status = seen.status();
    let mut phase = status.phase.unwrap_or(Phase::Pending);
    if phase.is_terminal() {
        // A refused job is retried after an edit of the manifest, others that failed once suspended.
        let may_retry = status.was_refused() || phase == Phase::Failed && seen.job.spec.suspend;
        if valid.is_err() || !may_retry {
            return after_the_end(seen, &status);
        }
        phase = Phase::Pending;
    }
    // A gang that succeeded has nothing left to do, whatever the spec says now.
    if has_finished(seen, &status) {
        return Next::of(seen).succeeded().record(IN_MOTION).urgent();
    }
    let valid = match valid {
        Ok(valid) => valid,
        Err(invalid) => {
            let why = invalid.to_string();
            return outlive(seen, &status, phase, &why).unwrap_or_else(|| refuse(seen, &why));
        }
    };
    if valid.spec.external.is_some() && seen.agent_image.is_none() && makes_pods(phase, valid) {
        return refuse(
            seen,
            "spec.external is given, but this operator was started without --agent-image, the sidecar of other trainers",
        );
    }
    let has_gang = seen.pods.iter().any(|pod| !pod.has_ended());
    if phase == Phase::Pending && valid.spec.suspend && !has_gang {
        return suspended(seen);
    }
    if let Some(step) = time_out(seen, &status, valid, phase) {
        return step;
    }
    if let Some(stop) = stop_wanted(phase, status.nodes().len(), valid.spec.suspend, &valid.sizes) {
        return halt(seen, &stop);
    }
    let admission = admission_state(valid, &seen.queue);
    let is_evicted = admission.ends_gang();
    if is_evicted && matches!(phase, Phase::Starting | Phase::Running) {
        return halt(seen, &StopReason::Evict(waiting::no_quota(&admission).into()));
    }
    let place_now = || {
        drain(seen)
            .or_else(|| queue(seen, &status, valid, admission))
            .or_else(|| pausing(seen, &status))
            .or_else(|| dry_run(seen, &status, valid))
            .unwrap_or_else(|| {
                let attempt = seen.newest_attempt().saturating_add(1);
                match place(attempt) {
                    Some(Decision::Placed(placement)) => placed(seen, valid, attempt, &placement),
                    Some(Decision::Waits(waiting)) => wait(seen, Next::of(seen).waits(&waiting), vec![]),
                    None => Next::of(seen).record(CATCH_UP),
                }
            })
    };
    match phase {
        // Pods may have appeared since.
        Phase::Suspended if valid.spec.suspend => {
            drain(seen).unwrap_or_else(|| Next::of(seen).act(without_workload(seen), RESTING))
        }
        Phase::Pending | Phase::Suspended => place_now(),
        Phase::Suspending => drain(seen)
            .or_else(|| failed_stop(seen, &status))
            .unwrap_or_else(|| suspended(seen)),
        Phase::Restarting => settle(seen, &status, |failure, failures| {
            verdict_on(failure, seen, valid, failures)
        })
        .or_else(|| drain(seen))
        .or_else(|| failed_stop(seen, &status))
        .or_else(|| backing_off(seen, &status).filter(|_| !is_evicted))
        .unwrap_or_else(place_now),
        Phase::Starting | Phase::Running => follow(seen, &status, valid, growth),
        Phase::Succeeded | Phase::Failed => after_the_end(seen, &status),
    }
}

/// Stops the gang of a job that is being deleted; `None` once it holds no GPUs.
pub(super) fn depart(seen: &Observation) -> Option<Step> {
    drain(seen)
}

/// Ends a gang because the API server will never accept one of its objects, such as this pod.
pub(super) fn end_of_refused(seen: &Observation, pod: &PodView, error: &Error) -> Step {
    let failure = Failure::from_pod(pod, FailureClass::BadConfig, error.to_string());
    end(seen, &failure, Verdict::NotRetryable, false)
}

/// Lets a healthy gang train or save although this version of the operator refuses its manifest:
/// another version placed it. `None` if pods would have to be made.
fn outlive(seen: &Observation, status: &ViTTrainingJobStatus, phase: Phase, why: &str) -> Option<Step> {
    let node_lost_after = seen.job.spec.failure_policy.node_lost_after();
    let is_lost = |pod: &PodView| seen.node_lost_for(pod, node_lost_after).is_some();
    match phase {
        Phase::Starting | Phase::Running if seen.job.spec.suspend => Some(halt(seen, &StopReason::Suspend)),
        Phase::Starting | Phase::Running => {
            let is_healthy = seen.missing().is_empty()
                && root_cause(seen.gang(status.attempt)).is_none()
                && !seen.gang(status.attempt).any(is_lost);
            is_healthy.then(|| Next::of(seen).followed().refused(why).record(PROGRESS_INTERVAL))
        }
        Phase::Suspending => drain(seen),
        _ => None,
    }
}

/// Finds out what admission makes of the pods before GPUs are looked for, and records it for the planner.
fn dry_run(seen: &Observation, status: &ViTTrainingJobStatus, valid: &ValidatedJob) -> Option<Step> {
    let Some(added) = &seen.dry_run else {
        return Some(Step {
            // The placement is recorded soon.
            status: Box::new(status.clone()),
            writes: vec![Write::DryRun(Box::new(gang::dry_run(seen, valid)))],
            look_again: CATCH_UP,
            is_urgent: false,
            blames: None,
        });
    };
    let known = status.admitted_pod.clone().unwrap_or_default();
    (*added != known).then(|| Next::of(seen).admitted_pod(added).record(CATCH_UP))
}

fn suspended(seen: &Observation) -> Step {
    let next = Next::of(seen).suspended();
    next.act(without_workload(seen), IN_MOTION).urgent()
}

/// Gives up a gang after a `ResourceQuota` refused one of its pods: the others would hold idle GPUs.
pub(super) fn over_quota(seen: &Observation, error: &Error) -> Step {
    Next::of(seen)
        .over_quota(&error.to_string())
        .record(IN_MOTION)
        .urgent()
}

fn refuse(seen: &Observation, why: &str) -> Step {
    Next::of(seen)
        .failed(reasons::INVALID_SPEC, why)
        .record(RESTING)
        .urgent()
}

fn halt(seen: &Observation, reason: &StopReason) -> Step {
    Next::of(seen).halted(reason).record(IN_MOTION).urgent()
}

/// Ends the attempt; `again` if only the blame moves to another pod.
fn end(seen: &Observation, failure: &Failure, verdict: Verdict, again: bool) -> Step {
    Next::of(seen)
        .ended(failure, verdict, again)
        .record(IN_MOTION)
        .urgent()
}

fn placed(seen: &Observation, valid: &ValidatedJob, attempt: i32, placement: &Placement) -> Step {
    let nodes = u32::try_from(placement.nodes.len()).unwrap_or(u32::MAX);
    let status = seen.job.status.as_ref();
    let out_of_memory = status.and_then(|status| status.out_of_memory.as_ref());
    let strategy = strategy::choose(valid, nodes, &placement.gpus, out_of_memory);
    Next::of(seen)
        .placed(attempt, placement, strategy)
        .record(IN_MOTION)
}

fn wait(seen: &Observation, next: Next<'_>, writes: Vec<Write>) -> Step {
    let left = deadline::left_to_wait(&seen.job, seen.now).map(std_duration);
    let again = left.map_or(WAITING, |left| WAITING.min(left.max(CATCH_UP)));
    next.act(writes, again)
}

/// A suspended job asks for no quota.
fn without_workload(seen: &Observation) -> Vec<Write> {
    let workload = seen.queue.workload.clone();
    workload.map(Write::DeleteWorkload).into_iter().collect()
}

fn std_duration(time: SignedDuration) -> Duration {
    Duration::try_from(time).unwrap_or_default()
}

fn time_out(
    seen: &Observation,
    status: &ViTTrainingJobStatus,
    valid: &ValidatedJob,
    phase: Phase,
) -> Option<Step> {
    let failed =
        |reason, message: &str| Some(Next::of(seen).failed(reason, message).record(IN_MOTION).urgent());
    let started = status.start_time.as_ref().map(|time| time.0);
    if deadline::is_over(valid.active_deadline, started, phase, seen.now) {
        let seconds = valid.active_deadline.unwrap_or_default().as_secs();
        let message = format!("the job has had GPUs for {seconds} s (activeDeadlineSeconds)");
        return failed(reasons::DEADLINE_EXCEEDED, &message);
    }
    let left = deadline::left_to_wait(&seen.job, seen.now)?;
    if left.is_positive() {
        return None;
    }
    let seconds = seen
        .job
        .spec
        .scheduling
        .pending_timeout_seconds
        .unwrap_or_default();
    let why = status
        .condition(types::PLACED)
        .map_or("it has just been created", |placed| placed.message.as_str());
    let message = format!("the job got no GPUs within {seconds} s (scheduling.pendingTimeoutSeconds): {why}");
    failed(reasons::PENDING_TIMEOUT, &message)
}

/// Whether every trainer of the attempt is done.
fn has_finished(seen: &Observation, status: &ViTTrainingJobStatus) -> bool {
    let could_have = match status.phase {
        Some(Phase::Starting | Phase::Running | Phase::Suspending) => true,
        // It was being replaced, but not after a failure.
        Some(Phase::Restarting) => status.failure_of_attempt().is_none(),
        _ => false,
    };
    let nodes = status.nodes().len();
    // An external trainer may also exit with 0 after saving on SIGTERM.
    let is_stopping = matches!(status.phase, Some(Phase::Suspending | Phase::Restarting));
    let is_final = |pod: &PodView| {
        let was_told = is_stopping || pod.deletion_timestamp.is_some();
        seen.job.spec.external.is_none() || !was_told || has_all_steps(seen, status)
    };
    let is_done = |pod: &&PodView| pod.is_done() && is_final(pod);
    could_have && nodes > 0 && seen.gang(status.attempt).filter(is_done).count() == nodes
}

/// Whether rank 0 has reported all of its steps.
fn has_all_steps(seen: &Observation, status: &ViTTrainingJobStatus) -> bool {
    let reported = seen.progress.as_ref();
    let recorded = status.progress.as_ref();
    reported.is_some_and(|progress| progress.total_steps > 0 && progress.step >= progress.total_steps)
        || recorded.is_some_and(|progress| progress.total_steps > 0 && progress.step >= progress.total_steps)
}

/// Whether a job in this phase gets pods.
fn makes_pods(phase: Phase, valid: &ValidatedJob) -> bool {
    match phase {
        Phase::Pending | Phase::Starting | Phase::Restarting => true,
        Phase::Suspended => !valid.spec.suspend,
        _ => false,
    }
}

#[cfg(test)]
mod tests;
