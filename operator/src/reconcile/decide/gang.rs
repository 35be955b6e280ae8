//! The objects of an attempt.

use contract::RunConfig;
use crds::ValidatedJob;
use crds::status::PlacementStatus;
use k8s_openapi::api::core::v1::Pod;

use super::super::observation::{Isolation, Observation};
use super::super::step::{Object, Write};
use super::stopping::kept;
use crate::build::{Member, config_map, name_of_attempt, network_policy, pod, pod_group, service};
use crate::policy::restart::STOP_AFTER_FAILURE_SECONDS;
use crate::policy::strategy;

/// Creates an attempt's missing objects, with the pods of these node ranks, and deletes those of
/// older attempts.
pub(super) fn writes(seen: &Observation, valid: &ValidatedJob, node_ranks: &[usize]) -> Vec<Write> {
    let job = &*seen.job;
    let status = seen.status();
    let valid = &valid.clone().within(status.admission.as_ref());
    let attempt = status.attempt;
    let nodes = status.nodes();
    let config_map_name = name_of_attempt(job, attempt);
    let kept = kept(seen);
    // They appeared, or another operator created them, after the gang had been found gone.
    let late: Vec<_> = seen
        .pods
        .iter()
        .filter(|pod| pod.attempt < attempt && pod.deletion_timestamp.is_none())
        .filter(|pod| !kept.contains(&pod.name.as_str()))
        .map(|pod| (pod.id(), Some(STOP_AFTER_FAILURE_SECONDS)))
        .collect();
    let mut writes = Vec::new();
    if !late.is_empty() {
        writes.push(Write::DeletePods(late));
    }
    let outdated = seen.config_maps.iter().filter(|name| **name != config_map_name);
    writes.extend(outdated.map(|name| Write::DeleteAttempt(name.clone(), seen.pod_groups)));

    // A single pod needs no group. A gang with pods keeps what they have: pods with and without a
    // group would wait for one another.
    let mut existing = seen.gang(attempt).peekable();
    let is_grouped = match existing.peek() {
        Some(_) => existing.any(|pod| pod.is_grouped),
        None => seen.pod_groups.is_some() && nodes.len() > 1,
    };
    let mut objects = Vec::new();
    if let Some(version) = seen.pod_groups.filter(|_| is_grouped && !node_ranks.is_empty()) {
        let group = pod_group::build(version, job, attempt, nodes.len());
        objects.push(Object::PodGroup(version, group.into()));
    }
    if !seen.config_maps.contains(&config_map_name) {
        // The gang keeps the size of its placement, even if the spec has changed.
        let run_config = valid.run_config_on(u32::try_from(nodes.len()).unwrap_or(u32::MAX));
        let run_config = sharded(run_config, status.placement.as_ref());
        let config_map = config_map::build(job, &run_config, attempt);
        objects.push(Object::ConfigMap(config_map.into()));
    }
    // A single pod needs no Service.
    if !seen.has_service && nodes.len() > 1 {
        objects.push(Object::Service(service::build(job).into()));
    }
    if seen.network_policy == Isolation::Missing {
        objects.push(Object::NetworkPolicy(network_policy::build(job).into()));
    }
    let pods: Vec<_> = node_ranks
        .iter()
        .filter_map(|node_rank| {
            let member = Member {
                attempt,
                node_rank: *node_rank,
                gang_size: nodes.len(),
                node: nodes.get(*node_rank)?,
                is_grouped,
                agent_image: seen.agent_image.as_deref(),
            };
            Some(pod::build(job, valid, member))
        })
        .collect();
    if !objects.is_empty() || !pods.is_empty() {
        writes.push(Write::Create(objects, pods));
    }
    writes
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

/// The first pod of the next attempt, without a node.
pub(super) fn dry_run(seen: &Observation, valid: &ValidatedJob) -> Pod {
    let valid = &valid.clone().within(seen.status().admission.as_ref());
    let member = Member {
        attempt: seen.newest_attempt().saturating_add(1),
        node_rank: 0,
        gang_size: valid.sizes.last().map_or(1, |nodes| *nodes as usize),
        node: "dry-run",
        is_grouped: false,
        agent_image: seen.agent_image.as_deref(),
    };
    pod::build(&seen.job, valid, member)
}
