//! A placed attempt: its failures, its missing pods, and whether it grows.

use std::time::Duration;

use contract::FailureClass;
use crds::conditions::types;
use crds::status::ViTTrainingJobStatus;
use crds::{Phase, ValidatedJob};
use planner::policy::request::GangRequest;

use super::super::next::Next;
use super::super::observation::Observation;
use super::super::pace::{IN_MOTION, NEXT_TURN, RESTING};
use super::super::poll::PROGRESS_INTERVAL;
use super::super::step::{Step, Write};
use super::stopping::lost;
use super::{end, gang, halt, std_duration};
use crate::build;
use crate::build::workload;
use crate::error::CATCH_UP;
use crate::policy::failure::{Failure, failure_of, root_cause};
use crate::policy::gang::{PodState, PodView};
use crate::policy::restart::{Verdict, verdict, verdict_on_start};
use crate::policy::suspend::StopReason;
use crate::policy::{elastic, failed_nodes, stall, start, strategy};

/// The step of a placed attempt.
pub(super) fn follow(
    seen: &Observation,
    status: &ViTTrainingJobStatus,
    valid: &ValidatedJob,
    growth: impl FnOnce() -> Option<usize>,
) -> Step {
    let nodes = status.nodes();
    let mut gang: Vec<PodView> = seen.gang(status.attempt).cloned().collect();
    for pod in &mut gang {
        pod.cannot_start = pod
            .cannot_start
            .and_then(|why| start::judged(why, &seen.job, status, seen.now));
        if !pod.has_ended()
            && let Some(node) = seen.node_lost_for(pod, valid.node_lost_after)
        {
            let seconds = valid.node_lost_after.as_secs();
            *pod = lost(
                pod,
                format!("node {node} has not been ready for {seconds} s (failurePolicy.nodeLostSeconds)"),
            );
        }
    }
    let missing = seen.missing();
    // A failed call or an operator's exit may leave a gang incomplete, and its pods wait for the rest.
    // Once the gang was complete, a missing pod has disappeared unnoticed.
    let is_new = !seen.was_whole();
    let hindrance = status
        .condition(types::RECONCILED)
        .map_or("it could not be created", |condition| condition.message.as_str());
    gang.extend(missing.iter().map(|node_rank| PodView {
        name: build::pod::name(&seen.job, status.attempt, *node_rank),
        attempt: status.attempt,
        node_rank: *node_rank,
        gang_size: nodes.len(),
        // A pod that could not be created is not its node's fault.
        node: (!is_new).then(|| nodes[*node_rank].clone()),
        stuck: is_new.then(|| hindrance.into()),
        lost: !is_new,
        ..PodView::default()
    }));
    let overdue = || {
        let starting = status.phase.filter(|phase| *phase == Phase::Starting);
        starting.and_then(|_| start::overdue(&gang, &seen.job, status, seen.now))
    };
    let stalled = || {
        let signs = seen.stall_signs.as_ref();
        signs
            .and_then(|signs| stall::stalled(signs, &gang, status.attempt, seen.now))
            .or_else(|| stall::silent(seen.silence?, &gang))
    };
    // Another trainer may end with 0 because its pod was deleted.
    let stopped = || {
        let deleted = gang.iter().find(|pod| pod.deletion_timestamp.is_some());
        let deleted = deleted.filter(|_| gang.iter().all(PodView::is_done))?;
        failure_of(&PodView {
            state: PodState::Running,
            end: None,
            ..deleted.clone()
        })
    };
    let unfit = unfit(seen, status, valid, &gang);
    let is_unfit = |pod: &&PodView| unfit.iter().any(|(other, _)| other.name == pod.name);
    let failure = root_cause(gang.iter().filter(|pod| !is_unfit(pod)));
    if let Some((_, words)) = unfit.first()
        && failure.as_ref().is_none_or(|failure| failure.is_echo)
    {
        return halt(seen, &StopReason::Unfit(words.clone()));
    }
    if let Some(failure) = failure.or_else(overdue).or_else(stalled).or_else(stopped) {
        let failures = status.failures_since_checkpoint(seen.progress.as_ref()) + 1;
        return end(seen, &failure, verdict_on(&failure, seen, valid, failures), false);
    }
    let next = Next::of(seen).followed();
    if !missing.is_empty() && is_new {
        return Step {
            blames: gang
                .iter()
                .find(|pod| pod.node_rank == missing[0])
                .cloned()
                .map(Box::new),
            ..next.act(gang::writes(seen, valid, &missing), NEXT_TURN)
        };
    }
    // A gang grows only right after a new checkpoint.
    if let Some(progress) = &seen.progress
        && status.phase == Some(Phase::Running)
        && status.has_new_checkpoint(progress)
        && let Some(to) = growth()
        && elastic::pays_off(status, progress, valid.start_timeout, nodes.len(), to)
    {
        return halt(seen, &StopReason::Grow { to });
    }
    let mut writes = gang::writes(seen, valid, &[]);
    if status.phase == Some(Phase::Running)
        && let Some(workload) = &seen.queue.workload
    {
        let ready = workload::with_pods_ready(workload, true, seen.now);
        writes.extend(ready.map(|workload| Write::TryUpdateWorkload(workload.into())));
    }
    let again = look_again(seen, next.phase(), status);
    next.act(writes, again)
}

