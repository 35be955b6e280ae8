//! What of Kueue's API the operator needs (`kueue.x-k8s.io/v1beta2`, Kueue 0.15 or newer): the Workload, by which a job asks for
//! quota, and the ResourceFlavor, which says on which nodes that quota is. Fields that are not used here are kept as they
//! are in a Workload's status, which Kueue and the operator share.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{PodTemplateSpec, Toleration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Name of a Workload's only set of pods.
pub(crate) const POD_SET: &str = "workers";

/// Types of a Workload's conditions.
pub(crate) mod conditions {
    /// A ClusterQueue keeps quota for it, and all its admission checks are ready.
    pub(crate) const ADMITTED: &str = "Admitted";
    /// A ClusterQueue keeps quota for it.
    pub(crate) const QUOTA_RESERVED: &str = "QuotaReserved";
    /// It is to stop and give its quota back.
    pub(crate) const EVICTED: &str = "Evicted";
    /// Whether it was put into the queue again after an eviction.
    pub(crate) const REQUEUED: &str = "Requeued";
    pub(crate) const PODS_READY: &str = "PodsReady";
    pub(crate) const FINISHED: &str = "Finished";
}

/// What asks for quota.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "kueue.x-k8s.io",
    version = "v1beta2",
    kind = "Workload",
    namespaced,
    schema = "disabled",
    status = "WorkloadStatus",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct WorkloadSpec {
    pub(crate) queue_name: String,
    pub(crate) pod_sets: Vec<PodSet>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) priority_class_ref: Option<PriorityClassRef>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) priority: Option<i32>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PodSet {
    pub(crate) name: String,
    pub(crate) count: i32,
    /// The least number of them that will do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) min_count: Option<i32>,
    pub(crate) template: PodTemplateSpec,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct PriorityClassRef {
    pub(crate) group: String,
    pub(crate) kind: String,
    pub(crate) name: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct WorkloadStatus {
    pub(crate) conditions: Vec<Condition>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) admission: Option<Admission>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) admission_checks: Vec<AdmissionCheck>,
    #[serde(flatten)]
    pub(crate) others: BTreeMap<String, Value>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Admission {
    pub(crate) cluster_queue: String,
    pub(crate) pod_set_assignments: Vec<PodSetAssignment>,
    #[serde(flatten)]
    pub(crate) others: BTreeMap<String, Value>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PodSetAssignment {
    pub(crate) name: String,
    pub(crate) flavors: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) count: Option<i32>,
    #[serde(flatten)]
    pub(crate) others: BTreeMap<String, Value>,
}

/// What else has a say, such as an autoscaler.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct AdmissionCheck {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) pod_set_updates: Vec<PodSetUpdate>,
    #[serde(flatten)]
    pub(crate) others: BTreeMap<String, Value>,
}

/// What an admission check wants of a set of pods.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PodSetUpdate {
    pub(crate) name: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) node_selector: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) tolerations: Vec<Toleration>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) labels: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) annotations: BTreeMap<String, String>,
}

/// Nodes of one kind, as Kueue sees them.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "kueue.x-k8s.io",
    version = "v1beta2",
    kind = "ResourceFlavor",
    schema = "disabled"
)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ResourceFlavorSpec {
    pub(crate) node_labels: BTreeMap<String, String>,
    /// Given to the pods that get quota of it.
    pub(crate) tolerations: Vec<Toleration>,
}

impl Workload {
    /// The condition of that type, where it is true.
    pub(crate) fn has(&self, type_: &str) -> Option<&Condition> {
        self.condition(type_)
            .filter(|condition| condition.status == "True")
    }

    pub(crate) fn condition(&self, type_: &str) -> Option<&Condition> {
        self.status
            .as_ref()?
            .conditions
            .iter()
            .find(|condition| condition.type_ == type_)
    }

    /// Names of the flavors that were assigned to it.
    pub(crate) fn flavors(&self) -> BTreeSet<&str> {
        let admission = self.status.as_ref().and_then(|status| status.admission.as_ref());
        let assignments = admission
            .into_iter()
            .flat_map(|admission| &admission.pod_set_assignments);
        assignments
            .flat_map(|assignment| assignment.flavors.values())
            .map(String::as_str)
            .collect()
    }
}
