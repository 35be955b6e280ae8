//! What a study leaves on disk.
//!
//! ```text
//!   study.yaml                         the manifest that was measured last
//!   runs/LABEL-KEY/N/log.jsonl         what repetition N of a run measured; KEY tells runs apart by all that they are made from
//!   runs/LABEL-KEY/N/machine.json      where
//!   runs/LABEL-KEY/N/failure.txt       why it did not, in place of both
//!   runs/LABEL-KEY/N.partial           a repetition under way
//!   report.{html,md,csv,json}
//! ```
//! A repetition is whole or not there: it is trained in a folder that is renamed at its end.

use std::fs::TryLockError;
use std::path::{Path, PathBuf};

use contract::RunConfig;
use crds::{ViTScalingStudy, ViTTrainingJobSpec};
use fs_err as fs;
use study::{Measurement, Run};

use super::machine::Machine;
use crate::error::TrainError;

pub(super) const MANIFEST: &str = "study.yaml";
/// Name of every job.
pub(super) const JOB: &str = "point";
pub(super) const LOG: &str = "log.jsonl";
const MACHINE: &str = "machine.json";
const FAILURE: &str = "failure.txt";
const LOCK: &str = ".lock";

/// A study's folder.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    /// Held while runs are carried out, so that two studies never share a folder.
    _lock: Option<fs::File>,
}

impl Folder {
    /// Makes the folder, or takes an earlier one that nobody else writes to.
    pub(super) fn make(path: &Path, manifest: &ViTScalingStudy) -> Result<Self, TrainError> {
        let made = TrainError::system("failed to make the study's folder");
        fs::create_dir_all(path).map_err(&made)?;
        let lock = fs::File::create(path.join(LOCK)).map_err(&made)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let message = format!(
                    "{} is in use by another study: give another --output",
                    path.display()
                );
                return Err(TrainError::Config(message));
            }
            Err(TryLockError::Error(error)) => return Err(made(error)),
        }
        let folder = Self {
            path: path.into(),
            _lock: Some(lock),
        };
        let text = serde_saphyr::to_string(manifest).map_err(std::io::Error::other);
        folder.write(MANIFEST, &text.map_err(failed())?)?;
        Ok(folder)
    }

    pub(super) fn open(path: &Path) -> Self {
        Self {
            path: path.into(),
            _lock: None,
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn write(&self, name: &str, text: &str) -> Result<(), TrainError> {
        fs::write(self.path.join(name), text).map_err(failed())
    }

    /// Where a repetition of a run is kept. Repetitions are counted from 1 on disk.
    pub(super) fn place(&self, run: &Run, repetition: u32) -> Result<Place, TrainError> {
        let runs = self.path.join("runs");
        // What the run was called in an earlier manifest does not matter.
        let suffix = format!("-{}", run.key);
        let known = match fs::read_dir(&runs) {
            Ok(entries) => entries
                .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
                .find(|name| name.ends_with(&suffix)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => return Err(failed()(error)),
        };
        let name = known.unwrap_or_else(|| format!("{}{suffix}", run.label));
        Ok(Place(runs.join(name).join((repetition + 1).to_string())))
    }
}

/// Where a repetition of a run is kept.
#[derive(Debug)]
pub(super) struct Place(PathBuf);

impl Place {
    /// What was measured, if it was.
    pub(super) fn measured(&self, warmup: u64) -> Option<Measurement> {
        self.result(warmup).ok()
    }

    /// What was measured, or why it was not.
    pub(super) fn result(&self, warmup: u64) -> Result<Measurement, String> {
        match fs::read_to_string(self.0.join(LOG)) {
            Ok(text) => Measurement::of_log(&text, warmup).map_err(|error| error.to_string()),
            Err(_) => Err(fs::read_to_string(self.0.join(FAILURE)).unwrap_or_else(|_| "not run yet".into())),
        }
    }

    /// Where it was measured.
    pub(super) fn machine(&self) -> Option<Machine> {
        serde_json::from_slice(&fs::read(self.0.join(MACHINE)).ok()?).ok()
    }

    /// Where it is trained.
    pub(super) fn partial(&self) -> PathBuf {
        self.0.with_extension("partial")
    }

    /// Makes an empty folder to train in.
    pub(super) fn begin(&self, job: &ViTTrainingJobSpec) -> Result<(), TrainError> {
        self.discard()?;
        let partial = self.partial();
        fs::create_dir_all(&partial).map_err(failed())?;
        let job = serde_json::to_vec_pretty(job).map_err(std::io::Error::other);
        job.and_then(|job| fs::write(partial.join("job.json"), job))
            .map_err(failed())
    }

    /// What the run that has just ended measured. Only its log is kept.
    pub(super) fn trained(&self, config: &RunConfig, warmup: u64) -> Result<Measurement, String> {
        let log = config.checkpoint.path.join(LOG);
        let kept = self.partial().join(LOG);
        if !log.exists() {
            return Err("it has written no log: rank 0 of another trainer writes it to $VIT_LOG".into());
        }
        let moved = fs::rename(&log, &kept).and_then(|()| fs::remove_dir_all(&config.checkpoint.path));
        moved.map_err(|error| error.to_string())?;
        let text = fs::read_to_string(&kept).map_err(|error| error.to_string())?;
        Measurement::of_log(&text, warmup).map_err(|error| error.to_string())
    }

    /// Keeps what was measured.
    pub(super) fn keep(&self, machine: &Machine) -> Result<(), TrainError> {
        let json = serde_json::to_vec_pretty(machine).map_err(std::io::Error::other);
        json.and_then(|json| fs::write(self.partial().join(MACHINE), json))
            .map_err(failed())?;
        self.publish()
    }

    /// Keeps why nothing was.
    pub(super) fn fail(&self, message: &str) -> Result<(), TrainError> {
        self.discard()?;
        fs::create_dir_all(self.partial()).map_err(failed())?;
        fs::write(self.partial().join(FAILURE), message).map_err(failed())?;
        self.publish()
    }

    /// Removes what is under way.
    pub(super) fn discard(&self) -> Result<(), TrainError> {
        remove(&self.partial())
    }

    fn publish(&self) -> Result<(), TrainError> {
        remove(&self.0)?;
        fs::rename(self.partial(), &self.0).map_err(failed())
    }
}

fn remove(path: &Path) -> Result<(), TrainError> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(failed()(error)),
        _ => Ok(()),
    }
}

fn failed() -> impl Fn(std::io::Error) -> TrainError {
    TrainError::system("failed to keep what the study measures")
}
