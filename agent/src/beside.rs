//! The sidecar of another trainer's container in each pod.

use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use contract::log::{LogRecord, LoggedSteps, read_log};
use contract::{
    Activity, CheckpointRecord, Heartbeat, Heartbeats, Measurement, ProcessState, Progress, RunConfig, Spent,
    TerminationRecord, environment,
};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::coordinator::resolve;
use crate::http::{self, Shown};
use crate::metrics::Metrics;
use crate::pulse::Pulse;

/// Interval between reads of the log.
const LOOK: Duration = Duration::from_millis(200);
/// Maximum bytes of the log per read; longer lines are skipped.
const MOST_BYTES: u64 = 1 << 20;
/// Maximum length of a reported checkpoint path.
const LONGEST_PATH: usize = 512;
/// Maximum length of a line in a warning.
const WARNED_BYTES: usize = 200;
/// Maximum size of a log to measure.
const MOST_MEASURED_BYTES: u64 = 32 << 20;

/// The sidecar's settings, all from the environment.
#[derive(Clone, Debug, clap::Args)]
pub struct Arguments {
    /// The run configuration.
    #[arg(long, env = environment::RUN_CONFIG)]
    pub run_config: PathBuf,
    /// The log that the trainer's rank 0 writes.
    #[arg(long, env = environment::LOG)]
    pub log: PathBuf,
    /// Index of the pod in the gang.
    #[arg(long, env = environment::NODE_RANK)]
    pub node_rank: u32,
    /// The job's attempt.
    #[arg(long, env = environment::ATTEMPT)]
    pub attempt: u32,
    /// Host name of the pod that holds rank 0.
    #[arg(long, env = environment::COORDINATOR_HOST)]
    pub coordinator_host: String,
    /// Port of the rendezvous on that host.
    #[arg(long, env = environment::COORDINATOR_PORT, default_value_t = environment::DEFAULT_COORDINATOR_PORT)]
    pub coordinator_port: u16,
    /// Name of the node, for metrics.
    #[arg(long, env = environment::NODE_NAME)]
    pub node: Option<String>,
    /// Port of the endpoints.
    #[arg(long, env = environment::AGENT_PORT, default_value_t = environment::DEFAULT_AGENT_PORT)]
    pub port: u16,
    /// File for the termination record.
    #[arg(long, env = environment::TERMINATION_LOG, default_value = environment::TERMINATION_LOG_PATH)]
    pub termination_log: PathBuf,
}

/// Serves the log's content until SIGTERM, after the trainer has ended, and writes a termination
/// record.
///
/// It responds once the coordinator's name resolves. Until then the trainer is not started, because
/// it may fail at once without rank 0.
pub async fn main(arguments: Arguments) -> Result<()> {
    let stop = stop_on_signal().map_err(|error| anyhow!("failed to listen for SIGTERM: {error}"))?;
    let config = read_config(&arguments.run_config)?;
    let watched = Arc::new(WatchedLog::new(&config, &arguments)?);
    let coordinator = (arguments.coordinator_host.as_str(), arguments.coordinator_port);
    resolve(coordinator.0, coordinator.1, &stop).await?;
    http::serve(arguments.port, Arc::clone(&watched))
        .await
        .map_err(|error| anyhow!("failed to listen for HTTP on port {}: {error}", arguments.port))?;
    let mut log = Tail::new(arguments.log.clone());
    loop {
        while watched.follow(&mut log) {}
        tokio::select! {
            () = stop.cancelled() => break,
            () = tokio::time::sleep(LOOK) => {}
        }
    }
    // The log is complete.
    while watched.follow(&mut log) {}
    watched.end(log);
    let record = watched.record(&arguments.log);
    fs_err::write(&arguments.termination_log, serde_json::to_vec(&record)?)
        .map_err(|error| anyhow!("failed to write the termination record: {error}"))
}

fn stop_on_signal() -> std::io::Result<CancellationToken> {
    let stop = CancellationToken::new();
    let mut signals = signal(SignalKind::terminate())?;
    let stopped = stop.clone();
    tokio::spawn(async move {
        signals.recv().await;
        stopped.cancel();
    });
    Ok(stop)
}

fn read_config(path: &Path) -> Result<RunConfig> {
    let text = fs_err::read_to_string(path);
    let text = text.map_err(|error| anyhow!("failed to read the run configuration: {error}"))?;
    serde_json::from_str(&text)
        .map_err(|reason| anyhow!("{} is not a valid run configuration: {reason}", path.display()))
}

/// State of a pod's ranks, from their log.
#[derive(Debug)]
struct WatchedLog {
    config: RunConfig,
    node_rank: u32,
    attempt: u32,
    metrics: Metrics,
    known: Mutex<LogState>,
}

