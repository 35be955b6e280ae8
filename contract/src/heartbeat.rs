//! What an agent tells of the ranks of its pod, whether or not they get on.

use serde::{Deserialize, Serialize};

/// What the training loop of a rank is doing.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Activity {
    /// Loading data and weights, meeting the other ranks, taking the first step of the attempt.
    #[default]
    Starting,
    /// Taking steps.
    Training,
    /// Classifying held-out images.
    Evaluating,
    /// Copying values for a checkpoint, or waiting until one is written.
    Checkpointing,
}

impl Activity {
    /// Whether a rank gets on while it does this, or else hangs. The others may take any time: they wait for storage.
    pub fn is_counted(self) -> bool {
        matches!(self, Self::Training | Self::Evaluating)
    }
}

/// What the kernel says of a rank's process.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ProcessState {
    /// It runs, or sleeps as processes do.
    #[default]
    Running,
    /// A signal or a debugger has stopped it.
    Stopped,
    /// It waits for storage or a driver and cannot be interrupted, which is usual only for moments.
    Uninterruptible,
    /// It has ended.
    Ended,
}

impl ProcessState {
    /// From the state's letter in `/proc/PID/stat` (proc(5)).
    pub fn of_letter(letter: char) -> Self {
        match letter {
            'T' | 't' => Self::Stopped,
            'D' => Self::Uninterruptible,
            'Z' | 'X' => Self::Ended,
            _ => Self::Running,
        }
    }
}

/// A rank as its agent sees it at the moment of the answer.
///
/// Ages are taken by the agent's monotonic clock, so that the clocks of pods and operator need not agree.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Heartbeat {
    /// Global rank.
    pub rank: u32,
    /// What its training loop is doing.
    pub activity: Activity,
    /// Optimizer steps finished, over all attempts; `None` before the first one of this attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    /// How often it has got on: by a step, by a batch of an evaluation, or to another activity.
    pub moves: u64,
    /// Seconds since it last did.
    pub idle_seconds: f64,
    /// Median seconds of its latest steps; `None` before the first one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub median_step_seconds: Option<f64>,
    /// What the kernel says of its process.
    pub process: ProcessState,
}

/// The ranks of one pod, the answer to `GET /heartbeats`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Heartbeats {
    /// Attempt that the pod belongs to, from 1.
    pub attempt: u32,
    /// In the order of their rank.
    pub ranks: Vec<Heartbeat>,
}
