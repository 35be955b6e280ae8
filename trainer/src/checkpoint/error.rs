//! Errors of checkpoint storage and of checkpoints.

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
        /// The lack of space that caused the error, if any; starts with "; ".
        space: String,
        /// The newest remaining checkpoint.
        earlier: String,
    },
    #[error("rank {rank} was lost before its share of the checkpoint of step {step} was written; {earlier}")]
    LostWriter { step: u64, rank: u32, earlier: String },
    #[error("the checkpoint writer exited at step {step} without reporting a result")]
    WriterLost { step: u64 },
    #[error("failed to use the checkpoint folder: {0}")]
    Folder(#[source] std::io::Error),
    #[error("failed to read the checkpoint: {0}")]
    Read(#[source] std::io::Error),
    #[error("{path} is not a checkpoint file that this trainer can read: {message}")]
    Corrupt { path: PathBuf, message: String },
    #[error(
        "none of the {count} checkpoints in {folder} can be read; the newest says: {newest}; move the folder away to start over"
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
        "{path} {problem}: pass the folder of a checkpoint (step-<n>), or of a job's checkpoints to use the newest"
    )]
    NotThere { path: PathBuf, problem: &'static str },
    #[error(
        "rank {rank} does not see the first rank's files in {path}: if every rank writes checkpoints, all nodes must share the volume; share it, or set checkpoint.writers to FirstRank"
    )]
    NotShared { path: PathBuf, rank: u32 },
    #[error(
        "{path} has no moving average of the weights (ema.safetensors): its run had no training.ema; without --ema the trained weights are used"
    )]
    NoAverage { path: PathBuf },
    #[error("{path} is of another model: its {difference}; pass the manifest that it was trained with")]
    OtherModel { path: PathBuf, difference: String },
    #[error(
        "checkpoint.resume is Never, but {path} holds a checkpoint of another run, {owner}: remove it, use another folder, or set resume to Auto"
    )]
    InTheWay { path: PathBuf, owner: String },
    #[error(
        "{path} holds a checkpoint of {owner}, but this is a job of namespace {namespace}: use another folder or volume (such as a sub-path per namespace), or move the checkpoint away"
    )]
    OtherNamespace {
        path: PathBuf,
        owner: String,
        namespace: String,
    },
    #[error(
        "{path} says that the folder belongs to {owner}, but this is a job of namespace {namespace}: use another folder or volume (such as a sub-path per namespace), or remove the file if that job no longer exists"
    )]
    OwnedElsewhere {
        path: PathBuf,
        owner: String,
        namespace: String,
    },
}

impl CheckpointError {
    /// Whether the user must decide: neither a retry nor an older checkpoint would help.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(
            self,
            Self::DoesNotFit { .. }
                | Self::InTheWay { .. }
                | Self::OtherNamespace { .. }
                | Self::OwnedElsewhere { .. }
                | Self::NotThere { .. }
                | Self::NoAverage { .. }
                | Self::OtherModel { .. }
                | Self::NotShared { .. }
        )
    }
}

impl Failure for CheckpointError {
    fn exit_code(&self) -> ExitCode {
        match self {
            Self::LostWriter { .. } => ExitCode::PeerLost,
            _ if self.is_refusal() => ExitCode::BadConfig,
            _ => ExitCode::Storage,
        }
    }
}
