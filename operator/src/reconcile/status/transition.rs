//! The changes of a status by a plan.

use contract::{Balance, FailureClass, Measurement};
use crds::Phase;
use crds::conditions::types::{FAILED, MEASURED, PLACED, RUNNING, SUSPENDED};
use crds::conditions::{self, reasons};
use crds::status::{
    AdmissionStatus, FailureStatus, MixedGroup, PlacementStatus, StrategyStatus, ViTTrainingJobStatus,
    WorkersStatus,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use planner::Waiting;
use planner::policy::placement::{Gpus, Placement};
use planner::policy::queue::is_news;
use planner::policy::slow_nodes;

use super::progress::count;
use crate::policy::failed_nodes;
use crate::policy::failure::Failure;
use crate::policy::gang::{Fetch, PodState, PodView};
use crate::policy::restart::Verdict;
use crate::policy::{mixed_gpus, strategy};
use crate::reconcile::observation::Observation;

pub(super) struct Next {
    pub(super) status: ViTTrainingJobStatus,
    pub(super) generation: Option<i64>,
    pub(super) now: Timestamp,
}

impl Next {
    pub(super) fn set(&mut self, type_: &str, value: bool, reason: &str, message: &str) {
        let condition = conditions::condition(type_, value, (reason, message), self.generation, self.now);
        conditions::set(&mut self.status.conditions, condition);
    }

    pub(super) fn admitted(&mut self, granted: &AdmissionStatus) {
        self.revive();
        self.status.phase = Some(Phase::Pending);
        self.clear_workers();
        let message = format!(
            "ClusterQueue {} has quota for {} nodes",
            granted.cluster_queue, granted.nodes
        );
        self.status.admission = Some(AdmissionStatus {
            time: Some(Time(self.now)),
            ..granted.clone()
        });
        self.set(PLACED, false, reasons::ADMITTED, &message);
    }

    pub(super) fn placed(
        &mut self,
        attempt: i32,
        placement: &Placement,
        (balance, strategy): (Balance, Option<StrategyStatus>),
        overdue: &str,
    ) {
        self.revive();
        let nodes = placement.nodes.join(", ");
        let (group, mixed, reason, message) = match &placement.gpus {
            Gpus::Identical(group) => (
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
                let message = format!("on {nodes}: {}{overdue}", mixed_gpus::in_words(&mixed, balance));
                (None, mixed, reasons::MIXED_GPUS, message)
            }
        };
        let message = match &strategy {
            Some(strategy) => {
                let out_of_memory = self.status.out_of_memory.as_ref();
                format!("{message}; {}", strategy::in_words(strategy, out_of_memory))
            }
            None => message,
        };
        self.status.phase = Some(Phase::Starting);
        self.status.attempt = attempt;
        let stragglers = std::mem::take(&mut self.status.stragglers);
        self.status.slow_nodes = slow_nodes::after(&self.status.slow_nodes, &stragglers, self.now);
        self.status.start_time.get_or_insert(Time(self.now));
        self.status.workers = Some(WorkersStatus {
            desired: count(placement.nodes.len()),
            ..WorkersStatus::default()
        });
        self.status.placement = Some(PlacementStatus {
            group,
            mixed,
            topology: placement.topology.clone(),
            strategy,
            time: Some(Time(self.now)),
            nodes: placement.nodes.clone(),
            rejected: placement.rejected.clone(),
        });
        self.set(PLACED, true, reason, &message);
        self.set(RUNNING, false, reasons::PODS_STARTING, "pods are being created");
    }

    /// Records the measurement of a finished job, or why there is none.
    pub(super) fn measured(&mut self, found: Option<&Result<Box<Measurement>, String>>) {
        let (reason, why) = match found {
            Some(Ok(measurement)) => {
                let message = format!("means over {} steps", measurement.steps);
                self.status.measurement = Some(Box::new(Measurement {
                    nodes: self.status.nodes().to_vec(),
                    ..Measurement::clone(measurement)
                }));
                self.set(MEASURED, true, reasons::MEASURED, &message);
                return;
            }
            Some(Err(why)) => (reasons::NOT_MEASURED, why.as_str()),
            None => (
                reasons::MEASUREMENT_LOST,
                "the measurement is lost: the pod of rank 0 is gone or left no valid termination message",
            ),
        };
        self.set(MEASURED, false, reason, why);
    }

    /// The healthy gang is replaced by another.
    pub(super) fn replaced(&mut self, reason: &str, how: &str) {
        self.status.phase = Some(Phase::Restarting);
        let message = format!("the gang of {} is {how}", self.status.nodes().len());
        self.set(RUNNING, false, reason, &message);
    }

    pub(super) fn waits(&mut self, waiting: &Waiting, overdue: &str) {
        self.revive();
        self.status.phase = Some(Phase::Pending);
        self.clear_workers();
        let (rejected, reason, message, what_for) = match waiting {
            Waiting::NoFit { why, queue } => (
                why.rejected.clone(),
                reasons::NO_FITTING_GROUP,
                queue.added_to(&format!("{}{overdue}", why.message)),
                "waits for a group of identical GPUs that fits the gang",
            ),
            Waiting::NoPriorityClass(class) => (
                vec![],
                reasons::NO_PRIORITY_CLASS,
                format!(
                    "spec.workers.priorityClassName is {class}: no such PriorityClass exists; create it, or a job \
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
        // Another queue position alone is not news: it is written with the next change.
        let message = self
            .status
            .condition(PLACED)
            .filter(|last| last.reason == reason && !is_news(&last.message, &message))
            .map_or(message, |last| last.message.clone());
        self.set(PLACED, false, reason, &message);
        self.set(RUNNING, false, reasons::NO_PODS, what_for);
    }

    pub(super) fn followed(&mut self, observation: &Observation) {
        let gang: Vec<&PodView> = observation.gang(self.status.attempt).collect();
        let desired = self.status.nodes().len();
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
                RUNNING,
                true,
                reasons::ALL_PODS_READY,
                "every pod of the gang runs",
            );
            return;
        }
        let mut message = format!("{ready} of {desired} pods are ready");
        let fetching = gang.iter().filter(|pod| pod.fetch == Some(Fetch::Runs)).count();
        if fetching > 0 {
            message = format!("{message}; {fetching} fetch data.from or wait for another that does");
        }
        let stuck = gang
            .iter()
            .filter_map(|pod| Some((&pod.name, pod.stuck.as_ref()?)))
            .min();
        if let Some((pod, words)) = stuck {
            message = format!("{message}; pod {pod}: {words}");
        }
        self.set(RUNNING, false, reasons::PODS_STARTING, &message);
    }

    pub(super) fn ended(
        &mut self,
        observation: &Observation,
        failure: &Failure,
        verdict: Verdict,
        again: bool,
    ) {
        let attempt = self.status.attempt;
        let seen_at = match &self.status.last_failure {
            Some(known) if again => known.time.clone(),
            _ => None,
        };
        // The echo was counted as a restart; undo that if the cause is not retryable.
        let was_counted = again && self.status.phase == Some(Phase::Restarting);
        let restarts = i32::from(verdict == Verdict::Restart) - i32::from(was_counted);
        self.status.restarts += restarts;
        self.status.restarts_since_checkpoint = (self.status.restarts_since_checkpoint + restarts).max(0);
        let failed = observation
            .gang(attempt)
            .filter(|pod| pod.lost || pod.has_failed())
            .count();
        self.status.workers = Some(WorkersStatus {
            desired: count(self.status.nodes().len()),
            ready: 0,
            failed: count(failed),
        });
        self.status.last_failure = Some(self.failure(failure, seen_at));
        self.status.failed_nodes = failed_nodes::after(&self.status.failed_nodes, failure, verdict, self.now);
        let cause = format!("attempt {attempt}: {}: {}", failure.class, failure.message);
        let reason = match verdict {
            Verdict::Restart => {
                if failure.class == FailureClass::OutOfMemory
                    && let Some(placement) = &self.status.placement
                {
                    self.status.out_of_memory.clone_from(&placement.strategy);
                }
                self.status.phase = Some(Phase::Restarting);
                self.set(RUNNING, false, reasons::RESTARTING, &cause);
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
        self.set(FAILED, true, reason, &cause);
    }

    /// A failure of the present attempt, first seen at `seen_at` or else now.
    pub(super) fn failure(&self, failure: &Failure, seen_at: Option<Time>) -> FailureStatus {
        FailureStatus {
            attempt: self.status.attempt,
            rank: failure.rank.and_then(|rank| i32::try_from(rank).ok()),
            pod: Some(failure.pod.clone()),
            node: failure.node.clone(),
            exit_code: failure.exit_code.map(i32::from),
            class: failure.class.as_str().into(),
            memory: failure.memory,
            message: failure.message.clone(),
            time: Some(seen_at.unwrap_or(Time(self.now))),
        }
    }

    /// Ends the job, which releases its GPUs. Its placement stays in the status.
    pub(super) fn finish(&mut self, phase: Phase) {
        self.status.phase = Some(phase);
        self.status.completion_time.get_or_insert(Time(self.now));
        self.clear_workers();
        // A suspending gang may have finished.
        self.status.conditions.retain(|condition| {
            (condition.type_.as_str(), condition.reason.as_str()) != (SUSPENDED, reasons::SUSPENDING)
        });
        let message = "the job is over";
        if self.status.condition(PLACED).is_some() {
            self.set(PLACED, false, reasons::RELEASED, message);
        }
        if self.status.condition(RUNNING).is_some() {
            self.set(RUNNING, false, reasons::NO_PODS, message);
        }
    }

    /// The job needs GPUs again after it was suspended or refused.
    pub(super) fn revive(&mut self) {
        if self.status.condition(SUSPENDED).is_some() {
            self.set(SUSPENDED, false, reasons::RESUMED, "spec.suspend is not set");
        }
        if self.status.completion_time.take().is_some() {
            self.set(FAILED, false, reasons::RESUMED, "the manifest was changed");
        }
    }

    pub(super) fn clear_workers(&mut self) {
        self.status.workers = Some(WorkersStatus::default());
    }
}
