//! The next status: transitions from the last, and the step that records it.

mod progress;

use std::time::Duration;

use contract::{FailureClass, Measurement};
use crds::conditions::types::{COMPLETE, FAILED, MEASURED, PLACED, RECONCILED, RUNNING, SUSPENDED};
use crds::conditions::{self, reasons};
use crds::status::{
    AdmissionStatus, AdmittedPod, FailureStatus, MixedGroup, OverduePod, PlacementStatus, StrategyStatus,
    ViTTrainingJobStatus, WaitStatus, WorkersStatus,
};
use crds::{Phase, labels, words};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt as _;
use planner::Waiting;
use planner::policy::placement::{Gpus, Placement};
use planner::policy::slow_nodes;

use super::observation::Observation;
use super::step::{Step, Write};
use crate::policy::admission::AdmissionState;
use crate::policy::failure::Failure;
use crate::policy::gang::{Fetch, PodView};
use crate::policy::restart::{Verdict, back_off_of_start};
use crate::policy::suspend::StopReason;
use crate::policy::{failed_nodes, mixed_gpus, strategy, time_spent, waiting};
use progress::{count, record_progress, with_nodes};

/// Most overdue pods in a status.
const OVERDUE_IN_STATUS: usize = 16;

/// The next status, in the making.
pub(super) struct Next<'a> {
    status: ViTTrainingJobStatus,
    seen: &'a Observation,
    /// Why this version of the operator would not place the job.
    refusal: Option<String>,
}

impl<'a> Next<'a> {
    /// The last status with what agents reported and what time forgets.
    pub(super) fn of(seen: &'a Observation) -> Self {
        let mut status = seen.status();
        status
            .selector
            .get_or_insert_with(|| format!("{}={}", labels::JOB_NAME, seen.job.name_any()));
        if let Some(progress) = &seen.progress {
            record_progress(&mut status, progress);
        }
        status.failed_nodes = failed_nodes::remembered(&status.failed_nodes, seen.now);
        // Not forgotten while the gang trains: it would grow onto these nodes and stay slow.
        if status.phase != Some(Phase::Running) {
            status.slow_nodes = slow_nodes::remembered(&status.slow_nodes, seen.now);
        }
        if let Some(stragglers) = &seen.stragglers {
            status.stragglers = with_nodes(stragglers, &status, &seen.job.spec.workers);
        }
        Self {
            status,
            seen,
            refusal: None,
        }
    }

    /// A step that only records the status.
    pub(super) fn record(self, look_again: Duration) -> Step {
        self.act(vec![], look_again)
    }

    /// A step that writes these, and records the status.
    pub(super) fn act(mut self, writes: Vec<Write>, look_again: Duration) -> Step {
        let seen = self.seen;
        self.status.observed_generation = seen.job.metadata.generation;
        match self.refusal.take() {
            Some(why) => self.set(RECONCILED, false, reasons::NOT_RESTARTABLE, &why),
            None => self
                .status
                .conditions
                .retain(|known| !(known.type_ == RECONCILED && known.reason == reasons::NOT_RESTARTABLE)),
        }
        let reported = seen.progress.as_ref();
        self.status.time_spent = time_spent::after(&seen.status(), &self.status, reported, seen.now);
        Step {
            status: Box::new(self.status),
            writes,
            look_again,
            is_urgent: false,
            blames: None,
        }
    }

    pub(super) fn phase(&self) -> Option<Phase> {
        self.status.phase
    }

    fn set(&mut self, type_: &str, value: bool, reason: &str, message: &str) {
        let generation = self.seen.job.metadata.generation;
        let condition = conditions::condition(type_, value, (reason, message), generation, self.seen.now);
        conditions::set(&mut self.status.conditions, condition);
    }

    /// Kueue has granted quota.
    pub(super) fn admitted(mut self, granted: &AdmissionStatus) -> Self {
        self.revive();
        self.status.phase = Some(Phase::Pending);
        self.clear_workers();
        let message = format!(
            "ClusterQueue {} has quota for {} nodes",
            granted.cluster_queue, granted.nodes
        );
        self.status.admission = Some(AdmissionStatus {
            time: Some(Time(self.seen.now)),
            ..granted.clone()
        });
        self.set(PLACED, false, reasons::ADMITTED, &message);
        self
    }

    /// A dry run has shown what admission adds to the pods.
    pub(super) fn admitted_pod(mut self, added: &AdmittedPod) -> Self {
        let is_any = *added != AdmittedPod::default();
        self.status.admitted_pod = is_any.then(|| added.clone());
        self
    }

