use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Placement says which GPUs will do, and how near to one another. Unless homogeneity says otherwise, all pods of a job
/// go to nodes whose GPUs are alike: same product, memory, number a node, and driver.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Placement {
    /// homogeneity says whether GPUs must be alike: Required; Preferred (like GPUs where the gang fits on them,
    /// otherwise as few kinds as possible); or Off. Every step waits for the slowest GPU, so a mixed gang is as fast as
    /// its slowest member, unless training.balance is Weighted.
    #[serde(default)]
    pub homogeneity: Homogeneity,
    /// gpu narrows the choice of GPUs.
    #[serde(default)]
    pub gpu: GpuRequirements,
    /// topology says how near to one another the nodes are to be.
    #[serde(default)]
    pub topology: Topology,
    /// groupBy are further node labels whose values must be equal for GPUs to count as alike, such as the machine type.
    #[serde(default)]
    #[schemars(length(max = 8), inner(length(min = 1, max = 316)))]
    pub group_by: Vec<String>,
    /// nodes are names of nodes; where some are given, no others are used.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 4096), inner(length(min = 1, max = 253)))]
    pub nodes: Vec<String>,
    /// excludeNodes are names of nodes that are not used.
    #[serde(default)]
    #[schemars(length(max = 4096), inner(length(min = 1, max = 253)))]
    pub exclude_nodes: Vec<String>,
}

/// Whether GPUs must be alike.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize, Deserialize, JsonSchema)]
pub enum Homogeneity {
    /// Like GPUs, or the job waits.
    #[default]
    Required,
    /// Like GPUs where the gang fits on them, otherwise as few kinds as possible.
    Preferred,
    /// Any GPUs.
    Off,
}

/// Topology says how near to one another the nodes are to be, by labels that name parts of the cluster, such as blocks
/// and racks. Ranks are numbered along them, so that neighbours in a ring are near.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Topology {
    /// required is a node label of which all nodes must have the same value, such as
    /// cloud.google.com/gce-topology-block; nodes without it are refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 316))]
    pub required: Option<String>,
    /// preferred are node labels from the widest part of the cluster to the closest; the gang is spread over as few of
    /// their values as possible, the widest first.
    #[serde(default)]
    #[schemars(length(max = 8), inner(length(min = 1, max = 316)))]
    pub preferred: Vec<String>,
}

/// GpuRequirements narrows the choice of GPUs.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GpuRequirements {
    /// products are the GPU products that will do, as nodes are labelled with them (such as NVIDIA-H200); any if empty.
    #[serde(default)]
    #[schemars(length(max = 32), inner(length(min = 1, max = 63)))]
    pub products: Vec<String>,
    /// minMemoryMebibytes is the least memory of a GPU in MiB; nodes whose labels do not tell it are refused then.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub min_memory_mebibytes: Option<i64>,
    /// allowShared lets time slices, MPS shares and MIG slices count as GPUs. Ranks on shares of one GPU share its speed; shares of
    /// another kind or number to a GPU are not alike.
    #[serde(default)]
    pub allow_shared: bool,
}
