use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Placement says which GPUs will do. All pods of a job go to nodes whose GPUs are alike: same product, memory, number
/// a node, and driver.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Placement {
    /// gpu narrows the choice of GPUs.
    #[serde(default)]
    pub gpu: GpuRequirements,
    /// excludeNodes are names of nodes that are not used.
    #[serde(default)]
    #[schemars(length(max = 256), inner(length(min = 1, max = 253)))]
    pub exclude_nodes: Vec<String>,
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
}
