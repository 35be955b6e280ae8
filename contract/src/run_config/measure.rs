//! Measuring a run.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Measure has a job report its step times.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Measure {
    /// warmupSteps is the number of steps at the start that times exclude.
    #[serde(default)]
    #[schemars(range(min = 0, max = 1_000_000))]
    pub warmup_steps: u32,
}
