//! Checkpoints: one folder `step-<n>` each, either complete or absent.
//!
//! A checkpoint is copied to host memory between two steps ([`Snapshot`]). During training,
//! [`Writer`] writes and flushes it in a hidden folder, which is renamed twice: to a hidden name
//! that marks it complete, and to its place. A killed run leaves a hidden folder: the next run
//! removes it, or moves it to its place if complete.
//!
//! ```text
//! <checkpoint folder>/log.jsonl
//!                    /owner.json                          the run that may write here
//!                    /step-00000120/model.safetensors       weights under timm's names
//!                                  /optimizer.safetensors   the optimizer's state, under PyTorch's names
//!                                  /ema.safetensors         the average of the weights, if there is one
//!                                  /state.json              position in the run, and the model
//!                                  /checksums.json          length and CRC-32 of each of them
//! ```
//!
//! If every rank writes ([`shares`]), it is `model-00001-of-00008.safetensors` and so on, with
//! `model.safetensors.index.json`.

mod cadence;
mod checksums;
mod error;
mod folder;
mod ownership;
mod restore;
mod shares;
mod snapshot;
mod state;
mod stored;
#[cfg(test)]
mod tests;
mod weights;
mod writer;

use serde::{Deserialize, Serialize};
use tch::Tensor;
use torch_ext::Member;

pub(crate) use cadence::Cadence;
pub(crate) use error::CheckpointError;
pub(crate) use folder::{CheckpointFolder, has_checkpoints};
pub(crate) use ownership::Owner;
pub(crate) use restore::{Loaded, Run, SavedAverage};
pub(crate) use shares::{Lost, assign};
pub(crate) use snapshot::Snapshot;
pub(crate) use state::{Position, State, Validation};
pub(crate) use stored::Stored;
pub(crate) use weights::{SavedCheckpoint, WeightsKind, locate};
pub(crate) use writer::{Writer, Written};

const STATE_FILE: &str = "state.json";
const SUFFIX: &str = ".safetensors";
const MODEL_FILE: &str = "model.safetensors";
const OPTIMIZER_FILE: &str = "optimizer.safetensors";
const AVERAGE_FILE: &str = "ema.safetensors";

/// Named tensors, whole.
pub(crate) type Named = Vec<(String, Tensor)>;

/// A group of tensors in every checkpoint of a run.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Part {
    Model,
    Optimizer,
    Average,
}

impl Part {
    /// Its file if one rank writes it.
    fn file(self) -> &'static str {
        match self {
            Self::Model => MODEL_FILE,
            Self::Optimizer => OPTIMIZER_FILE,
            Self::Average => AVERAGE_FILE,
        }
    }

    /// A rank's file of it.
    fn file_of(self, member: Member) -> String {
        let whole = self.file();
        match whole.strip_suffix(SUFFIX) {
            Some(stem) if member.size > 1 => format!("{stem}-{}{SUFFIX}", shares::number(member)),
            _ => whole.into(),
        }
    }

    /// The index of tensors by file, if several ranks write it.
    fn index(self) -> String {
        format!("{}.index.json", self.file())
    }
}

/// Names and shapes of a part's tensors.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Expected {
    pub(crate) part: Part,
    pub(crate) tensors: Vec<(String, Vec<i64>)>,
}
