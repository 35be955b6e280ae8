//! Exit codes of the trainer, and the failure class of each.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How a training process ended. Codes 75 to 79 continue `sysexits.h`, where 75 is "temporary failure".
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ExitCode {
    /// 0: all epochs are done.
    Done,
    /// 2: the run configuration or the command line is wrong.
    BadConfig,
    /// 3: the data set is missing, truncated or does not fit the model.
    BadData,
    /// 75: another rank, or the network to it, was lost.
    PeerLost,
    /// 76: the accelerator is missing or faulty.
    DeviceFault,
    /// 77: out of device or host memory.
    OutOfMemory,
    /// 78: loss or gradient norm was not finite.
    Diverged,
    /// 79: a checkpoint could not be written or read.
    Storage,
    /// 143: stopped by SIGTERM after saving a checkpoint.
    Stopped,
    /// 128 + n: ended by signal n, except for a stop that saved.
    Signal(u8),
    /// Any other code: a defect of the trainer.
    Other(u8),
}

impl ExitCode {
    /// The exit code as a number.
    pub fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::BadConfig => 2,
            Self::BadData => 3,
            Self::PeerLost => 75,
            Self::DeviceFault => 76,
            Self::OutOfMemory => 77,
            Self::Diverged => 78,
            Self::Storage => 79,
            Self::Stopped => 143,
            Self::Signal(signal) => 128_u8.saturating_add(signal),
            Self::Other(code) => code,
        }
    }

    /// The meaning of a process's exit code.
    pub fn from_code(code: u8) -> Self {
        match code {
            0 => Self::Done,
            2 => Self::BadConfig,
            3 => Self::BadData,
            75 => Self::PeerLost,
            76 => Self::DeviceFault,
            77 => Self::OutOfMemory,
            78 => Self::Diverged,
            79 => Self::Storage,
            143 => Self::Stopped,
            129..=192 => Self::Signal(code - 128),
            other => Self::Other(other),
        }
    }

    /// The class of failure; `None` if nothing failed.
    pub fn failure_class(self) -> Option<FailureClass> {
        match self {
            Self::Done | Self::Stopped => None,
            Self::BadConfig => Some(FailureClass::BadConfig),
            Self::BadData => Some(FailureClass::BadData),
            Self::PeerLost => Some(FailureClass::PeerLost),
            Self::DeviceFault => Some(FailureClass::DeviceFault),
            Self::OutOfMemory => Some(FailureClass::OutOfMemory),
            Self::Diverged => Some(FailureClass::Diverged),
            Self::Storage => Some(FailureClass::Storage),
            Self::Signal(_) => Some(FailureClass::Killed),
            Self::Other(_) => Some(FailureClass::Crashed),
        }
    }
}

/// Why an attempt failed: the label of metrics and the key of the restart decision.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize, Deserialize)]
pub enum FailureClass {
    /// Wrong configuration: a retry would fail again.
    BadConfig,
    /// Missing or corrupt data: a retry would fail again.
    BadData,
    /// Another rank or the network was lost.
    PeerLost,
    /// The accelerator is missing or faulty.
    DeviceFault,
    /// Out of memory: a retry with the same plan would fail again.
    OutOfMemory,
    /// Loss or gradient norm not finite: a retry would fail again.
    Diverged,
    /// Checkpoint storage could not be written or read.
    Storage,
    /// A process was ended by a signal.
    Killed,
    /// A process ended in any other way.
    Crashed,
    /// The pod was deleted, evicted or preempted, or its node went away.
    PodLost,
    /// A pod could not be started, or not in time: its image, its volumes, or its node.
    StartFailed,
    /// No rank finished steps any more, although all were running.
    Stalled,
}

/// memory that ran out, if that is known to be the cause: GPU, or Host for the pod's memory.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize, JsonSchema)]
pub enum Memory {
    /// The rank's GPU memory.
    #[serde(rename = "GPU")]
    Gpu,
    /// The memory of the pod or the machine.
    Host,
}

impl FailureClass {
    /// Every class, for tests and for metrics that start at zero.
    pub const ALL: [Self; 12] = [
        Self::BadConfig,
        Self::BadData,
        Self::PeerLost,
        Self::DeviceFault,
        Self::OutOfMemory,
        Self::Diverged,
        Self::Storage,
        Self::Killed,
        Self::Crashed,
        Self::PodLost,
        Self::StartFailed,
        Self::Stalled,
    ];

    /// Whether a new attempt with the same plan may succeed.
    pub fn is_retryable(self) -> bool {
        match self {
            Self::PeerLost
            | Self::DeviceFault
            | Self::Storage
            | Self::Killed
            | Self::Crashed
            | Self::PodLost
            | Self::StartFailed
            | Self::Stalled => true,
            Self::BadConfig | Self::BadData | Self::OutOfMemory | Self::Diverged => false,
        }
    }

    /// Whether this class only follows from another rank's failure: of ranks that fail together,
    /// the one that lost its peer is not the cause.
    pub fn is_echo(self) -> bool {
        self == Self::PeerLost
    }

    /// The name in status, events and metric labels.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::BadConfig => "BadConfig",
            Self::BadData => "BadData",
            Self::PeerLost => "PeerLost",
            Self::DeviceFault => "DeviceFault",
            Self::OutOfMemory => "OutOfMemory",
            Self::Diverged => "Diverged",
            Self::Storage => "Storage",
            Self::Killed => "Killed",
            Self::Crashed => "Crashed",
            Self::PodLost => "PodLost",
            Self::StartFailed => "StartFailed",
            Self::Stalled => "Stalled",
        }
    }
}

impl std::fmt::Display for FailureClass {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_reads_back_as_itself() {
        for code in 0..=u8::MAX {
            assert_eq!(ExitCode::from_code(code).code(), code);
        }
    }

    #[test]
    fn what_the_user_must_fix_is_never_retried() {
        for code in [2, 3, 77, 78] {
            let class = ExitCode::from_code(code).failure_class().expect("a failure");
            assert!(!class.is_retryable(), "exit code {code} ({class}) is retryable");
        }
    }

    #[test]
    fn a_killed_rank_is_retried_and_a_saved_stop_is_no_failure() {
        assert_eq!(
            ExitCode::from_code(137).failure_class(),
            Some(FailureClass::Killed)
        );
        assert!(FailureClass::Killed.is_retryable());
        assert_eq!(ExitCode::from_code(143).failure_class(), None);
    }

    #[test]
    fn class_names_are_their_serialized_form() {
        for class in FailureClass::ALL {
            assert_eq!(serde_json::to_value(class).expect("serializes"), class.as_str());
        }
    }
}
