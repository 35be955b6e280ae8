//! The NetworkPolicy of a job's pods. Collectives and the rendezvous store have no authentication:
//! only ranks of the same job may connect.

use contract::environment::DEFAULT_AGENT_PORT;
use crds::ViTTrainingJob;
use k8s_openapi::api::networking::v1::{
    NetworkPolicy, NetworkPolicyIngressRule, NetworkPolicyPeer, NetworkPolicyPort, NetworkPolicySpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt as _;

use super::{metadata, selector};

/// Pods of the job can connect to one another on any port, and everyone to the agent's port with
/// metrics and progress. Egress is unlimited: data and checkpoints may be anywhere.
pub(crate) fn build(job: &ViTTrainingJob) -> NetworkPolicy {
    let pods = LabelSelector {
        match_labels: Some(selector(job)),
        ..LabelSelector::default()
    };
    let of_the_job = NetworkPolicyIngressRule {
        from: Some(vec![NetworkPolicyPeer {
            pod_selector: Some(pods.clone()),
            ..NetworkPolicyPeer::default()
        }]),
        ports: None,
    };
    let agent = NetworkPolicyIngressRule {
        from: None,
        ports: Some(vec![NetworkPolicyPort {
            port: Some(IntOrString::Int(DEFAULT_AGENT_PORT.into())),
            protocol: Some("TCP".into()),
            end_port: None,
        }]),
    };
    NetworkPolicy {
        metadata: metadata(job, job.name_any()),
        spec: Some(NetworkPolicySpec {
            pod_selector: Some(pods),
            policy_types: Some(vec!["Ingress".into()]),
            ingress: Some(vec![of_the_job, agent]),
            egress: None,
        }),
    }
}
