//! `log.jsonl` beside the checkpoints: one JSON object a line, appended by rank 0 of every attempt.

use std::io::Write as _;
use std::path::Path;

use fs_err as fs;
use serde::Serialize;

use super::{Phases, SyncCost};

/// A line of the log.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", tag = "kind")]
pub(super) enum Record {
    /// An attempt begins to train.
    Start {
        step: u64,
        total_steps: u64,
        world_size: u32,
        global_batch_size: u64,
        train_images: u64,
    },
    /// Means over the steps since the last line of this kind; times in seconds a step, of rank 0.
    Train {
        epoch: u32,
        step: u64,
        loss: f64,
        accuracy: f64,
        learning_rate: f64,
        images_per_second: f64,
        step_seconds: f64,
        phases: Phases,
        sync: SyncCost,
    },
    /// Held-out images were classified.
    Evaluation {
        epoch: u32,
        step: u64,
        correct: u64,
        images: u64,
        accuracy: f64,
        seconds: f64,
    },
    /// A checkpoint is complete on storage.
    Checkpoint { step: u64, path: String, seconds: f64 },
}

/// A line with its time and attempt.
#[derive(Serialize)]
struct Line<'a> {
    time: String,
    attempt: u32,
    #[serde(flatten)]
    record: &'a Record,
}

/// The open log.
#[derive(Debug)]
pub(super) struct Log {
    file: fs::File,
    attempt: u32,
    failed: bool,
}

impl Log {
    /// Opens the log in `folder` for appending.
    pub(super) fn open(folder: &Path, attempt: u32) -> std::io::Result<Self> {
        let file = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(folder.join("log.jsonl"))?;
        Ok(Self {
            file,
            attempt,
            failed: false,
        })
    }

    /// Appends a line. Training outlives a log that cannot be written; the first failure is told.
    pub(super) fn write(&mut self, record: &Record) {
        let line = Line {
            time: super::observer::now(),
            attempt: self.attempt,
            record,
        };
        let written = serde_json::to_vec(&line)
            .map_err(std::io::Error::other)
            .and_then(|mut bytes| {
                bytes.push(b'\n');
                self.file.write_all(&bytes)
            });
        if let Err(error) = written
            && !std::mem::replace(&mut self.failed, true)
        {
            tracing::warn!("the log has gaps from here on: {error}");
        }
    }
}
