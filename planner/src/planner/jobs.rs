//! What counts of a job for the order in which jobs get GPUs.

use std::cmp::Reverse;
use std::sync::Arc;

use crds::conditions::types;
use crds::{Phase, ViTTrainingJob, ViTTrainingJobStatus, validate};
use jiff::Timestamp;
use kube::ResourceExt as _;

use crate::facts::fleet::Reservation;
use crate::facts::pods::JobKey;
use crate::facts::priority::PriorityClasses;
use crate::policy::avoidance;
use crate::policy::queue::{Order, Waiter};
use crate::policy::request::GangRequest;

/// A job as its last event told of it.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) key: JobKey,
    pub(super) attempt: i32,
    /// Its priority class, if it names one.
    class: Option<String>,
    order: Order,
    /// Whether that class exists.
    has_class: bool,
    /// `None` where it does not wait, or cannot be run.
    waiter: Option<Arc<Waiter>>,
    /// What its status promises to its gang.
    pub(super) recorded: Option<Reservation>,
    /// What its gang, which is elastic and runs, would rather have.
    pub(super) wish: Option<GangRequest>,
}

impl Job {
    pub(super) fn of(job: &ViTTrainingJob, classes: &PriorityClasses) -> Self {
        let status = job.status.as_ref();
        let phase = status.and_then(|status| status.phase);
        let granted = status.and_then(|status| status.admission.as_ref());
        let valid = validate(job).ok().map(|valid| valid.within(granted));
        let request = valid.as_ref().map(GangRequest::from);
        let stricter = match (&valid, status, &request) {
            (Some(valid), Some(status), Some(request)) => avoidance::stricter(valid, status, request),
            _ => vec![],
        };
        let order = Order {
            priority: Reverse(0),
            created: job.creation_timestamp().map(|time| time.0),
            job: format!("{}/{}", job.namespace().unwrap_or_default(), job.name_any()).into(),
        };
        let placement = status.and_then(|status| status.placement.as_ref());
        let nodes = placement.map_or(&[][..], |placement| &placement.nodes);
        let strictest = stricter
            .first()
            .or(request.as_ref().map(|request| &request.shape));
        let mut own = Self {
            key: JobKey::of(job),
            wish: request
                .as_ref()
                .zip(strictest)
                .filter(|_| phase == Some(Phase::Running))
                .and_then(|(request, shape)| request.larger_than(nodes.len(), shape)),
            attempt: status.map_or(0, |status| status.attempt),
            class: job.spec.workers.priority_class_name.clone(),
            has_class: false,
            waiter: request.as_ref().filter(|_| is_waiting(job)).map(|request| {
                Arc::new(Waiter {
                    order: order.clone(),
                    request: request.clone(),
                    stricter,
                    since: waiting_since(job),
                    had: match phase {
                        Some(Phase::Restarting) => nodes.to_vec(),
                        _ => vec![],
                    },
                })
            }),
            recorded: request
                .filter(|_| matches!(phase, Some(Phase::Starting | Phase::Running)))
                .map(|request| Reservation {
                    job: JobKey::of(job),
                    attempt: status.map_or(0, |status| status.attempt),
                    nodes: nodes.to_vec(),
                    requests: request.shape.requests.clone(),
                }),
            order,
        };
        own.rank(classes);
        own
    }

    /// Gives the job the priority of its class.
    pub(super) fn rank(&mut self, classes: &PriorityClasses) {
        let priority = classes.priority(self.class.as_deref());
        self.order.priority = Reverse(priority.unwrap_or(0));
        self.has_class = priority.is_some();
        if let Some(waiter) = &mut self.waiter {
            Arc::make_mut(waiter).order = self.order.clone();
        }
    }

    /// Has the job ask for nothing.
    pub(super) fn rest(&mut self) {
        self.waiter = None;
        self.wish = None;
    }

    /// The job in the queue; `None` where it does not wait, cannot be run, or its priority class does not exist.
    pub(super) fn waiter(&self) -> Option<&Arc<Waiter>> {
        self.waiter.as_ref().filter(|_| self.has_class)
    }

    /// Whether its gang, which was being replaced, has fewer nodes now: a pass held the others for it until then.
    pub(super) fn has_shrunk_since(&self, old: &Self) -> bool {
        let waited = old.waiter().zip(self.recorded.as_ref());
        waited.is_some_and(|(waiter, recorded)| recorded.nodes.len() < waiter.had.len())
    }

    /// The job's priority class, where there is no such class.
    pub(super) fn missing_class(&self) -> Option<&str> {
        self.class.as_deref().filter(|_| !self.has_class)
    }
}

fn is_waiting(job: &ViTTrainingJob) -> bool {
    let status = job.status.as_ref();
    let may_be_placed = match status.and_then(|status| status.phase) {
        None | Some(Phase::Pending | Phase::Restarting | Phase::Suspended) => true,
        Some(Phase::Failed) => status.is_some_and(ViTTrainingJobStatus::was_refused),
        Some(Phase::Starting | Phase::Running | Phase::Suspending | Phase::Succeeded) => false,
    };
    let waits_in_queue =
        job.spec.scheduling.queue_name.is_some() && status.is_none_or(|status| status.admission.is_none());
    may_be_placed && !waits_in_queue && !job.spec.suspend && job.metadata.deletion_timestamp.is_none()
}

/// Since when a job has been waiting: since it was created, lost its place, was resumed, got its second chance or its quota.
fn waiting_since(job: &ViTTrainingJob) -> Option<Timestamp> {
    let created = job.creation_timestamp().map(|time| time.0);
    let Some(status) = &job.status else {
        return created;
    };
    if !matches!(status.phase, None | Some(Phase::Pending)) {
        return None;
    }
    let ended = |type_: &str| match type_ {
        types::PLACED => status.attempt > 0,
        types::SUSPENDED | types::FAILED => true,
        _ => false,
    };
    status
        .conditions
        .iter()
        .filter(|condition| ended(&condition.type_) && condition.status == "False")
        .map(|condition| Some(condition.last_transition_time.0))
        .chain(
            status
                .admission
                .iter()
                .map(|granted| granted.time.as_ref().map(|time| time.0)),
        )
        .fold(created, Option::max)
}
