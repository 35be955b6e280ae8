//! Reads a checkpoint's values for a run that may continue from it, exactly.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use contract::{JobIdentity, ModelConfig, Resume};

use super::checksums::Checksums;
use super::shares::{entry, files_of, has};
use super::{CheckpointError, Expected, Part, STATE_FILE, State, Stored};

/// How many differences are listed.
const LISTED_DIFFERENCES: usize = 3;

/// The run that is to continue from a checkpoint.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run<'a> {
    pub(crate) job: &'a JobIdentity,
    pub(crate) model: &'a ModelConfig,
    pub(crate) resume: Resume,
}

/// A fully verified checkpoint.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) state: State,
    pub(crate) path: PathBuf,
    /// The tensors of each part, in the expected order.
    pub(crate) values: Vec<(Part, Vec<Stored>)>,
    pub(crate) average: SavedAverage,
}

/// How a checkpoint's average of the weights fits the run that continues from it. A run may start
/// or stop keeping one at any checkpoint.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum SavedAverage {
    /// Both have one, or neither has.
    Fits,
    /// The run keeps one and the checkpoint has none.
    Missing,
    /// The checkpoint has one and the run keeps none.
    Unused,
}

/// Opens the checkpoint in `folder`, and calls `is_reading` repeatedly while reading it once.
pub(super) fn load(
    folder: &Path,
    run: Run<'_>,
    parts: &[Expected],
    is_reading: &mut dyn FnMut(),
) -> Result<Loaded, CheckpointError> {
    let checksums = Checksums::open(folder)?;
    let state = read_state(folder, &checksums)?;
    run.may_continue_from(&state.job, folder)?;
    let other_model = state.model.difference(run.model);
    let is_kept = parts.iter().any(|expected| expected.part == Part::Average);
    // The list of files distinguishes an average that was never saved from a lost one.
    let average = match (is_kept, has(&checksums, Part::Average)) {
        (true, false) => SavedAverage::Missing,
        (false, true) => SavedAverage::Unused,
        (true, true) | (false, false) => SavedAverage::Fits,
    };
    let is_saved = |expected: &&Expected| expected.part != Part::Average || average == SavedAverage::Fits;
    let mut values = Vec::new();
    for Expected { part, tensors } in parts.iter().filter(is_saved) {
        match fit(find(folder, &checksums, *part, is_reading)?, tensors) {
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
    // Tensors do not show everything: their shapes do not depend on the number of heads.
    if let Some(model) = other_model {
        return Err(CheckpointError::DoesNotFit {
            path: folder.join(STATE_FILE),
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

fn read_state(folder: &Path, checksums: &Checksums) -> Result<State, CheckpointError> {
    State::parse(&folder.join(STATE_FILE), &checksums.read(folder, STATE_FILE)?)
}

impl Run<'_> {
    /// Whether it may continue from the checkpoint in `folder`; damaged ones have no owner.
    pub(super) fn may_continue(self, folder: &Path) -> Result<(), CheckpointError> {
        match Checksums::open(folder).and_then(|checksums| read_state(folder, &checksums)) {
            Ok(state) => self.may_continue_from(&state.job, folder),
            Err(_) => Ok(()),
        }
    }

    /// The same for a checkpoint by `owner`.
    ///
    /// Jobs with one name in two namespaces that share a volume have the same folder: neither uses
    /// the other's checkpoints. Outside a cluster, there are no namespaces, and users name folders.
    fn may_continue_from(self, owner: &JobIdentity, folder: &Path) -> Result<(), CheckpointError> {
        let both_in_clusters = self.job.uid.is_some() && owner.uid.is_some();
        if both_in_clusters && self.job.namespace != owner.namespace {
            return Err(CheckpointError::OtherNamespace {
                path: folder.into(),
                owner: describe(owner),
                namespace: self.job.namespace.clone(),
            });
        }
        let same_job = both_in_clusters && self.job.uid == owner.uid;
        match self.resume {
            Resume::Never if !same_job => Err(CheckpointError::InTheWay {
                path: folder.into(),
                owner: describe(owner),
            }),
            Resume::Auto | Resume::Never => Ok(()),
        }
    }
}

fn describe(job: &JobIdentity) -> String {
    let JobIdentity { namespace, name, uid } = job;
    match uid {
        Some(uid) => format!("job {namespace}/{name} (uid {uid})"),
        None => format!("{name}, made outside a cluster"),
    }
}

/// All tensors of a part.
fn find(
    folder: &Path,
    checksums: &Checksums,
    part: Part,
    is_reading: &mut dyn FnMut(),
) -> Result<BTreeMap<String, Stored>, CheckpointError> {
    let mut all = BTreeMap::new();
    for file in files_of(folder, checksums, part)? {
        checksums.check(folder, &file, is_reading)?;
        all.extend(Stored::from_file(&folder.join(file))?);
    }
    Ok(all)
}

/// Exactly the tensors in `expected`, or the differences.
fn fit(mut found: BTreeMap<String, Stored>, expected: &[(String, Vec<i64>)]) -> Result<Vec<Stored>, String> {
    let mut differences = Vec::new();
    let mut fitting = Vec::new();
    for (name, shape) in expected {
        match found.remove(name) {
            None => differences.push(format!("it has no {name} {shape:?}")),
            Some(stored) if stored.is(shape) => fitting.push(stored),
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
        Ok(fitting)
    } else {
        Err(tell(&differences))
    }
}

/// The first few differences, and the number of others.
fn tell(differences: &[String]) -> String {
    let shown = differences[..differences.len().min(LISTED_DIFFERENCES)].join("; ");
    match differences.len().saturating_sub(LISTED_DIFFERENCES) {
        0 => shown,
        more => format!("{shown}; and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use tch::Tensor;

    use super::*;
    use crate::tensor_file::{self, Existing};

    fn expected(shapes: &[(&str, &[i64])]) -> Vec<(String, Vec<i64>)> {
        shapes
            .iter()
            .map(|(name, shape)| ((*name).into(), shape.to_vec()))
            .collect()
    }

    fn found(tensors: &[(String, Vec<i64>)]) -> BTreeMap<String, Stored> {
        let tensor = |(name, shape): &(String, Vec<i64>)| {
            let value = Tensor::zeros(shape.as_slice(), tch::kind::FLOAT_CPU);
            (name.clone(), value)
        };
        let tensors: Vec<_> = tensors.iter().map(tensor).collect();
        let place = tempfile::tempdir().expect("a folder");
        let path = place.path().join("a.safetensors");
        tensor_file::save(&path, &tensors, &BTreeMap::new(), Existing::Keep).expect("writes");
        Stored::from_file(&path).expect("reads")
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
