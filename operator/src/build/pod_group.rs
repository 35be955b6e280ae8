//! The PodGroup of one attempt (KEP-4671): kube-scheduler binds all pods of a gang, or none.

use crds::ViTTrainingJob;
use kube::core::DynamicObject;
use serde_json::json;

use super::metadata_of_attempt;
use crate::api::pod_group::Version;

/// The PodGroup of a gang of this many pods. All versions share these fields.
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