    /// The next attempt has nodes, and divides the model by `strategy` if that is left to the operator.
    pub(super) fn placed(
        mut self,
        attempt: i32,
        placement: &Placement,
        strategy: Option<StrategyStatus>,
    ) -> Self {
        self.revive();
        let overdue = words::overdue(&self.overdue());
        let balance = self.seen.job.spec.training.balance;
        let nodes = words::first_names(&placement.nodes);
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
        let message = message + &words::admitted(self.status.admitted_pod.as_ref());
        self.status.phase = Some(Phase::Starting);
        self.status.attempt = attempt;
        let stragglers = std::mem::take(&mut self.status.stragglers);
        self.status.slow_nodes = slow_nodes::after(&self.status.slow_nodes, &stragglers, self.seen.now);
        self.status.start_time.get_or_insert(Time(self.seen.now));
        self.status.workers = Some(WorkersStatus {
            desired: count(placement.nodes.len()),
            ..WorkersStatus::default()
        });
        self.status.placement = Some(PlacementStatus {
            group,
            mixed,
            topology: placement.topology.clone(),
            strategy,
            time: Some(Time(self.seen.now)),
            nodes: placement.nodes.iter().map(ToString::to_string).collect(),
            rejected_groups: placement.rejected.clone(),
            wait: None,
        });
        self.set(PLACED, true, reason, &message);
        self.set(RUNNING, false, reasons::PODS_STARTING, "pods are being created");
        self
    }

