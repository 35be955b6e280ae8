//! Where a pod is, and whose it is.

use crds::{ViTTrainingJob, labels};
use k8s_openapi::api::core::v1::Pod;
use kube::{Resource as _, ResourceExt as _};

/// The job of an object. An owner is in the namespace of its objects, so that nobody can create objects of a job in another one,
/// whatever uid an owner reference names.
#[derive(Clone, Debug, Default, Eq, Hash, PartialEq)]
pub struct JobKey {
    /// Of the job and its objects.
    pub namespace: String,
    /// Of the job.
    pub uid: String,
}

impl JobKey {
    /// The key of a job.
    pub fn of(job: &ViTTrainingJob) -> Self {
        Self {
            namespace: job.namespace().unwrap_or_default(),
            uid: job.uid().unwrap_or_default(),
        }
    }
}

/// The place of one of our own pods in its gang.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Membership {
    /// The job.
    pub job: JobKey,
    /// From 1.
    pub attempt: i32,
    /// From 0.
    pub node_rank: usize,
    /// Pods of the gang.
    pub gang_size: usize,
}

impl Membership {
    /// `None` for other pods.
    pub fn of(pod: &Pod) -> Option<Self> {
        let owner = pod
            .owner_references()
            .iter()
            .find(|owner| owner.controller == Some(true) && owner.kind == ViTTrainingJob::kind(&()))?;
        let label = |key: &str| pod.labels().get(key);
        Some(Self {
            job: JobKey {
                namespace: pod.namespace().unwrap_or_default(),
                uid: owner.uid.clone(),
            },
            attempt: label(labels::ATTEMPT)?.parse().ok()?,
            node_rank: label(labels::NODE_RANK)?.parse().ok()?,
            gang_size: label(labels::GANG_SIZE)?.parse().ok()?,
        })
    }
}

/// Whether all containers of a pod have ended for good.
pub fn has_ended(pod: &Pod) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}

/// A pod's phase: `Pending` before the kubelet has set one.
pub fn phase(pod: &Pod) -> &str {
    pod.status
        .as_ref()
        .and_then(|status| status.phase.as_deref())
        .unwrap_or("Pending")
}

/// The node a pod was bound to by a scheduler.
pub fn bound_node(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
}

/// The node one of our own pods is pinned to.
pub fn pinned_node(pod: &Pod) -> Option<&str> {
    pod.spec
        .as_ref()?
        .affinity
        .as_ref()?
        .node_affinity
        .as_ref()?
        .required_during_scheduling_ignored_during_execution
        .as_ref()?
        .node_selector_terms
        .first()?
        .match_fields
        .as_ref()?
        .first()?
        .values
        .as_ref()?
        .first()
        .map(String::as_str)
}