#[derive(Debug, Default)]
struct LogState {
    /// `None` until rank 0 trains in this pod.
    progress: Option<Progress>,
    pulse: Pulse,
    /// Images of a step.
    global_batch_size: u64,
    /// The attempt's time by activity.
    spent: Spent,
    /// The activity that pauses training, and its start.
    pause: Option<(Activity, Instant)>,
    /// Whether an invalid line was logged.
    has_warned: bool,
}

impl LogState {
    /// Ends a pause, before the next record.
    fn end_pause(&mut self) {
        let Some((activity, since)) = self.pause.take() else {
            return;
        };
        let seconds = since.elapsed().as_secs_f64();
        match activity {
            Activity::Evaluating => self.spent.evaluation_seconds += seconds,
            Activity::Checkpointing => self.spent.checkpoint_seconds += seconds,
            Activity::Starting | Activity::Training => {}
        }
    }
}

impl WatchedLog {
    fn new(config: &RunConfig, arguments: &Arguments) -> Result<Self> {
        let metrics = Metrics::new(config, arguments.node_rank, arguments.node.as_deref())
            .map_err(|error| anyhow!("failed to name metrics after the job: {error}"))?;
        Ok(Self {
            config: config.clone(),
            node_rank: arguments.node_rank,
            attempt: arguments.attempt,
            metrics,
            known: Mutex::default(),
        })
    }

    fn known(&self) -> MutexGuard<'_, LogState> {
        // The state is valid after every line.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Applies new lines of the log, or a part of them; returns whether there were any.
    fn follow(&self, log: &mut Tail) -> bool {
        // Only rank 0 reports the run.
        if self.node_rank != 0 {
            return false;
        }
        let read = log.lines();
        if let Err(error) = &read
            && !std::mem::replace(&mut self.known().has_warned, true)
        {
            tracing::warn!("failed to read the log: {error}");
        }
        let lines = read.unwrap_or_default();
        let is_more = lines.is_some();
        for line in lines.unwrap_or_default() {
            let mut known = self.known();
            match LogRecord::parse(&line) {
                Ok(record) => self.apply(&mut known, record),
                Err(error) if !known.has_warned => {
                    known.has_warned = true;
                    let start = &line[..line.floor_char_boundary(WARNED_BYTES)];
                    tracing::warn!("a line of the log is not a valid record ({error}): {start}");
                }
                Err(_) => {}
            }
        }
        is_more
    }

    /// Applies a last line without a newline.
    fn end(&self, log: Tail) {
        let line = String::from_utf8_lossy(&log.rest).into_owned();
        if let Ok(record) = LogRecord::parse(&line) {
            self.apply(&mut self.known(), record);
        }
    }

    fn apply(&self, known: &mut LogState, record: LogRecord) {
        known.end_pause();
        match record {
            LogRecord::Start {
                step,
                total_steps,
                global_batch_size,
                ..
            } => {
                known.global_batch_size = global_batch_size;
                known.spent = Spent {
                    first_step: step,
                    ..Spent::default()
                };
                known.pulse.turned_to(Activity::Starting);
                known.progress = Some(Progress {
                    attempt: self.attempt,
                    total_epochs: self.config.training.epochs,
                    step,
                    total_steps,
                    updated_at: now(),
                    ..Progress::default()
                });
            }
            LogRecord::Train(steps) => {
                known.pulse.stepped(steps.step, steps.step_seconds);
                let seconds = known.spent.step_seconds + steps.count as f64 * steps.step_seconds;
                if seconds.is_finite() {
                    known.spent.step_seconds = seconds;
                }
                let images = known.global_batch_size as f64;
                self.metrics.steps(&steps, images);
                if let Some(progress) = &mut known.progress {
                    trained(progress, &steps, images);
                }
            }
            LogRecord::Evaluation { epoch, accuracy } => {
                known.pulse.turned_to(Activity::Training);
                if let Some(progress) = &mut known.progress {
                    progress.epoch = epoch;
                    progress.validation_accuracy = Some(accuracy);
                }
            }
            LogRecord::Checkpoint { step, mut path } => {
                path.truncate(path.floor_char_boundary(LONGEST_PATH));
                known.pulse.turned_to(Activity::Training);
                if let Some(progress) = &mut known.progress {
                    progress.last_checkpoint = Some(CheckpointRecord {
                        step,
                        path,
                        time: now(),
                    });
                }
            }
            LogRecord::Activity { activity } => {
                known.pulse.turned_to(activity);
                known.pause = Some((activity, Instant::now()));
            }
            LogRecord::Shares {} => {}
        }
        if let Some(progress) = &mut known.progress {
            progress.spent = Some(known.spent);
            progress.updated_at = now();
            self.metrics.progress(progress);
        }
    }

