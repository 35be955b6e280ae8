//! The headless Service that gives the pod of rank 0 a DNS name, for the ranks' rendezvous.

use crds::{ViTTrainingJob, labels};
use k8s_openapi::api::core::v1::{Service, ServiceSpec};
use kube::ResourceExt as _;

use super::{metadata, selector};

/// Publishes the address before the pod is ready, because ranks connect earlier. Selects only rank
/// 0: nobody resolves other pods, whose endpoints would be rewritten whenever one becomes ready.
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
