//! Reports of running and ended attempts.

use serde::{Deserialize, Serialize};

use crate::exit::{FailureClass, Memory};
use crate::heartbeat::Heartbeat;
use crate::measurement::Measurement;

/// The query of `GET /progress`.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProgressQuery {
    /// A checkpoint of a later step than this is wanted. Repeated until there is one.
    pub save_after: Option<u64>,
}

/// Progress of a run as rank 0 knows it, the answer to `GET /progress`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Progress {
    /// Attempt of this record, from 1.
    pub attempt: u32,
    /// Epochs finished.
    pub epoch: u32,
    /// Epochs in the whole run.
    pub total_epochs: u32,
    /// Optimizer steps finished, over all attempts.
    pub step: u64,
    /// Optimizer steps in the whole run.
    pub total_steps: u64,
    /// Mean training loss of the last log interval, over all ranks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    /// Share of training images of the current epoch classified right, 0..1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub train_accuracy: Option<f64>,
    /// Share of held-out images classified right at the last evaluation, 0..1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub validation_accuracy: Option<f64>,
    /// The same with averaged weights, if the run keeps an average.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ema_validation_accuracy: Option<f64>,
    /// Mean average precision of the held-out images at the last evaluation, 0..1; if images may
    /// show several classes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validation_mean_average_precision: Option<f64>,
    /// Training images per second over all ranks, mean of the last log interval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub images_per_second: Option<f64>,
    /// Share of step time that rank 0 waited for synchronization (exposed communication and
    /// straggler wait), 0..1, mean of the last log interval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sync_share: Option<f64>,
    /// Step time over the step time if every rank computed as fast as the median one (the faster of
    /// two), mean of the last log interval; 1 without slower ranks. The slowdown S of arXiv
    /// 2505.05713.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slowdown: Option<f64>,
    /// Ranks that computed for longer than the others in the last log interval, the slowest first;
    /// at most [`MOST_SLOW_RANKS`]. Not in termination messages.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub slow_ranks: Vec<SlowRank>,
    /// Ranks that get no images, because even one would delay the others; at most the first
    /// [`MOST_SLOW_RANKS`]. Not in termination messages.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub idle_ranks: Vec<u32>,
    /// This attempt's time by activity; absent if the trainer does not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spent: Option<Spent>,
    /// Seconds to the end of the run at the current speed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eta_seconds: Option<u64>,
    /// Newest checkpoint that is complete on storage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_checkpoint: Option<CheckpointRecord>,
    /// Time of this record, RFC 3339 in UTC.
    pub updated_at: String,
    /// Rank 0 at the time of the response, because the record does not change while training is
    /// stuck. The agent adds it to responses only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub heartbeat: Option<Heartbeat>,
}

impl Progress {
    /// Percent of the run that is done, 0..=100, rounded down.
    pub fn percent(&self) -> u8 {
        if self.total_steps == 0 {
            return 0;
        }
        u8::try_from(self.step.min(self.total_steps) * 100 / self.total_steps).unwrap_or(100)
    }
}

/// An attempt's time by activity since its ranks began to train, by rank 0's monotonic clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Spent {
    /// Optimizer steps done before the attempt.
    pub first_step: u64,
    /// Seconds in optimizer steps.
    pub step_seconds: f64,
    /// Seconds of classifying held-out images.
    pub evaluation_seconds: f64,
    /// Seconds that training paused for checkpoints.
    pub checkpoint_seconds: f64,
}

/// A rank that computes for longer than others.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SlowRank {
    /// Global rank.
    pub rank: u32,
    /// Its time from the start of a step until its last gradient is ready (data, forward and
    /// backward pass, without waiting), over the median of the other ranks; at least
    /// [`LEAST_SLOWDOWN`].
    pub slowdown: f64,
    /// Seconds that a step would be shorter without this rank: its compute time beyond the next
    /// slowest. `S_w` of arXiv 2505.05713 as a difference, of computing only; absent if 0, and from
    /// older trainers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub saved_seconds: Option<f64>,
}

/// Minimum slowdown of a reported rank.
pub const LEAST_SLOWDOWN: f64 = 1.2;
/// Maximum number of reported slow ranks: with more, the others are the exception.
pub const MOST_SLOW_RANKS: usize = 16;

/// A checkpoint that is complete on storage.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CheckpointRecord {
    /// Optimizer steps it holds.
    pub step: u64,
    /// Its folder, as the trainer sees it.
    pub path: String,
    /// When it was completed, RFC 3339 in UTC.
    pub time: String,
}

/// The first rank of a pod that failed.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FailureRecord {
    /// Global rank; `None` if the agent itself failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
    /// Exit code of that rank, 128 + n for signal n.
    pub exit_code: u8,
    /// The class of the failure.
    pub class: FailureClass,
    /// The memory that a rank ran out of, if the trainer knows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Memory>,
    /// The trainer's error message.
    pub message: String,
}

