//! The part of a checkpoint that is not tensors.

use std::io::Write as _;
use std::path::Path;

use contract::ModelConfig;
use fs_err as fs;
use serde::{Deserialize, Serialize};

use super::CheckpointError;

/// What `format` says in every file of this kind.
const FORMAT: &str = "vit-trainer checkpoint";
/// Raised with every change that older readers would misread.
const VERSION: u32 = 1;

/// Where in the run a checkpoint was made. With the seed it determines everything that follows: the order of images
/// is a function of seed and epoch, and nothing else in training is random.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Position {
    /// Epochs finished.
    pub(crate) epoch: u32,
    /// Images of the running epoch's order that are used up. In images, not steps, so that it holds for any number of
    /// ranks.
    pub(crate) images_into_epoch: u64,
    /// Optimizer steps finished.
    pub(crate) step: u64,
    /// Images of the running epoch that were classified right.
    pub(crate) correct: u64,
    /// Images of the running epoch that were classified.
    pub(crate) counted: u64,
}

/// `state.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct State {
    format: String,
    version: u32,
    pub(crate) position: Position,
    pub(crate) model: ModelConfig,
    pub(crate) validation_accuracy: Option<f64>,
}

impl State {
    pub(crate) fn new(position: Position, model: ModelConfig, validation_accuracy: Option<f64>) -> Self {
        Self {
            format: FORMAT.into(),
            version: VERSION,
            position,
            model,
            validation_accuracy,
        }
    }

    pub(super) fn write(&self, path: &Path) -> std::io::Result<()> {
        let mut file = fs::File::create(path)?;
        file.write_all(&serde_json::to_vec_pretty(self)?)?;
        file.sync_all()
    }

    pub(super) fn read(path: &Path) -> Result<Self, CheckpointError> {
        let corrupt = |message: String| CheckpointError::Corrupt {
            path: path.into(),
            message,
        };
        let bytes = fs::read(path).map_err(CheckpointError::Read)?;
        let state: Self = serde_json::from_slice(&bytes).map_err(|error| corrupt(error.to_string()))?;
        if state.format != FORMAT || state.version != VERSION {
            return Err(corrupt(format!(
                "it is {:?} version {}, this trainer reads {FORMAT:?} version {VERSION}",
                state.format, state.version
            )));
        }
        Ok(state)
    }
}
