//! The first of the six calls: what is known of one job, from the caches, the planner and its agents. A pod that is missing in the
//! caches is looked up in the API server before it counts as lost. Agents are asked beside
//! the rounds, which never wait for them: a round begins a look, and the one after the answer has it. Rank 0's is asked for its
//! progress every two seconds, and where that stands still for too long, all of them for their heartbeats.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use contract::Progress;
use crds::{Phase, ViTTrainingJob, ViTTrainingJobStatus, labels};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, ResourceExt as _};
use planner::facts::inventory::{NodeFacts, NodeHealth};

use super::Context;
use super::agents::Question;
use crate::build::{self, pod_group};
use crate::cluster::caches::{Trigger, is_owned_by};
use crate::error::Error;
use crate::policy::admission::Queue;
use crate::policy::gang::PodView;
use crate::policy::stall::{self, Silence, Standstill};

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
    /// Pods that exist and are not in the cache yet: their uids by name.
    pub(crate) unseen_pods: HashMap<String, String>,
    /// Whether every pod of the present attempt has been created here.
    pub(crate) gang_was_created: bool,
    /// Nodes of its pods whose kubelet does not say they are fine, with the time since when.
    pub(crate) unready_nodes: HashMap<String, Timestamp>,
    /// The nodes of pods that were rejected, by name.
    pub(crate) rejecting_nodes: HashMap<String, NodeFacts>,
    pub(crate) has_service: bool,
    pub(crate) network_policy: Isolation,
    /// The version of the PodGroups that gangs get, if they get any.
    pub(crate) pod_groups: Option<pod_group::Version>,
    /// Names of its ConfigMaps.
    pub(crate) config_maps: BTreeSet<String>,
    /// The newest record of the present attempt.
    pub(crate) progress: Option<Progress>,
    /// Where rank 0 stands still for too long: what all agents say to it.
    pub(crate) standstill: Option<Standstill>,
    /// For how long rank 0's agent has not answered.
    pub(crate) silence: Option<Silence>,
    /// The ranks that are stragglers now, with their slowdown; `None` where nobody has told of ranks.
    pub(crate) stragglers: Option<Vec<(u32, f64)>>,
    /// To how many nodes an elastic gang could grow, which is looked at once after each new checkpoint.
    pub(crate) growth: Option<usize>,
    /// Its place in a queue.
    pub(crate) queue: Queue,
    pub(crate) now: Timestamp,
}

/// Whether a job's pods have their NetworkPolicy.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Isolation {
    /// Jobs get none.
    Off,
    /// It is to be made.
    Missing,
    There,
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

    /// Whether all pods of the present gang have existed: one that is missing now is lost.
    pub(crate) fn was_whole(&self) -> bool {
        match self.job.status.as_ref().and_then(|status| status.phase) {
            Some(Phase::Starting) => self.gang_was_created,
            phase => phase == Some(Phase::Running),
        }
    }

    /// The node ranks of the present gang without a pod.
    pub(crate) fn missing(&self) -> Vec<usize> {
        let Some(status) = &self.job.status else {
            return vec![];
        };
        let placement = status.placement.as_ref();
        let present: HashSet<usize> = self.gang(status.attempt).map(|pod| pod.node_rank).collect();
        let name = |node_rank| build::pod::name(&self.job, status.attempt, node_rank);
        (0..placement.map_or(0, |placement| placement.nodes.len()))
            .filter(|node_rank| !present.contains(node_rank))
            .filter(|node_rank| !self.unseen_pods.contains_key(&name(*node_rank)))
            .collect()
    }

    /// The newest attempt that anything knows of.
    pub(crate) fn newest_attempt(&self) -> i32 {
        let recorded = self.job.status.as_ref().map_or(0, |status| status.attempt);
        self.pods.iter().map(|pod| pod.attempt).fold(recorded, i32::max)
    }

    /// The node of a pod, if its kubelet has not been fine for that long.
    pub(crate) fn node_lost_for<'a>(&self, pod: &'a PodView, bound: Duration) -> Option<&'a str> {
        let node = pod.node.as_deref()?;
        let bound = SignedDuration::try_from(bound).unwrap_or(SignedDuration::MAX);
        let since = self.unready_nodes.get(node)?;
        (self.now.duration_since(*since) >= bound).then_some(node)
    }

    /// Whether a pod that has not ended is on a node whose kubelet is not fine.
    pub(crate) fn is_on_unready_node(&self) -> bool {
        let is_unready = |node: &String| self.unready_nodes.contains_key(node);
        let mut running = self.pods.iter().filter(|pod| !pod.has_ended());
        running.any(|pod| pod.node.as_ref().is_some_and(is_unready))
    }

    /// Whether a pod may still use its GPUs: it has not ended, and its node or its kubelet can be waited for.
    pub(crate) fn holds_gpus(&self, pod: &PodView) -> bool {
        let bound = u64::try_from(self.job.spec.failure_policy.node_lost_seconds).unwrap_or(0);
        let is_lost = pod.lost || self.node_lost_for(pod, Duration::from_secs(bound)).is_some();
        !pod.has_ended() && !is_lost && !self.is_overdue(pod)
    }

    /// Whether a pod should have been gone for failurePolicy.nodeLostSeconds: its process cannot be killed.
    pub(crate) fn is_overdue(&self, pod: &PodView) -> bool {
        let bound = SignedDuration::from_secs(self.job.spec.failure_policy.node_lost_seconds.into());
        let is_late = |due| self.now.duration_since(due) >= bound;
        !pod.has_ended() && !pod.lost && pod.leaving.is_some_and(is_late)
    }
}

