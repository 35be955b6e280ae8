//! The files of a study.
//!
//! ```text
//!   study.yaml                         the latest manifest
//!   runs/LABEL-KEY/N/log.jsonl         the log of repetition N of a run; KEY depends on the run's fields in the manifest
//!   runs/LABEL-KEY/N/inputs.json       its inputs, with the paths of data and weights
//!   runs/LABEL-KEY/N/machine.json      its machine
//!   runs/LABEL-KEY/N/failure.txt       why it failed, in place of the log and the machine
//!   runs/LABEL-KEY/N.partial           a running repetition
//!   calibration.json                   the measured speed of a core, to which the speeds of emulated devices refer
//!   report.{html,md,csv,json}
//! ```
//! A repetition is complete or absent: it is trained in a folder that is renamed at its end.

use std::fs::TryLockError;
use std::path::{Path, PathBuf};

use contract::log::{LogError, read_log};
use contract::{Machine, Measurement, RunConfig};
use crds::ViTScalingStudy;
use fs_err as fs;
use serde_json::{Value, json};
use study::{NOT_RUN, Run};

use crate::calibration::CalibrationFile;
use crate::error::TrainError;
use crate::launch;
use crate::metrics::LOG_NAME;

pub(super) const MANIFEST: &str = "study.yaml";
/// Name of every job.
pub(super) const JOB: &str = "point";
const CALIBRATION: &str = "calibration.json";
const MACHINE: &str = "machine.json";
const INPUTS: &str = "inputs.json";
const FAILURE: &str = "failure.txt";
const LOCK: &str = ".lock";

/// A study's folder.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    /// Held while runs are carried out: two studies must not share a folder.
    _lock: Option<fs::File>,
}

impl Folder {
    /// Creates the folder, or opens an existing one that no other study writes to.
    pub(super) fn make(path: &Path, manifest: &ViTScalingStudy, source: &Path) -> Result<Self, TrainError> {
        let made = TrainError::system("failed to create the study's folder");
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
        // Errors are reported now, rather than by each run.
        CalibrationFile::open(&path.join(CALIBRATION))?;
        let folder = Self {
            path: path.into(),
            _lock: Some(lock),
        };
        let kept = folder.path.join(MANIFEST);
        // A study may be in its own folder: what somebody has written is not replaced.
        if !is_same_file(source, &kept) {
            let text = serde_saphyr::to_string(manifest).map_err(std::io::Error::other);
            folder.write(MANIFEST, &text.map_err(failed())?)?;
        }
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

    /// Writes a file atomically.
    pub(super) fn write(&self, name: &str, text: &str) -> Result<(), TrainError> {
        let new = self.path.join(format!(".{name}.new"));
        fs::write(&new, text)
            .and_then(|()| fs::rename(&new, self.path.join(name)))
            .map_err(failed())
    }

    /// The folder of a repetition of a run with this origin. On disk, repetitions count from 1.
    pub(super) fn place(&self, run: &Run, repetition: u32, origin: Origin<'_>) -> Result<Place, TrainError> {
        let runs = self.path.join("runs");
        // The run may have had another label in an earlier manifest.
        let suffix = format!("-{}", run.key);
        let known = match fs::read_dir(&runs) {
            Ok(entries) => entries
                .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
                .find(|name| name.ends_with(&suffix)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => return Err(failed()(error)),
        };
        let name = known.unwrap_or_else(|| format!("{}{suffix}", run.label));
        let mut inputs = json!({
            "job": run.job(repetition),
            "speeds": run.speeds,
        });
        if let Origin::Of {
            data,
            pretrained,
            nodes,
        } = origin
        {
            // A missing path is reported when it is read.
            let whole = |path: &Path| fs::canonicalize(path).unwrap_or_else(|_| path.into());
            if !nodes.are_here() {
                inputs["nodes"] = json!(nodes);
            }
            if let Some(file) = pretrained {
                inputs["pretrained"] = json!(whole(file));
            }
            inputs["data"] = json!(data.map(whole));
        }
        Ok(Place {
            path: runs.join(name).join((repetition + 1).to_string()),
            calibration: self.path.join(CALIBRATION),
            inputs,
        })
    }
}

/// The inputs of runs on the command line.
#[derive(Clone, Copy, Debug)]
pub(super) enum Origin<'a> {
    /// Any inputs: for the report on existing results.
    Any,
    /// The given inputs.
    Of {
        /// Folder of the data.
        data: Option<&'a Path>,
        /// File of the weights to start from.
        pretrained: Option<&'a Path>,
        /// Nodes that run them.
        nodes: &'a launch::Nodes,
    },
}

/// The folder of a repetition.
#[derive(Debug)]
pub(super) struct Place {
    path: PathBuf,
    /// Shared by all runs of a study.
    calibration: PathBuf,
    /// Its inputs.
    inputs: Value,
}

impl Place {
    pub(super) fn calibration(&self) -> &Path {
        &self.calibration
    }

    /// Whether it was completely trained from the same inputs, so that a rerun adds nothing.
    pub(super) fn is_trained(&self, warmup: u32) -> bool {
        self.log().is_ok_and(|text| match read_log(&text, warmup) {
            Ok(_) => true,
            // The log's lines end with the warm-up at the time of writing.
            Err(LogError::OnlyWarmup { total, .. }) => total <= warmup.into(),
            Err(_) => false,
        })
    }

    /// The measurement, or why there is none.
    pub(super) fn result(&self, warmup: u32) -> Result<Measurement, String> {
        let mut measurement = read_log(&self.log()?, warmup).map_err(|error| error.to_string())?;
        measurement.machine = self.machine();
        Ok(measurement)
    }