/// When to look at a gang again.
fn look_again(seen: &Observation, phase: Option<Phase>, status: &ViTTrainingJobStatus) -> Duration {
    if phase == Some(Phase::Running) {
        return PROGRESS_INTERVAL;
    }
    // The time a node has been unready decides, without any event.
    if !seen.unready_nodes.is_empty() {
        return IN_MOTION;
    }
    // A missing pod counts as one that does not start.
    let missing = seen.missing().first().map(|_| PodView::default());
    let gang = seen.gang(status.attempt).chain(&missing);
    let left = start::left(gang, &seen.job, status, seen.now).map(std_duration);
    seen.start_pace.min(left.unwrap_or(RESTING).max(CATCH_UP))
}

/// Rejected pods of a starting gang that no longer fit their nodes, with reasons.
fn unfit<'a>(
    seen: &Observation,
    status: &ViTTrainingJobStatus,
    valid: &ValidatedJob,
    gang: &'a [PodView],
) -> Vec<(&'a PodView, String)> {
    if status.phase != Some(Phase::Starting) || seen.rejecting_nodes.is_empty() {
        return vec![];
    }
    let request = GangRequest::from(&valid.clone().within(status.admission.as_ref()));
    let shape = request.admitted(status.admitted_pod.as_ref()).shape;
    let why = |pod: &'a PodView| {
        let name = pod.node.as_ref()?;
        let why = start::unfit(pod, seen.rejecting_nodes.get(name)?, &shape)?;
        Some((
            pod,
            format!("pod {} no longer fits node {name} ({why})", pod.name),
        ))
    };
    gang.iter()
        .filter(|pod| pod.deletion_timestamp.is_none() && !pod.lost)
        .filter_map(why)
        .collect()
}

pub(super) fn verdict_on(
    failure: &Failure,
    seen: &Observation,
    valid: &ValidatedJob,
    failures_since_checkpoint: i32,
) -> Verdict {
    let status = seen.status();
    if failure.class == FailureClass::StartFailed {
        let since = status.start_failed_since.as_ref().map_or(seen.now, |time| time.0);
        let failing_for = seen.now.duration_since(since);
        return verdict_on_start(status.failed_starts + 1, failing_for, valid.max_restarts);
    }
    let is_of_the_node = failed_nodes::is_of_the_node(failure.class, valid, &status, seen.progress.as_ref());
    verdict(
        failure.class,
        is_of_the_node || strategy::takes_less(failure, valid, &status),
        failures_since_checkpoint,
        valid.max_restarts,
    )
}
