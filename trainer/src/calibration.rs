//! The measured speed of this machine, to which the speeds of emulated devices refer.
//!
//! Measurements of one machine differ by a fifth between runs, and emulation multiplies the
//! difference. Runs to be compared therefore share a file with the first run's measurement.

use std::path::{Path, PathBuf};

use fs_err as fs;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::TrainError;
use crate::pass_time::PassTime;

/// A file with calibrations.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CalibrationFile(PathBuf);

/// The measurement of one job.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    /// Everything that its forward pass depends on.
    job: Value,
    forward: PassTime,
}

/// Maximum duration of a forward pass, seconds.
const LONGEST: f64 = 3600.0;

impl CalibrationFile {
    /// Opens a valid calibration file, or a path at which one can be created.
    pub(crate) fn open(path: &Path) -> Result<Self, TrainError> {
        let path =
            std::path::absolute(path).map_err(TrainError::system("failed to find the current folder"))?;
        let file = Self(path);
        file.read()?;
        if !file.folder().is_dir() {
            return Err(TrainError::Config(format!(
                "{}: its folder does not exist",
                file.path().display()
            )));
        }
        Ok(file)
    }

    /// A file that another process has already opened.
    pub(crate) fn opened(path: PathBuf) -> Self {
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// The measurement of a job, if the file has one.
    pub(crate) fn find(&self, job: &Value) -> Result<Option<PassTime>, TrainError> {
        let known = self.read()?.into_iter().find(|entry| entry.job == *job);
        Ok(known.map(|entry| entry.forward))
    }

    /// Records the measurement of a job. Only one run at a time may write.
    pub(crate) fn add(&self, job: &Value, forward: PassTime) -> Result<(), TrainError> {
        let mut entries = self.read()?;
        entries.push(Entry {
            job: job.clone(),
            forward,
        });
        // Readers see either the old file or the new one.
        let written = tempfile::NamedTempFile::new_in(self.folder()).and_then(|file| {
            serde_json::to_writer_pretty(&file, &entries)?;
            file.persist(&self.0).map_err(|error| error.error)
        });
        written
            .map(drop)
            .map_err(TrainError::system("failed to write the calibration file"))
    }

    fn folder(&self) -> &Path {
        self.0.parent().unwrap_or(Path::new("/"))
    }

    fn read(&self) -> Result<Vec<Entry>, TrainError> {
        let text = match fs::read_to_string(&self.0) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            text => text.map_err(TrainError::system("failed to read the calibration file"))?,
        };
        let refuse = |why: String| {
            let path = self.path().display();
            TrainError::Config(format!(
                "{path} is not a calibration file ({why}): delete it, or pass another file"
            ))
        };
        let entries: Vec<Entry> = serde_json::from_str(&text).map_err(|error| refuse(error.to_string()))?;
        let times = entries
            .iter()
            .flat_map(|entry| [entry.forward.fixed_seconds, entry.forward.image_seconds]);
        match times.into_iter().find(|time| !(0.0..=LONGEST).contains(time)) {
            Some(time) => Err(refuse(format!(
                "a time is {time}: must be 0 to {LONGEST} seconds"
            ))),
            None => Ok(entries),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn runs_share_what_the_first_has_measured_of_a_job() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("calibration.json");
        let file = CalibrationFile::open(&path).expect("it can be made");
        let (small, large) = (json!({"depth": 1}), json!({"depth": 2}));
        let forward = |seconds| PassTime::through([(4, seconds), (2, 0.1)]);
        assert_eq!(file.find(&small).expect("no file"), None);
        file.add(&small, forward(0.5)).expect("a folder to write to");
        file.add(&large, forward(0.75)).expect("a folder to write to");
        let again = CalibrationFile::open(&path).expect("it is there");
        assert_eq!(again.find(&small).expect("a file"), Some(forward(0.5)));
        assert_eq!(again.find(&large).expect("a file"), Some(forward(0.75)));
        let files = fs::read_dir(folder.path()).expect("a folder").count();
        assert_eq!(files, 1, "nothing is left beside it");
    }

    #[test]
    fn what_is_no_calibration_is_refused_before_a_run() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("calibration.json");
        let refused = |text: &str| {
            fs::write(&path, text).expect("a file");
            CalibrationFile::open(&path).expect_err("refused").to_string()
        };
        let entry = |seconds: &str| {
            format!(r#"[{{"job": 1, "forward": {{"fixedSeconds": {seconds}, "imageSeconds": 0.1}}}}]"#)
        };
        for text in ["", "[{}]", &entry("-1"), &entry("1e300")] {
            let error = refused(text);
            assert!(
                error.contains("calibration.json is not a calibration file ("),
                "{error}"
            );
        }
        let nowhere = CalibrationFile::open(&folder.path().join("a/b.json")).expect_err("refused");
        assert!(
            nowhere.to_string().ends_with("its folder does not exist"),
            "{nowhere}"
        );
    }
}