/// The last report of a pod's agent, in the container's termination message.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TerminationRecord {
    /// Last progress; only from rank 0's pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// The failure, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<FailureRecord>,
    /// The measurement of a successful run with `measure`, from rank 0's pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measurement: Option<Box<Measurement>>,
    /// Why a run was not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unmeasured: Option<String>,
}

/// Kubelets keep at most this many bytes of a termination message.
pub const TERMINATION_MESSAGE_BYTES: usize = 4096;
/// Longest failure message kept in a [`TerminationRecord`], in bytes, so that the record fits
/// [`TERMINATION_MESSAGE_BYTES`] even where JSON escapes double it.
pub const FAILURE_MESSAGE_BYTES: usize = 1200;

impl TerminationRecord {
    /// The record cut to fit a termination message: messages have at most
    /// [`FAILURE_MESSAGE_BYTES`], cut between characters.
    #[must_use]
    pub fn shortened(mut self) -> Self {
        if let Some(progress) = &mut self.progress {
            // They do not matter any more, and space is scarce.
            progress.slow_ranks.clear();
            progress.idle_ranks.clear();
        }
        let failure = self.failure.as_mut().map(|failure| &mut failure.message);
        for message in failure.into_iter().chain(&mut self.unmeasured) {
            message.truncate(message.floor_char_boundary(FAILURE_MESSAGE_BYTES));
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percent_reaches_one_hundred_only_at_the_end() {
        let at = |step| {
            Progress {
                step,
                total_steps: 1000,
                ..Progress::default()
            }
            .percent()
        };
        assert_eq!((at(0), at(999), at(1000), at(2000)), (0, 99, 100, 100));
        assert_eq!(Progress::default().percent(), 0);
    }

    #[test]
    fn the_longest_record_fits_a_termination_message() {
        let record = TerminationRecord {
            progress: Some(Progress {
                attempt: u32::MAX,
                epoch: u32::MAX,
                total_epochs: u32::MAX,
                step: u64::MAX,
                total_steps: u64::MAX,
                loss: Some(-f64::MIN_POSITIVE),
                train_accuracy: Some(1.0 / 3.0),
                validation_accuracy: Some(1.0 / 3.0),
                ema_validation_accuracy: Some(1.0 / 3.0),
                validation_mean_average_precision: Some(1.0 / 3.0),
                images_per_second: Some(f64::MAX / 3.0),
                sync_share: Some(1.0 / 3.0),
                slowdown: Some(4.0 / 3.0),
                slow_ranks: Vec::new(),
                idle_ranks: Vec::new(),
                spent: Some(Spent {
                    first_step: u64::MAX,
                    step_seconds: -f64::MIN_POSITIVE,
                    evaluation_seconds: -f64::MIN_POSITIVE,
                    checkpoint_seconds: -f64::MIN_POSITIVE,
                }),
                eta_seconds: Some(u64::MAX),
                last_checkpoint: Some(CheckpointRecord {
                    step: u64::MAX,
                    path: "p".repeat(512),
                    time: "2026-01-01T00:00:00.000000000Z".into(),
                }),
                updated_at: "2026-01-01T00:00:00.000000000Z".into(),
                heartbeat: None,
            }),
            failure: Some(FailureRecord {
                rank: Some(u32::MAX),
                exit_code: u8::MAX,
                class: FailureClass::OutOfMemory,
                memory: Some(Memory::Host),
                message: "\"".repeat(FAILURE_MESSAGE_BYTES),
            }),
            measurement: None,
            unmeasured: None,
        };
        fits(&record);
        // A failed run has no measurement.
        fits(&TerminationRecord {
            failure: None,
            measurement: Some(Box::new(crate::measurement::tests::longest().rounded())),
            ..record
        });
    }

    #[test]
    fn a_long_message_is_cut_between_characters() {
        let message = format!("a{}", "é".repeat(FAILURE_MESSAGE_BYTES));
        let record = TerminationRecord {
            unmeasured: Some(message),
            ..TerminationRecord::default()
        };
        let cut = record.shortened().unmeasured.expect("a message");
        assert_eq!(cut.len(), FAILURE_MESSAGE_BYTES - 1 + FAILURE_MESSAGE_BYTES % 2);
    }

    fn fits(record: &TerminationRecord) {
        let json = serde_json::to_string(record).expect("serializes");
        assert!(json.len() <= TERMINATION_MESSAGE_BYTES, "{} bytes", json.len());
        assert_eq!(
            &serde_json::from_str::<TerminationRecord>(&json).expect("reads back"),
            record
        );
    }
}
