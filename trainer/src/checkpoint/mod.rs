//! Checkpoints: a folder `step-<n>` each, complete or not there at all.
//!
//! A checkpoint is written into a hidden folder beside its place, every file and the folder are flushed to storage,
//! and the folder is renamed: first to a hidden name that says that it is complete, then to its place. Whoever is killed
//! in between leaves a hidden folder, which the next run removes, or puts in its place where it is complete.
//!
//! ```text
//! <checkpoint folder>/log.jsonl
//!                    /step-00000120/model.safetensors       weights under timm's names
//!                                  /optimizer.safetensors   AdamW's moments
//!                                  /state.json              position in the run, and what the weights belong to
//! ```

mod state;
mod tensors;

use std::path::{Path, PathBuf};

use fs_err as fs;
use tch::Tensor;

pub(crate) use state::{Position, State};

/// Half written or half removed.
const PARTIAL_PREFIX: &str = ".partial-";
/// Complete, on its way to its place.
const COMPLETE_PREFIX: &str = ".complete-";
const STEP_PREFIX: &str = "step-";
const MODEL_FILE: &str = "model.safetensors";
const OPTIMIZER_FILE: &str = "optimizer.safetensors";
const STATE_FILE: &str = "state.json";

/// What is wrong with checkpoint storage. The messages of `fs_err` name the path.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CheckpointError {
    #[error("failed to write the checkpoint of step {step}: {error}")]
    Write {
        step: u64,
        #[source]
        error: std::io::Error,
    },
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
        "{path} holds another model: {difference}; use another checkpoint folder, or the model it was trained with"
    )]
    OtherModel { path: PathBuf, difference: String },
    #[error(
        "checkpoint.resume is Never, but {path} holds a checkpoint of an earlier run: remove it, use another folder, or set resume to Auto"
    )]
    InTheWay { path: PathBuf },
}

/// The checkpoints of one job.
#[derive(Debug)]
pub(crate) struct CheckpointFolder {
    path: PathBuf,
    keep: usize,
}

/// Named tensors of a model or an optimizer: handles to the live values.
pub(crate) type Named = [(String, Tensor)];

impl CheckpointFolder {
    /// Opens the folder, makes it where it is missing, and finishes or removes what an interrupted write left.
    pub(crate) fn open(path: &Path, keep: u32) -> Result<Self, CheckpointError> {
        fs::create_dir_all(path).map_err(CheckpointError::Folder)?;
        let folder = Self {
            path: path.into(),
            keep: keep as usize,
        };
        folder.clean_up().map_err(CheckpointError::Folder)?;
        Ok(folder)
    }

    fn clean_up(&self) -> std::io::Result<()> {
        let names = fs::read_dir(&self.path)?
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect::<std::io::Result<Vec<_>>>()?;
        // Before anything is put in its place: that may need a name of what is removed here.
        for name in names.iter().filter(|name| name.starts_with(PARTIAL_PREFIX)) {
            fs::remove_dir_all(self.path.join(name))?;
        }
        for step in names
            .iter()
            .filter_map(|name| step_of(name.strip_prefix(COMPLETE_PREFIX)?))
        {
            self.put_in_place(step)?;
        }
        Ok(())
    }

