//! A checkpoint opened for its weights only, by commands that do not train and do not change it.

use std::path::{Path, PathBuf};

use contract::ModelConfig;

use super::checksums::Checksums;
use super::shares::{files_of, has};
use super::{CheckpointError, Part, STATE_FILE, State};
use crate::error::TrainError;
use crate::model::Weights;

/// Which of a checkpoint's two sets of weights.
#[derive(Clone, Copy, Debug, Eq, PartialEq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum WeightsKind {
    /// The optimizer's.
    Trained,
    /// Their exponential moving average.
    Ema,
}

impl WeightsKind {
    /// By `--ema`.
    pub(crate) fn of(ema: bool) -> Self {
        if ema { Self::Ema } else { Self::Trained }
    }
}

impl std::fmt::Display for WeightsKind {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::Trained => "trained weights",
            Self::Ema => "moving average of the weights",
        })
    }
}

#[derive(Debug)]
pub(crate) struct SavedCheckpoint {
    pub(crate) path: PathBuf,
    pub(crate) state: State,
    checksums: Checksums,
}

impl SavedCheckpoint {
    pub(crate) fn open(path: PathBuf) -> Result<Self, CheckpointError> {
        let checksums = Checksums::open(&path)?;
        let state = State::parse(&path.join(STATE_FILE), &checksums.read(&path, STATE_FILE)?)?;
        Ok(Self {
            path,
            state,
            checksums,
        })
    }

    pub(crate) fn has_average(&self) -> bool {
        has(&self.checksums, Part::Average)
    }

    /// Weights in 32 bits, with all bytes verified.
    pub(crate) fn weights(&self, kind: WeightsKind) -> Result<Weights, TrainError> {
        let part = match kind {
            WeightsKind::Trained => Part::Model,
            WeightsKind::Ema if self.has_average() => Part::Average,
            WeightsKind::Ema => {
                return Err(CheckpointError::NoAverage {
                    path: self.path.clone(),
                }
                .into());
            }
        };
        let mut all: Option<Weights> = None;
        for file in files_of(&self.path, &self.checksums, part)? {
            let content = self.checksums.read(&self.path, &file)?;
            let weights = Weights::parse(&self.path.join(file), &content)?;
            match &mut all {
                Some(all) => all.extend(weights),
                None => all = Some(weights),
            }
        }
        all.ok_or_else(|| {
            CheckpointError::Corrupt {
                path: self.path.join(part.index()),
                message: "it names no file".into(),
            }
            .into()
        })
    }

    /// An error if its weights are not those of `model`.
    pub(crate) fn is_of(&self, model: &ModelConfig) -> Result<(), CheckpointError> {
        match self.state.model.difference(model) {
            None => Ok(()),
            Some(difference) => Err(CheckpointError::OtherModel {
                path: self.path.clone(),
                difference,
            }),
        }
    }
}

/// The checkpoint folder that `path` names: itself, or the newest in a job's folder.
pub(crate) fn locate(path: &Path) -> Result<PathBuf, CheckpointError> {
    if !path.is_dir() {
        let problem = if path.exists() {
            "is not a folder"
        } else {
            "does not exist"
        };
        return Err(CheckpointError::NotThere {
            path: path.into(),
            problem,
        });
    }
    if path.join(STATE_FILE).exists() {
        return Ok(path.into());
    }
    let newest = super::folder::newest(path).map_err(CheckpointError::Read)?;
    newest.ok_or_else(|| CheckpointError::NotThere {
        path: path.into(),
        problem: "holds no checkpoint",
    })
}

#[cfg(test)]
mod tests {
    use contract::ExitCode;
    use fs_err as fs;

    use super::super::Writer;
    use super::super::tests::{open, snapshot};
    use super::*;

    /// A folder with the checkpoints of two steps.
    fn job() -> tempfile::TempDir {
        let place = tempfile::tempdir().expect("a folder");
        let mut writer = Writer::new(open(place.path(), 9, 1));
        for step in [9, 10] {
            writer.begin(snapshot(step), ()).expect("begins");
        }
        writer.wait().expect("writes");
        place
    }

    fn opened(path: &Path) -> SavedCheckpoint {
        SavedCheckpoint::open(locate(path).expect("there")).expect("opens")
    }

    #[test]
    fn a_checkpoint_is_named_by_itself_or_as_the_newest_of_its_job() {
        let place = job();
        let step = |path: &Path| opened(path).state.position.step;
        assert_eq!(step(place.path()), 10);
        assert_eq!(step(&place.path().join("step-00000009")), 9);

        let empty = tempfile::tempdir().expect("a folder");
        let file = place.path().join("step-00000009/state.json");
        for (path, problem) in [
            (empty.path(), "holds no checkpoint"),
            (Path::new("/nowhere/digits"), "/nowhere/digits does not exist"),
            (&file, "is not a folder"),
        ] {
            let error = locate(path).expect_err("refused");
            assert!(error.to_string().contains(problem), "{error}");
            assert_eq!(TrainError::from(error).exit_code(), ExitCode::BadConfig);
        }
    }

    #[test]
    fn an_average_that_is_not_there_is_told() {
        let place = job();
        let checkpoint = opened(place.path());
        assert!(!checkpoint.has_average());
        let error = checkpoint.weights(WeightsKind::Ema).expect_err("refused");
        assert!(
            error.to_string().contains("its run had no training.ema"),
            "{error}"
        );
        assert_eq!(error.exit_code(), ExitCode::BadConfig);
    }

    #[test]
    fn another_model_is_told_by_its_fields() {
        let place = job();
        let checkpoint = opened(place.path());
        let own = checkpoint.state.model.clone();
        checkpoint.is_of(&own).expect("its own");
        let other = ModelConfig {
            num_classes: 7,
            heads: 4,
            ..own
        };
        let error = checkpoint.is_of(&other).expect_err("refused");
        let expected = "is of another model: its heads is 2 instead of 4, numClasses is 5 instead of 7; ";
        assert!(error.to_string().contains(expected), "{error}");
    }

    #[test]
    fn damage_is_found_before_a_value_is_used() {
        let place = job();
        let file = place.path().join("step-00000010/model.safetensors");
        let whole = fs::read(&file).expect("a file");
        let message = || {
            let error = opened(place.path())
                .weights(WeightsKind::Trained)
                .expect_err("found");
            assert_eq!(error.exit_code(), ExitCode::Storage);
            error.to_string()
        };
        fs::write(&file, &whole[..whole.len() - 1]).expect("writes");
        assert!(message().contains("it was cut short"), "{}", message());
        let mut changed = whole.clone();
        *changed.last_mut().expect("a byte") ^= 1;
        fs::write(&file, changed).expect("writes");
        assert!(message().contains("its CRC-32 is"), "{}", message());
        fs::write(&file, whole).expect("writes");
        opened(place.path())
            .weights(WeightsKind::Trained)
            .expect("whole again");
    }
}
