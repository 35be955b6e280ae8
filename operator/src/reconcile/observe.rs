//! The first of the six calls: what is known of one job, from the caches and from rank 0. The only IO is one GET of
//! the progress record, at most every two seconds and for at most one.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use contract::Progress;
use crds::{Phase, ViTTrainingJob, ViTTrainingJobStatus};
use jiff::Timestamp;
use kube::ResourceExt as _;

use super::Context;
use crate::policy::gang::PodView;

/// Time between two looks at a job's progress.
pub(crate) const PROGRESS_INTERVAL: Duration = Duration::from_secs(2);

/// What is known of one job.
#[derive(Clone, Debug)]
pub(crate) struct Observation {
    pub(crate) job: Arc<ViTTrainingJob>,
    /// Its pods that exist, of all attempts.
    pub(crate) pods: Vec<PodView>,
    /// Its pods that are gone, as they were last.
    pub(crate) departed: Vec<PodView>,
    /// Names of pods created here that have not come into the cache yet.
    pub(crate) unseen_pods: HashSet<String>,
    /// Whether every pod of the present attempt has been created here.
    pub(crate) gang_was_created: bool,
    /// Nodes of its pods whose kubelet says they are fine.
    pub(crate) ready_nodes: HashSet<String>,
    pub(crate) has_service: bool,
    /// Names of its ConfigMaps.
    pub(crate) config_maps: BTreeSet<String>,
    /// The newest record of the present attempt.
    pub(crate) progress: Option<Progress>,
    pub(crate) now: Timestamp,
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

    /// The newest attempt that anything knows of.
    pub(crate) fn newest_attempt(&self) -> i32 {
        let recorded = self.job.status.as_ref().map_or(0, |status| status.attempt);
        self.pods.iter().map(|pod| pod.attempt).fold(recorded, i32::max)
    }

    /// Whether no kubelet answers for a pod any more.
    pub(crate) fn is_on_lost_node(&self, pod: &PodView) -> bool {
        pod.node
            .as_ref()
            .is_some_and(|node| !self.ready_nodes.contains(node))
    }
}

/// `None` where the cache has not caught up with our own last write yet: deciding on an older state would repeat it.
pub(crate) async fn observe(context: &Context, job: Arc<ViTTrainingJob>) -> Option<Observation> {
    let uid = job.uid().unwrap_or_default();
    if context.memory.is_behind(&uid, job.resource_version().as_deref()) {
        return None;
    }
    let caches = &context.caches;
    let attempt = job.status.as_ref().map_or(0, |status| status.attempt);
    let (mut pods, departed) = caches.pods_of(&uid, attempt);
    let mut ready_nodes = HashSet::new();
    for pod in &mut pods {
        match pod.node.as_ref().map(|node| (node, caches.is_node_ready(node))) {
            Some((node, Some(true))) => {
                ready_nodes.insert(node.clone());
            }
            // A pod whose Node object is gone will never be heard of again.
            Some((node, None)) if !pod.has_ended() => {
                pod.disruption = Some(format!("node {node} is gone"));
                pod.lost = true;
            }
            _ => {}
        }
    }
    let (unseen_pods, gang_was_created) =
        context
            .memory
            .created(&uid, attempt, pods.iter().chain(&departed).map(|pod| &pod.name));
    let mut observation = Observation {
        has_service: caches.has_service(&job),
        config_maps: caches.config_maps_of(&job),
        pods,
        departed,
        unseen_pods,
        gang_was_created,
        ready_nodes,
        progress: None,
        now: Timestamp::now(),
        job,
    };
    observation.progress = progress(context, &uid, &observation).await;
    Some(observation)
}

/// The newest of what rank 0's agent answers and what it left when it ended.
async fn progress(context: &Context, uid: &str, observation: &Observation) -> Option<Progress> {
    let status = observation.job.status.as_ref()?;
    let coordinator = observation.gang(status.attempt).find(|pod| pod.node_rank == 0)?;
    let last_words = coordinator
        .end
        .as_ref()
        .and_then(|end| end.record.as_ref()?.progress.clone());
    let told = if let (None, Some(Phase::Running), Some(agent)) =
        (&coordinator.end, status.phase, &coordinator.agent)
    {
        context
            .memory
            .polled(uid, PROGRESS_INTERVAL, || context.progress.get(agent))
            .await
    } else {
        None
    };
    let expected = u32::try_from(status.attempt).ok()?;
    last_words
        .or(told)
        .filter(|progress| progress.attempt == expected)
}
