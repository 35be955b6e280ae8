use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Volume;

/// Checkpoint sets where the state of training is kept, and whether it is continued from. One is written at the end of
/// every epoch, and when the job is told to stop.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Checkpoint {
    /// path is the folder at which the volume is mounted in the pod. A job writes to a folder of its own name in it.
    #[serde(default = "default_path")]
    #[schemars(regex(pattern = "^/[^:]+$"), length(max = 256))]
    pub path: String,
    /// volume holds the checkpoints; every node must see the same content.
    pub volume: Volume,
    /// keep is how many complete checkpoints are kept; older ones are removed.
    #[serde(default = "default_keep")]
    #[schemars(range(min = 1, max = 10_000))]
    pub keep: i32,
    /// resume says whether the first attempt continues from a checkpoint that is there (Auto), or fails if one is
    /// there (Never). Later attempts of the same job always continue.
    #[serde(default)]
    pub resume: Resume,
}

fn default_path() -> String {
    "/checkpoints".into()
}

fn default_keep() -> i32 {
    3
}

/// Whether a run continues from a checkpoint that is there.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize, Deserialize, JsonSchema)]
pub enum Resume {
    /// Continue from the newest one, if there is one.
    #[default]
    Auto,
    /// Start afresh.
    Never,
}
