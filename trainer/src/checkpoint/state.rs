//! The part of a checkpoint that is not tensors.

use std::path::Path;

use contract::{JobIdentity, ModelConfig};
use serde::{Deserialize, Serialize};

use super::CheckpointError;
use crate::data::DataIdentity;
use crate::loss_scale::LossScale;

/// The `format` in every file of this kind.
const FORMAT: &str = "vit-trainer checkpoint";
/// Raised with every change that older readers would misread.
const VERSION: u32 = 2;

/// The position of a checkpoint in the run. With the seed it determines what follows: the order of
/// images, augmentation and drop path are functions of seed, epoch, step and place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Position {
    /// Epochs finished.
    pub(crate) epoch: u32,
    /// Images used of the running epoch's order. Images instead of steps, so that it is valid for
    /// any number of ranks.
    pub(crate) images_into_epoch: u64,
    /// Optimizer steps finished, including those skipped because gradients overflowed fp16.
    pub(crate) step: u64,
    /// Optimizer steps that changed the weights.
    pub(crate) updates: u64,
    /// Correctly classified images of the running epoch.
    pub(crate) correct: u64,
    /// Classified images of the running epoch.
    pub(crate) counted: u64,
    /// The loss scale; only with fp16.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) loss_scale: Option<LossScale>,
}

/// The result of the last evaluation, if there was one.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Validation {
    pub(crate) accuracy: Option<f64>,
    /// Only if images may show several classes.
    pub(crate) mean_average_precision: Option<f64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct State {
    format: String,
    version: u32,
    pub(crate) job: JobIdentity,
    pub(crate) position: Position,
    pub(crate) model: ModelConfig,
    validation_accuracy: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    validation_mean_average_precision: Option<f64>,
    /// The training data; absent in older checkpoints.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) data: Option<DataIdentity>,
}

impl State {
    pub(crate) fn new(
        job: JobIdentity,
        position: Position,
        model: ModelConfig,
        validation: Validation,
        data: DataIdentity,
    ) -> Self {
        Self {
            format: FORMAT.into(),
            version: VERSION,
            job,
            position,
            model,
            validation_accuracy: validation.accuracy,
            validation_mean_average_precision: validation.mean_average_precision,
            data: Some(data),
        }
    }

    pub(crate) fn validation(&self) -> Validation {
        Validation {
            accuracy: self.validation_accuracy,
            mean_average_precision: self.validation_mean_average_precision,
        }
    }

    pub(super) fn to_json(&self) -> serde_json::Result<Vec<u8>> {
        serde_json::to_vec_pretty(self)
    }

    pub(super) fn parse(path: &Path, content: &[u8]) -> Result<Self, CheckpointError> {
        let corrupt = |message: String| CheckpointError::Corrupt {
            path: path.into(),
            message,
        };
        let state: Self = serde_json::from_slice(content).map_err(|error| corrupt(error.to_string()))?;
        if state.format != FORMAT || state.version != VERSION {
            return Err(corrupt(format!(
                "it is {:?} version {}, this trainer reads {FORMAT:?} version {VERSION}",
                state.format, state.version
            )));
        }
        Ok(state)
    }
}