    /// Writes a checkpoint and removes those beyond the number to keep. Gives its folder.
    pub(crate) fn save(
        &self,
        state: &State,
        model: &Named,
        optimizer: &Named,
    ) -> Result<PathBuf, CheckpointError> {
        let step = state.position.step;
        let target = self.folder(step);
        let partial = self.path.join(format!("{PARTIAL_PREFIX}{STEP_PREFIX}{step:08}"));
        let write = || -> std::io::Result<()> {
            match fs::remove_dir_all(&partial) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
                _ => fs::create_dir(&partial)?,
            }
            tensors::write(&partial.join(MODEL_FILE), model)?;
            tensors::write(&partial.join(OPTIMIZER_FILE), optimizer)?;
            state.write(&partial.join(STATE_FILE))?;
            sync_folder(&partial)?;
            fs::rename(&partial, self.complete(step))?;
            sync_folder(&self.path)?;
            self.put_in_place(step)
        };
        if let Err(error) = write() {
            // Free the space again; the write's own error is the one to report.
            let _ = fs::remove_dir_all(&partial);
            return Err(CheckpointError::Write { step, error });
        }
        self.prune()?;
        Ok(target)
    }

    /// The newest checkpoint that can be read, loaded into the given tensors. One that is damaged is passed over with
    /// a warning; one of another model is an error. `None` where there is none at all.
    pub(crate) fn load_newest(
        &self,
        expected: &contract::ModelConfig,
        model: &Named,
        optimizer: &Named,
    ) -> Result<Option<(State, PathBuf)>, CheckpointError> {
        let steps = self.steps()?;
        let mut newest_error = None;
        for step in steps.iter().rev() {
            let folder = self.folder(*step);
            match load(&folder, expected, model, optimizer) {
                Ok(state) => return Ok(Some((state, folder))),
                Err(error @ CheckpointError::OtherModel { .. }) => return Err(error),
                Err(error) => {
                    tracing::warn!("passing over a checkpoint: {error}");
                    newest_error.get_or_insert_with(|| error.to_string());
                }
            }
        }
        match newest_error {
            Some(newest) => Err(CheckpointError::AllCorrupt {
                count: steps.len(),
                folder: self.path.clone(),
                newest,
            }),
            None => Ok(None),
        }
    }

    /// An error where a checkpoint exists.
    pub(crate) fn require_empty(&self) -> Result<(), CheckpointError> {
        match self.steps()?.last() {
            Some(step) => Err(CheckpointError::InTheWay {
                path: self.folder(*step),
            }),
            None => Ok(()),
        }
    }

    /// Gives a complete checkpoint its name. Where the same step was saved before, as after a resume from it, the older
    /// one goes; at every moment one of the two is complete under a name that [`Self::open`] knows.
    fn put_in_place(&self, step: u64) -> std::io::Result<()> {
        let target = self.folder(step);
        if target.exists() {
            self.remove(step)?;
        }
        fs::rename(self.complete(step), target)?;
        sync_folder(&self.path)
    }

    /// Removes the checkpoint of a step. It is renamed first: a half-removed folder must not look complete.
    fn remove(&self, step: u64) -> std::io::Result<()> {
        let doomed = self.path.join(format!("{PARTIAL_PREFIX}removed-{step:08}"));
        fs::rename(self.folder(step), &doomed)?;
        fs::remove_dir_all(doomed)
    }

    fn complete(&self, step: u64) -> PathBuf {
        self.path.join(format!("{COMPLETE_PREFIX}{STEP_PREFIX}{step:08}"))
    }

    fn folder(&self, step: u64) -> PathBuf {
        self.path.join(format!("{STEP_PREFIX}{step:08}"))
    }

    /// Steps of all complete checkpoints, ascending.
    fn steps(&self) -> Result<Vec<u64>, CheckpointError> {
        let mut steps = Vec::new();
        for entry in fs::read_dir(&self.path).map_err(CheckpointError::Folder)? {
            let name = entry.map_err(CheckpointError::Folder)?.file_name();
            steps.extend(name.to_str().and_then(step_of));
        }
        steps.sort_unstable();
        Ok(steps)
    }

    fn prune(&self) -> Result<(), CheckpointError> {
        let steps = self.steps()?;
        for step in &steps[..steps.len().saturating_sub(self.keep)] {
            self.remove(*step).map_err(CheckpointError::Folder)?;
        }
        Ok(())
    }
}

fn load(
    folder: &Path,
    expected: &contract::ModelConfig,
    model: &Named,
    optimizer: &Named,
) -> Result<State, CheckpointError> {
    let state_path = folder.join(STATE_FILE);
    let state = State::read(&state_path)?;
    if state.model != *expected {
        return Err(CheckpointError::OtherModel {
            path: state_path,
            difference: format!("{:?} instead of {expected:?}", state.model),
        });
    }
    // Both files are checked whole before a value is changed.
    let files = [(MODEL_FILE, model), (OPTIMIZER_FILE, optimizer)];
    let read = files.map(|(file, tensors)| tensors::read(&folder.join(file), tensors));
    for (values, (_, targets)) in read.into_iter().zip(files) {
        tensors::copy(&values?, targets);
    }
    Ok(state)
}

