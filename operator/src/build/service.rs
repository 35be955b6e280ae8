//! The headless Service that gives every pod of a job a name in DNS.

use crds::ViTTrainingJob;
use k8s_openapi::api::core::v1::{Service, ServiceSpec};
use kube::ResourceExt as _;

use super::{metadata, selector};

/// Name of a job's Service, and subdomain of its pods.
pub(crate) fn name(job: &ViTTrainingJob) -> String {
    job.name_any()
}

/// The Service. It tells addresses of pods that are not ready too: ranks meet before they are.
pub(crate) fn build(job: &ViTTrainingJob) -> Service {
    Service {
        metadata: metadata(job, name(job)),
        spec: Some(ServiceSpec {
            cluster_ip: Some("None".into()),
            publish_not_ready_addresses: Some(true),
            selector: Some(selector(job)),
            ..ServiceSpec::default()
        }),
        status: None,
    }
}
