//! The next action for one job: a pure function of the observation.
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
//! A job that names a queue of Kueue is Pending until it gets quota, and again after an eviction.
//!
//! Actions that destroy evidence or hold GPUs are recorded in the status one round before: a
//! failure before its pods are deleted, a placement before its pods are created. So an operator
//! that stops in between continues there.

mod stopping;

use std::time::Duration;

use contract::FailureClass;
use crds::conditions::{reasons, types};
use crds::status::{AdmissionStatus, ViTTrainingJobStatus};
use crds::{InvalidJob, Phase, ValidatedJob};
use jiff::SignedDuration;
use planner::policy::placement::Placement;
use planner::policy::request::GangRequest;
use planner::{Decision, Waiting};

use super::observation::Observation;
use crate::build;
use crate::build::workload::is_current;
use crate::error::Error;
use crate::policy::admission::{AdmissionState, admission_state, is_recorded};
use crate::policy::failure::{Failure, root_cause};
use crate::policy::gang::{PodId, PodState, PodView};
use crate::policy::restart::{Verdict, verdict};
use crate::policy::strategy;
use crate::policy::suspend::{StopReason, stop_wanted};
use crate::policy::{deadline, elastic, failed_nodes, stall, start, ttl};
use stopping::{backing_off, beyond_reach, drain, failed_stop, lost, settle};

/// The next action.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Plan {
    /// Record that the manifest is invalid.
    Refuse(String),
    /// Record Kueue's grant.
    Admit(AdmissionStatus),
    /// Record the nodes of the next attempt.
    Place { attempt: i32, placement: Placement },
    /// Record why the gang gets no GPUs now.
    Wait(Waiting),
    /// Create the pods of these node ranks on the recorded nodes.
    Create { node_ranks: Vec<usize> },
    /// Record the existing gang's readiness and progress.
    Follow,
    /// Record that every pod succeeded.
    Finish,
    /// Record that the attempt failed. `again` if only the blame moves to another pod.
    End {
        failure: Failure,
        verdict: Verdict,
        again: bool,
    },
    /// Record why the gang has to stop.
    Halt(StopReason),
    /// Delete these pods, and wait until the gang has released its GPUs. Pods of dead nodes, whose
    /// kubelet cannot confirm this, are deleted by `force`.
    Drain { pods: Vec<PodId>, force: Vec<PodId> },
    /// Record that a gang failed to save and stop.
    RecordFailedStop(Failure),
    /// Record that the gang of a suspended job is gone.
    Park,
    /// Record that the job exceeded a time limit, with the reason of its condition.
    TimeOut { reason: &'static str, message: String },
    /// Delete the running pods of a finished job, on dead nodes by `force`; later the job itself.
    CleanUp {
        pods: Vec<PodId>,
        force: Vec<PodId>,
        expires_in: Option<SignedDuration>,
    },
    /// Delete the job, whose time to live is over.
    Expire,
    /// Nothing, for this long or until something changes.
    Rest(Option<SignedDuration>),
}

impl Plan {
    /// Whether it ends or prevents pods.
    pub(crate) fn frees_gpus(&self) -> bool {
        match self {
            Self::Refuse(_)
            | Self::Finish
            | Self::End { .. }
            | Self::Halt(_)
            | Self::Drain { .. }
            | Self::RecordFailedStop(_)
            | Self::Park
            | Self::TimeOut { .. }
            | Self::CleanUp { .. }
            | Self::Expire => true,
            Self::Admit(_)
            | Self::Place { .. }
            | Self::Wait(_)
            | Self::Create { .. }
            | Self::Follow
            | Self::Rest(_) => false,
        }
    }
}

/// Wait for the first list of Kueue's objects.
const LISTING: SignedDuration = SignedDuration::from_secs(2);
/// Wait until planner and round have seen the same version of a job.
const CATCH_UP: SignedDuration = SignedDuration::from_millis(100);

