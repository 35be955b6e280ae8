use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Elastic lets the gang train on another number of nodes than workers.nodes, with the same global batch.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Elastic {
    /// minNodes is the minimum number of nodes, at most workers.nodes.
    #[serde(default = "default_min_nodes")]
    #[schemars(range(min = 1, max = 4096))]
    pub min_nodes: i32,
    /// maxNodes is the maximum number of nodes, at least workers.nodes, which is the default. Keep it within
    /// the namespace's ResourceQuota, because a gang stops before it grows.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 4096))]
    pub max_nodes: Option<i32>,
}

fn default_min_nodes() -> i32 {
    1
}
