//! The state of one job, from the caches and its agents' answers.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use contract::Progress;
use crds::{Phase, ViTTrainingJob, labels};
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, ResourceExt as _};
use planner::facts::inventory::NodeHealth;

use super::context::Context;
use super::observation::{Isolation, Observation};
use super::pace::{IN_MOTION, pace_of_starts};
use crate::error::Error;
use crate::policy::stall::{self, SilentAgent, StallSigns};
use crate::watch::caches::Cached as _;
use crate::watch::trigger::is_owned_by;

pub(crate) fn observe(context: &Context, job: Arc<ViTTrainingJob>) -> Observation {
    let uid = job.uid().unwrap_or_default();
    let caches = &context.caches;
    let attempt = job.status.as_ref().map_or(0, |status| status.attempt);
    let phase = job.status.as_ref().and_then(|status| status.phase);
    let now = context.settings.clock.now();
    let (mut pods, departed) = caches.pods_of(&job, attempt, now);
    let (mut unready_nodes, mut rejecting_nodes) = (HashMap::new(), HashMap::new());
    for pod in &mut pods {
        if pod.waits_for_sandbox.is_some() {
            pod.stuck = context.memory.warning_of(&uid, &pod.uid).or(pod.stuck.take());
        }
        if pod.rejected.is_some()
            && let Some(node) = &pod.node
            && let Some(facts) = caches.node(node)
        {
            rejecting_nodes.insert(node.clone(), facts);
        }
        match pod.node.as_ref().map(|node| (node, caches.node_health(node))) {
            Some((node, Some(NodeHealth::NotReady))) => {
                let lasted = caches.unready_for(node).unwrap_or_default();
                unready_nodes.insert(node.clone(), now - lasted);
            }
            // No kubelet reports on a pod whose Node object is gone.
            Some((node, None)) if !pod.has_ended() => {
                pod.disruption = Some(format!("node {node} is gone"));
                pod.lost = true;
            }
            _ => {}
        }
    }
    let mut observation = Observation {
        has_service: caches.has_service(&job),
        network_policy: isolation(context, &job),
        pod_groups: context.settings.pod_groups.version(),
        agent_image: context.settings.agent_image.clone(),
        config_maps: caches.config_maps_of(&job),
        pods,
        departed,
        unready_nodes,
        rejecting_nodes,
        progress: None,
        measured: None,
        stall_signs: None,
        is_stall_suspected: false,
        silence: None,
        stragglers: None,
        queue: caches.queue_of(&job),
        dry_run: match phase {
            None | Some(Phase::Pending | Phase::Suspended | Phase::Failed) => context.dry_runs.of(&job, now),
            _ => {
                let known = job.status.as_ref().and_then(|status| status.admitted_pod.clone());
                Some(known.unwrap_or_default())
            }
        },
        start_pace: match phase {
            Some(Phase::Starting) => pace_of_starts(context),
            _ => IN_MOTION,
        },
        now,
        job,
    };
    add_progress(context, &uid, &mut observation);
    // Another trainer may keep its checkpoints anywhere.
    if observation.job.spec.checkpoint.volume.is_none()
        && observation.job.spec.external.is_none()
        && let Some(progress) = &mut observation.progress
    {
        // It is deleted with the pod.
        progress.last_checkpoint = None;
    }
    observation
}

/// Reads the pods of a running gang that the caches lack: the watch may lag behind the writes of the
/// replica that led before. Returns whether the caches have more now.
pub(crate) async fn catch_up(context: &Context, seen: &Observation) -> Result<bool, Error> {
    let missing = seen.missing();
    if missing.is_empty() || !seen.was_whole() {
        return Ok(false);
    }
    let job = &*seen.job;
    let attempt = seen.status().attempt;
    let pods: Api<Pod> = Api::namespaced(context.urgent.clone(), &job.namespace().unwrap_or_default());
    let (job_name, of_attempt) = (labels::JOB_NAME, labels::ATTEMPT);
    let of_gang = format!("{job_name}={},{of_attempt}={attempt}", job.name_any());
    let listed = pods.list(&ListParams::default().labels(&of_gang)).await;
    let listed = listed.map_err(Error::api("list", "pods of", &job.name_any()))?;
    let own = listed
        .items
        .into_iter()
        .filter(|pod| is_owned_by(&pod.metadata, job));
    own.for_each(|pod| pod.answered(&context.caches));
    Ok(true)
}

fn isolation(context: &Context, job: &ViTTrainingJob) -> Isolation {
    if context.caches.has_network_policy(job) {
        Isolation::Present
    } else if context.settings.network_policies {
        Isolation::Missing
    } else {
        Isolation::Off
    }
}

/// Adds rank 0's report, from its termination message or the latest poll of its agent.
fn add_progress(context: &Context, uid: &str, observation: &mut Observation) {
    let status = observation.status();
    let coordinator = observation.gang(status.attempt).find(|pod| pod.node_rank == 0);
    let Some(coordinator) = coordinator else { return };
    let is_of_this_attempt = |progress: &Progress| i64::from(progress.attempt) == i64::from(status.attempt);
    if let Some(end) = &coordinator.end {
        let record = end.record.as_ref();
        let last = record.and_then(|record| record.progress.clone());
        let measured = record.and_then(|record| {
            let why_not = record.unmeasured.clone().map(Err);
            record.measurement.clone().map(Ok).or(why_not)
        });
        observation.progress = last.filter(is_of_this_attempt);
        observation.measured = measured;
        return;
    }
    if status.phase != Some(Phase::Running) || coordinator.agent.is_none() {
        return;
    }
    let agents = context.memory.agents(uid, status.attempt);
    observation.progress = agents.progress.filter(is_of_this_attempt);
    observation.stragglers = agents.stragglers.filter(|_| observation.progress.is_some());
    let bound = stall_bound(observation);
    observation.silence = agents.silent_for.map(|lasted| SilentAgent {
        lasted,
        bound: bound.unwrap_or(stall::LEAST),
    });
    let idle_for = agents.idle_for.filter(|_| observation.progress.is_some());
    let (Some(lasted), Some(bound)) = (idle_for, bound) else {
        return;
    };
    if lasted >= bound {
        observation.is_stall_suspected = agents.silent_for.is_none();
        observation.stall_signs = agents.heartbeats.map(|answers| StallSigns {
            lasted,
            bound,
            answers,
        });
    }
}

/// How long the gang may make no progress.
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
