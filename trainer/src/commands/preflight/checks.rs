//! The checks.

use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::Instant;

use contract::{DataConfig, DataFormat, ExitCode, FailureClass, RunConfig};
use fs_err as fs;

use super::report::{Check, Report};
use crate::checkpoint::CheckpointError;
use crate::distributed::Accelerator;
use crate::error::TrainError;
use crate::launch::{self, Launch};
use crate::metrics::LOG_NAME;
use crate::signals::stop_on_signal;
use crate::threads;

/// Bytes written to test storage.
const PROBE_BYTES: usize = 16 << 20;
/// Rehearsed steps: only the first has one-time costs.
const STEPS: u64 = 2;

/// Reads the data set as ranks will.
pub(super) fn data(config: &RunConfig) -> Result<((), String), TrainError> {
    let splits = crate::data::load(config, tch::Device::Cpu)?;
    splits.require_a_step(config.global_batch_size())?;
    splits.check_labels()?;
    let images = splits.train.len();
    let held_out = splits.validation.map_or(0, |data| data.len());
    Ok(((), format!("{images} training and {held_out} held-out images")))
}

/// A scratch folder beside the checkpoints. Removed when dropped, with the folders created for it.
pub(super) struct Scratch {
    path: PathBuf,
    /// The topmost folder that was created.
    made: Option<PathBuf>,
}

impl Scratch {
    pub(super) fn new(checkpoints: &Path) -> Result<Self, TrainError> {
        let path = checkpoints.join(format!(".preflight-{}", std::process::id()));
        let made = checkpoints
            .ancestors()
            .take_while(|folder| !folder.as_os_str().is_empty() && !folder.exists())
            .last();
        fs::create_dir_all(&path).map_err(CheckpointError::Folder)?;
        Ok(Self {
            made: made.map(Path::to_path_buf),
            path,
        })
    }

    /// Writes a file, waits until it is durable, and reads it back.
    pub(super) fn write_and_read(&self) -> Result<String, TrainError> {
        self.probe()
            .map_err(|error| CheckpointError::Folder(error).into())
    }

    fn probe(&self) -> std::io::Result<String> {
        let bytes: Vec<u8> = (0..PROBE_BYTES).map(|index| (index % 251) as u8).collect();
        let path = self.path.join("probe");
        let start = Instant::now();
        let mut file = fs::File::create(&path)?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        fs::File::open(&self.path)?.sync_all()?;
        let write = start.elapsed().as_secs_f64();
        let mut back = Vec::with_capacity(PROBE_BYTES);
        fs::File::open(&path)?.read_to_end(&mut back)?;
        if back != bytes {
            return Err(std::io::Error::other(format!(
                "{} reads back other bytes than were written",
                path.display()
            )));
        }
        fs::remove_file(&path)?;
        let megabytes = PROBE_BYTES as f64 / 1e6;
        Ok(format!(
            "{megabytes:.0} MB written and durable at {:.0} MB/s, read back the same",
            megabytes / write.max(1e-6)
        ))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Leftovers are small, and their name explains them.
        let _ = fs::remove_dir_all(self.made.as_ref().unwrap_or(&self.path));
    }
}

/// Finds the ranks' device.
pub(super) fn device(config: &RunConfig) -> Result<((), String), TrainError> {
    let detail = match Accelerator::find(config.device, 0)? {
        Accelerator::Cpu => format!(
            "the CPU, {} of {} threads for each of {} ranks",
            threads::per_rank(config.world_size()),
            threads::per_rank(1),
            config.world_size()
        ),
        Accelerator::Cuda { .. } => {
            let found = usize::try_from(tch::Cuda::device_count()).unwrap_or(0);
            if found < config.world_size() as usize {
                return Err(TrainError::TooFewGpus {
                    found,
                    nodes: config.nodes,
                    ranks_per_node: config.ranks_per_node,
                });
            }
            format!("{found} GPUs for {} ranks", config.world_size())
        }
    };
    Ok(((), detail))
}