    /// Records the measurement of a finished job, or why there is none.
    fn measured(&mut self) {
        let (reason, why) = match &self.seen.measured {
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
    fn replaced(&mut self, reason: &str, how: &str) {
        self.status.phase = Some(Phase::Restarting);
        let message = format!("the gang of {} is {how}", self.status.nodes().len());
        self.set(RUNNING, false, reason, &message);
    }

    /// The gang gets no GPUs now.
    pub(super) fn waits(self, waiting: &Waiting) -> Self {
        match waiting {
            Waiting::NoFit { rejected, wait } => {
                let wait = WaitStatus {
                    overdue_pods: self.overdue(),
                    ..wait.clone()
                };
                let admitted = words::admitted(self.status.admitted_pod.as_ref());
                let message = words::waits(&self.seen.job.spec, &wait, Some(rejected)) + &admitted;
                let placement = PlacementStatus {
                    rejected_groups: rejected.clone(),
                    wait: Some(wait),
                    ..PlacementStatus::default()
                };
                let what_for = "waits for a group of identical GPUs that fits the gang";
                self.unplaced(placement, reasons::NO_FITTING_GROUP, &message, what_for)
            }
            Waiting::NoPriorityClass(class) => {
                let message = waiting::no_priority_class(class);
                let none = PlacementStatus::default();
                self.unplaced(
                    none,
                    reasons::NO_PRIORITY_CLASS,
                    &message,
                    "waits for its priority class",
                )
            }
        }
    }

    /// A `ResourceQuota` refused a pod of the gang.
    pub(super) fn over_quota(mut self, words: &str) -> Self {
        if self.status.progress.is_none() {
            self.status.start_time = None;
        }
        let none = PlacementStatus::default();
        self.unplaced(
            none,
            reasons::QUOTA_EXCEEDED,
            words,
            "waits for quota of its namespace",
        )
    }

    /// Starts fail one after another; until the next, others may use the GPUs.
    pub(super) fn start_failing(self) -> Self {
        let failure = self.status.last_failure.clone().unwrap_or_default();
        let failed = self.status.failed_starts;
        let pause = back_off_of_start(failed).as_secs();
        let words = format!(
            "{failed} starts failed; the next follows {pause} s after that of attempt {}: {}",
            failure.attempt, failure.message
        );
        let none = PlacementStatus::default();
        self.unplaced(none, reasons::START_FAILING, &words, "waits for its next start")
    }

    fn forget_failed_starts(&mut self) {
        self.status.failed_starts = 0;
        self.status.start_failed_since = None;
    }

    /// Kueue has granted no quota.
    pub(super) fn in_queue(mut self, queue: &str, state: &AdmissionState) -> Self {
        self.status.admission = None;
        let message = waiting::in_queue(queue, state);
        let none = PlacementStatus::default();
        self.unplaced(none, reasons::IN_QUEUE, &message, "waits in a queue of Kueue")
    }

    fn unplaced(mut self, placement: PlacementStatus, reason: &str, message: &str, what_for: &str) -> Self {
        self.revive();
        self.status.phase = Some(Phase::Pending);
        self.clear_workers();
        self.status.placement = Some(placement);
        self.set(PLACED, false, reason, message);
        self.set(RUNNING, false, reasons::NO_PODS, what_for);
        self
    }

    /// The readiness of the existing gang.
    pub(super) fn followed(mut self) -> Self {
        let gang: Vec<&PodView> = self.seen.gang(self.status.attempt).collect();
        let desired = self.status.nodes().len();
        let ready = gang.iter().filter(|pod| pod.ready).count();
        let finished = gang.iter().filter(|pod| pod.is_done() && !pod.ready).count();
        self.status.workers = Some(WorkersStatus {
            desired: count(desired),
            ready: count(ready),
            failed: 0,
        });
        if ready + finished >= desired {
            self.status.phase = Some(Phase::Running);
            self.forget_failed_starts();
            self.set(
                RUNNING,
                true,
                reasons::ALL_PODS_READY,
                "every pod of the gang runs",
            );
            return self;
        }
        // A probe that fails for a moment does not stop a gang.
        let has_run = self.status.phase == Some(Phase::Running);
        let mut message = format!("{ready} of {desired} pods are ready");
        let fetching = gang.iter().filter(|pod| pod.fetch == Some(Fetch::Runs)).count();
        if fetching > 0 {
            message = format!("{message}; {fetching} fetch files or wait for another pod that does");
        }
        let stuck = gang
            .iter()
            .filter_map(|pod| Some((&pod.name, pod.stuck.as_ref()?)))
            .min();
        if let Some((pod, words)) = stuck {
            message = format!("{message}; pod {pod}: {words}");
        }
        let reason = if has_run {
            reasons::ALL_PODS_READY
        } else {
            reasons::PODS_STARTING
        };
        self.set(RUNNING, has_run, reason, &message);
        self
    }

    /// The gang trains on although its manifest is refused.
    pub(super) fn refused(mut self, why: &str) -> Self {
        let words =
            format!("the gang trains on, but this version of the operator would not place it again: {why}");
        self.refusal = Some(words);
        self
    }

    /// The attempt failed; `again` if only the blame moves to another pod.
    pub(super) fn ended(mut self, failure: &Failure, verdict: Verdict, again: bool) -> Self {
        let attempt = self.status.attempt;
        let seen_at = match &self.status.last_failure {
            Some(known) if again => known.time.clone(),
            _ => None,
        };
        // The echo was counted as a restart; undo that if the cause is not retryable.
        let was_counted = again && self.status.phase == Some(Phase::Restarting);
        let restarts = i32::from(verdict == Verdict::Restart) - i32::from(was_counted);
        self.status.restarts += restarts;
        let counted = if failure.class == FailureClass::StartFailed {
            let now = Time(self.seen.now);
            self.status.start_failed_since.get_or_insert(now);
            &mut self.status.failed_starts
        } else {
            &mut self.status.restarts_since_checkpoint
        };
        *counted = (*counted + restarts).max(0);
        let failed = self
            .seen
            .gang(attempt)
            .filter(|pod| pod.lost || pod.has_failed())
            .count();
        self.status.workers = Some(WorkersStatus {
            desired: count(self.status.nodes().len()),
            ready: 0,
            failed: count(failed),
        });
        self.status.last_failure = Some(self.failure(failure, seen_at));
        self.status.failed_nodes =
            failed_nodes::after(&self.status.failed_nodes, failure, verdict, self.seen.now);
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
                return self;
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
        self
    }

    /// A failure of the present attempt, first seen at `seen_at` or else now.
    fn failure(&self, failure: &Failure, seen_at: Option<Time>) -> FailureStatus {
        FailureStatus {
            attempt: self.status.attempt,
            rank: failure.rank.and_then(|rank| i32::try_from(rank).ok()),
            pod: Some(failure.pod.clone()),
            node: failure.node.clone(),
            exit_code: failure.exit_code.map(i32::from),
            class: failure.class.as_str().into(),
            memory: failure.memory,
            message: failure.message.clone(),
            time: Some(seen_at.unwrap_or(Time(self.seen.now))),
        }
    }

    /// Ends the job, which releases its GPUs. Its placement stays in the status.
    fn finish(&mut self, phase: Phase) {
        self.status.phase = Some(phase);
        self.status.completion_time.get_or_insert(Time(self.seen.now));
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
    fn revive(&mut self) {
        if self.status.condition(SUSPENDED).is_some() {
            self.set(SUSPENDED, false, reasons::RESUMED, "spec.suspend is not set");
        }
        if self.status.completion_time.take().is_some() {
            self.set(FAILED, false, reasons::RESUMED, "the manifest was changed");
            self.status.restarts_since_checkpoint = 0;
            self.forget_failed_starts();
        }
    }

    fn clear_workers(&mut self) {
        self.status.workers = Some(WorkersStatus::default());
    }

    /// The job failed for a reason that is not an attempt's, such as an invalid manifest.
    pub(super) fn failed(mut self, reason: &str, message: &str) -> Self {
        self.finish(Phase::Failed);
        self.set(FAILED, true, reason, message);
        self
    }

    /// Every pod succeeded.
    pub(super) fn succeeded(mut self) -> Self {
        self.finish(Phase::Succeeded);
        self.set(COMPLETE, true, reasons::ALL_EPOCHS_DONE, "every pod succeeded");
        if self.seen.job.spec.measure.is_some() {
            self.measured();
        }
        self
    }

    /// The healthy gang has to stop.
    pub(super) fn halted(mut self, reason: &StopReason) -> Self {
        match reason {
            StopReason::Suspend => {
                self.revive();
                self.status.phase = Some(Phase::Suspending);
                let words = "pods save a checkpoint and stop";
                self.set(SUSPENDED, false, reasons::SUSPENDING, words);
                self.set(RUNNING, false, reasons::SUSPENDING, "spec.suspend is set");
            }
            StopReason::Resize => {
                let spec = &self.seen.job.spec;
                let wanted = match &spec.elastic {
                    Some(elastic) => format!(
                        "{} to {}",
                        elastic.min_nodes,
                        elastic.max_nodes.unwrap_or(spec.workers.nodes)
                    ),
                    None => spec.workers.nodes.to_string(),
                };
                self.replaced(reasons::RESIZING, &format!("replaced by one of {wanted} nodes"));
            }
            StopReason::Grow { to } => {
                let checkpoint = self.status.last_checkpoint.as_ref();
                let step = checkpoint.map_or(0, |checkpoint| checkpoint.step);
                let how = format!(
                    "replaced by one of {to} nodes, which are free; after the checkpoint of step {step}"
                );
                self.replaced(reasons::RESIZING, &how);
            }
            StopReason::Unfit(words) => {
                self.replaced(reasons::NODE_UNFIT, &format!("placed again: {words}"));
            }
            StopReason::Evict(words) => {
                self.status.admission = None;
                self.status.start_time = None;
                self.status.phase = Some(Phase::Restarting);
                self.set(RUNNING, false, reasons::EVICTED, &format!("Kueue: {words}"));
            }
        }
        self
    }

    /// The gang failed to save and stop.
    pub(super) fn failed_to_stop(mut self, failure: &Failure) -> Self {
        self.status.last_failure = Some(self.failure(failure, None));
        self
    }

    /// The gang of a suspended job is gone.
    pub(super) fn suspended(mut self) -> Self {
        self.revive();
        self.status.phase = Some(Phase::Suspended);
        self.forget_failed_starts();
        self.status.admission = None;
        self.status.placement = None;
        self.status.start_time = None;
        self.clear_workers();
        let overdue = words::overdue(&self.overdue());
        let message = match overdue.as_str() {
            "" => "spec.suspend is set; the job holds no GPUs".into(),
            overdue => format!("spec.suspend is set{overdue}"),
        };
        self.set(SUSPENDED, true, reasons::SUSPENDED, &message);
        self.set(PLACED, false, reasons::NOT_PLACED_SUSPENDED, &message);
        self.set(RUNNING, false, reasons::NO_PODS, &message);
        self
    }

    /// Pods of the job that keep GPUs and are not waited for.
    fn overdue(&self) -> Vec<OverduePod> {
        let pods = self.seen.pods.iter();
        let mut pods: Vec<&PodView> = pods.filter(|pod| self.seen.is_overdue(pod)).collect();
        pods.sort_unstable_by_key(|pod| (pod.attempt, pod.node_rank));
        let overdue = |pod: &PodView| OverduePod {
            name: pod.name.clone(),
            node: pod.node.clone(),
        };
        pods.into_iter().take(OVERDUE_IN_STATUS).map(overdue).collect()
    }
}