/// Decides. `place` finds and promises GPUs for an attempt; `growth` returns the nodes to which an
/// elastic gang could grow.
pub(crate) fn plan(
    observation: &Observation,
    valid: &Result<ValidatedJob, InvalidJob>,
    place: impl FnOnce(i32) -> Decision,
    growth: impl FnOnce() -> Option<usize>,
) -> Plan {
    let status = observation.status();
    let mut phase = status.phase.unwrap_or(Phase::Pending);
    if phase.is_terminal() {
        // Only a refused job is retried after an edit of the manifest.
        if valid.is_err() || !status.was_refused() {
            return after_the_end(observation, &status);
        }
        phase = Phase::Pending;
    }
    let valid = match valid {
        Ok(valid) => valid,
        Err(invalid) => return Plan::Refuse(invalid.to_string()),
    };
    if valid.external.is_some() && observation.agent_image.is_none() && makes_pods(phase, valid) {
        return Plan::Refuse(
            "spec.external is given, but this operator was started without --agent-image, the sidecar of other trainers"
                .into(),
        );
    }
    // A gang that succeeded has nothing left to do, whatever the spec says now.
    if has_finished(observation, &status) {
        return Plan::Finish;
    }
    if let Some(plan) = time_out(observation, &status, valid, phase) {
        return plan;
    }
    if let Some(stop) = stop_wanted(phase, status.nodes().len(), valid.suspend, &valid.sizes) {
        return Plan::Halt(stop);
    }
    let admission = admission_state(valid, &observation.queue);
    let is_evicted = admission.ends_gang().is_some();
    if let (Phase::Starting | Phase::Running, Some(words)) = (phase, admission.ends_gang()) {
        return Plan::Halt(StopReason::Evict(words.into()));
    }
    let place_now = || {
        let first = drain(observation, valid.node_lost_after)
            .or_else(|| queue(observation, &status, valid, admission));
        if let Some(plan) = first {
            return plan;
        }
        let attempt = observation.newest_attempt() + 1;
        match place(attempt) {
            Decision::Placed(placement) => Plan::Place { attempt, placement },
            Decision::Waits(waiting) => Plan::Wait(waiting),
            Decision::Outdated => Plan::Rest(Some(CATCH_UP)),
        }
    };
    match phase {
        // Pods may have appeared since.
        Phase::Suspended if valid.suspend => {
            drain(observation, valid.node_lost_after).unwrap_or(Plan::Rest(None))
        }
        Phase::Pending | Phase::Suspended => place_now(),
        Phase::Suspending => drain(observation, valid.node_lost_after)
            .or_else(|| failed_stop(observation, &status))
            .unwrap_or(Plan::Park),
        Phase::Restarting => settle(observation, &status, |failure, failures| {
            verdict_on(failure, observation, valid, failures)
        })
        .or_else(|| drain(observation, valid.node_lost_after))
        .or_else(|| failed_stop(observation, &status))
        .or_else(|| backing_off(observation, &status).filter(|_| !is_evicted))
        .unwrap_or_else(place_now),
        Phase::Starting | Phase::Running => follow(observation, &status, valid, growth),
        Phase::Succeeded | Phase::Failed => after_the_end(observation, &status),
    }
}

/// The step before a job that names a queue may get GPUs; `None` if it may now.
fn queue(
    observation: &Observation,
    status: &ViTTrainingJobStatus,
    valid: &ValidatedJob,
    admission: AdmissionState,
) -> Option<Plan> {
    let name = valid.queue_name.as_ref()?;
    let waits = |why: String| Some(Plan::Wait(Waiting::InQueue(why)));
    let recorded = status.admission.as_ref();
    match &admission {
        AdmissionState::Evicted(words) => {
            return waits(format!("its Workload waits in queue {name}: {words}"));
        }
        // An operator that has just started will know soon.
        AdmissionState::Unknown if recorded.is_some() => return Some(Plan::Rest(Some(LISTING))),
        AdmissionState::Unknown => {
            return waits(format!(
                "spec.scheduling.queueName is {name}: no Workloads of kueue.x-k8s.io/v1beta2 are known; install Kueue 0.15 or \
                 newer, run the operator with --kueue=true, or create the job without a queue"
            ));
        }
        _ => {}
    }
    let Some(priority) = observation.queue.priority else {
        let class = valid.pod.priority_class_name.clone().unwrap_or_default();
        return Some(Plan::Wait(Waiting::NoPriorityClass(class)));
    };
    let wanted = build::workload::build(&observation.job, valid, priority);
    let workload = observation.queue.workload.as_ref();
    if workload.is_some_and(|workload| !is_current(workload, &wanted)) {
        return waits(format!(
            "its Workload in queue {name} is outdated or finished and will be recreated"
        ));
    }
    match admission {
        AdmissionState::Granted(granted) if is_recorded(&granted, recorded) => None,
        AdmissionState::Granted(granted) => Some(Plan::Admit(granted)),
        AdmissionState::NoFlavor(_) if recorded.is_some() => None,
        AdmissionState::NoFlavor(flavor) => waits(format!(
            "its Workload was admitted to queue {name} with the ResourceFlavor {flavor}, which does not exist"
        )),
        AdmissionState::Waits(words) => waits(format!("its Workload waits in queue {name}: {words}")),
        AdmissionState::NotAsked
        | AdmissionState::Unknown
        | AdmissionState::Evicted(_)
        | AdmissionState::Absent => waits(format!("its Workload is put into queue {name}")),
    }
}

