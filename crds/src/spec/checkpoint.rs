use contract::{CheckpointWriters, Resume};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Volume;

/// Checkpoint sets where training state is saved, and whether a job resumes from it. Checkpoints
/// are written at the end of every epoch, when the job stops, and after everySteps and
/// everySeconds. Training continues during a write; a checkpoint due meanwhile follows it.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Checkpoint {
    /// path is the folder at which the volume is mounted in the pod. A job writes to a subfolder
    /// with its name.
    #[serde(default = "default_path")]
    #[schemars(regex(pattern = "^/[^:]+$"), length(max = 256))]
    pub path: String,
    /// volume holds the checkpoints; every node must see the same content. Without it, they are
    /// lost with the first rank's pod and every attempt starts at the first step: for trials and
    /// measurements.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume: Option<Volume>,
    /// keep is the number of complete checkpoints to keep; older ones are removed.
    #[serde(default = "default_keep")]
    #[schemars(range(min = 1, max = 10_000))]
    pub keep: i32,
    /// everySteps is the number of optimizer steps between checkpoints within an epoch: one is due
    /// at each multiple.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub every_steps: Option<i32>,
    /// everySeconds is the time after a checkpoint until the next one is due.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 31_536_000))]
    pub every_seconds: Option<i32>,
    /// stopSeconds is how long the pods of a suspended, resized or evicted job may save before they
    /// are killed: their terminationGracePeriodSeconds.
    #[serde(default = "default_stop_seconds")]
    #[schemars(range(min = 10, max = 3600))]
    pub stop_seconds: i32,
    /// resume says how a job starts if a checkpoint exists. Auto continues from it, whichever job
    /// of this namespace wrote it. Never fails, unless an earlier attempt of the same job (by uid)
    /// wrote it. Checkpoints of other namespaces are always refused.
    #[serde(default)]
    pub resume: Resume,
    /// writers says which ranks write a checkpoint. FirstRank gathers all tensors on the first
    /// rank. With EveryRank, each rank writes its share of them to separate files on a shared
    /// volume, which is faster and needs less memory on the first rank; to resume, the first rank
    /// reads all. Auto is EveryRank above 1,000,000,000 parameters, else FirstRank. Each can resume
    /// from the other.
    #[serde(default)]
    pub writers: CheckpointWriters,
}

fn default_path() -> String {
    "/checkpoints".into()
}

fn default_stop_seconds() -> i32 {
    120
}

fn default_keep() -> i32 {
    3
}