    fn record(&self, log: &Path) -> TerminationRecord {
        let is_first = self.node_rank == 0;
        let measured = self.config.measure.filter(|_| is_first).map(|measure| {
            let measured = read_log(&whole(log)?, measure.warmup_steps)?;
            let (epochs, most) = (measured.epochs.len(), Measurement::MOST_EPOCHS);
            ensure!(
                epochs <= most,
                "the log has {epochs} epochs, but a termination message holds only {most}"
            );
            // Without the machine: this container sees only a share of it.
            Ok(Box::new(measured.rounded()))
        });
        let (measurement, unmeasured) = match measured.transpose() {
            Ok(measurement) => (measurement, None),
            Err(error) => (None, Some(error.to_string())),
        };
        TerminationRecord {
            progress: self.known().progress.clone(),
            measurement,
            unmeasured,
            ..TerminationRecord::default()
        }
        .shortened()
    }
}

/// Reads a log to measure, which must be a file of limited size.
fn whole(log: &Path) -> Result<String> {
    let bytes = size(log)?;
    ensure!(
        bytes <= MOST_MEASURED_BYTES,
        "the log has {bytes} bytes, but at most {MOST_MEASURED_BYTES} are allowed: report fewer lines"
    );
    Ok(fs_err::read_to_string(log)?)
}

/// Bytes of a log. Only files are opened: opening a pipe would wait for a writer.
fn size(log: &Path) -> std::io::Result<u64> {
    let about = fs_err::metadata(log)?;
    if !about.is_file() {
        return Err(std::io::Error::other(format!("{} is not a file", log.display())));
    }
    Ok(about.len())
}

/// Updates progress with finished steps.
fn trained(progress: &mut Progress, steps: &LoggedSteps, images: f64) {
    let left = progress.total_steps.saturating_sub(steps.step);
    let waiting = steps.phases.waiting();
    progress.epoch = steps.epoch;
    progress.step = steps.step;
    progress.loss = steps.loss;
    progress.train_accuracy = Some(steps.accuracy);
    // Trainers that round to whole seconds report 0.
    let took_time = steps.step_seconds > 0.0;
    progress.images_per_second = took_time.then(|| images / steps.step_seconds);
    // Without phases, waiting is unknown, not zero.
    let has_phases = steps.phases.compute() > 0.0;
    progress.sync_share = (took_time && has_phases).then(|| waiting / steps.step_seconds);
    progress.eta_seconds = Some((left as f64 * steps.step_seconds).ceil() as u64);
}

impl Shown for WatchedLog {
    fn metrics(&self) -> prometheus::Result<Vec<u8>> {
        self.metrics.render()
    }

    fn progress(&self) -> Option<Progress> {
        let heartbeat = self.heartbeats().ranks.pop();
        let progress = self.known().progress.clone()?;
        Some(Progress {
            heartbeat,
            ..progress
        })
    }

    /// Only of rank 0, in its pod: other ranks write no log, and each step waits for them.
    fn heartbeats(&self) -> Heartbeats {
        let pulse = self.known().pulse.clone();
        let first = Heartbeat {
            rank: 0,
            activity: pulse.activity,
            step: pulse.step,
            moves: pulse.moves,
            idle_seconds: pulse.idle().as_secs_f64(),
            median_step_seconds: pulse.median_step(),
            process: ProcessState::Running,
        };
        Heartbeats {
            attempt: self.attempt,
            ranks: if self.node_rank == 0 { vec![first] } else { vec![] },
        }
    }
}

/// A growing file, read from the end of the last read.
#[derive(Debug)]
struct Tail {
    path: PathBuf,
    at: u64,
    /// Start of an incomplete line.
    rest: Vec<u8>,
}

impl Tail {
    fn new(path: PathBuf) -> Self {
        Self {
            path,
            at: 0,
            rest: Vec::new(),
        }
    }

    /// Complete lines since the last read; `None` without new bytes. A file that is shorter than
    /// before is read from the start.
    fn lines(&mut self) -> std::io::Result<Option<Vec<String>>> {
        match self.read() {
            Ok(0) => return Ok(None),
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        }
        let end = self.rest.iter().rposition(|byte| *byte == b'\n');
        let lines: Vec<u8> = self.rest.drain(..end.map_or(0, |end| end + 1)).collect();
        if self.rest.len() as u64 >= MOST_BYTES {
            self.rest.clear();
        }
        let text = String::from_utf8_lossy(&lines);
        let lines = text.lines().filter(|line| !line.trim().is_empty());
        Ok(Some(lines.map(str::to_owned).collect()))
    }

    /// Reads new bytes, up to a maximum, and returns their number.
    fn read(&mut self) -> std::io::Result<usize> {
        if size(&self.path)? < self.at {
            self.at = 0;
            self.rest.clear();
        }
        let mut file = fs_err::File::open(&self.path)?;
        file.seek(SeekFrom::Start(self.at))?;
        let read = file.take(MOST_BYTES).read_to_end(&mut self.rest)?;
        self.at += read as u64;
        Ok(read)
    }
}

fn now() -> String {
    jiff::Timestamp::now().to_string()
}

#[cfg(test)]
mod tests;
