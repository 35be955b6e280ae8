//! The values of a checkpoint for a run that continues from it, exactly, if it may.

use std::path::{Path, PathBuf};

use contract::{JobIdentity, ModelConfig, Resume};
use safetensors::SafeTensors;
use tch::{Kind, Tensor};

use super::checksums::Checksums;
use super::{AVERAGE_FILE, CheckpointError, Expected, Part, STATE_FILE, State};
use crate::tensor_file::tensor_of;

/// So many differences are told one by one.
const TOLD_DIFFERENCES: usize = 3;

/// Who wants to continue from a checkpoint.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run<'a> {
    pub(crate) job: &'a JobIdentity,
    pub(crate) model: &'a ModelConfig,
    pub(crate) resume: Resume,
}

/// A checkpoint that was read.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) state: State,
    pub(crate) path: PathBuf,
    /// The whole tensors of each part, in the order in which they were expected.
    pub(crate) values: Vec<(Part, Vec<Tensor>)>,
    pub(crate) average: SavedAverage,
}

/// What a checkpoint's average of the weights is to the run that continues from it. A run may begin or end to keep one
/// at any checkpoint.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum SavedAverage {
    /// Both have one, or neither has one.
    Fits,
    /// The run keeps one and the checkpoint has none.
    Missing,
    /// The checkpoint has one and the run keeps none.
    Unused,
}

/// Reads the checkpoint in `folder`.
pub(super) fn load(folder: &Path, run: Run<'_>, parts: &[Expected]) -> Result<Loaded, CheckpointError> {
    let checksums = Checksums::open(folder)?;
    let state_path = folder.join(STATE_FILE);
    let state = State::parse(&state_path, &checksums.read(folder, STATE_FILE)?)?;
    may_continue(run, &state.job, folder)?;
    let other_model = state.model.difference(run.model);
    let is_kept = parts.iter().any(|expected| expected.part == Part::Average);
    // The list of files tells an average that was never saved from one that is lost.
    let average = match (is_kept, checksums.knows(AVERAGE_FILE)) {
        (true, false) => SavedAverage::Missing,
        (false, true) => SavedAverage::Unused,
        (true, true) | (false, false) => SavedAverage::Fits,
    };
    let is_saved = |expected: &&Expected| expected.part != Part::Average || average == SavedAverage::Fits;
    let mut values = Vec::new();
    for Expected { part, tensors } in parts.iter().filter(is_saved) {
        let path = folder.join(part.file());
        let content = checksums.read(folder, part.file())?;
        match read(&path, &content, tensors)? {
            Read::Values(read) => values.push((*part, read)),
            Read::Differs(tensors) => {
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
    Ok(Loaded {
        state,
        path: folder.into(),
        values,
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

/// A file that was read: its values, or how it differs from what was expected.
enum Read {
    Values(Vec<Tensor>),
    Differs(String),
}

/// Reads the values of exactly the tensors in `expected` from the content of the file `path`.
fn read(path: &Path, content: &[u8], expected: &[(String, Vec<i64>)]) -> Result<Read, CheckpointError> {
    let file = SafeTensors::deserialize(content).map_err(|error| CheckpointError::Corrupt {
        path: path.into(),
        message: error.to_string(),
    })?;
    let mut differences = Vec::new();
    let mut values = Vec::new();
    for (name, shape) in expected {
        match file.tensor(name) {
            Err(_) => differences.push(format!("it has no {name} {shape:?}")),
            Ok(view) => match tensor_of(&view) {
                Some(value) if value.kind() == Kind::Float && value.size() == *shape => values.push(value),
                _ => differences.push(format!(
                    "{name} is {} {:?} instead of F32 {shape:?}",
                    view.dtype(),
                    view.shape()
                )),
            },
        }
    }
    let mut unknown: Vec<String> = file
        .iter()
        .filter(|(name, _)| !expected.iter().any(|(known, _)| known == name))
        .map(|(name, view)| format!("it has {name} {:?}, which is not expected", view.shape()))
        .collect();
    unknown.sort();
    differences.extend(unknown);
    Ok(if differences.is_empty() {
        Read::Values(values)
    } else {
        Read::Differs(tell(&differences))
    })
}

/// The first few differences, and how many more there are.
fn tell(differences: &[String]) -> String {
    let told = differences[..differences.len().min(TOLD_DIFFERENCES)].join("; ");
    match differences.len().saturating_sub(TOLD_DIFFERENCES) {
        0 => told,
        more => format!("{told}; and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use tch::Device;

    use super::*;
    use crate::tensor_file::Metadata;

    fn expected(shapes: &[(&str, &[i64])]) -> Vec<(String, Vec<i64>)> {
        shapes
            .iter()
            .map(|(name, shape)| ((*name).into(), shape.to_vec()))
            .collect()
    }

    fn written(tensors: &[(String, Vec<i64>)]) -> Vec<u8> {
        let random = |shape: &Vec<i64>| Tensor::rand(shape.as_slice(), (Kind::Float, Device::Cpu));
        let values = tensors.iter().map(|(name, shape)| (name.clone(), random(shape)));
        let mut bytes = Vec::new();
        crate::tensor_file::write(&mut bytes, &values.collect::<Vec<_>>(), &Metadata::new()).expect("writes");
        bytes
    }

    #[test]
    fn each_difference_is_named_with_both_shapes_and_the_list_is_short() {
        let found = expected(&[("a", &[2, 3]), ("b", &[4]), ("old", &[1])]);
        let wanted = expected(&[("a", &[2, 4]), ("b", &[4]), ("c", &[]), ("d", &[9]), ("e", &[9])]);
        let Ok(Read::Differs(difference)) = read(Path::new("file"), &written(&found), &wanted) else {
            panic!("it does not fit");
        };
        assert_eq!(
            difference,
            "a is F32 [2, 3] instead of F32 [2, 4]; it has no c []; it has no d [9]; and 2 more"
        );
        assert!(matches!(
            read(Path::new("file"), &written(&found), &found),
            Ok(Read::Values(values)) if values.len() == 3
        ));
    }
}
