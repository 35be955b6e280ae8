//! Kubernetes objects of a gang, one file per kind. Pure and infallible.

pub(crate) mod config_map;
mod external;
mod fetch;
pub(crate) mod network_policy;
pub(crate) mod pod;
pub(crate) mod pod_group;
pub(crate) mod service;
pub(crate) mod workload;

use std::collections::BTreeMap;

use crds::{ViTTrainingJob, labels};
use k8s_openapi::api::core::v1::{Capabilities, EnvVar, SecurityContext};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::{Resource, ResourceExt as _};

/// One pod of a gang.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Member<'a> {
    pub(crate) attempt: i32,
    pub(crate) node_rank: usize,
    pub(crate) gang_size: usize,
    pub(crate) node: &'a str,
    pub(crate) is_grouped: bool,
    /// Of the sidecar of other trainers.
    pub(crate) agent_image: Option<&'a str>,
}

/// The owner references of an object that is deleted with its owner.
pub(crate) fn owned_by(owner: &impl Resource<DynamicType = ()>) -> Option<Vec<OwnerReference>> {
    let reference = owner.controller_owner_ref(&())?;
    Some(vec![OwnerReference {
        block_owner_deletion: Some(true),
        ..reference
    }])
}

/// Name, labels and owner of a job's objects.
fn metadata(job: &ViTTrainingJob, name: String) -> ObjectMeta {
    ObjectMeta {
        name: Some(name),
        namespace: job.namespace(),
        labels: Some(job_labels(job)),
        owner_references: owned_by(job),
        ..ObjectMeta::default()
    }
}

/// Name of an attempt's single object of a kind.
pub(crate) fn name_of_attempt(job: &ViTTrainingJob, attempt: i32) -> String {
    format!("{}-{attempt}", job.name_any())
}

/// Name, labels and owner of an attempt's single object of a kind.
fn metadata_of_attempt(job: &ViTTrainingJob, attempt: i32) -> ObjectMeta {
    let mut metadata = metadata(job, name_of_attempt(job, attempt));
    metadata
        .labels
        .get_or_insert_default()
        .insert(labels::ATTEMPT.into(), attempt.to_string());
    metadata
}

fn job_labels(job: &ViTTrainingJob) -> BTreeMap<String, String> {
    BTreeMap::from([
        (labels::MANAGED_BY.into(), labels::MANAGER.into()),
        (labels::JOB_NAME.into(), job.name_any()),
    ])
}

pub(crate) fn selector(job: &ViTTrainingJob) -> BTreeMap<String, String> {
    BTreeMap::from([(labels::JOB_NAME.into(), job.name_any())])
}

fn variable(name: &str, value: impl Into<String>) -> EnvVar {
    EnvVar {
        name: name.into(),
        value: Some(value.into()),
        value_from: None,
    }
}

/// Without privileges but these capabilities.
fn confined(capabilities: Vec<String>) -> SecurityContext {
    SecurityContext {
        allow_privilege_escalation: Some(false),
        read_only_root_filesystem: Some(true),
        capabilities: Some(Capabilities {
            drop: Some(vec!["ALL".into()]),
            add: (!capabilities.is_empty()).then_some(capabilities),
        }),
        ..SecurityContext::default()
    }
}

#[cfg(test)]
mod tests;
