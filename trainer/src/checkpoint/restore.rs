//! The values of a checkpoint for a run that continues from it, exactly, if it may.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use contract::{JobIdentity, ModelConfig, Resume};
use safetensors::{Dtype, SafeTensors};
use tch::{Kind, Tensor};

use super::checksums::Checksums;
use super::shares::{entry, has, read_part};
use super::{CheckpointError, Expected, Part, STATE_FILE, State};
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
    let average = match (is_kept, has(&checksums, Part::Average)) {
        (true, false) => SavedAverage::Missing,
        (false, true) => SavedAverage::Unused,
        (true, true) | (false, false) => SavedAverage::Fits,
    };
    let is_saved = |expected: &&Expected| expected.part != Part::Average || average == SavedAverage::Fits;
    let mut values = Vec::new();
    for Expected { part, tensors } in parts.iter().filter(is_saved) {
        match fit(read(folder, &checksums, *part)?, tensors) {
            Ok(read) => values.push((*part, read)),
            Err(tensors) => {
                let path = folder.join(entry(&checksums, *part));
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

/// A tensor of a checkpoint.
struct Found {
    dtype: Dtype,
    shape: Vec<usize>,
    /// `None` where its numbers are of a type that is not read.
    value: Option<Tensor>,
}

/// Reads all tensors of a part.
fn read(
    folder: &Path,
    checksums: &Checksums,
    part: Part,
) -> Result<BTreeMap<String, Found>, CheckpointError> {
    let mut all = BTreeMap::new();
    read_part(folder, checksums, part, |path, content| {
        let file = SafeTensors::deserialize(content).map_err(|error| CheckpointError::Corrupt {
            path: path.into(),
            message: error.to_string(),
        })?;
        for (name, view) in file.iter() {
            let found = Found {
                dtype: view.dtype(),
                shape: view.shape().to_vec(),
                value: tensor_of(&view),
            };
            all.insert(name.to_owned(), found);
        }
        Ok(())
    })?;
    Ok(all)
}

/// The values of exactly the tensors in `expected`, or how they differ from what was found.
fn fit(mut found: BTreeMap<String, Found>, expected: &[(String, Vec<i64>)]) -> Result<Vec<Tensor>, String> {
    let mut differences = Vec::new();
    let mut values = Vec::new();
    for (name, shape) in expected {
        match found.remove(name) {
            None => differences.push(format!("it has no {name} {shape:?}")),
            Some(Found {
                value: Some(value), ..
            }) if value.kind() == Kind::Float && value.size() == *shape => values.push(value),
            Some(other) => differences.push(format!(
                "{name} is {} {:?} instead of F32 {shape:?}",
                other.dtype, other.shape
            )),
        }
    }
    let unknown = found
        .iter()
        .map(|(name, other)| format!("it has {name} {:?}, which is not expected", other.shape));
    differences.extend(unknown);
    if differences.is_empty() {
        Ok(values)
    } else {
        Err(tell(&differences))
    }
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
    use super::*;

    fn expected(shapes: &[(&str, &[i64])]) -> Vec<(String, Vec<i64>)> {
        shapes
            .iter()
            .map(|(name, shape)| ((*name).into(), shape.to_vec()))
            .collect()
    }

    fn found(tensors: &[(String, Vec<i64>)]) -> BTreeMap<String, Found> {
        let tensor = |(name, shape): &(String, Vec<i64>)| {
            let value = Tensor::zeros(shape.as_slice(), tch::kind::FLOAT_CPU);
            let found = Found {
                dtype: Dtype::F32,
                shape: shape.iter().map(|size| *size as usize).collect(),
                value: Some(value),
            };
            (name.clone(), found)
        };
        tensors.iter().map(tensor).collect()
    }

    #[test]
    fn each_difference_is_named_with_both_shapes_and_the_list_is_short() {
        let saved = expected(&[("a", &[2, 3]), ("b", &[4]), ("old", &[1])]);
        let wanted = expected(&[("a", &[2, 4]), ("b", &[4]), ("c", &[]), ("d", &[9]), ("e", &[9])]);
        assert_eq!(
            fit(found(&saved), &wanted).expect_err("it does not fit"),
            "a is F32 [2, 3] instead of F32 [2, 4]; it has no c []; it has no d [9]; and 2 more"
        );
        assert_eq!(fit(found(&saved), &saved).expect("fits").len(), 3);
    }
}
