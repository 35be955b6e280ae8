//! Checkpoints.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::rules::Rules;

/// Where and how checkpoints are kept.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CheckpointConfig {
    /// Folder of this job's checkpoints, shared by all its pods.
    pub path: PathBuf,
    /// Complete checkpoints that are kept; older ones are removed.
    pub keep: u32,
    /// Optimizer steps between two checkpoints, besides the one at the end of every epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every_steps: Option<u32>,
    /// Seconds between two checkpoints, besides the one at the end of every epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every_seconds: Option<u32>,
    /// Whether a run continues from a checkpoint that is there.
    pub resume: Resume,
}

/// Whether a run continues from a checkpoint that is there.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Resume {
    /// Continue from the newest complete one, if there is one.
    Auto,
    /// A job starts afresh, and fails with [`ExitCode::BadConfig`](crate::ExitCode::BadConfig) where a checkpoint of
    /// another run is in the way; later attempts of the same job, told by its uid, continue.
    Never,
}

impl CheckpointConfig {
    pub(super) fn check(&self, rules: &mut Rules) {
        rules.positive("checkpoint.keep", self.keep);
        for (field, interval) in [
            ("checkpoint.everySteps", self.every_steps),
            ("checkpoint.everySeconds", self.every_seconds),
        ] {
            if let Some(interval) = interval {
                rules.positive(field, interval);
            }
        }
    }
}
