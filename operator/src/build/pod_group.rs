//! The PodGroup of one attempt (KEP-4671, `scheduling.k8s.io/v1alpha2`): kube-scheduler binds all pods of a gang, or none.

use crds::{ViTTrainingJob, labels};
use k8s_openapi::api::scheduling::v1alpha2::{
    GangSchedulingPolicy, PodGroup, PodGroupSchedulingPolicy, PodGroupSpec,
};
use kube::ResourceExt as _;

use super::metadata;

/// Name of an attempt's PodGroup.
pub(crate) fn name(job: &ViTTrainingJob, attempt: i32) -> String {
    format!("{}-{attempt}", job.name_any())
}

/// The PodGroup of a gang of so many pods.
pub(crate) fn build(job: &ViTTrainingJob, attempt: i32, gang_size: usize) -> PodGroup {
    let mut metadata = metadata(job, name(job, attempt));
    metadata
        .labels
        .get_or_insert_default()
        .insert(labels::ATTEMPT.into(), attempt.to_string());
    PodGroup {
        metadata,
        spec: PodGroupSpec {
            scheduling_policy: PodGroupSchedulingPolicy {
                gang: Some(GangSchedulingPolicy {
                    min_count: i32::try_from(gang_size).unwrap_or(i32::MAX),
                }),
                basic: None,
            },
            // Dropped by servers without the feature gate WorkloadAwarePreemption.
            priority_class_name: job.spec.workers.priority_class_name.clone(),
            ..PodGroupSpec::default()
        },
        status: None,
    }
}
