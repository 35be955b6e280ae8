//! The planner's state of a job.

use std::cmp::Reverse;
use std::sync::Arc;

use crds::conditions::{reasons, types};
use crds::{Phase, ViTTrainingJob, ViTTrainingJobStatus, validate};
use jiff::Timestamp;
use kube::ResourceExt as _;

use crate::facts::fleet::Promise;
use crate::facts::pods::JobKey;
use crate::facts::priority::PriorityClasses;
use crate::policy::avoidance;
use crate::policy::queue::{Order, Waiter};
use crate::policy::request::GangRequest;

/// A job as of its last event.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) key: JobKey,
    /// Its resource version.
    pub(super) version: Option<String>,
    /// The name of its PriorityClass, if it has one.
    class: Option<String>,
    has_class: bool,
    order: Order,
    /// `None` if it does not wait, or is invalid.
    waiter: Option<Arc<Waiter>>,
    /// Whether it pauses before its next try, so that no pass may hold nodes for it.
    pub(super) is_paused: bool,
    /// Its gang in its status.
    pub(super) recorded: Option<Promise>,
    /// The larger sizes of a running elastic gang.
    pub(super) growth: Option<GangRequest>,
}

impl Job {
    pub(super) fn of(job: &ViTTrainingJob, classes: &PriorityClasses) -> Self {
        let none = ViTTrainingJobStatus::default();
        let status = job.status.as_ref().unwrap_or(&none);
        let nodes: Vec<Arc<str>> = status.nodes().iter().map(|node| node.as_str().into()).collect();
        let mut own = Self {
            key: JobKey::of(job),
            version: job.resource_version(),
            class: job.spec.workers.priority_class_name.clone(),
            has_class: false,
            order: Order {
                priority: Reverse(0),
                created: job.creation_timestamp().map(|time| time.0),
                job: format!("{}/{}", job.namespace().unwrap_or_default(), job.name_any()).into(),
            },
            waiter: None,
            is_paused: status.is_paused(),
            recorded: None,
            growth: None,
        };
        if let Ok(valid) = validate(job) {
            let valid = valid.within(status.admission.as_ref());
            let mut request = GangRequest::from(&valid).admitted(status.admitted_pod.as_ref());
            let placed = status.condition(types::PLACED);
            if placed.is_some_and(|placed| placed.reason == reasons::QUOTA_EXCEEDED) {
                // A larger gang may have been refused.
                request.larger.clear();
            }
            let preferred_shapes = avoidance::preferred_shapes(&valid, status, &request);
            if status.phase == Some(Phase::Running) {
                let shape = preferred_shapes.first().unwrap_or(&request.shape);
                own.growth = request.larger_than(nodes.len(), shape);
            }
            if matches!(status.phase, Some(Phase::Starting | Phase::Running)) {
                own.recorded = Some(Promise {
                    job: JobKey::of(job),
                    attempt: status.attempt,
                    nodes: nodes.clone(),
                    requests: request.shape.requests.clone(),
                });
            }
            if is_waiting(job, status) {
                own.waiter = Some(Arc::new(Waiter {
                    order: own.order.clone(),
                    request,
                    preferred_shapes,
                    since: waiting_since(own.order.created, status),
                    previous_nodes: match status.phase {
                        Some(Phase::Restarting) => nodes,
                        _ => vec![],
                    },
                }));
            }
        }
        own.rank(classes);
        own
    }

    pub(super) fn rank(&mut self, classes: &PriorityClasses) {
        let priority = classes.priority(self.class.as_deref());
        self.order.priority = Reverse(priority.unwrap_or(0));
        self.has_class = priority.is_some();
        if let Some(waiter) = &mut self.waiter {
            Arc::make_mut(waiter).order = self.order.clone();
        }
    }

    pub(super) fn drop_requests(&mut self) {
        self.waiter = None;
        self.growth = None;
    }

    /// The job in the queue; `None` if it does not wait, pauses, is invalid, or its PriorityClass does not
    /// exist.
    pub(super) fn waiter(&self) -> Option<&Arc<Waiter>> {
        self.waiter.as_ref().filter(|_| self.has_class && !self.is_paused)
    }

    /// Whether its new gang has fewer nodes than the previous one, whose nodes the pass held.
    pub(super) fn has_shrunk_since(&self, old: &Self) -> bool {
        let waited = old.waiter().zip(self.recorded.as_ref());
        waited.is_some_and(|(waiter, recorded)| recorded.nodes.len() < waiter.previous_nodes.len())
    }

    /// The name of the job's PriorityClass, if it does not exist.
    pub(super) fn missing_class(&self) -> Option<&str> {
        self.class.as_deref().filter(|_| !self.has_class)
    }
}

fn is_waiting(job: &ViTTrainingJob, status: &ViTTrainingJobStatus) -> bool {
    let may_be_placed = match status.phase {
        None | Some(Phase::Pending | Phase::Restarting | Phase::Suspended) => true,
        Some(Phase::Failed) => status.was_refused(),
        Some(Phase::Starting | Phase::Running | Phase::Suspending | Phase::Succeeded) => false,
    };
    let waits_for_quota = job.spec.scheduling.queue_name.is_some() && status.admission.is_none();
    may_be_placed && !waits_for_quota && !job.spec.suspend && job.metadata.deletion_timestamp.is_none()
}

/// When a job began to wait: when it was created, lost its place, was resumed, was corrected or got
/// its quota. `None` before a restarting or resuming job was found not to fit.
fn waiting_since(created: Option<Timestamp>, status: &ViTTrainingJobStatus) -> Option<Timestamp> {
    if !matches!(status.phase, None | Some(Phase::Pending)) {
        return None;
    }
    let ended = |type_: &str| match type_ {
        types::PLACED => status.attempt > 0,
        types::SUSPENDED | types::FAILED => true,
        _ => false,
    };
    let ended = status
        .conditions
        .iter()
        .filter(|condition| ended(&condition.type_) && condition.status == "False")
        .map(|condition| condition.last_transition_time.0);
    let admitted = status
        .admission
        .iter()
        .filter_map(|granted| Some(granted.time.as_ref()?.0));
    created.into_iter().chain(ended).chain(admitted).max()
}
