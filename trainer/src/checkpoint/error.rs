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
        /// What there was too little of, where that is why; begins with "; ".
        space: String,
        /// The checkpoint that is left as the newest.
        earlier: String,
    },
    #[error("rank {rank} was lost before its share of the checkpoint of step {step} was written; {earlier}")]
    LostWriter { step: u64, rank: u32, earlier: String },
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
        "rank {rank} does not see in {path} what the first rank has written there: where every rank writes checkpoints, all nodes must share the volume; share it, or set checkpoint.writers to FirstRank"
    )]
    NotShared { path: PathBuf, rank: u32 },
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
    #[error(
        "{path} says that the folder belongs to {owner}, but this is a job of namespace {namespace}: use another folder or volume (a sub-path for each namespace, say), or remove the file if that job is no more"
    )]
    OwnedElsewhere {
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
