//! The observed state of one job: the input of a round's decisions.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use contract::{Measurement, Progress, SlowRank};
use crds::status::AdmittedPod;
use crds::{Phase, ViTTrainingJob, ViTTrainingJobStatus};
use jiff::{SignedDuration, Timestamp};
use planner::facts::inventory::NodeFacts;

use crate::api::pod_group::Version;
use crate::policy::admission::Queue;
use crate::policy::gang::PodView;
use crate::policy::stall::{SilentAgent, StallSigns};

/// The observed state of one job.
#[derive(Clone, Debug)]
pub(crate) struct Observation {
    pub(crate) job: Arc<ViTTrainingJob>,
    /// Its existing pods, of all attempts.
    pub(crate) pods: Vec<PodView>,
    /// Its deleted pods, in their last state.
    pub(crate) departed: Vec<PodView>,
    /// Unready nodes of its pods, and since when this process has seen it.
    pub(crate) unready_nodes: HashMap<String, Timestamp>,
    /// The nodes of rejected pods, by name.
    pub(crate) rejecting_nodes: HashMap<String, NodeFacts>,
    pub(crate) has_service: bool,
    pub(crate) network_policy: Isolation,
    /// The version of gangs' PodGroups, if they get any.
    pub(crate) pod_groups: Option<Version>,
    /// The image of the sidecar of other trainers, if there is one.
    pub(crate) agent_image: Option<String>,
    pub(crate) config_maps: BTreeSet<String>,
    /// The newest record of the present attempt.
    pub(crate) progress: Option<Progress>,
    /// The present attempt's measurement, or why it has none; `None` if not requested or not over.
    pub(crate) measured: Option<Result<Box<Measurement>, String>>,
    /// All agents' answers if rank 0 makes no progress for too long.
    pub(crate) stall_signs: Option<StallSigns>,
    /// Whether rank 0's latest answer shows no progress for too long.
    pub(crate) is_stall_suspected: bool,
    /// Set while rank 0's agent does not answer.
    pub(crate) silence: Option<SilentAgent>,
    /// The last reports of the stragglers; `None` if rank 0 has not reported on ranks.
    pub(crate) stragglers: Option<Vec<SlowRank>>,
    pub(crate) queue: Queue,
    /// What admission adds to its pods; `None` if no dry run has shown it yet.
    pub(crate) dry_run: Option<AdmittedPod>,
    /// Time between rounds of a starting gang, by the number of such gangs.
    pub(crate) start_pace: Duration,
    pub(crate) now: Timestamp,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Isolation {
    /// Jobs get none.
    Off,
    /// It has to be created.
    Missing,
    Present,
}

impl Observation {
    pub(crate) fn status(&self) -> ViTTrainingJobStatus {
        self.job.status.clone().unwrap_or_default()
    }

    /// The pods of one attempt, existing or gone.
    pub(crate) fn gang(&self, attempt: i32) -> impl Iterator<Item = &PodView> {
        self.pods
            .iter()
            .chain(&self.departed)
            .filter(move |pod| pod.attempt == attempt)
    }

    /// Whether all pods of the present gang have existed, so that a missing one is lost. A pod of a
    /// starting gang that existed is among the departed ones.
    pub(crate) fn was_whole(&self) -> bool {
        let status = self.job.status.as_ref();
        status.is_some_and(|status| status.phase == Some(Phase::Running))
    }

    /// The node ranks of the present gang without a pod.
    pub(crate) fn missing(&self) -> Vec<usize> {
        let Some(status) = &self.job.status else {
            return vec![];
        };
        let present: HashSet<usize> = self.gang(status.attempt).map(|pod| pod.node_rank).collect();
        (0..status.nodes().len())
            .filter(|node_rank| !present.contains(node_rank))
            .collect()
    }

    /// The newest attempt of the status or any pod.
    pub(crate) fn newest_attempt(&self) -> i32 {
        let recorded = self.job.status.as_ref().map_or(0, |status| status.attempt);
        self.pods.iter().map(|pod| pod.attempt).fold(recorded, i32::max)
    }

    /// The node of a pod, if it has not been ready for this long.
    pub(crate) fn node_lost_for<'a>(&self, pod: &'a PodView, bound: Duration) -> Option<&'a str> {
        let node = pod.node.as_deref()?;
        let bound = SignedDuration::try_from(bound).unwrap_or(SignedDuration::MAX);
        let since = self.unready_nodes.get(node)?;
        (self.now.duration_since(*since) >= bound).then_some(node)
    }

    /// Whether a pod that has not ended is on an unready node.
    pub(crate) fn is_on_unready_node(&self) -> bool {
        let is_unready = |node: &String| self.unready_nodes.contains_key(node);
        let mut running = self.pods.iter().filter(|pod| !pod.has_ended());
        running.any(|pod| pod.node.as_ref().is_some_and(is_unready))
    }

    /// Whether a pod may still use its GPUs and is worth waiting for.
    pub(crate) fn holds_gpus(&self, pod: &PodView) -> bool {
        let bound = self.job.spec.failure_policy.node_lost_after();
        let is_lost = pod.lost || self.node_lost_for(pod, bound).is_some();
        !pod.has_ended() && !is_lost && !self.is_overdue(pod)
    }

    /// Whether a pod is still there failurePolicy.nodeLostSeconds after its deletion was due,
    /// because its process cannot be killed.
    pub(crate) fn is_overdue(&self, pod: &PodView) -> bool {
        let bound = SignedDuration::from_secs(self.job.spec.failure_policy.node_lost_seconds.into());
        let is_late = |due| self.now.duration_since(due) >= bound;
        !pod.has_ended() && !pod.lost && pod.deletion_timestamp.is_some_and(is_late)
    }
}
