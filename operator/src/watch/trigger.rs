//! The jobs that a change concerns.

use crds::ViTTrainingJob;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Api, Client, Resource};

/// The jobs to reconcile after a change in the caches.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Trigger {
    /// One job.
    Job { namespace: String, name: String },
    /// Every job that waits, for GPUs or a queue's quota.
    Waiting,
    /// The waiting jobs about which the planner now decides otherwise.
    Capacity,
}

/// The job that controls an object.
pub(super) fn owner_of(metadata: &ObjectMeta) -> Option<Trigger> {
    let owner = metadata
        .owner_references
        .iter()
        .flatten()
        .find(|owner| owner.controller == Some(true) && owner.kind == ViTTrainingJob::kind(&()))?;
    Some(Trigger::Job {
        namespace: metadata.namespace.clone()?,
        name: owner.name.clone(),
    })
}

pub(crate) fn is_owned_by(metadata: &ObjectMeta, job: &ViTTrainingJob) -> bool {
    let job = &job.metadata;
    let mut owners = metadata.owner_references.iter().flatten();
    // An owner is in the namespace of its objects; anyone could name its uid elsewhere.
    metadata.namespace == job.namespace && owners.any(|owner| Some(&owner.uid) == job.uid.as_ref())
}

/// The API of a kind in the namespaces whose jobs are reconciled.
pub(crate) fn own_api<K>(client: &Client, namespace: Option<&str>) -> Api<K>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
{
    match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    }
}