/// The end of a gang with an object that the API server would always reject.
pub(super) fn end_of_refused(observation: &Observation, plan: &Plan, error: &Error) -> Option<Plan> {
    let Plan::Create { node_ranks } = plan else {
        return None;
    };
    let attempt = observation.status().attempt;
    let pod = PodView {
        name: build::pod::name(&observation.job, attempt, *node_ranks.first()?),
        ..PodView::default()
    };
    error.is_final().then(|| Plan::End {
        failure: Failure::from_pod(&pod, FailureClass::BadConfig, error.to_string()),
        verdict: Verdict::NotRetryable,
        again: false,
    })
}

fn time_out(
    observation: &Observation,
    status: &ViTTrainingJobStatus,
    valid: &ValidatedJob,
    phase: Phase,
) -> Option<Plan> {
    let now = observation.now;
    let started = status.start_time.as_ref().map(|time| time.0);
    if deadline::is_over(valid.active_deadline, started, phase, now) {
        let seconds = valid.active_deadline.unwrap_or_default().as_secs();
        return Some(Plan::TimeOut {
            reason: reasons::DEADLINE_EXCEEDED,
            message: format!("the job has had GPUs for {seconds} s (activeDeadlineSeconds)"),
        });
    }
    let left = deadline::left_to_wait(&observation.job, now);
    left.is_some_and(|left| !left.is_positive()).then(|| {
        let seconds = observation
            .job
            .spec
            .scheduling
            .pending_timeout_seconds
            .unwrap_or_default();
        let why = status
            .condition(types::PLACED)
            .map_or("it has just been created", |placed| placed.message.as_str());
        Plan::TimeOut {
            reason: reasons::PENDING_TIMEOUT,
            message: format!(
                "the job got no GPUs within {seconds} s (scheduling.pendingTimeoutSeconds): {why}"
            ),
        }
    })
}

/// Whether every pod of the attempt succeeded.
fn has_finished(observation: &Observation, status: &ViTTrainingJobStatus) -> bool {
    let could_have = match status.phase {
        Some(Phase::Starting | Phase::Running | Phase::Suspending) => true,
        // It was being replaced, but not after a failure.
        Some(Phase::Restarting) => status.failure_of_attempt().is_none(),
        _ => false,
    };
    let nodes = status.nodes().len();
    let ended_well = |pod: &&PodView| pod.state == PodState::Succeeded;
    could_have && nodes > 0 && observation.gang(status.attempt).filter(ended_well).count() == nodes
}

