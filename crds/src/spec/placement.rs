use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Placement says which GPUs are suitable, and how close to each other. By default all nodes of a
/// job have identical GPUs: same product, memory, number per node, and driver.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Placement {
    /// homogeneity says whether GPUs must be identical: Required; Preferred (identical GPUs if the
    /// gang fits, otherwise as few kinds as possible); or Off. Every step waits for the slowest
    /// GPU, so a mixed gang is as fast as its slowest member, unless training.balance is Weighted.
    #[serde(default)]
    pub homogeneity: Homogeneity,
    /// gpu narrows the choice of GPUs.
    #[serde(default)]
    pub gpu: GpuRequirements,
    /// topology says how close to each other the nodes must be.
    #[serde(default)]
    pub topology: Topology,
    /// groupBy are further node labels that identical GPUs must share, such as the machine type.
    #[serde(default)]
    #[schemars(length(max = 8), inner(length(min = 1, max = 316)))]
    pub group_by: Vec<String>,
    /// nodes are names of nodes; if given, only these are used.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 4096), inner(length(min = 1, max = 253)))]
    pub nodes: Vec<String>,
    /// excludeNodes are names of nodes to avoid.
    #[serde(default)]
    #[schemars(length(max = 4096), inner(length(min = 1, max = 253)))]
    pub exclude_nodes: Vec<String>,
}

/// Whether GPUs must be identical.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize, Deserialize, JsonSchema)]
pub enum Homogeneity {
    /// Identical GPUs, or the job waits.
    #[default]
    Required,
    /// Identical GPUs if the gang fits on them, otherwise as few kinds as possible.
    Preferred,
    /// Any GPUs.
    Off,
}

/// Topology says how close to each other the nodes must be, by labels for parts of the cluster,
/// such as blocks and racks. Ranks are numbered along them, so that neighbors in a ring are close.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Topology {
    /// required is a node label whose value all nodes must share, such as
    /// cloud.google.com/gce-topology-block; nodes without it are refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 316))]
    pub required: Option<String>,
    /// preferred are node labels from the widest part of the cluster to the narrowest. The gang is
    /// spread over as few of their values as possible, the widest first.
    #[serde(default)]
    #[schemars(length(max = 8), inner(length(min = 1, max = 316)))]
    pub preferred: Vec<String>,
}

/// GpuRequirements narrows the choice of GPUs.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GpuRequirements {
    /// products are the suitable GPU products, as in node labels (such as NVIDIA-H200); any if
    /// empty.
    #[serde(default)]
    #[schemars(length(max = 32), inner(length(min = 1, max = 63)))]
    pub products: Vec<String>,
    /// minMemoryMebibytes is the minimum memory of a GPU in MiB; nodes without a label for it are
    /// refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub min_memory_mebibytes: Option<i64>,
    /// allowShared lets time slices, MPS shares and MIG slices count as GPUs. Ranks that share a
    /// GPU share its speed. Shares of another kind or number per GPU are not identical.
    #[serde(default)]
    pub allow_shared: bool,
}
