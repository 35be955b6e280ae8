//! The fourth of the six calls: from a plan to the objects that are created and the names that are deleted. Pure and
//! infallible.

use crds::ValidatedJob;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Service};

use super::observe::Observation;
use super::plan::Plan;
use crate::build::pod::Member;
use crate::build::{config_map, pod, service};

/// What is to be changed in the cluster.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Changes {
    pub(crate) attempt: i32,
    pub(crate) create_config_map: Option<ConfigMap>,
    pub(crate) create_service: Option<Service>,
    pub(crate) create_pods: Vec<Pod>,
    pub(crate) delete_pods: Vec<String>,
    pub(crate) delete_config_maps: Vec<String>,
    pub(crate) delete_service: bool,
    pub(crate) delete_job: bool,
}

/// Turns a plan into changes.
pub(crate) fn build(observation: &Observation, valid: Option<&ValidatedJob>, plan: &Plan) -> Changes {
    match (plan, valid) {
        (Plan::Create { node_ranks }, Some(valid)) => gang(observation, valid, node_ranks),
        (Plan::Follow, Some(valid)) => gang(observation, valid, &[]),
        (Plan::Drain { pods }, _) => Changes {
            delete_pods: pods.clone(),
            ..Changes::default()
        },
        (Plan::CleanUp { pods, .. }, _) => Changes {
            delete_pods: pods.clone(),
            delete_service: observation.has_service,
            ..Changes::default()
        },
        (Plan::Expire, _) => Changes {
            delete_job: true,
            ..Changes::default()
        },
        _ => Changes::default(),
    }
}

/// What an attempt needs and does not have; ConfigMaps of older attempts go.
fn gang(observation: &Observation, valid: &ValidatedJob, node_ranks: &[usize]) -> Changes {
    let job = &*observation.job;
    let status = observation.status();
    let attempt = status.attempt;
    let nodes = status
        .placement
        .map(|placement| placement.nodes)
        .unwrap_or_default();
    let config_map_name = config_map::name(job, attempt);
    // The gang has the size it was placed with, which a change of the spec does not alter.
    let mut run_config = valid.run_config.clone();
    run_config.nodes = u32::try_from(nodes.len()).unwrap_or(u32::MAX);
    Changes {
        attempt,
        create_config_map: (!observation.config_maps.contains(&config_map_name))
            .then(|| config_map::build(job, &run_config, attempt)),
        create_service: (!observation.has_service).then(|| service::build(job)),
        create_pods: node_ranks
            .iter()
            .filter_map(|node_rank| {
                let member = Member {
                    attempt,
                    node_rank: *node_rank,
                    gang_size: nodes.len(),
                    node: nodes.get(*node_rank)?,
                };
                Some(pod::build(job, valid, member))
            })
            .collect(),
        delete_config_maps: observation
            .config_maps
            .iter()
            .filter(|name| **name != config_map_name)
            .cloned()
            .collect(),
        ..Changes::default()
    }
}
