//! The PodGroup of one attempt (KEP-4671): kube-scheduler binds all pods of a gang, or none.

use crds::ViTTrainingJob;
use kube::core::{ApiResource, DynamicObject};
use serde_json::json;

use super::{metadata_of_attempt, name_of_attempt};

/// The kind.
pub(crate) const POD_GROUP: &str = "PodGroup";

/// Name of an attempt's PodGroup.
pub(crate) fn name(job: &ViTTrainingJob, attempt: i32) -> String {
    name_of_attempt(job, attempt)
}

/// A version of `scheduling.k8s.io` in which PodGroups have the fields that a gang needs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Version(pub(crate) &'static str);

impl Version {
    /// The newest first: Kubernetes 1.37 serves the first two, 1.36 the last.
    pub(crate) const ALL: [Self; 3] = [Self("v1beta1"), Self("v1alpha3"), Self("v1alpha2")];

    /// Its PodGroups.
    pub(crate) fn resource(self) -> ApiResource {
        let Self(version) = self;
        ApiResource {
            group: "scheduling.k8s.io".into(),
            version: version.into(),
            api_version: format!("scheduling.k8s.io/{version}"),
            kind: POD_GROUP.into(),
            plural: "podgroups".into(),
        }
    }
}

/// The PodGroup of a gang of so many pods. What is said here is the same in all versions.
pub(crate) fn build(version: Version, job: &ViTTrainingJob, attempt: i32, gang_size: usize) -> DynamicObject {
    let mut spec = json!({"schedulingPolicy": {"gang": {"minCount": gang_size}}});
    if let Some(class) = &job.spec.workers.priority_class_name {
        // Dropped by servers without the feature gate WorkloadAwarePreemption.
        spec["priorityClassName"] = json!(class);
    }
    DynamicObject {
        metadata: metadata_of_attempt(job, attempt),
        ..DynamicObject::new("", &version.resource()).data(json!({"spec": spec}))
    }
}