/// `None` where the cache has not caught up with our own last write yet: deciding on an older state would repeat it.
pub(crate) async fn observe(
    context: &Context,
    job: Arc<ViTTrainingJob>,
) -> Result<Option<Observation>, Error> {
    let uid = job.uid().unwrap_or_default();
    if context.memory.is_behind(&uid, job.resource_version().as_deref()) {
        return Ok(None);
    }
    let caches = &context.caches;
    let attempt = job.status.as_ref().map_or(0, |status| status.attempt);
    let (mut pods, departed) = caches.pods_of(&job, attempt);
    let now = Timestamp::now();
    let (mut unready_nodes, mut rejecting_nodes) = (HashMap::new(), HashMap::new());
    for pod in &mut pods {
        if pod.rejected.is_some()
            && let Some(node) = &pod.node
            && let Some(facts) = caches.node(node)
        {
            rejecting_nodes.insert(node.clone(), facts);
        }
        match pod.node.as_ref().map(|node| (node, caches.node_health(node))) {
            Some((node, Some(NodeHealth::NotReady(since)))) => {
                unready_nodes.insert(node.clone(), since.unwrap_or(now));
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
        network_policy: isolation(context, &job),
        pod_groups: context.settings.pod_groups.used(),
        config_maps: caches.config_maps_of(&job),
        pods,
        departed,
        unseen_pods,
        gang_was_created,
        unready_nodes,
        rejecting_nodes,
        progress: None,
        standstill: None,
        silence: None,
        stragglers: None,
        growth: None,
        queue: caches.queue_of(&job),
        now,
        job,
    };
    if observation.was_whole() && !observation.missing().is_empty() {
        let unseen = look_up(context, &observation, attempt).await?;
        observation.unseen_pods.extend(unseen);
    }
    listen(context, &uid, &mut observation);
    observation.stragglers = stragglers(context, &uid, &observation);
    observation.growth = growth(context, &uid, &observation);
    Ok(Some(observation))
}

/// Pods of the gang that the API server has and the cache lacks, because the watch lags.
async fn look_up(
    context: &Context,
    observation: &Observation,
    attempt: i32,
) -> Result<HashMap<String, String>, Error> {
    let job = &*observation.job;
    let pods: Api<Pod> = Api::namespaced(context.urgent.clone(), &job.namespace().unwrap_or_default());
    let (job_name, of_attempt) = (labels::JOB_NAME, labels::ATTEMPT);
    let of_gang = format!("{job_name}={},{of_attempt}={attempt}", job.name_any());
    let listed = pods.list_metadata(&ListParams::default().labels(&of_gang)).await;
    let listed = listed.map_err(|source| Error::Api {
        verb: "list",
        kind: "pods of",
        name: job.name_any(),
        source: Box::new(source),
    })?;
    let seen: HashSet<&String> = observation.gang(attempt).map(|pod| &pod.name).collect();
    let own = listed.items.into_iter().map(|pod| pod.metadata);
    Ok(own
        .filter(|pod| is_owned_by(pod, job))
        .filter_map(|pod| Some((pod.name?, pod.uid?)))
        .filter(|(name, _)| !seen.contains(name))
        .collect())
}

fn isolation(context: &Context, job: &ViTTrainingJob) -> Isolation {
    if context.caches.has_network_policy(job) {
        Isolation::There
    } else if context.settings.network_policies {
        Isolation::Missing
    } else {
        Isolation::Off
    }
}

/// Takes in what the agents have answered, and the last words of rank 0's; asks them anew where that is due.
fn listen(context: &Context, uid: &str, observation: &mut Observation) {
    let status = observation.status();
    let coordinator = observation.gang(status.attempt).find(|pod| pod.node_rank == 0);
    let Some(coordinator) = coordinator else { return };
    let is_of_this_attempt = |progress: &Progress| i64::from(progress.attempt) == i64::from(status.attempt);
    if let Some(end) = &coordinator.end {
        let last_words = end.record.as_ref().and_then(|record| record.progress.clone());
        observation.progress = last_words.filter(is_of_this_attempt);
        return;
    }
    let (Some(Phase::Running), Some(agent)) = (status.phase, coordinator.agent.clone()) else {
        return;
    };
    let heard = context.memory.heard(uid, status.attempt);
    observation.progress = heard.progress.filter(is_of_this_attempt);
    observation.silence = heard.silent_for.map(|lasted| Silence {
        lasted,
        bound: stall_bound(observation).unwrap_or(stall::LEAST),
    });
    let standing = heard
        .stands_still_for
        .filter(|_| observation.progress.is_some())
        .and_then(|lasted| Some((lasted, stall_bound(observation)?)))
        .filter(|(lasted, bound)| lasted >= bound);
    if let (Some((lasted, bound)), Some(answers)) = (standing, heard.heartbeats) {
        observation.standstill = Some(Standstill {
            lasted,
            bound,
            answers,
        });
    }
    if heard.is_fresh && standing.is_some() {
        let agents = observation
            .gang(status.attempt)
            .filter_map(|pod| Some((pod.node_rank, pod.agent.clone()?)))
            .collect();
        ask(
            context,
            uid,
            observation,
            Duration::ZERO,
            Question::Heartbeats(agents),
        );
    } else {
        ask(
            context,
            uid,
            observation,
            PROGRESS_INTERVAL,
            Question::Progress(agent),
        );
    }
}

/// Asks agents, if that is due, and has the job looked at again when they have answered.
fn ask(context: &Context, uid: &str, observation: &Observation, interval: Duration, question: Question) {
    let attempt = observation.job.status.as_ref().map_or(0, |status| status.attempt);
    let Some(answered) = context.memory.begin_look(uid, attempt, interval) else {
        return;
    };
    let agents = context.agents.clone();
    let triggers = context.triggers.clone();
    let trigger = Trigger::Job {
        namespace: observation.job.namespace().unwrap_or_default(),
        name: observation.job.name_any(),
    };
    tokio::spawn(async move {
        if let Some(answer) = agents.ask(question).await
            && answered.send(answer).is_ok()
        {
            // The receiver lives as long as the process.
            let _ = triggers.send(trigger);
        }
    });
}

/// How long the gang may stand still.
fn stall_bound(observation: &Observation) -> Option<Duration> {
    let given = observation.job.spec.failure_policy.stall_timeout_seconds;
    let given = given
        .and_then(|seconds| u64::try_from(seconds).ok())
        .map(Duration::from_secs);
    let heartbeat = observation
        .progress
        .as_ref()
        .and_then(|progress| progress.heartbeat.as_ref());
    stall::bound(
        given,
        heartbeat.and_then(|heartbeat| heartbeat.median_step_seconds),
    )
}

/// What the planner says of a gang that runs and has a new checkpoint.
fn growth(context: &Context, uid: &str, observation: &Observation) -> Option<usize> {
    let status = observation.job.status.as_ref()?;
    let progress = observation.progress.as_ref()?;
    let is_due = status.phase == Some(Phase::Running) && status.has_new_checkpoint(progress);
    is_due.then(|| context.planner.growth(uid, observation.now))?
}

/// The stragglers of a gang whose rank 0 is there to tell of them.
fn stragglers(context: &Context, uid: &str, observation: &Observation) -> Option<Vec<(u32, f64)>> {
    let record = observation.progress.as_ref()?;
    // Last words have neither.
    record.heartbeat.as_ref()?;
    let named = observation
        .job
        .status
        .iter()
        .flat_map(|status| &status.stragglers)
        .filter_map(|straggler| Some((u32::try_from(straggler.rank).ok()?, straggler.slowdown)));
    Some(context.memory.stragglers(uid, record, named, observation.now))
}