/// The step that a checkpoint's folder is named for.
fn step_of(name: &str) -> Option<u64> {
    name.strip_prefix(STEP_PREFIX)?.parse().ok()
}

/// Makes the names in a folder durable.
fn sync_folder(path: &Path) -> std::io::Result<()> {
    fs::File::open(path)?.sync_all()
}

#[cfg(test)]
mod tests {
    use contract::{ModelConfig, Pooling};
    use tch::{Device, Kind};

    use super::*;

    fn model() -> ModelConfig {
        ModelConfig {
            image_size: 8,
            patch_size: 4,
            hidden_size: 8,
            depth: 1,
            heads: 2,
            mlp_size: 16,
            num_classes: 3,
            channels: 3,
            pooling: Pooling::Average,
        }
    }

    fn state(step: u64) -> State {
        State::new(
            Position {
                epoch: 1,
                images_into_epoch: 64,
                step,
                correct: 5,
                counted: 9,
            },
            model(),
            Some(0.5),
        )
    }

    fn named(value: f64) -> Vec<(String, Tensor)> {
        vec![(
            "a".into(),
            Tensor::full([2, 3], value, (Kind::Float, Device::Cpu)),
        )]
    }

    fn value(tensors: &Named) -> f64 {
        tensors[0].1.double_value(&[1, 2])
    }

    fn save(folder: &CheckpointFolder, step: u64) -> PathBuf {
        let value = step as f64;
        folder
            .save(&state(step), &named(value), &named(value + 0.5))
            .expect("saves")
    }

    fn load_into(folder: &CheckpointFolder) -> Result<Option<(u64, f64, f64)>, CheckpointError> {
        let (weights, moments) = (named(-1.0), named(-1.0));
        let found = folder.load_newest(&model(), &weights, &moments)?;
        Ok(found.map(|(state, _)| (state.position.step, value(&weights), value(&moments))))
    }

    #[test]
    fn the_newest_is_loaded_and_only_so_many_are_kept() {
        let place = tempfile::tempdir().expect("a folder");
        let folder = CheckpointFolder::open(&place.path().join("new"), 2).expect("opens");
        assert!(load_into(&folder).expect("reads").is_none());
        for step in [5, 10, 100] {
            save(&folder, step);
        }
        assert_eq!(folder.steps().expect("lists"), [10, 100]);
        assert_eq!(load_into(&folder).expect("reads"), Some((100, 100.0, 100.5)));
    }

    #[test]
    fn a_damaged_checkpoint_is_passed_over_and_none_left_is_an_error() {
        let place = tempfile::tempdir().expect("a folder");
        let folder = CheckpointFolder::open(place.path(), 3).expect("opens");
        save(&folder, 1);
        let newest = save(&folder, 2);
        let file = fs::OpenOptions::new()
            .write(true)
            .open(newest.join(OPTIMIZER_FILE))
            .expect("opens");
        file.set_len(40).expect("truncates");
        assert_eq!(load_into(&folder).expect("falls back"), Some((1, 1.0, 1.5)));

        fs::write(folder.folder(1).join(STATE_FILE), "{}").expect("writes");
        let message = load_into(&folder).expect_err("nothing left").to_string();
        assert!(message.starts_with("none of the 2 checkpoints in "), "{message}");
    }

    #[test]
    fn another_model_is_an_error_and_nothing_is_overwritten() {
        let place = tempfile::tempdir().expect("a folder");
        let folder = CheckpointFolder::open(place.path(), 3).expect("opens");
        save(&folder, 1);
        let other = ModelConfig { depth: 2, ..model() };
        let weights = named(-1.0);
        let error = folder
            .load_newest(&other, &weights, &named(0.0))
            .expect_err("refused");
        assert!(matches!(error, CheckpointError::OtherModel { .. }), "{error}");
        assert!((value(&weights) + 1.0).abs() < f64::EPSILON);
    }

