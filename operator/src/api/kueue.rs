//! The parts of Kueue's API that the operator needs (`kueue.x-k8s.io/v1beta2`, Kueue 0.15 or
//! newer): Workloads, which request quota for jobs, and ResourceFlavors, which select the quota's
//! nodes. A Workload's status, which Kueue and the operator share, keeps fields unknown here.

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
    /// A ClusterQueue reserves quota for it, and all its admission checks are ready.
    pub(crate) const ADMITTED: &str = "Admitted";
    /// A ClusterQueue reserves quota for it.
    pub(crate) const QUOTA_RESERVED: &str = "QuotaReserved";
    /// It has to stop and release its quota.
    pub(crate) const EVICTED: &str = "Evicted";
    /// Whether it was requeued after an eviction.
    pub(crate) const REQUEUED: &str = "Requeued";
    pub(crate) const PODS_READY: &str = "PodsReady";
    pub(crate) const FINISHED: &str = "Finished";
}

/// A request for quota.
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
    /// The smallest acceptable count.
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

/// Another controller's check before admission, such as an autoscaler's.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct AdmissionCheck {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) pod_set_updates: Vec<PodSetUpdate>,
    #[serde(flatten)]
    pub(crate) others: BTreeMap<String, Value>,
}

/// An admission check's changes to a set of pods.
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

/// A kind of nodes in Kueue's quotas.
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
    /// Added to the pods that get its quota.
    pub(crate) tolerations: Vec<Toleration>,
}

impl Workload {
    /// The condition of this type, if it is true.
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

    /// Names of its assigned flavors.
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
