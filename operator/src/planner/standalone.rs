//! The planner without a cluster.

use crds::ViTTrainingJob;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt as _;
use kube::core::DeserializeGuard;
use kube::runtime::watcher::Event;

use super::{Decision, Planner};

/// A planner that hears of a cluster what it is told, for benchmarks.
#[derive(Debug, Default)]
pub struct StandalonePlanner(Planner);

impl StandalonePlanner {
    /// Takes in an event of a node.
    pub fn follow_nodes(&mut self, event: &Event<Node>) {
        self.0.follow_nodes(event);
    }

    /// Takes in an event of a pod.
    pub fn follow_pods(&mut self, event: &Event<Pod>) {
        self.0.follow_pods(event);
    }

    /// Takes in that a job is new or has changed.
    pub fn apply(&mut self, job: ViTTrainingJob) {
        self.0.follow_jobs(&Event::Apply(DeserializeGuard(Ok(job))));
    }

    /// Takes in that a job is gone.
    pub fn delete(&mut self, job: ViTTrainingJob) {
        self.0.follow_jobs(&Event::Delete(DeserializeGuard(Ok(job))));
    }

    /// Decides about a job's first attempt as a round of it does, with the words for its status: the nodes that it
    /// was promised, by node rank, or `None` where it waits.
    pub fn place(&mut self, job: &ViTTrainingJob, now: Timestamp) -> Option<Vec<String>> {
        match self.0.place(&job.uid().unwrap_or_default(), 1, now) {
            Decision::Placed(placement) => Some(placement.nodes),
            Decision::Waits(_) | Decision::Outdated => None,
        }
    }
}
