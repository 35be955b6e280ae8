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
    /// Which ranks write it. Left out at its default, for trainers that do not know the field.
    #[serde(default, skip_serializing_if = "CheckpointWriters::is_default")]
    pub writers: CheckpointWriters,
}

/// Which ranks write a checkpoint.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum CheckpointWriters {
    /// Every rank above 1,000,000,000 parameters, else the first.
    #[default]
    Auto,
    /// The first rank writes all tensors.
    FirstRank,
    /// Every rank writes its share of the tensors, into files of its own.
    EveryRank,
}

impl CheckpointWriters {
    /// `Auto` lets the first rank write models of up to so many parameters: some 16 GB with their optimizer and average.
    const FIRST_RANK_PARAMETERS: i64 = 1_000_000_000;

    /// How many of `ranks` write a model of so many parameters; the first ones do.
    pub fn count(self, parameters: i64, ranks: u32) -> u32 {
        match self {
            Self::EveryRank => ranks,
            Self::Auto if parameters > Self::FIRST_RANK_PARAMETERS => ranks,
            Self::Auto | Self::FirstRank => 1,
        }
    }

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
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