/// The next action of a placed attempt.
fn follow(
    observation: &Observation,
    status: &ViTTrainingJobStatus,
    valid: &ValidatedJob,
    growth: impl FnOnce() -> Option<usize>,
) -> Plan {
    let nodes = status.nodes();
    let mut gang: Vec<PodView> = observation.gang(status.attempt).cloned().collect();
    for pod in &mut gang {
        if !pod.has_ended()
            && let Some(node) = observation.node_lost_for(pod, valid.node_lost_after)
        {
            let seconds = valid.node_lost_after.as_secs();
            *pod = lost(
                pod,
                format!("node {node} has not been ready for {seconds} s (failurePolicy.nodeLostSeconds)"),
            );
        }
    }
    let missing = observation.missing();
    // A quota or an operator's exit may leave a gang incomplete, and its pods wait for the rest.
    // Once the gang was complete, a missing pod has disappeared unnoticed.
    let is_new = !observation.was_whole();
    let hindrance = status
        .condition(types::RECONCILED)
        .map_or("it could not be created", |condition| condition.message.as_str());
    gang.extend(missing.iter().map(|node_rank| PodView {
        name: build::pod::name(&observation.job, status.attempt, *node_rank),
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
        let is_starting = status.phase == Some(Phase::Starting);
        is_starting
            .then(|| start::overdue(&gang, &observation.job, status, observation.now))
            .flatten()
    };
    let stalled = || {
        let signs = observation.stall_signs.as_ref();
        signs
            .and_then(|signs| stall::stalled(signs, &gang, status.attempt, observation.now))
            .or_else(|| stall::silent(observation.silence?, &gang))
    };
    let unfit = unfit(observation, status, valid, &gang);
    let is_unfit = |pod: &&PodView| unfit.iter().any(|(other, _)| other.name == pod.name);
    let failure = root_cause(gang.iter().filter(|pod| !is_unfit(pod)));
    if let Some((_, words)) = unfit.first()
        && failure.as_ref().is_none_or(|failure| failure.is_echo)
    {
        return Plan::Halt(StopReason::Unfit(words.clone()));
    }
    if let Some(failure) = failure.or_else(overdue).or_else(stalled) {
        let failures = status.failures_since_checkpoint(observation.progress.as_ref()) + 1;
        return Plan::End {
            verdict: verdict_on(&failure, observation, valid, failures),
            failure,
            again: false,
        };
    }
    if !missing.is_empty() && is_new {
        return Plan::Create { node_ranks: missing };
    }
    // A gang grows only right after a new checkpoint.
    if let Some(progress) = &observation.progress
        && status.phase == Some(Phase::Running)
        && status.has_new_checkpoint(progress)
        && let Some(to) = growth()
        && elastic::pays_off(status, progress, valid.start_timeout, nodes.len(), to)
    {
        return Plan::Halt(StopReason::Grow { to });
    }
    Plan::Follow
}

/// Rejected pods of a starting gang that no longer fit their nodes, with reasons.
fn unfit<'a>(
    observation: &Observation,
    status: &ViTTrainingJobStatus,
    valid: &ValidatedJob,
    gang: &'a [PodView],
) -> Vec<(&'a PodView, String)> {
    if status.phase != Some(Phase::Starting) || observation.rejecting_nodes.is_empty() {
        return vec![];
    }
    let shape = GangRequest::from(&valid.clone().within(status.admission.as_ref())).shape;
    let why = |pod: &'a PodView| {
        let name = pod.node.as_ref()?;
        let why = start::unfit(pod, observation.rejecting_nodes.get(name)?, &shape)?;
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

fn verdict_on(
    failure: &Failure,
    observation: &Observation,
    valid: &ValidatedJob,
    failures_since_checkpoint: i32,
) -> Verdict {
    let status = observation.status();
    let is_of_the_node =
        failed_nodes::is_of_the_node(failure.class, valid, &status, observation.progress.as_ref());
    verdict(
        failure.class,
        is_of_the_node || strategy::takes_less(failure, valid, &status),
        failures_since_checkpoint,
        valid.max_restarts,
    )
}

/// Whether a job in this phase gets pods.
fn makes_pods(phase: Phase, valid: &ValidatedJob) -> bool {
    match phase {
        Phase::Pending | Phase::Starting | Phase::Restarting => true,
        Phase::Suspended => !valid.suspend,
        _ => false,
    }
}

/// Keeps ended pods for their logs and deletes running ones.
fn after_the_end(observation: &Observation, status: &ViTTrainingJobStatus) -> Plan {
    let spec = &observation.job.spec;
    let max_restarts = u32::try_from(spec.failure_policy.max_restarts).unwrap_or(0);
    if status.phase == Some(Phase::Failed)
        && let Some(plan) = settle(observation, status, |failure, failures| {
            verdict(failure.class, false, failures, max_restarts)
        })
    {
        return plan;
    }
    let expires_in = ttl::time_left(
        spec.ttl_seconds_after_finished
            .and_then(|seconds| u32::try_from(seconds).ok()),
        status.completion_time.as_ref().map(|time| time.0),
        observation.now,
    );
    let node_lost_after = u64::try_from(spec.failure_policy.node_lost_seconds).unwrap_or(0);
    let force = beyond_reach(observation, Duration::from_secs(node_lost_after));
    // After the job is deleted, nobody removes pods from a dead node.
    if expires_in == Some(SignedDuration::ZERO) && !observation.is_on_unready_node() {
        return Plan::Expire;
    }
    // The kubelet reports the container's end before the pod's. On a dead node it never will.
    let ends = |pod: &PodView| {
        let node = pod.node.as_ref();
        pod.end.is_some() && !node.is_some_and(|node| observation.unready_nodes.contains_key(node))
    };
    Plan::CleanUp {
        force,
        pods: observation
            .pods
            .iter()
            .filter(|pod| !pod.has_ended() && !ends(pod) && pod.deletion_timestamp.is_none())
            .map(PodView::id)
            .collect(),
        expires_in,
    }
}

#[cfg(test)]
mod tests;
