//! `log.jsonl` beside the checkpoints, appended by rank 0 of every attempt, one JSON object per
//! line.
//!
//! A separate thread writes the lines: training does not wait for a volume that is slow or hangs.
//! Only the line of a checkpoint waits until all lines are written.

use std::convert::Infallible;
use std::io::Write;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, SyncSender, TrySendError, channel, sync_channel};
use std::time::Duration;

use contract::RankSeconds;
use contract::gpu::GpuReading;
use fs_err as fs;
use serde::Serialize;
use torch_ext::SyncTimes;

use super::breakdown::Breakdown;
use super::{CheckpointCost, Phases, now};

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", tag = "kind")]
pub(super) enum Record {
    /// An attempt starts training.
    Start {
        step: u64,
        total_steps: u64,
        world_size: u32,
        global_batch_size: u64,
        train_images: u64,
        /// Product of the GPU, if known.
        #[serde(skip_serializing_if = "Option::is_none")]
        device: Option<String>,
    },
    /// Means over the steps since the last line of this kind; times are seconds per step on rank 0.
    Train {
        epoch: u32,
        step: u64,
        /// Steps since the last line of this kind, or since the attempt began.
        steps: u64,
        loss: f64,
        accuracy: f64,
        learning_rate: f64,
        #[serde(skip_serializing_if = "Option::is_none")]
        loss_scale: Option<f64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        skipped_steps: Option<u64>,
        images_per_second: f64,
        step_seconds: f64,
        phases: Phases,
        /// Over all ranks; `None` for a single one.
        #[serde(skip_serializing_if = "Option::is_none")]
        ranks: Option<RankSeconds>,
        sync: Box<SyncTimes>,
        /// Step time divided by that without slow ranks.
        #[serde(skip_serializing_if = "Option::is_none")]
        slowdown: Option<f64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        resident_bytes: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        device_memory_peak_bytes: Option<u64>,
        /// The driver's last reading of rank 0's GPU.
        #[serde(skip_serializing_if = "Option::is_none")]
        gpu: Option<Box<GpuReading>>,
        /// Milliseconds under DeepSpeed's names, if enabled.
        #[serde(skip_serializing_if = "Option::is_none")]
        wall_clock_breakdown: Option<Breakdown>,
    },
    /// Held-out images were classified.
    Evaluation {
        epoch: u32,
        step: u64,
        correct: u64,
        images: u64,
        accuracy: f64,
        /// The same for the averaged weights.
        #[serde(skip_serializing_if = "Option::is_none")]
        ema_correct: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        ema_accuracy: Option<f64>,
        /// Mean over classes, if images may show several.
        #[serde(skip_serializing_if = "Option::is_none")]
        mean_average_precision: Option<f64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        ema_mean_average_precision: Option<f64>,
        seconds: f64,
    },
    /// Replicas take other shares of a step, as decided after this one.
    Shares {
        step: u64,
        /// By replica.
        images: Vec<u64>,
    },
    /// A checkpoint is complete on storage.
    Checkpoint {
        step: u64,
        path: String,
        #[serde(flatten)]
        cost: CheckpointCost,
    },
}

#[derive(Serialize)]
struct Line<'a> {
    time: String,
    attempt: u32,
    #[serde(flatten)]
    record: &'a Record,
}

/// Most lines that wait to be written: more than eight minutes of training.
const WAITING_LINES: usize = 1024;
/// Time to write them if training ends without a checkpoint after them.
const PATIENCE_AT_THE_END: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Log {
    attempt: u32,
    /// `None` once no more lines come.
    lines: Option<SyncSender<QueuedLine>>,
    /// Disconnects when the last line is written.
    ended: Receiver<Infallible>,
    has_gaps: bool,
}

#[derive(Debug)]
struct QueuedLine {
    bytes: Vec<u8>,
    /// Dropped when it is written.
    _written: Option<Sender<Infallible>>,
}

/// Name of the log, beside a job's checkpoints.
pub(crate) const LOG_NAME: &str = "log.jsonl";

impl Log {
    pub(super) fn open(folder: &Path, attempt: u32) -> std::io::Result<Self> {
        let file = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(folder.join(LOG_NAME))?;
        Self::to(file, attempt)
    }

