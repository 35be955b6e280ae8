//! The jobs, for rounds and for the planner.

use std::sync::{Arc, Mutex, PoisonError};

use crds::ViTTrainingJob;
use kube::Resource as _;
use kube::core::DeserializeGuard;
use kube::runtime::reflector::{self, Store, store::Writer};
use kube::runtime::watcher::Event;
use planner::{GuardedJob, SharedPlanner};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::newest::Newest;
use super::trigger::Trigger;

/// The jobs by the watch, and by the answers to this process's writes.
#[derive(Clone)]
pub(crate) struct Jobs {
    store: Store<GuardedJob>,
    shared: Arc<Mutex<Shared>>,
    planner: SharedPlanner,
    triggers: mpsc::UnboundedSender<Trigger>,
}

struct Shared {
    newest: Newest<GuardedJob>,
    writer: Writer<GuardedJob>,
}

impl Jobs {
    pub(crate) fn new(planner: SharedPlanner, triggers: mpsc::UnboundedSender<Trigger>) -> Self {
        let (store, writer) = reflector::store();
        let newest = Newest::default();
        Self {
            store,
            shared: Arc::new(Mutex::new(Shared { newest, writer })),
            planner,
            triggers,
        }
    }

    pub(crate) fn store(&self) -> &Store<GuardedJob> {
        &self.store
    }

    /// An event of the watch; returns the events that it is to the store.
    pub(crate) fn watched(&self, event: Event<GuardedJob>) -> Vec<Event<GuardedJob>> {
        self.see(|newest| newest.watched(event.modify(strip)))
    }

    /// The answer to a write.
    pub(crate) fn answered(&self, job: ViTTrainingJob) {
        let mut job = DeserializeGuard(Ok(job));
        strip(&mut job);
        self.see(|newest| newest.answered(job, Instant::now()));
    }

    /// Answers since before this time, which the watch may have missed.
    pub(crate) fn unconfirmed(&self, before: Instant) -> Vec<GuardedJob> {
        let shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        shared.newest.unconfirmed(before)
    }

    /// What the API server has in place of such an answer.
    pub(crate) fn confirmed(&self, answer: &GuardedJob, mut stored: Option<GuardedJob>) {
        stored.iter_mut().for_each(strip);
        self.see(|newest| newest.confirmed(answer, stored, Instant::now()));
    }

    fn see(
        &self,
        events: impl FnOnce(&mut Newest<GuardedJob>) -> Vec<Event<GuardedJob>>,
    ) -> Vec<Event<GuardedJob>> {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let events = events(&mut shared.newest);
        for event in &events {
            // The planner sees a change before any round does.
            if self.planner.lock().follow_jobs(event) {
                // The receiver lives as long as the process.
                let _ = self.triggers.send(Trigger::Waiting);
            }
            shared.writer.apply_watcher_event(event);
        }
        events
    }
}

/// As large as the rest of a job, and the operator neither reads it nor writes it back.
fn strip(job: &mut GuardedJob) {
    job.meta_mut().managed_fields = None;
}

#[cfg(test)]
mod tests {
    use crds::Phase;
    use kube::runtime::reflector::ObjectRef;

    use super::*;
    use crate::fixtures;

    #[test]
    fn a_round_after_a_write_sees_it_whatever_the_watch_says() {
        let (triggers, _triggered) = mpsc::unbounded_channel();
        let jobs = Jobs::new(SharedPlanner::default(), triggers);
        let in_phase = |phase, version: &str| {
            let mut job = fixtures::job_in(phase, 1);
            job.metadata.resource_version = Some(version.into());
            job
        };
        let watched = |job| jobs.watched(Event::Apply(DeserializeGuard(Ok(job)))).len();
        let known = || {
            let job = jobs.store().get(&ObjectRef::new("digits").within("research"));
            let job = job.expect("known").0.clone().expect("decoded");
            job.status.and_then(|status| status.phase)
        };
        assert_eq!(watched(in_phase(Phase::Starting, "100")), 1);
        jobs.answered(in_phase(Phase::Running, "102"));
        assert_eq!(known(), Some(Phase::Running));
        assert_eq!(watched(in_phase(Phase::Starting, "101")), 0);
        assert_eq!(known(), Some(Phase::Running));
        assert_eq!(watched(in_phase(Phase::Failed, "103")), 1);
        assert_eq!(known(), Some(Phase::Failed));
    }
}
