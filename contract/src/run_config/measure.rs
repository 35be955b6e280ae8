//! Measuring a run.

use serde::{Deserialize, Serialize};

/// A run is to say at its end what its steps took.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MeasureConfig {
    /// Steps at the start that times leave out.
    pub warmup_steps: u64,
}
