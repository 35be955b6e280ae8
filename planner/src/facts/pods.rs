//! What a pod object tells of where the pod is and whose it is.

use crds::{ViTTrainingJob, labels};
use k8s_openapi::api::core::v1::Pod;
use kube::{Resource as _, ResourceExt as _};

/// Which job an object belongs to. An owner is of the namespace of what it owns, so that nobody can make objects of a job
/// elsewhere, whatever uid an owner reference names.
#[derive(Clone, Debug, Default, Eq, Hash, PartialEq)]
pub struct JobKey {
    /// Of the job and all that belongs to it.
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

/// Which gang one of our own pods belongs to.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Membership {
    /// Whose pod it is.
    pub job: JobKey,
    /// From 1.
    pub attempt: i32,
    /// From 0.
    pub node_rank: usize,
    /// Pods of the gang.
    pub gang_size: usize,
}

impl Membership {
    /// `None` for pods that are not ours.
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

/// Whether a pod's containers have all ended for good.
pub fn has_ended(pod: &Pod) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}

/// A pod's phase: `Pending` before the kubelet has told one.
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
