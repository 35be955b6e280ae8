//! Checkpoints: a folder `step-<n>` each, complete or not there at all.
//!
//! A checkpoint is copied in host memory between two steps ([`Snapshot`]) and written beside training ([`Writer`]): into
//! a hidden folder beside its place, of which every file and the folder are flushed to storage. The folder is then
//! renamed: first to a hidden name that says that it is complete, then to its place. Whoever is killed in between
//! leaves a hidden folder, which the next run removes, or puts in its place where it is complete.
//!
//! ```text
//! <checkpoint folder>/log.jsonl
//!                    /owner.json                          the run that may write here
//!                    /step-00000120/model.safetensors       weights under timm's names
//!                                  /optimizer.safetensors   the optimizer's state, under PyTorch's names
//!                                  /ema.safetensors         the average of the weights, where there is one
//!                                  /state.json              position in the run, and what the weights belong to
//!                                  /checksums.json          length and CRC-32 of each of them
//! ```
//!
//! Where every rank writes ([`shares`]) it is `model-00001-of-00008.safetensors` and so on, with
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

/// A kind of tensors in every checkpoint of a run.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Part {
    Model,
    Optimizer,
    Average,
}

impl Part {
    /// Where one rank writes it.
    fn file(self) -> &'static str {
        match self {
            Self::Model => MODEL_FILE,
            Self::Optimizer => OPTIMIZER_FILE,
            Self::Average => AVERAGE_FILE,
        }
    }

    /// What a rank writes of it.
    fn file_of(self, member: Member) -> String {
        let whole = self.file();
        match whole.strip_suffix(SUFFIX) {
            Some(stem) if member.size > 1 => format!("{stem}-{}{SUFFIX}", shares::number(member)),
            _ => whole.into(),
        }
    }

    /// Tells which file has which tensor, where several ranks write it.
    fn index(self) -> String {
        format!("{}.index.json", self.file())
    }
}

/// Names and shapes of the tensors of a part.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Expected {
    pub(crate) part: Part,
    pub(crate) tensors: Vec<(String, Vec<i64>)>,
}
