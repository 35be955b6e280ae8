//! Whether a run may continue from a checkpoint, and its values into the live tensors.

use std::path::{Path, PathBuf};

use contract::{JobIdentity, ModelConfig, Resume};

use super::checksums::Checksums;
use super::{AVERAGE_FILE, CheckpointError, Part, STATE_FILE, State, tensors};

/// Who wants to continue from a checkpoint.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run<'a> {
    pub(crate) job: &'a JobIdentity,
    pub(crate) model: &'a ModelConfig,
    pub(crate) resume: Resume,
}

/// A checkpoint whose values are in the live tensors.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) state: State,
    /// Its folder.
    pub(crate) path: PathBuf,
    pub(crate) average: SavedAverage,
}

/// What a checkpoint's average of the weights is to the run that continues from it. A run may begin or end to keep one
/// at any checkpoint.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum SavedAverage {
    /// Both have one, which was loaded, or neither has one.
    Fits,
    /// The run keeps one and the checkpoint has none: its tensors are as they were.
    Missing,
    /// The checkpoint has one and the run keeps none.
    Unused,
}

/// Loads the checkpoint in `folder`, or leaves the parts as they were.
pub(super) fn load(folder: &Path, run: Run<'_>, parts: &[Part<'_>]) -> Result<Loaded, CheckpointError> {
    let checksums = Checksums::open(folder)?;
    let state_path = folder.join(STATE_FILE);
    let state = State::parse(&state_path, &checksums.read(folder, STATE_FILE)?)?;
    may_continue(run, &state.job, folder)?;
    let other_model = state.model.difference(run.model);
    let is_kept = parts.iter().any(|part| part.file == AVERAGE_FILE);
    // The list of files tells an average that was never saved from one that is lost.
    let average = match (is_kept, checksums.knows(AVERAGE_FILE)) {
        (true, false) => SavedAverage::Missing,
        (false, true) => SavedAverage::Unused,
        (true, true) | (false, false) => SavedAverage::Fits,
    };
    let is_saved = |part: &&Part<'_>| part.file != AVERAGE_FILE || average == SavedAverage::Fits;
    // All files are checked whole before a value is changed.
    let mut values = Vec::new();
    for part in parts.iter().filter(is_saved) {
        let path = folder.join(part.file);
        let content = checksums.read(folder, part.file)?;
        match tensors::read(&path, &content, part.tensors)? {
            tensors::Read::Values(read) => values.push(read),
            tensors::Read::Differs(tensors) => {
                let difference = match other_model {
                    Some(model) => format!("its model's {model}; {tensors}"),
                    None => tensors,
                };
                return Err(CheckpointError::DoesNotFit { path, difference });
            }
        }
    }
    // Tensors alone do not tell everything: any number of heads has the same ones.
    if let Some(model) = other_model {
        return Err(CheckpointError::DoesNotFit {
            path: state_path,
            difference: format!("its model's {model}"),
        });
    }
    for (values, part) in values.iter().zip(parts.iter().filter(is_saved)) {
        tensors::copy(values, part.tensors);
    }
    Ok(Loaded {
        state,
        path: folder.into(),
        average,
    })
}

/// Whether a run may continue from a checkpoint that `owner` made.
///
/// Two namespaces that share a volume can hold jobs of one name, whose folders are then the same: neither takes the
/// other's checkpoints. Outside a cluster there are no namespaces, and a folder is used because someone named it.
fn may_continue(run: Run<'_>, owner: &JobIdentity, folder: &Path) -> Result<(), CheckpointError> {
    let both_in_clusters = run.job.uid.is_some() && owner.uid.is_some();
    if both_in_clusters && run.job.namespace != owner.namespace {
        return Err(CheckpointError::OtherNamespace {
            path: folder.into(),
            owner: describe(owner),
            namespace: run.job.namespace.clone(),
        });
    }
    let same_job = both_in_clusters && run.job.uid == owner.uid;
    match run.resume {
        Resume::Never if !same_job => Err(CheckpointError::InTheWay {
            path: folder.into(),
            owner: describe(owner),
        }),
        Resume::Auto | Resume::Never => Ok(()),
    }
}

fn describe(job: &JobIdentity) -> String {
    let JobIdentity { namespace, name, uid } = job;
    match uid {
        Some(uid) => format!("job {namespace}/{name} (uid {uid})"),
        None => format!("{name}, made outside a cluster"),
    }
}
