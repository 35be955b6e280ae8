//! The sixth of the six calls: the next status, a pure function of the last one, the plan and what was observed.

use contract::Progress;
use crds::conditions::{self, reasons, types};
use crds::status::{
    AdmissionStatus, CheckpointStatus, FailureStatus, MixedGroup, PlacementStatus, ProgressStatus,
    StragglerStatus, ViTTrainingJobStatus, WorkersStatus,
};
use crds::{Phase, labels};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::ResourceExt as _;

use super::observe::Observation;
use super::plan::Plan;
use crate::error::Error;
use crate::planner::Waiting;
use crate::policy::failure::Failure;
use crate::policy::gang::{PodState, PodView};
use crate::policy::placement::{Gpus, Placement};
use crate::policy::queue::is_news;
use crate::policy::restart::Verdict;
use crate::policy::suspend::Stop;
use crate::policy::{elastic, failed_nodes};

/// So many pods that do not end are named.
const OVERDUE_NAMED: usize = 4;

/// The status after a plan. Equal to the last one where nothing happened.
pub(crate) fn next(observation: &Observation, plan: &Plan) -> ViTTrainingJobStatus {
    let mut next = Next {
        status: observation.status(),
        generation: observation.job.metadata.generation,
        now: observation.now,
    };
    next.status
        .selector
        .get_or_insert_with(|| format!("{}={}", labels::JOB_NAME, observation.job.name_any()));
    if let Some(progress) = &observation.progress {
        take_over(&mut next.status, progress);
    }
    next.status.failed_nodes = failed_nodes::remembered(&next.status.failed_nodes, next.now);
    next.status.failed_size = elastic::remembered(next.status.failed_size.take(), next.now);
    if let Some(stragglers) = &observation.stragglers {
        next.status.stragglers = named(stragglers, &next.status, &observation.job.spec.workers);
    }
    match plan {
        Plan::Refuse(message) => {
            next.finish(Phase::Failed);
            next.set(types::FAILED, true, reasons::INVALID_SPEC, message);
        }
        Plan::TimeOut(message) => {
            next.finish(Phase::Failed);
            next.set(types::FAILED, true, reasons::DEADLINE_EXCEEDED, message);
        }
        Plan::Admit(granted) => next.admitted(granted),
        Plan::Place { attempt, placement } => next.placed(*attempt, placement, &overdue(observation)),
        Plan::Wait(waiting) => next.waits(waiting, &overdue(observation)),
        Plan::Create { .. } | Plan::Follow => next.followed(observation),
        Plan::Finish => {
            next.finish(Phase::Succeeded);
            next.set(
                types::COMPLETE,
                true,
                reasons::ALL_EPOCHS_DONE,
                "every pod ended well",
            );
        }
        Plan::End {
            failure,
            verdict,
            again,
        } => next.ended(observation, failure, *verdict, *again),
        Plan::Halt(Stop::Suspend) => {
            next.revive();
            next.status.phase = Some(Phase::Suspending);
            next.set(
                types::SUSPENDED,
                false,
                reasons::SUSPENDING,
                "pods save a checkpoint and stop",
            );
            next.set(types::RUNNING, false, reasons::SUSPENDING, "spec.suspend is set");
        }
        Plan::Halt(Stop::Resize) => {
            let spec = &observation.job.spec;
            let wanted = match &spec.elastic {
                Some(elastic) => format!(
                    "{} to {}",
                    elastic.min_nodes,
                    elastic.max_nodes.unwrap_or(spec.workers.nodes)
                ),
                None => spec.workers.nodes.to_string(),
            };
            next.replaced_by(&format!("one of {wanted} nodes"));
        }
        Plan::Halt(Stop::Grow { to }) => next.replaced_by(&format!(
            "one of {to} nodes, which are free; after the checkpoint of step {}",
            next.status
                .last_checkpoint
                .as_ref()
                .map_or(0, |checkpoint| checkpoint.step)
        )),
        Plan::Halt(Stop::Evict(words)) => {
            next.status.admission = None;
            next.status.start_time = None;
            next.status.phase = Some(Phase::Restarting);
            next.set(
                types::RUNNING,
                false,
                reasons::EVICTED,
                &format!("Kueue: {words}"),
            );
        }
        Plan::Park => {
            next.status.phase = Some(Phase::Suspended);
            next.status.admission = None;
            next.status.placement = None;
            next.status.start_time = None;
            next.let_go();
            let overdue = overdue(observation);
            let message = match overdue.as_str() {
                "" => "spec.suspend is set; the job holds no GPUs".into(),
                overdue => format!("spec.suspend is set{overdue}"),
            };
            next.set(types::SUSPENDED, true, reasons::SUSPENDED, &message);
            next.set(types::PLACED, false, reasons::NOT_PLACED_SUSPENDED, &message);
            next.set(types::RUNNING, false, reasons::NO_PODS, &message);
        }
        Plan::Drain { .. } | Plan::CleanUp { .. } | Plan::Expire | Plan::Rest(_) => {}
    }
    next.status.observed_generation = next.generation;
    next.status
}

