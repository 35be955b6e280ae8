//! The weights to evaluate, from a checkpoint or a file.

use std::path::{Path, PathBuf};

use contract::ModelConfig;

use crate::checkpoint::{SavedCheckpoint, WeightsKind, locate};
use crate::error::TrainError;
use crate::model::Weights;

#[derive(Debug)]
pub(super) struct Source {
    /// Folder of the checkpoint, or a safetensors file like model.pretrained's.
    pub(super) path: PathBuf,
    pub(super) checkpoint: Option<(SavedCheckpoint, WeightsKind)>,
}

impl Source {
    /// The weights at `named`, or else of the newest checkpoint in the job's folder.
    pub(super) fn find(
        named: Option<&Path>,
        job_folder: &Path,
        ema: bool,
        model: &ModelConfig,
    ) -> Result<Self, TrainError> {
        if let Some(file) = named.filter(|path| path.is_file()) {
            if ema {
                return Err(TrainError::Config(format!(
                    "--ema needs a checkpoint, but {} is a single file of weights: pass the checkpoint's folder, or omit --ema",
                    file.display()
                )));
            }
            let (path, checkpoint) = (file.into(), None);
            return Ok(Self { path, checkpoint });
        }
        let checkpoint = SavedCheckpoint::open(locate(named.unwrap_or(job_folder))?)?;
        checkpoint.is_of(model)?;
        Ok(Self {
            path: checkpoint.path.clone(),
            checkpoint: Some((checkpoint, WeightsKind::of(ema))),
        })
    }

    pub(super) fn weights(&self) -> Result<Weights, TrainError> {
        match &self.checkpoint {
            Some((checkpoint, kind)) => checkpoint.weights(*kind),
            None => Ok(Weights::read(&self.path)?),
        }
    }

    pub(super) fn kind(&self) -> Option<WeightsKind> {
        self.checkpoint.as_ref().map(|(_, kind)| *kind)
    }
}
