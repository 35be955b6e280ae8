//! Checkpoints.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::is_default;

/// Location and schedule of checkpoints.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CheckpointConfig {
    /// Folder of this job's checkpoints, shared by all its pods.
    pub path: PathBuf,
    /// Number of complete checkpoints to keep; older ones are removed.
    pub keep: u32,
    /// Optimizer steps between checkpoints, in addition to the end of every epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every_steps: Option<u32>,
    /// Seconds between checkpoints, in addition to the end of every epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every_seconds: Option<u32>,
    /// Whether a run continues from an existing checkpoint.
    pub resume: Resume,
    /// Which ranks write it. The default is not serialized, for trainers that do not know the
    /// field.
    #[serde(default, skip_serializing_if = "is_default")]
    pub writers: CheckpointWriters,
}

/// Which ranks write a checkpoint.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize, Deserialize, JsonSchema)]
pub enum CheckpointWriters {
    /// Every rank above 1,000,000,000 parameters, else the first.
    #[default]
    Auto,
    /// The first rank writes all tensors.
    FirstRank,
    /// Every rank writes its share of the tensors to separate files.
    EveryRank,
}

impl CheckpointWriters {
    /// `Auto` lets the first rank write models of at most this many parameters: some 16 GB with
    /// optimizer and average.
    const FIRST_RANK_PARAMETERS: i64 = 1_000_000_000;

    /// How many of `ranks`, from the first, write a model of `parameters`.
    pub fn count(self, parameters: i64, ranks: u32) -> u32 {
        match self {
            Self::EveryRank => ranks,
            Self::Auto if parameters > Self::FIRST_RANK_PARAMETERS => ranks,
            Self::Auto | Self::FirstRank => 1,
        }
    }
}

/// Whether a run continues from an existing checkpoint.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize, Deserialize, JsonSchema)]
pub enum Resume {
    /// Continue from the newest complete one, if any.
    #[default]
    Auto,
    /// Start from the first step, and fail with [`ExitCode::BadConfig`](crate::ExitCode::BadConfig)
    /// if another run's checkpoint exists. Later attempts of the same job (by uid) continue.
    Never,
}