    #[test]
    fn leftovers_of_an_interrupted_write_are_removed_at_the_start() {
        let place = tempfile::tempdir().expect("a folder");
        let folder = CheckpointFolder::open(place.path(), 3).expect("opens");
        let left = save(&folder, 7);
        fs::rename(&left, place.path().join(".partial-step-00000007")).expect("renames");
        let folder = CheckpointFolder::open(place.path(), 3).expect("opens");
        assert!(load_into(&folder).expect("reads").is_none());
        assert_eq!(fs::read_dir(place.path()).expect("lists").count(), 0);
    }

    #[test]
    fn saving_a_step_again_loses_nothing_at_whatever_moment_it_is_killed() {
        const OLD: f64 = 7.0;
        const NEW: f64 = 8.0;
        let place = tempfile::tempdir().expect("a folder");
        let target = "step-00000007";
        let partial = ".partial-step-00000007";
        let complete = ".complete-step-00000007";
        let doomed = ".partial-removed-00000007";
        // What lies in the folder when the kill comes, in the order in which a save passes through it.
        let moments: [(&[(&str, f64)], f64); 5] = [
            (&[(target, OLD), (partial, NEW)], OLD),
            (&[(target, OLD), (complete, NEW)], NEW),
            (&[(doomed, OLD), (complete, NEW)], NEW),
            (&[(complete, NEW)], NEW),
            (&[(target, NEW)], NEW),
        ];
        for (number, (left, expected)) in moments.into_iter().enumerate() {
            let path = place.path().join(number.to_string());
            for (name, value) in left {
                let folder = CheckpointFolder::open(&place.path().join("source"), 1).expect("opens");
                let saved = folder
                    .save(&state(7), &named(*value), &named(*value))
                    .expect("saves, over the one before too");
                fs::create_dir_all(&path).expect("makes");
                fs::rename(saved, path.join(name)).expect("renames");
                if [partial, doomed].contains(name) {
                    fs::remove_file(path.join(name).join(MODEL_FILE)).expect("removes");
                }
            }
            let folder = CheckpointFolder::open(&path, 1).expect("opens");
            assert_eq!(
                load_into(&folder).expect("reads"),
                Some((7, expected, expected)),
                "{left:?}"
            );
            let names: Vec<_> = fs::read_dir(&path)
                .expect("lists")
                .map(|entry| entry.expect("an entry").file_name())
                .collect();
            assert_eq!(names, [target], "{left:?}");
        }
    }

    #[test]
    fn a_step_saved_again_is_the_newer_one() {
        let place = tempfile::tempdir().expect("a folder");
        let folder = CheckpointFolder::open(place.path(), 1).expect("opens");
        save(&folder, 7);
        folder
            .save(&state(7), &named(9.0), &named(9.5))
            .expect("saves again");
        assert_eq!(load_into(&folder).expect("reads"), Some((7, 9.0, 9.5)));
        assert_eq!(fs::read_dir(place.path()).expect("lists").count(), 1);
    }

    #[test]
    fn a_failed_write_names_the_path_and_leaves_the_earlier_checkpoint() {
        let place = tempfile::tempdir().expect("a folder");
        let folder = CheckpointFolder::open(place.path(), 3).expect("opens");
        save(&folder, 1);
        // A file where the folder should go fails for root too, unlike a permission.
        fs::write(place.path().join(".partial-step-00000002"), "").expect("writes");
        let message = folder
            .save(&state(2), &named(2.0), &named(2.0))
            .expect_err("fails")
            .to_string();
        assert!(message.contains(".partial-step-00000002"), "{message}");
        assert_eq!(load_into(&folder).expect("reads"), Some((1, 1.0, 1.5)));
    }

    #[test]
    fn never_resuming_names_what_is_in_the_way() {
        let place = tempfile::tempdir().expect("a folder");
        let folder = CheckpointFolder::open(place.path(), 3).expect("opens");
        folder.require_empty().expect("empty");
        save(&folder, 3);
        let message = folder.require_empty().expect_err("refused").to_string();
        assert!(message.contains("step-00000003"), "{message}");
    }
}
