//! Why training ended before its time, and the exit code that says so.

use contract::{ConfigError, ExitCode, FailureClass};
use torch_ext::ErrorKind;

use crate::checkpoint::CheckpointError;
use crate::data::DataError;

/// What ended a rank or an agent.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TrainError {
    /// The run configuration, the manifest, the environment or the command line is wrong.
    #[error("{0}")]
    Config(String),
    /// The data set is missing, corrupt or too small.
    #[error(transparent)]
    Data(#[from] DataError),
    /// A checkpoint cannot be written or read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A call into libtorch failed.
    #[error(transparent)]
    Torch(#[from] torch_ext::Error),
    /// No usable GPU although the configuration demands one.
    #[error("workers.device is cuda, but {0}")]
    Device(#[from] torch_ext::CudaError),
    /// A GPU that cannot be used although the machine has one. Training on the CPU instead would go unnoticed.
    #[error(
        "workers.device is auto and this machine has a GPU, but {0}; to train on the CPU on purpose, set workers.device to cpu"
    )]
    UnusableGpu(#[source] torch_ext::CudaError),
    /// Ranks that would wait for one another on different devices for ever.
    #[error(
        "workers.device is auto, and {with_gpu} of {ranks} ranks found a GPU: all must, or set workers.device to cpu"
    )]
    MixedDevices { with_gpu: u64, ranks: u32 },
    /// The coordinator did not appear.
    #[error("{0}")]
    Rendezvous(String),
    /// The loss is not a number any more.
    #[error(
        "training diverged at step {step} (epoch {epoch}): the loss over all ranks is {loss}; lower training.optimizer.learningRate, or set training.clipGradNorm"
    )]
    LossNotFinite { step: u64, epoch: u32, loss: f64 },
    /// The gradient is not a number any more.
    #[error(
        "training diverged at step {step} (epoch {epoch}): the gradient norm is {norm} at a loss of {loss}; lower training.optimizer.learningRate, or set training.clipGradNorm"
    )]
    GradientNotFinite {
        step: u64,
        epoch: u32,
        norm: f64,
        loss: f64,
    },
    /// A libtorch call or this program itself panicked.
    #[error("{0}")]
    Panic(String),
    /// The operating system refused something the trainer itself needs.
    #[error("{action}: {error}")]
    System {
        action: &'static str,
        #[source]
        error: std::io::Error,
    },
}

impl TrainError {
    /// The exit code that tells the operator what to do.
    pub(crate) fn exit_code(&self) -> ExitCode {
        match self {
            Self::Config(_) => ExitCode::BadConfig,
            Self::Data(_) => ExitCode::BadData,
            Self::Checkpoint(CheckpointError::InTheWay { .. } | CheckpointError::OtherModel { .. }) => {
                ExitCode::BadConfig
            }
            Self::Checkpoint(_) => ExitCode::Storage,
            Self::Torch(error) => of_kind(error.kind),
            Self::Device(_) | Self::UnusableGpu(_) | Self::MixedDevices { .. } => ExitCode::DeviceFault,
            Self::Rendezvous(_) => ExitCode::PeerLost,
            Self::LossNotFinite { .. } | Self::GradientNotFinite { .. } => ExitCode::Diverged,
            Self::Panic(message) => of_kind(ErrorKind::of_message(message)),
            Self::System { .. } => ExitCode::Other(1),
        }
    }

    /// The class of the failure that the exit code stands for.
    pub(crate) fn class(&self) -> FailureClass {
        self.exit_code().failure_class().unwrap_or(FailureClass::Crashed)
    }

    /// All broken rules of a configuration in one error.
    pub(crate) fn of_rules(errors: &[ConfigError]) -> Self {
        Self::Config(
            errors
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join("; "),
        )
    }
}

/// tch's own errors carry their kind only in the text.
impl From<tch::TchError> for TrainError {
    fn from(error: tch::TchError) -> Self {
        let message = error.to_string();
        Self::Torch(torch_ext::Error {
            action: "failed in libtorch".into(),
            kind: ErrorKind::of_message(&message),
            message,
        })
    }
}

fn of_kind(kind: ErrorKind) -> ExitCode {
    match kind {
        ErrorKind::Communication => ExitCode::PeerLost,
        ErrorKind::OutOfMemory => ExitCode::OutOfMemory,
        ErrorKind::Device => ExitCode::DeviceFault,
        ErrorKind::Other => ExitCode::Other(1),
    }
}