/// The status where the plan could not be carried out: a gang that starts tells what is in its way.
pub(crate) fn hindered(
    observation: &Observation,
    status: ViTTrainingJobStatus,
    error: &Error,
) -> ViTTrainingJobStatus {
    let mut next = Next {
        status,
        generation: observation.job.metadata.generation,
        now: observation.now,
    };
    if next.status.phase == Some(Phase::Starting) {
        next.set(
            types::RUNNING,
            false,
            reasons::RECONCILE_FAILED,
            &error.to_string(),
        );
    }
    next.status
}

/// Whether a status differs from the last one only in what moves all the time: the progress of training, by how much stragglers
/// are slow, and how many pods of a gang that starts are ready.
pub(crate) fn only_moves(last: &ViTTrainingJobStatus, next: &ViTTrainingJobStatus) -> bool {
    if last.phase != next.phase || last.attempt != next.attempt {
        return false;
    }
    let mut without = next.clone();
    without.progress.clone_from(&last.progress);
    // Who is slow is news; by how much moves with every step.
    for straggler in &mut without.stragglers {
        let same = |known: &&StragglerStatus| (known.rank, &known.node) == (straggler.rank, &straggler.node);
        if let Some(known) = last.stragglers.iter().find(same) {
            straggler.slowdown = known.slowdown;
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

/// How the latest attempt failed, if it did.
pub(crate) fn failure_of_attempt(status: &ViTTrainingJobStatus) -> Option<&FailureStatus> {
    status
        .last_failure
        .as_ref()
        .filter(|failure| failure.attempt == status.attempt)
}

/// Whether a record tells of a checkpoint that the status does not hold yet.
pub(crate) fn has_new_checkpoint(status: &ViTTrainingJobStatus, progress: &Progress) -> bool {
    progress
        .last_checkpoint
        .as_ref()
        .is_some_and(|checkpoint| is_newer(checkpoint.step, status))
}

/// Failed attempts since the last new checkpoint, given a record that the status does not hold yet.
pub(crate) fn failures_since_checkpoint(status: &ViTTrainingJobStatus, progress: Option<&Progress>) -> i32 {
    if progress.is_some_and(|progress| has_new_checkpoint(status, progress)) {
        0
    } else {
        status.restarts_since_checkpoint
    }
}

fn is_newer(step: u64, status: &ViTTrainingJobStatus) -> bool {
    let known = status.last_checkpoint.as_ref().map(|checkpoint| checkpoint.step);
    Some(signed(step)) > known
}

fn take_over(status: &mut ViTTrainingJobStatus, progress: &Progress) {
    status.restarts_since_checkpoint = failures_since_checkpoint(status, Some(progress));
    if let Some(checkpoint) = &progress.last_checkpoint
        && is_newer(checkpoint.step, status)
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
        ema_validation_accuracy: progress
            .ema_validation_accuracy
            .map(|accuracy| rounded(accuracy, 4)),
        images_per_second: progress.images_per_second.map(|rate| rounded(rate, 1)),
        sync_share: progress.sync_share.map(|share| rounded(share, 4)),
        eta_seconds: progress.eta_seconds.map(signed),
        updated_at: time(&progress.updated_at),
    });
}

/// What is added to a message about GPUs where pods of the job do not end: they are not waited for.
fn overdue(observation: &Observation) -> String {
    let mut pods: Vec<&PodView> = observation
        .pods
        .iter()
        .filter(|pod| observation.is_overdue(pod))
        .collect();
    if pods.is_empty() {
        return String::new();
    }
    pods.sort_unstable_by_key(|pod| (pod.attempt, pod.node_rank));
    let mut named: Vec<String> = pods
        .iter()
        .take(OVERDUE_NAMED)
        .map(|pod| {
            let node = pod.node.as_deref().unwrap_or("an unknown node");
            format!("pod {} on node {node}", pod.name)
        })
        .collect();
    if pods.len() > OVERDUE_NAMED {
        named.push(format!("{} more", pods.len() - OVERDUE_NAMED));
    }
    format!(
        "; the GPUs of {} stay in use: deleted, but not ended in time",
        named.join(", ")
    )
}

/// Stragglers with the nodes they are on.
fn named(
    stragglers: &[(u32, f64)],
    status: &ViTTrainingJobStatus,
    workers: &crds::spec::Workers,
) -> Vec<StragglerStatus> {
    let nodes = status
        .placement
        .as_ref()
        .map(|placement| placement.nodes.as_slice())
        .unwrap_or_default();
    let ranks_per_node = u32::try_from(workers.gpus_per_node).unwrap_or(1).max(1);
    stragglers
        .iter()
        .map(|(rank, slowdown)| StragglerStatus {
            rank: count(*rank as usize),
            node: nodes.get((rank / ranks_per_node) as usize).cloned(),
            slowdown: rounded(*slowdown, 2),
        })
        .collect()
}

/// To so many decimals: `kubectl get` prints all that a number has.
fn rounded(value: f64, decimals: i32) -> f64 {
    let scale = 10_f64.powi(decimals);
    (value * scale).round() / scale
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn count(value: usize) -> i32 {
    i32::try_from(value).unwrap_or(i32::MAX)
}

fn time(text: &str) -> Option<Time> {
    text.parse().ok().map(Time)
}

fn placed_nodes(status: &ViTTrainingJobStatus) -> usize {
    status
        .placement
        .as_ref()
        .map_or(0, |placement| placement.nodes.len())
}

/// A status in the making.
struct Next {
    status: ViTTrainingJobStatus,
    generation: Option<i64>,
    now: Timestamp,
}

impl Next {
    /// Sets a condition.
    fn set(&mut self, type_: &str, value: bool, reason: &str, message: &str) {
        let condition = Condition {
            type_: type_.into(),
            status: if value { "True" } else { "False" }.into(),
            reason: reason.into(),
            message: message.into(),
            observed_generation: self.generation,
            last_transition_time: Time(self.now),
        };
        conditions::set(&mut self.status.conditions, condition);
    }

    fn has(&self, type_: &str) -> bool {
        self.status
            .conditions
            .iter()
            .any(|condition| condition.type_ == type_)
    }

    fn admitted(&mut self, granted: &AdmissionStatus) {
        self.revive();
        self.status.phase = Some(Phase::Pending);
        self.let_go();
        let message = format!(
            "ClusterQueue {} has quota for {} nodes",
            granted.cluster_queue, granted.nodes
        );
        self.status.admission = Some(AdmissionStatus {
            time: Some(Time(self.now)),
            ..granted.clone()
        });
        self.set(types::PLACED, false, reasons::ADMITTED, &message);
    }

    fn placed(&mut self, attempt: i32, placement: &Placement, overdue: &str) {
        self.revive();
        let nodes = placement.nodes.join(", ");
        let (group, mixed, reason, message) = match &placement.gpus {
            Gpus::Like(group) => (
                Some(group.clone()),
                vec![],
                reasons::GANG_FITS,
                format!("{} on {nodes}{overdue}", group.product),
            ),
            Gpus::Mixed(groups) => {
                let mixed: Vec<MixedGroup> = groups
                    .iter()
                    .map(|(group, nodes)| MixedGroup {
                        group: group.clone(),
                        nodes: count(*nodes),
                    })
                    .collect();
                let kinds: Vec<String> = mixed
                    .iter()
                    .map(|kind| match kind.group.product.as_str() {
                        "" => format!("{} of an unknown product", kind.nodes),
                        product => format!("{} of {product}", kind.nodes),
                    })
                    .collect();
                let message = format!(
                    "GPUs of several kinds ({}) on {nodes}: every step waits for the slowest{overdue}",
                    kinds.join(", ")
                );
                (None, mixed, reasons::MIXED_GPUS, message)
            }
        };
        self.status.phase = Some(Phase::Starting);
        self.status.attempt = attempt;
        self.status.stragglers.clear();
        self.status.start_time.get_or_insert(Time(self.now));
        self.status.workers = Some(WorkersStatus {
            desired: count(placement.nodes.len()),
            ..WorkersStatus::default()
        });
        self.status.placement = Some(PlacementStatus {
            group,
            mixed,
            topology: placement.topology.clone(),
            time: Some(Time(self.now)),
            nodes: placement.nodes.clone(),
            rejected: placement.rejected.clone(),
        });
        self.set(types::PLACED, true, reason, &message);
        self.set(
            types::RUNNING,
            false,
            reasons::PODS_STARTING,
            "pods are being created",
        );
    }

    fn replaced_by(&mut self, other: &str) {
        self.status.phase = Some(Phase::Restarting);
        let message = format!(
            "the gang of {} is replaced by {other}",
            placed_nodes(&self.status)
        );
        self.set(types::RUNNING, false, reasons::RESIZING, &message);
    }

    fn waits(&mut self, waiting: &Waiting, overdue: &str) {
        self.revive();
        self.status.phase = Some(Phase::Pending);
        self.let_go();
        let (rejected, reason, message, what_for) = match waiting {
            Waiting::NoFit { why, standing } => (
                why.rejected.clone(),
                reasons::NO_FITTING_GROUP,
                standing.added_to(&format!("{}{overdue}", why.message)),
                "waits for a group of like GPUs that fits the gang",
            ),
            Waiting::NoPriorityClass(class) => (
                vec![],
                reasons::NO_PRIORITY_CLASS,
                format!(
                    "spec.workers.priorityClassName is {class}: there is no such PriorityClass; create it, or a job \
                     with another"
                ),
                "waits for its priority class",
            ),
            Waiting::InQueue(why) => {
                self.status.admission = None;
                (
                    vec![],
                    reasons::IN_QUEUE,
                    why.clone(),
                    "waits in a queue of Kueue",
                )
            }
        };
        self.status.placement = Some(PlacementStatus {
            rejected,
            ..PlacementStatus::default()
        });
        // A place in the queue that moved is no news by itself: it is told with the next.
        let last = self
            .status
            .conditions
            .iter()
            .find(|last| last.type_ == types::PLACED);
        let message = last
            .filter(|last| last.reason == reason && !is_news(&last.message, &message))
            .map_or(message, |last| last.message.clone());
        self.set(types::PLACED, false, reason, &message);
        self.set(types::RUNNING, false, reasons::NO_PODS, what_for);
    }

    fn followed(&mut self, observation: &Observation) {
        let gang: Vec<&PodView> = observation.gang(self.status.attempt).collect();
        let desired = placed_nodes(&self.status);
        let ready = gang.iter().filter(|pod| pod.ready).count();
        let finished = gang.iter().filter(|pod| pod.state == PodState::Succeeded).count();
        self.status.workers = Some(WorkersStatus {
            desired: count(desired),
            ready: count(ready),
            failed: 0,
        });
        if ready + finished >= desired {
            self.status.phase = Some(Phase::Running);
            self.set(
                types::RUNNING,
                true,
                reasons::ALL_PODS_READY,
                "every pod of the gang runs",
            );
            return;
        }
        let mut message = format!("{ready} of {desired} pods are ready");
        let stuck = gang
            .iter()
            .filter_map(|pod| Some((&pod.name, pod.stuck.as_ref()?)))
            .min();
        if let Some((pod, words)) = stuck {
            message = format!("{message}; pod {pod}: {words}");
        }
        self.set(types::RUNNING, false, reasons::PODS_STARTING, &message);
    }

    fn ended(&mut self, observation: &Observation, failure: &Failure, verdict: Verdict, again: bool) {
        let attempt = self.status.attempt;
        let seen_at = match &self.status.last_failure {
            Some(known) if again => known.time.clone(),
            _ => None,
        };
        // What looked retryable before its cause turned up was counted as a restart that does not come.
        let was_counted = again && self.status.phase == Some(Phase::Restarting);
        let restarts = i32::from(verdict == Verdict::Restart) - i32::from(was_counted);
        self.status.restarts += restarts;
        self.status.restarts_since_checkpoint = (self.status.restarts_since_checkpoint + restarts).max(0);
        let failed = observation
            .gang(attempt)
            .filter(|pod| pod.lost || pod.has_failed())
            .count();
        self.status.workers = Some(WorkersStatus {
            desired: count(placed_nodes(&self.status)),
            ready: 0,
            failed: count(failed),
        });
        self.status.last_failure = Some(FailureStatus {
            attempt,
            rank: failure.rank.and_then(|rank| i32::try_from(rank).ok()),
            pod: Some(failure.pod.clone()),
            node: failure.node.clone(),
            exit_code: failure.exit_code.map(i32::from),
            class: failure.class.as_str().into(),
            message: failure.message.clone(),
            time: Some(seen_at.unwrap_or(Time(self.now))),
        });
        self.status.failed_nodes = failed_nodes::after(&self.status.failed_nodes, failure, self.now);
        if observation.job.spec.elastic.is_some() && restarts > 0 {
            self.status.failed_size = elastic::failed_size(
                self.status.failed_size.take(),
                count(placed_nodes(&self.status)),
                self.status.restarts_since_checkpoint,
                self.now,
            );
        }
        let cause = format!("attempt {attempt}: {}: {}", failure.class, failure.message);
        let reason = match verdict {
            Verdict::Restart => {
                self.status.phase = Some(Phase::Restarting);
                self.set(types::RUNNING, false, reasons::RESTARTING, &cause);
                return;
            }
            Verdict::NotRetryable => reasons::NOT_RETRYABLE,
            Verdict::Exhausted => reasons::RESTARTS_EXHAUSTED,
        };
        let workers = self.status.workers;
        self.finish(Phase::Failed);
        self.status.workers = workers.map(|workers| WorkersStatus {
            desired: 0,
            ..workers
        });
        self.set(types::FAILED, true, reason, &cause);
    }

    /// The job is over and lets go of its GPUs. Where it was stays in the status.
    fn finish(&mut self, phase: Phase) {
        self.status.phase = Some(phase);
        self.status.completion_time.get_or_insert(Time(self.now));
        self.let_go();
        let message = "the job is over";
        if self.has(types::PLACED) {
            self.set(types::PLACED, false, reasons::RELEASED, message);
        }
        if self.has(types::RUNNING) {
            self.set(types::RUNNING, false, reasons::NO_PODS, message);
        }
    }

    /// The job wants GPUs: it is not suspended any more, and if it was refused, it got a second chance.
    fn revive(&mut self) {
        if self.has(types::SUSPENDED) {
            self.set(
                types::SUSPENDED,
                false,
                reasons::RESUMED,
                "spec.suspend is not set",
            );
        }
        if self.status.completion_time.take().is_some() {
            self.set(types::FAILED, false, reasons::RESUMED, "the manifest was changed");
        }
    }

    fn let_go(&mut self) {
        self.status.workers = Some(WorkersStatus::default());
    }
}

#[cfg(test)]
mod tests;
