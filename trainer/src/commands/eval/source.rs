//! The weights that are evaluated: of a checkpoint, or of a file.

use std::path::{Path, PathBuf};

use contract::ModelConfig;

use crate::checkpoint::{SavedCheckpoint, WeightsKind, locate};
use crate::error::TrainError;
use crate::model::Weights;

/// Where weights come from.
#[derive(Debug)]
pub(super) enum Source {
    /// A checkpoint of this trainer.
    Checkpoint(Box<SavedCheckpoint>, WeightsKind),
    /// A safetensors file with timm's or torchvision's names.
    File(PathBuf),
}

impl Source {
    /// What `named` is, or else the newest checkpoint in the job's folder.
    pub(super) fn find(
        named: Option<&Path>,
        job_folder: &Path,
        ema: bool,
        model: &ModelConfig,
    ) -> Result<Self, TrainError> {
        if let Some(file) = named.filter(|path| path.is_file()) {
            if ema {
                return Err(TrainError::Config(format!(
                    "--ema takes the moving average of a checkpoint, and {} is a single file of weights: give the checkpoint's folder, or leave --ema out",
                    file.display()
                )));
            }
            return Ok(Self::File(file.into()));
        }
        let checkpoint = SavedCheckpoint::open(locate(named.unwrap_or(job_folder))?)?;
        checkpoint.is_of(model)?;
        let kind = if ema {
            WeightsKind::Ema
        } else {
            WeightsKind::Trained
        };
        Ok(Self::Checkpoint(Box::new(checkpoint), kind))
    }

    /// The weights in 32 bits.
    pub(super) fn weights(&self) -> Result<Weights, TrainError> {
        match self {
            Self::Checkpoint(checkpoint, kind) => checkpoint.weights(*kind),
            Self::File(path) => Ok(Weights::read(path)?),
        }
    }

    /// Folder of the checkpoint, or the file.
    pub(super) fn path(&self) -> &Path {
        match self {
            Self::Checkpoint(checkpoint, _) => &checkpoint.path,
            Self::File(path) => path,
        }
    }

    /// Which weights of a checkpoint.
    pub(super) fn kind(&self) -> Option<WeightsKind> {
        match self {
            Self::Checkpoint(_, kind) => Some(*kind),
            Self::File(_) => None,
        }
    }

    pub(super) fn checkpoint(&self) -> Option<&SavedCheckpoint> {
        match self {
            Self::Checkpoint(checkpoint, _) => Some(checkpoint),
            Self::File(_) => None,
        }
    }
}
