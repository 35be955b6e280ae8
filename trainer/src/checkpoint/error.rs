//! What is wrong with checkpoint storage, or with what was found there.

use std::path::PathBuf;

use contract::ExitCode;

use crate::error::Failure;

/// The messages of `fs_err` name the path.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CheckpointError {
    #[error("failed to write the checkpoint of step {step}: {error}{space}; {earlier}")]
    Write {
        step: u64,
        #[source]
        error: std::io::Error,
        space: Shortage,
        earlier: Earlier,
    },
    #[error("the writer of checkpoints ended at step {step} without a word")]
    WriterLost { step: u64 },
    #[error("failed to use the checkpoint folder: {0}")]
    Folder(#[source] std::io::Error),
    #[error("failed to read the checkpoint: {0}")]
    Read(#[source] std::io::Error),
    #[error("{path} is no checkpoint file this trainer can read: {message}")]
    Corrupt { path: PathBuf, message: String },
    #[error(
        "none of the {count} checkpoints in {folder} can be read; the newest says: {newest}; move the folder away to start afresh"
    )]
    AllCorrupt {
        count: usize,
        folder: PathBuf,
        newest: String,
    },
    #[error(
        "{path} does not fit this run: {difference}; use another checkpoint folder, or the model and the optimizer it was made with"
    )]
    DoesNotFit { path: PathBuf, difference: String },
    #[error(
        "{path} {problem}: give the folder of a checkpoint (step-<n>), or the folder of a job's checkpoints, of which the newest is taken"
    )]
    NotThere { path: PathBuf, problem: &'static str },
    #[error(
        "{path} has no moving average of the weights (ema.safetensors): its run had no training.ema; without --ema the trained weights are taken"
    )]
    NoAverage { path: PathBuf },
    #[error("{path} is of another model: its {difference}; give the manifest that it was trained with")]
    OtherModel { path: PathBuf, difference: String },
    #[error(
        "checkpoint.resume is Never, but {path} holds a checkpoint of another run, {owner}: remove it, use another folder, or set resume to Auto"
    )]
    InTheWay { path: PathBuf, owner: String },
    #[error(
        "{path} holds a checkpoint of {owner}, but this is a job of namespace {namespace}: use another folder or volume (a sub-path for each namespace, say), or move the checkpoint away"
    )]
    OtherNamespace {
        path: PathBuf,
        owner: String,
        namespace: String,
    },
}

impl CheckpointError {
    /// Whether the user has to decide something: trying again, or an older checkpoint, would not help.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(
            self,
            Self::DoesNotFit { .. }
                | Self::InTheWay { .. }
                | Self::OtherNamespace { .. }
                | Self::NotThere { .. }
                | Self::NoAverage { .. }
                | Self::OtherModel { .. }
        )
    }
}

impl Failure for CheckpointError {
    fn exit_code(&self) -> ExitCode {
        if self.is_refusal() {
            ExitCode::BadConfig
        } else {
            ExitCode::Storage
        }
    }
}

/// Where storage ran full: how much was needed and how much there is.
#[derive(Debug)]
pub(crate) enum Shortage {
    /// Something else went wrong.
    None,
    Of {
        needed: u64,
        folder: PathBuf,
        /// Free for this user once the half-written files are gone, where the file system tells.
        free: Option<u64>,
    },
}

impl std::fmt::Display for Shortage {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self::Of { needed, folder, free } = self else {
            return Ok(());
        };
        write!(formatter, "; a checkpoint needs {needed} bytes")?;
        match free {
            Some(free) => write!(
                formatter,
                ", the file system of {} has {free} free",
                folder.display()
            ),
            None => write!(formatter, " in {}", folder.display()),
        }
    }
}

/// The checkpoint that a failed write leaves as the newest.
#[derive(Debug)]
pub(crate) struct Earlier(pub(super) Option<u64>);

impl std::fmt::Display for Earlier {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(step) => write!(
                formatter,
                "the checkpoint of step {step} is complete, and the next attempt continues from it"
            ),
            None => formatter.write_str("there is no earlier checkpoint"),
        }
    }
}
