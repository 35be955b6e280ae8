//! Measuring a run.

use serde::{Deserialize, Serialize};

/// Has a run report its step times at the end.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MeasureConfig {
    /// Steps at the start that times exclude.
    pub warmup_steps: u64,
}