    fn to(file: impl Write + Send + 'static, attempt: u32) -> std::io::Result<Self> {
        let (lines, waiting) = sync_channel(WAITING_LINES);
        let (ends, ended) = channel();
        std::thread::Builder::new().name("log".into()).spawn(move || {
            append(file, &waiting);
            drop(ends);
        })?;
        Ok(Self {
            attempt,
            lines: Some(lines),
            ended,
            has_gaps: false,
        })
    }

    /// Queues a line. Training outlives a log that cannot be written; the first failure is logged.
    pub(super) fn write(&mut self, record: &Record) {
        let line = QueuedLine {
            bytes: self.line(record),
            _written: None,
        };
        let Some(lines) = &self.lines else { return };
        if let Err(TrySendError::Full(_)) = lines.try_send(line)
            && !std::mem::replace(&mut self.has_gaps, true)
        {
            tracing::warn!("the log has gaps from here on: {WAITING_LINES} lines wait to be written");
        }
    }

    /// Appends a line and returns when it and all before it are written.
    pub(super) fn write_now(&mut self, record: &Record) {
        let (sender, written) = channel();
        let line = QueuedLine {
            bytes: self.line(record),
            _written: Some(sender),
        };
        if let Some(lines) = &self.lines
            && lines.send(line).is_ok()
        {
            let Err(_) = written.recv();
        }
    }

    fn line(&self, record: &Record) -> Vec<u8> {
        let line = Line {
            time: now(),
            attempt: self.attempt,
            record,
        };
        // Strings and numbers are always valid JSON.
        let mut bytes = serde_json::to_vec(&line).unwrap_or_default();
        bytes.push(b'\n');
        bytes
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.lines = None;
        // Storage that hangs must not delay the report of why training ended.
        let _ = self.ended.recv_timeout(PATIENCE_AT_THE_END);
    }
}

fn append(mut file: impl Write, waiting: &Receiver<QueuedLine>) {
    let mut failed = false;
    while let Ok(line) = waiting.recv() {
        if let Err(error) = file.write_all(&line.bytes)
            && !std::mem::replace(&mut failed, true)
        {
            tracing::warn!("the log has gaps from here on: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(step: u64) -> Record {
        Record::Start {
            step,
            total_steps: 10,
            world_size: 1,
            global_batch_size: 1,
            train_images: 1,
            device: None,
        }
    }

    /// A volume that accepts a line per permission and passes it on.
    struct Volume {
        leave: Receiver<()>,
        taken: Sender<Vec<u8>>,
    }

    impl Write for Volume {
        fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
            // It no longer hangs once the sender is dropped.
            let _ = self.leave.recv();
            self.taken.send(line.to_vec()).map_err(std::io::Error::other)?;
            Ok(line.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn volume() -> (Log, Sender<()>, Receiver<Vec<u8>>) {
        let (give_leave, leave) = channel();
        let (taken, lines) = channel();
        let log = Log::to(Volume { leave, taken }, 1).expect("a thread");
        (log, give_leave, lines)
    }

    fn step_of(line: &[u8]) -> u64 {
        let line: serde_json::Value = serde_json::from_slice(line).expect("a line");
        line["step"].as_u64().expect("a step")
    }

    #[test]
    fn training_does_not_wait_for_a_volume_that_hangs_and_lines_keep_their_order() {
        let (mut log, give_leave, lines) = volume();
        let more = WAITING_LINES as u64 + 10;
        for step in 0..more {
            log.write(&record(step));
        }
        assert!(lines.try_recv().is_err());
        assert!(log.has_gaps);
        // It accepts all lines again.
        drop(give_leave);
        drop(log);
        let steps: Vec<u64> = lines.iter().map(|line| step_of(&line)).collect();
        assert!(steps.len() >= WAITING_LINES && steps.len() < more as usize);
        assert!(steps.iter().copied().eq(0..steps.len() as u64));
    }

    #[test]
    fn the_line_of_a_checkpoint_is_waited_for_with_all_before_it() {
        let (mut log, give_leave, lines) = volume();
        log.write(&record(1));
        log.write(&record(2));
        drop(give_leave);
        log.write_now(&record(3));
        let steps: Vec<u64> = lines.try_iter().map(|line| step_of(&line)).collect();
        assert_eq!(steps, [1, 2, 3]);
    }

    #[test]
    fn training_ends_although_the_volume_hangs() {
        let (mut log, give_leave, _lines) = volume();
        log.write(&record(1));
        drop(log);
        give_leave.send(()).expect("it still hangs");
    }
}
