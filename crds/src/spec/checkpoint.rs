use contract::CheckpointWriters;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Volume;

/// Checkpoint sets where the state of training is kept, and whether it is continued from. One is written at the end of
/// every epoch, when the job is told to stop, and as often as everySteps and everySeconds say. Training goes on while a
/// checkpoint is written; one that becomes due meanwhile is put off until that write has ended.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Checkpoint {
    /// path is the folder at which the volume is mounted in the pod. A job writes to a folder of its own name in it.
    #[serde(default = "default_path")]
    #[schemars(regex(pattern = "^/[^:]+$"), length(max = 256))]
    pub path: String,
    /// volume holds the checkpoints; every node must see the same content. Without it they are in the pod of the first rank and
    /// go with it, so that every attempt begins at the first step: for trials and measurements.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume: Option<Volume>,
    /// keep is how many complete checkpoints are kept; older ones are removed.
    #[serde(default = "default_keep")]
    #[schemars(range(min = 1, max = 10_000))]
    pub keep: i32,
    /// everySteps is how many optimizer steps lie between two checkpoints within an epoch: one is due at each multiple.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub every_steps: Option<i32>,
    /// everySeconds is after how many seconds without a checkpoint the next one is due. Both may be given.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 31_536_000))]
    pub every_seconds: Option<i32>,
    /// resume says what becomes of a checkpoint that is there when the job starts: Auto continues from it, whichever
    /// job of this namespace made it; Never fails, unless an earlier attempt of this very job made it (jobs are told
    /// apart by their uid). A checkpoint of a job in another namespace is always refused.
    #[serde(default)]
    pub resume: Resume,
    /// writers says which ranks write a checkpoint. FirstRank collects all tensors on the first rank. With EveryRank every rank
    /// holds and writes its share of them, into files of its own, on a volume that all ranks share: writing takes less of the
    /// first rank's memory, and less time; to resume, the first rank reads all. Auto is EveryRank above 1,000,000,000
    /// parameters, else FirstRank. Either continues from the other.
    #[serde(default)]
    pub writers: CheckpointWriters,
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
