//! An agent's report on the ranks of its pod, whether or not they make progress.

use serde::{Deserialize, Serialize};

/// Activity of a rank's training loop.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Activity {
    /// Loading data and weights, joining the other ranks, taking the first step of the attempt.
    #[default]
    Starting,
    /// Taking steps.
    Training,
    /// Classifying held-out images.
    Evaluating,
    /// Copying tensors for a checkpoint, or waiting until one is written.
    Checkpointing,
}

impl Activity {
    /// Whether a rank must make progress in this activity. The others wait for storage and may last
    /// any time.
    pub fn is_counted(self) -> bool {
        matches!(self, Self::Training | Self::Evaluating)
    }
}

/// State of a rank's process in the kernel.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ProcessState {
    /// It runs or sleeps.
    #[default]
    Running,
    /// A signal or a debugger has stopped it.
    Stopped,
    /// It waits uninterruptibly for storage or a driver, which normally is brief.
    Uninterruptible,
    /// It has ended.
    Ended,
}

impl ProcessState {
    /// From the state's letter in `/proc/PID/stat` (proc(5)).
    pub fn from_letter(letter: char) -> Self {
        match letter {
            'T' | 't' => Self::Stopped,
            'D' => Self::Uninterruptible,
            'Z' | 'X' => Self::Ended,
            _ => Self::Running,
        }
    }
}

/// A rank as its agent sees it when it answers.
///
/// Ages use the agent's monotonic clock, so the clocks of pods and operator need not agree.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Heartbeat {
    /// Global rank.
    pub rank: u32,
    /// Activity of its training loop.
    pub activity: Activity,
    /// Optimizer steps finished, over all attempts; `None` before the first one of this attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    /// How often it made progress: a step, an evaluation batch, or a change of activity.
    pub moves: u64,
    /// Seconds since it last made progress.
    pub idle_seconds: f64,
    /// Median seconds of its latest steps; `None` before the first one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub median_step_seconds: Option<f64>,
    /// State of its process in the kernel.
    pub process: ProcessState,
}

/// The ranks of one pod, the answer to `GET /heartbeats`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Heartbeats {
    /// Attempt that the pod belongs to, from 1.
    pub attempt: u32,
    /// Sorted by rank.
    pub ranks: Vec<Heartbeat>,
}
