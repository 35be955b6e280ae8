//! Step 4: the objects that a plan creates and deletes. Pure and infallible.

use std::sync::Arc;

use contract::RunConfig;
use crds::status::PlacementStatus;
use crds::{Phase, ValidatedJob};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::core::DynamicObject;
use planner::Waiting;

use super::observation::{Isolation, Observation};
use super::plan::Plan;
use crate::api::kueue::Workload;
use crate::api::pod_group::Version;
use crate::build::Member;
use crate::build::workload::is_current;
use crate::build::{config_map, name_of_attempt, network_policy, pod, pod_group, service, workload};
use crate::policy::admission::{AdmissionState, admission_state};
use crate::policy::gang::{PodId, PodView};
use crate::policy::restart::STOP_AFTER_FAILURE_SECONDS;
use crate::policy::strategy;

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Changes {
    pub(crate) attempt: i32,
    /// The version of gangs' PodGroups, if they get any.
    pub(crate) pod_groups: Option<Version>,
    pub(crate) create_pod_group: Option<DynamicObject>,
    pub(crate) create_config_map: Option<ConfigMap>,
    pub(crate) create_service: Option<Service>,
    pub(crate) create_network_policy: Option<NetworkPolicy>,
    pub(crate) create_pods: Vec<Pod>,
    pub(crate) delete_pods: Vec<PodId>,
    /// Grace period in seconds of deleted pods; their own if not given.
    pub(crate) stop_seconds: Option<u32>,
    /// Deleted without waiting for their kubelet.
    pub(crate) force_delete_pods: Vec<PodId>,
    /// Names of older attempts' ConfigMaps and PodGroups.
    pub(crate) outdated: Vec<String>,
    pub(crate) delete_service: bool,
    pub(crate) delete_network_policy: bool,
    pub(crate) workload: Option<WorkloadChange>,
    pub(crate) delete_job: bool,
}

/// The change of the job's Workload.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum WorkloadChange {
    Create(Workload),
    Delete(Arc<Workload>),
    UpdateStatus(Workload),
    /// [`Self::UpdateStatus`] that may fail.
    TryUpdateStatus(Workload),
}

pub(crate) fn build(observation: &Observation, valid: Option<&ValidatedJob>, plan: &Plan) -> Changes {
    Changes {
        workload: workload_change(observation, valid, plan),
        ..gang_changes(observation, valid, plan)
    }
}

/// A plan's change of the job's Workload. Its quota is released once the job has no pods.
fn workload_change(
    observation: &Observation,
    valid: Option<&ValidatedJob>,
    plan: &Plan,
) -> Option<WorkloadChange> {
    let queue = &observation.queue;
    let (job, status, now) = (&*observation.job, observation.status(), observation.now);
    let wanted = || Some(workload::build(job, valid?, queue.priority?));
    let Some(workload) = &queue.workload else {
        let is_to_be_made = queue.is_known && matches!(plan, Plan::Wait(Waiting::InQueue(_)));
        return is_to_be_made.then(wanted)?.map(WorkloadChange::Create);
    };
    let delete = || Some(WorkloadChange::Delete(Arc::clone(workload)));
    match plan {
        Plan::Wait(_)
            if valid
                .is_some_and(|valid| matches!(admission_state(valid, queue), AdmissionState::Evicted(_))) =>
        {
            Some(WorkloadChange::UpdateStatus(workload::released(workload, now)))
        }
        // Without its class the priority is unknown; it is recreated once the class exists.
        Plan::Wait(_) if queue.priority.is_none() => delete(),
        Plan::Wait(Waiting::InQueue(_)) if !is_current(workload, &wanted()?) => delete(),
        Plan::Park => delete(),
        Plan::Rest(None) if status.phase == Some(Phase::Suspended) => delete(),
        Plan::CleanUp { .. } if !observation.pods.iter().any(|pod| observation.holds_gpus(pod)) => {
            let has_succeeded = status.phase == Some(Phase::Succeeded);
            let words = if has_succeeded {
                "all epochs are done"
            } else {
                "the job failed"
            };
            workload::finished(workload, has_succeeded, words, now).map(WorkloadChange::UpdateStatus)
        }
        Plan::Follow if status.phase == Some(Phase::Running) => {
            workload::with_pods_ready(workload, true, now).map(WorkloadChange::TryUpdateStatus)
        }
        Plan::Drain { .. } => {
            workload::with_pods_ready(workload, false, now).map(WorkloadChange::TryUpdateStatus)
        }
        _ => None,
    }
}

