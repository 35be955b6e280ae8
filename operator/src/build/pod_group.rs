//! The PodGroup of one attempt (KEP-4671, `scheduling.k8s.io/v1alpha2`): kube-scheduler binds all pods of a gang, or none.

use crds::ViTTrainingJob;
use k8s_openapi::api::scheduling::v1alpha2::{
    GangSchedulingPolicy, PodGroup, PodGroupSchedulingPolicy, PodGroupSpec,
};

use super::{metadata_of_attempt, name_of_attempt};

/// Name of an attempt's PodGroup.
pub(crate) fn name(job: &ViTTrainingJob, attempt: i32) -> String {
    name_of_attempt(job, attempt)
}

/// The PodGroup of a gang of so many pods.
pub(crate) fn build(job: &ViTTrainingJob, attempt: i32, gang_size: usize) -> PodGroup {
    PodGroup {
        metadata: metadata_of_attempt(job, attempt),
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
