//! Step 6: the next status, a pure function of the observation, with the last status, and the plan.

mod progress;
mod transition;

use crds::conditions::reasons;
use crds::conditions::types::{COMPLETE, FAILED, PLACED, RECONCILED, RUNNING, SUSPENDED};
use crds::status::{StragglerStatus, StrategyStatus, ViTTrainingJobStatus};
use crds::{Phase, labels};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt as _;
use planner::policy::placement::Placement;
use planner::policy::slow_nodes;

use super::observation::Observation;
use super::plan::Plan;
use crate::error::Error;
use crate::policy::gang::PodView;
use crate::policy::suspend::StopReason;
use crate::policy::{failed_nodes, strategy, time_spent};
use progress::{record_progress, with_nodes};
use transition::Next;

/// Most overdue pods named in a message.
const OVERDUE_NAMED: usize = 4;

/// The status after a plan, equal to the last if nothing changed.
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
        record_progress(&mut next.status, progress);
    }
    next.status.failed_nodes = failed_nodes::remembered(&next.status.failed_nodes, next.now);
    // Not forgotten while the gang trains: it would grow onto these nodes and stay slow.
    if next.status.phase != Some(Phase::Running) {
        next.status.slow_nodes = slow_nodes::remembered(&next.status.slow_nodes, next.now);
    }
    if let Some(stragglers) = &observation.stragglers {
        next.status.stragglers = with_nodes(stragglers, &next.status, &observation.job.spec.workers);
    }
    match plan {
        Plan::Refuse(message) => {
            next.finish(Phase::Failed);
            next.set(FAILED, true, reasons::INVALID_SPEC, message);
        }
        Plan::TimeOut { reason, message } => {
            next.finish(Phase::Failed);
            next.set(FAILED, true, reason, message);
        }
        Plan::Admit(granted) => next.admitted(granted),
        Plan::Place { attempt, placement } => {
            let balance = observation.job.spec.training.balance;
            let strategy = strategy_for(observation, placement);
            next.placed(*attempt, placement, (balance, strategy), &overdue(observation));
        }
        Plan::Wait(waiting) => next.waits(waiting, &overdue(observation)),
        Plan::Create { .. } | Plan::Follow => next.followed(observation),
        Plan::Finish => {
            next.finish(Phase::Succeeded);
            next.set(COMPLETE, true, reasons::ALL_EPOCHS_DONE, "every pod succeeded");
            if observation.job.spec.measure.is_some() {
                next.measured(observation.measured.as_ref());
            }
        }
        Plan::End {
            failure,
            verdict,
            again,
        } => next.ended(observation, failure, *verdict, *again),
        Plan::Halt(StopReason::Suspend) => {
            next.revive();
            next.status.phase = Some(Phase::Suspending);
            next.set(
                SUSPENDED,
                false,
                reasons::SUSPENDING,
                "pods save a checkpoint and stop",
            );
            next.set(RUNNING, false, reasons::SUSPENDING, "spec.suspend is set");
        }
        Plan::Halt(StopReason::Resize) => {
            let spec = &observation.job.spec;
            let wanted = match &spec.elastic {
                Some(elastic) => format!(
                    "{} to {}",
                    elastic.min_nodes,
                    elastic.max_nodes.unwrap_or(spec.workers.nodes)
                ),
                None => spec.workers.nodes.to_string(),
            };
            next.replaced(reasons::RESIZING, &format!("replaced by one of {wanted} nodes"));
        }
        Plan::Halt(StopReason::Grow { to }) => {
            let checkpoint = next.status.last_checkpoint.as_ref();
            let step = checkpoint.map_or(0, |checkpoint| checkpoint.step);
            let how =
                format!("replaced by one of {to} nodes, which are free; after the checkpoint of step {step}");
            next.replaced(reasons::RESIZING, &how);
        }
        Plan::Halt(StopReason::Unfit(words)) => {
            next.replaced(reasons::NODE_UNFIT, &format!("placed again: {words}"));
        }
        Plan::Halt(StopReason::Evict(words)) => {
            next.status.admission = None;
            next.status.start_time = None;
            next.status.phase = Some(Phase::Restarting);
            next.set(RUNNING, false, reasons::EVICTED, &format!("Kueue: {words}"));
        }
        Plan::RecordFailedStop(failure) => {
            next.status.last_failure = Some(next.failure(failure, None));
        }
        Plan::Park => {
            next.status.phase = Some(Phase::Suspended);
            next.status.admission = None;
            next.status.placement = None;
            next.status.start_time = None;
            next.clear_workers();
            let overdue = overdue(observation);
            let message = match overdue.as_str() {
                "" => "spec.suspend is set; the job holds no GPUs".into(),
                overdue => format!("spec.suspend is set{overdue}"),
            };
            next.set(SUSPENDED, true, reasons::SUSPENDED, &message);
            next.set(PLACED, false, reasons::NOT_PLACED_SUSPENDED, &message);
            next.set(RUNNING, false, reasons::NO_PODS, &message);
        }
        Plan::Drain { .. } | Plan::CleanUp { .. } | Plan::Expire | Plan::Rest(_) => {}
    }
    next.status.observed_generation = next.generation;
    let reported = observation.progress.as_ref();
    next.status.time_spent = time_spent::after(&observation.status(), &next.status, reported, next.now);
    next.status
}

/// The status with the error that stopped the plan, if any, also in `Running` of a starting gang.
pub(crate) fn with_error(
    observation: &Observation,
    status: ViTTrainingJobStatus,
    error: Option<&Error>,
) -> ViTTrainingJobStatus {
    let mut next = Next {
        status,
        generation: observation.job.metadata.generation,
        now: observation.now,
    };
    let Some(error) = error else {
        next.status
            .conditions
            .retain(|condition| condition.type_ != RECONCILED);
        return next.status;
    };
    let words = error.to_string();
    next.set(RECONCILED, false, reasons::RECONCILE_FAILED, &words);
    if next.status.phase == Some(Phase::Starting) {
        next.set(RUNNING, false, reasons::RECONCILE_FAILED, &words);
    }
    next.status
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

/// The sharding strategy on the placement's GPUs, if the job leaves it to the operator.
fn strategy_for(observation: &Observation, placement: &Placement) -> Option<StrategyStatus> {
    let valid = crds::validate(&observation.job).ok()?;
    let nodes = u32::try_from(placement.nodes.len()).ok()?;
    let status = observation.job.status.as_ref();
    let out_of_memory = status.and_then(|status| status.out_of_memory.as_ref());
    strategy::choose(&valid, nodes, &placement.gpus, out_of_memory)
}

/// The part of a message about GPUs that names overdue pods, which are not waited for.
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

#[cfg(test)]
mod tests;
