//! Why a job waits for GPUs or did not get some: codes, numbers and a few names.
//! [`words`](crate::words) renders them.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// WaitStatus is what a job waits for, and its place in the queue for GPUs.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WaitStatus {
    /// nodes is the number of nodes that the gang needs; for an elastic gang the smallest.
    pub nodes: i32,
    /// maxNodes is the largest size of an elastic gang.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_nodes: Option<i32>,
    /// position is the job's place among the waiting jobs, from 1.
    pub position: i32,
    /// waiting is the number of jobs that do not fit now.
    pub waiting: i32,
    /// reservedNodes is the number of nodes reserved for the job.
    pub reserved_nodes: i32,
    /// heldBackFor is another job with a reservation of a node that fits this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_back_for: Option<String>,
    /// overduePods are deleted pods of the job that did not end in time and keep their GPUs; at most 16.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overdue_pods: Vec<OverduePod>,
}

/// OverduePod is a deleted pod that did not end in time.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct OverduePod {
    /// name of the pod.
    pub name: String,
    /// node of the pod, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
}

/// RejectedGroup is a group of nodes that was not chosen, with the reasons.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RejectedGroup {
    /// group is the GPU product; empty for nodes outside all groups.
    pub group: String,
    /// nodes is the number of the group's nodes.
    pub nodes: i32,
    /// fittingNodes is how many of them fit a pod of the gang.
    pub fitting_nodes: i32,
    /// largestDomain is how many of those share a value of placement.topology.required, if that is
    /// too few.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub largest_domain: Option<i32>,
    /// leftOverGpus is present if the gang fits, but another group was the better choice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left_over_gpus: Option<LeftOverGpus>,
    /// reasons are why the other nodes do not fit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<RejectedNodes>,
}

impl RejectedGroup {
    /// Its name for a list.
    pub fn name(&self) -> &str {
        if self.group.is_empty() {
            "no group"
        } else {
            &self.group
        }
    }
}

/// LeftOverGpus counts the GPUs of fitting nodes, used or not, that the gang would leave over.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LeftOverGpus {
    /// rejected is their number in this group.
    pub rejected: i64,
    /// chosen is their number in the chosen group.
    pub chosen: i64,
}

/// Defines [`Refusal`] from its variants and their texts, and the type whose schema lists them.
macro_rules! refusals {
    ($($name:ident => $words:literal,)+) => {
        /// Why a node does not fit a pod of the gang, in the order of checks and lists.
        #[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize, Deserialize, JsonSchema)]
        pub enum Refusal {
            $(#[doc = concat!("A node ", $words, ".")] $name,)+
            /// A reason of a newer operator.
            #[serde(other)]
            Unknown,
        }

        impl Refusal {
            /// All known reasons, in order.
            pub const ALL: [Self; [$(Self::$name,)+].len()] = [$(Self::$name,)+];
        }

        impl fmt::Display for Refusal {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str(match self {
                    $(Self::$name => $words,)+
                    Self::Unknown => "that a newer operator rejected",
                })
            }
        }

        /// RejectedNodes are the nodes of a group that do not fit for one reason.
        #[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize, JsonSchema)]
        pub struct RejectedNodes {
            #[doc = concat!("code is the reason. The nodes are", $("\n", stringify!($name), ": ", $words, ";",)+)]
            /// Unknown: a reason of a newer operator.
            pub code: Refusal,
            /// nodes is their number.
            pub nodes: i32,
            /// names are the first of them; at most 3.
            pub names: Vec<String>,
            /// taints of these named nodes keep pods out, as `key=value:effect`; at most 3.
            #[serde(default, skip_serializing_if = "Vec::is_empty")]
            pub taints: Vec<String>,
        }
    };
}

refusals! {
    NotNamed => "not named by placement.nodes",
    Excluded => "excluded by placement.excludeNodes",
    FailedBefore => "where attempts of this job failed",
    WasSlow => "where a rank of this job was slow",
    // Or without those of the flavors that Kueue assigned.
    SelectorMismatch => "without the labels of workers.nodeSelector",
    NoTopologyLabel => "without the label of placement.topology.required",
    NoProductLabel => "without a label that names the GPU product",
    // An elastic gang fits on GPUs of its last group.
    OtherGpus => "with other GPUs than the gang had",
    OtherProduct => "not in placement.gpu.products",
    MemoryUnknown => "without a label with the GPU memory, which placement.gpu asks for",
    TooLittleGpuMemory => "with less GPU memory than placement.gpu asks for",
    Shared => "with shared GPUs or MIG slices",
    Mixed => "with GPUs of several models",
    TooFewGpus => "with fewer GPUs than workers.gpusPerNode",
    NotReady => "not ready",
    Cordoned => "cordoned",
    Tainted => "with a taint that is not tolerated",
    Unhealthy => "with unhealthy GPUs",
    InUse => "with too few free GPUs",
    NoCpu => "with too little free cpu",
    NoMemory => "with too little free memory",
    NoStorage => "with too little free ephemeral-storage",
    NoPodSlot => "with no room for another pod",
    HostPortsInUse => "where another pod uses ports that workers.hostNetwork needs",
    // Network devices, huge pages.
    NoOtherResource => "with too little of another resource that a pod asks for",
    Reserved => "reserved for a job that waits longer or has a higher priority",
}