fn gang_changes(observation: &Observation, valid: Option<&ValidatedJob>, plan: &Plan) -> Changes {
    match (plan, valid) {
        (Plan::Create { node_ranks }, Some(valid)) => gang(observation, valid, node_ranks),
        (Plan::Follow, Some(valid)) => gang(observation, valid, &[]),
        (Plan::Drain { pods, force }, _) => Changes {
            delete_pods: pods.clone(),
            stop_seconds: stop_seconds(observation),
            force_delete_pods: force.clone(),
            ..Changes::default()
        },
        (Plan::CleanUp { pods, force, .. }, _) => Changes {
            delete_pods: pods.clone(),
            stop_seconds: stop_seconds(observation),
            force_delete_pods: force.clone(),
            delete_service: observation.has_service,
            delete_network_policy: observation.network_policy == Isolation::Present,
            ..Changes::default()
        },
        (Plan::Expire, _) => Changes {
            delete_job: true,
            ..Changes::default()
        },
        _ => Changes::default(),
    }
}

/// Pods of a failed attempt stop quickly; others get the time to save a checkpoint.
fn stop_seconds(observation: &Observation) -> Option<u32> {
    observation
        .status()
        .failure_of_attempt()
        .map(|_| STOP_AFTER_FAILURE_SECONDS)
}

/// The ranks' configuration with the strategy chosen at placement.
fn sharded(config: RunConfig, placement: Option<&PlacementStatus>) -> RunConfig {
    let Some(chosen) = placement.and_then(|placement| placement.strategy.as_ref()) else {
        return config;
    };
    strategy::applied(chosen, &config).unwrap_or_else(|| {
        // Another operator version, or a person, wrote it.
        let (namespace, name) = (&config.job.namespace, &config.job.name);
        tracing::warn!(
            "{namespace}/{name}: trains unsharded, because status.placement.strategy {} cannot be applied",
            chosen.name
        );
        config
    })
}

/// Creates an attempt's missing objects, and deletes those of older attempts.
fn gang(observation: &Observation, valid: &ValidatedJob, node_ranks: &[usize]) -> Changes {
    let job = &*observation.job;
    let status = observation.status();
    let valid = &valid.clone().within(status.admission.as_ref());
    let attempt = status.attempt;
    let nodes = status.nodes();
    let config_map_name = name_of_attempt(job, attempt);
    // A single pod needs no group. A gang with pods keeps what they have: pods with and without a
    // group would wait for one another.
    let mut existing = observation.gang(attempt).peekable();
    let is_grouped = match existing.peek() {
        Some(_) => existing.any(|pod| pod.is_grouped),
        None => observation.pod_groups.is_some() && nodes.len() > 1,
    };
    let outdated = observation
        .config_maps
        .iter()
        .filter(|name| **name != config_map_name);
    // The gang keeps the size of its placement, even if the spec has changed.
    let run_config = valid.run_config_on(u32::try_from(nodes.len()).unwrap_or(u32::MAX));
    let run_config = sharded(run_config, status.placement.as_ref());
    Changes {
        attempt,
        pod_groups: observation.pod_groups,
        create_pod_group: observation
            .pod_groups
            .filter(|_| is_grouped && !node_ranks.is_empty())
            .map(|version| pod_group::build(version, job, attempt, nodes.len())),
        create_config_map: (!observation.config_maps.contains(&config_map_name))
            .then(|| config_map::build(job, &run_config, attempt)),
        // A single pod needs no Service.
        create_service: (!observation.has_service && nodes.len() > 1).then(|| service::build(job)),
        create_network_policy: (observation.network_policy == Isolation::Missing)
            .then(|| network_policy::build(job)),
        create_pods: node_ranks
            .iter()
            .filter_map(|node_rank| {
                let member = Member {
                    attempt,
                    node_rank: *node_rank,
                    gang_size: nodes.len(),
                    node: nodes.get(*node_rank)?,
                    is_grouped,
                    agent_image: observation.agent_image.as_deref(),
                };
                Some(pod::build(job, valid, member))
            })
            .collect(),
        // They appeared, or another operator created them, after the gang had been found gone.
        delete_pods: observation
            .pods
            .iter()
            .filter(|pod| pod.attempt < attempt && pod.deletion_timestamp.is_none())
            .map(PodView::id)
            .collect(),
        stop_seconds: Some(STOP_AFTER_FAILURE_SECONDS),
        outdated: outdated.cloned().collect(),
        ..Changes::default()
    }
}

#[cfg(test)]
mod tests;
