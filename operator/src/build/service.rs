//! The headless Service that gives the pod of rank 0 a name in DNS, at which the ranks meet.

use crds::{ViTTrainingJob, labels};
use k8s_openapi::api::core::v1::{Service, ServiceSpec};
use kube::ResourceExt as _;

use super::{metadata, selector};

/// The Service. It tells the address of a pod that is not ready, too: ranks meet before they are. Nobody asks for the other
/// pods by name, and the endpoints of a thousand would be written anew whenever one of them gets ready.
pub(crate) fn build(job: &ViTTrainingJob) -> Service {
    let mut selector = selector(job);
    selector.insert(labels::NODE_RANK.into(), "0".into());
    Service {
        metadata: metadata(job, job.name_any()),
        spec: Some(ServiceSpec {
            cluster_ip: Some("None".into()),
            publish_not_ready_addresses: Some(true),
            selector: Some(selector),
            ..ServiceSpec::default()
        }),
        status: None,
    }
}
