//! The node and the job of a pod.

use crds::{ViTTrainingJob, labels};
use k8s_openapi::api::core::v1::Pod;
use kube::{Resource as _, ResourceExt as _};

/// The job of an object. Includes the namespace, so that nobody can create objects of a job in
/// another namespace by its uid in an owner reference.
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

/// No job gets as far; one beyond it is forged.
const LAST_ATTEMPT: i32 = i32::MAX / 2;

/// The place of a job's pod in its gang.
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
    /// Reads it from labels and owner; `None` for other pods, and if someone forged an attempt that
    /// leaves none after it.
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
            attempt: label(labels::ATTEMPT)?
                .parse()
                .ok()
                .filter(|attempt| (1..=LAST_ATTEMPT).contains(attempt))?,
            node_rank: label(labels::NODE_RANK)?.parse().ok()?,
            gang_size: label(labels::GANG_SIZE)?.parse().ok()?,
        })
    }
}

/// Whether all containers of a pod have ended.
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

/// The node that a scheduler bound a pod to.
pub fn bound_node(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
}

/// The node that a job's pod is pinned to.
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_attempt_after_which_none_is_left_is_forged() {
        for (attempt, expected) in [
            ("1", Some(1)),
            ("1073741823", Some(1_073_741_823)),
            ("1073741824", None),
            ("2147483647", None),
            ("0", None),
            ("-1", None),
        ] {
            let pod = json!({"metadata": {
                "labels": {labels::ATTEMPT: attempt, labels::NODE_RANK: "0", labels::GANG_SIZE: "1"},
                "ownerReferences": [{
                    "apiVersion": "vit-operator.dev/v1alpha1", "kind": "ViTTrainingJob", "name": "digits",
                    "uid": "1", "controller": true,
                }],
            }});
            let pod = serde_json::from_value(pod).expect("a pod");
            assert_eq!(
                Membership::of(&pod).map(|place| place.attempt),
                expected,
                "{attempt}"
            );
        }
    }
}