    /// The log of a run from the same inputs, or why there is none.
    fn log(&self) -> Result<String, String> {
        let found = fs::read(self.path.join(INPUTS)).ok();
        let found = found.and_then(|json| serde_json::from_slice::<Value>(&json).ok());
        let is_same = found.is_some_and(|mut found| {
            if self.inputs.get("data").is_none()
                && let Some(found) = found.as_object_mut()
            {
                for field in ["data", "pretrained", "nodes"] {
                    found.remove(field);
                }
            }
            found == self.inputs
        });
        if !is_same {
            return Err(NOT_RUN.into());
        }
        if let Ok(failure) = fs::read_to_string(self.path.join(FAILURE)) {
            return Err(failure);
        }
        fs::read_to_string(self.path.join(LOG_NAME)).map_err(|error| error.to_string())
    }

    /// The machine it was measured on.
    fn machine(&self) -> Option<Machine> {
        serde_json::from_slice(&fs::read(self.path.join(MACHINE)).ok()?).ok()
    }

    /// The folder to train in.
    pub(super) fn partial(&self) -> PathBuf {
        self.path.with_extension("partial")
    }

    /// Creates an empty folder to train in.
    pub(super) fn begin(&self) -> Result<(), TrainError> {
        self.discard()?;
        let partial = self.partial();
        fs::create_dir_all(&partial).map_err(failed())?;
        let json = serde_json::to_vec_pretty(&self.inputs).map_err(std::io::Error::other);
        json.and_then(|json| fs::write(partial.join(INPUTS), json))
            .map_err(failed())
    }

    /// Keeps only the log of the run that has just ended, which must be complete.
    pub(super) fn trained(&self, run: &Run, config: &RunConfig) -> Result<(), String> {
        let log = config.checkpoint.path.join(LOG_NAME);
        let kept = self.partial().join(LOG_NAME);
        if !log.exists() {
            return Err("it has written no log: rank 0 of another trainer must write it to $VIT_LOG".into());
        }
        let moved = fs::rename(&log, &kept).and_then(|()| fs::remove_dir_all(&config.checkpoint.path));
        moved.map_err(|error| error.to_string())?;
        let text = fs::read_to_string(&kept).map_err(|error| error.to_string())?;
        let whole = read_log(&text, 0).map_err(|error| error.to_string())?;
        match run.mismatch(&whole) {
            Some(found) => Err(format!("the command does not follow VIT_RUN_CONFIG: {found}")),
            None => Ok(()),
        }
    }

    /// Keeps the measurement.
    pub(super) fn keep(&self, machine: &Machine) -> Result<(), TrainError> {
        let json = serde_json::to_vec_pretty(machine).map_err(std::io::Error::other);
        json.and_then(|json| fs::write(self.partial().join(MACHINE), json))
            .map_err(failed())?;
        self.publish()
    }

    /// Keeps the reason why there is none.
    pub(super) fn fail(&self, message: &str) -> Result<(), TrainError> {
        self.begin()?;
        fs::write(self.partial().join(FAILURE), message).map_err(failed())?;
        self.publish()
    }

    /// Removes an unfinished repetition.
    pub(super) fn discard(&self) -> Result<(), TrainError> {
        remove(&self.partial())
    }

    fn publish(&self) -> Result<(), TrainError> {
        remove(&self.path)?;
        fs::rename(self.partial(), &self.path).map_err(failed())
    }
}

/// Whether both are one file that exists.
fn is_same_file(left: &Path, right: &Path) -> bool {
    match (fs::canonicalize(left), fs::canonicalize(right)) {
        (Ok(left), Ok(right)) => left == right,
        _ => false,
    }
}

fn remove(path: &Path) -> Result<(), TrainError> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(failed()(error)),
        _ => Ok(()),
    }
}

fn failed() -> impl Fn(std::io::Error) -> TrainError {
    TrainError::system("failed to save the study's measurements")
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: &str =
        r#"{"kind":"start","totalSteps":4,"worldSize":1,"globalBatchSize":4,"trainImages":16}"#;

    fn train(step: u64, steps: u64) -> String {
        format!(
            r#"{{"kind":"train","epoch":0,"step":{step},"steps":{steps},"loss":1.0,"accuracy":0.5,"stepSeconds":0.1}}"#
        )
    }

    #[test]
    fn a_run_is_trained_again_where_a_line_of_its_log_would_end_with_the_warm_up_now() {
        let folder = tempfile::tempdir().expect("a folder");
        let place = |data: &str| Place {
            path: folder.path().into(),
            calibration: folder.path().join(CALIBRATION),
            inputs: json!({"job": 1, "data": data}),
        };
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).expect("writes");
        write(INPUTS, r#"{"job": 1, "data": "a"}"#);
        write(LOG_NAME, &[START, &train(2, 2), &train(4, 2)].join("\n"));
        // The first line is half warm-up, and the second one is not; a warm-up of three steps leaves the fourth.
        let trained = [0, 1, 2, 3, 4].map(|warmup| place("a").is_trained(warmup));
        assert_eq!(trained, [true, true, true, false, true]);
        assert!(!place("b").is_trained(0));
    }

    #[test]
    fn a_failure_is_told_of_the_same_inputs_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let place = |data: &str| Place {
            path: folder.path().join("1"),
            calibration: folder.path().join(CALIBRATION),
            inputs: json!({"job": 1, "data": data}),
        };
        place("a").fail("it broke").expect("kept");
        let told = ["a", "b"].map(|data| place(data).result(0).expect_err("no log"));
        assert_eq!(told, ["it broke", NOT_RUN]);
    }
}