/// Runs a few steps of the job on synthetic images, over all ranks, with a checkpoint at the end.
pub(super) async fn rehearse(config: &RunConfig, scratch: &Scratch, report: &mut Report) {
    let mut config = config.clone();
    config.data = DataConfig {
        synthetic_images: Some(STEPS * config.global_batch_size()),
        ..DataConfig::plain(DataFormat::Synthetic)
    };
    config.training.epochs = 1;
    config.training.schedule = contract::Schedule {
        name: contract::ScheduleName::Constant,
        ..contract::Schedule::default()
    };
    config.checkpoint.path.clone_from(&scratch.path);
    let start = Instant::now();
    let launch = Launch {
        keep_errors: true,
        ..Launch::default()
    };
    let end = match stop_on_signal() {
        Ok(stop) => launch::run(&config, &launch, stop, |_| {}).await,
        Err(error) => Err(error),
    };
    let seconds = start.elapsed().as_secs_f64();
    let end = match end {
        Ok(end) => end,
        Err(error) => {
            report.failed(Check::Collective, error.to_string(), error.exit_code());
            return;
        }
    };
    if end.code == ExitCode::Done {
        tell(&config, scratch, seconds, report);
        return;
    }
    let class = end.code.failure_class().unwrap_or(FailureClass::Crashed);
    let reason = end.failure.map_or_else(
        || "it exited without reporting an error".to_owned(),
        |failure| failure.message,
    );
    let check = match class {
        FailureClass::DeviceFault => Check::Device,
        FailureClass::PeerLost => Check::Collective,
        FailureClass::Storage => Check::Checkpoint,
        FailureClass::BadConfig => Check::Configuration,
        _ => Check::Memory,
    };
    report.failed(check, reason, end.code);
}

fn tell(config: &RunConfig, scratch: &Scratch, seconds: f64, report: &mut Report) {
    let log = fs::read_to_string(scratch.path.join(LOG_NAME)).unwrap_or_default();
    let record = |kind: &str| -> serde_json::Value {
        let mut records = log
            .lines()
            .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        records.rfind(|record| record["kind"] == kind).unwrap_or_default()
    };
    let train = record("train");
    let number = |value: &serde_json::Value| value.as_f64().unwrap_or_default();
    report.passed(
        Check::Collective,
        format!(
            "{} ranks averaged {:.1} MB of gradients in {:.1} ms",
            config.world_size(),
            number(&train["sync"]["bytes"]) / 1e6,
            number(&train["sync"]["total"]) * 1e3
        ),
        None,
    );
    report.passed(
        Check::Memory,
        format!(
            "a step of {} images fits; it took {:.2} s, the whole rehearsal {seconds:.1} s",
            config.global_batch_size(),
            number(&train["stepSeconds"])
        ),
        Some(seconds),
    );
    let checkpoint = record("checkpoint");
    let folder = checkpoint["path"].as_str().map(Path::new);
    let bytes: u64 = folder
        .and_then(|folder| fs::read_dir(folder).ok())
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.metadata().ok()?.len()))
        .sum();
    report.passed(
        Check::Checkpoint,
        format!(
            "{:.1} MB, and {} are kept",
            bytes as f64 / 1e6,
            config.checkpoint.keep
        ),
        None,
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn storage_is_left_as_it_was_found() {
        let folder = tempfile::tempdir().expect("a folder");
        let checkpoints = folder.path().join("a/b");
        let scratch = Scratch::new(&checkpoints).expect("a folder");
        let detail = scratch.write_and_read().expect("writes and reads");
        assert!(detail.starts_with("17 MB written and durable at "), "{detail}");
        drop(scratch);
        assert!(!folder.path().join("a").exists());

        fs::create_dir_all(&checkpoints).expect("a folder");
        drop(Scratch::new(&checkpoints).expect("a folder"));
        assert_eq!(fs::read_dir(&checkpoints).expect("is still there").count(), 0);
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_a_storage_failure() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let error = Scratch::new(&file.path().join("runs")).err().expect("refused");
        assert_eq!(error.exit_code(), ExitCode::Storage);
    }
}
