//! Errors that end training early, and their exit codes.

use std::panic::AssertUnwindSafe;

use contract::{ConfigError, ExitCode, FailureClass, Memory};
use torch_ext::{CudaError, ErrorKind};

/// An error of one part of the trainer, which knows its exit code.
pub(crate) trait Failure: std::error::Error + Send + Sync {
    /// The exit code, from which the operator decides what to do.
    fn exit_code(&self) -> ExitCode;

    /// The memory that ran out, if any.
    fn memory(&self) -> Option<Memory> {
        None
    }
}

impl<E: Failure + 'static> From<E> for TrainError {
    fn from(error: E) -> Self {
        Self::Part(Box::new(error))
    }
}

/// An error that ends a rank, an agent or a command.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TrainError {
    /// The run configuration, the manifest, the environment or the command line is wrong.
    #[error("{0}")]
    Config(String),
    /// Errors of data, weights, checkpoints and files.
    #[error("{0}")]
    Part(Box<dyn Failure>),
    /// A call into libtorch failed.
    #[error(transparent)]
    Torch(#[from] torch_ext::Error),
    #[error("workers.device is cuda, but {0}")]
    Device(#[from] CudaError),
    /// The machine has a GPU that cannot be used. Training on the CPU instead would go unnoticed.
    #[error(
        "workers.device is auto and this machine has a GPU, but {0}; to train on the CPU on purpose, set workers.device to cpu"
    )]
    UnusableGpu(#[source] CudaError),
    /// Ranks on different devices would wait for one another forever.
    #[error(
        "workers.device is auto, and {with_gpu} of {ranks} ranks found a GPU: all must, or set workers.device to cpu"
    )]
    MixedDevices { with_gpu: u64, ranks: u32 },
    #[error(
        "workers.nodes x workers.gpusPerNode is {nodes} x {ranks_per_node}, but this machine has {found} GPUs"
    )]
    TooFewGpus {
        found: usize,
        nodes: u32,
        ranks_per_node: u32,
    },
    #[error("workers.gpusPerNode is {ranks}, but only {found} GPUs are visible in this pod")]
    TooFewGpusInPod { found: usize, ranks: usize },
    #[error(
        "ranks that compute on the same images have read different ones: some could not read a file that others could; training continues from the last checkpoint"
    )]
    DifferentImages,
    #[error(
        "rank {rank} has different data from rank 0 ({images} training images, rank 0 has {first_images}): the folder is being changed, or a network file system shows an outdated listing"
    )]
    DifferentData {
        rank: usize,
        images: u64,
        first_images: u64,
    },
    #[error("rank {rank} is lost: its process has ended, or its machine does not answer; {error}")]
    PeerLost { rank: u32, error: String },
    /// The coordinator did not appear.
    #[error("{0}")]
    Rendezvous(String),
    #[error(
        "training diverged at step {step} (epoch {epoch}): the loss of {} is not a finite number; lower training.optimizer.learningRate, or set training.clipGradNorm",
        ranks_in_words(ranks)
    )]
    LossNotFinite { step: u64, epoch: u32, ranks: Vec<u32> },
    #[error(
        "training diverged at step {step} (epoch {epoch}): the gradient norm is {norm} at a loss of {loss}; lower training.optimizer.learningRate, or set training.clipGradNorm"
    )]
    GradientNotFinite {
        step: u64,
        epoch: u32,
        norm: f64,
        loss: f64,
    },
    #[error(
        "training diverged at step {step} (epoch {epoch}): gradients overflow fp16 at the minimum loss scale, {scale}; use training.precision bf16, or lower training.optimizer.learningRate"
    )]
    LossScaleAtMinimum { step: u64, epoch: u32, scale: f64 },
    /// A libtorch call or this program itself panicked.
    #[error("{0}")]
    Panic(String),
    #[error("{action}: {error}")]
    System {
        action: &'static str,
        #[source]
        error: std::io::Error,
    },
}

impl TrainError {
    /// The exit code, from which the operator decides what to do.
    pub(crate) fn exit_code(&self) -> ExitCode {
        match self {
            Self::Config(_) => ExitCode::BadConfig,
            Self::Part(error) => error.exit_code(),
            // Any other node would fail the same way.
            Self::Device(CudaError::CpuBuild { .. }) | Self::UnusableGpu(CudaError::CpuBuild { .. }) => {
                ExitCode::BadConfig
            }
            Self::Torch(error) => code_of_kind(error.kind),
            Self::Device(_)
            | Self::UnusableGpu(_)
            | Self::MixedDevices { .. }
            | Self::TooFewGpus { .. }
            | Self::TooFewGpusInPod { .. } => ExitCode::DeviceFault,
            Self::DifferentImages | Self::DifferentData { .. } => ExitCode::Storage,
            Self::Rendezvous(_) | Self::PeerLost { .. } => ExitCode::PeerLost,
            Self::LossNotFinite { .. } | Self::GradientNotFinite { .. } | Self::LossScaleAtMinimum { .. } => {
                ExitCode::Diverged
            }
            Self::Panic(message) => code_of_kind(ErrorKind::from_message(message)),
            Self::System { .. } => ExitCode::Other(1),
        }
    }

    /// The memory that ran out, if any.
    pub(crate) fn memory(&self) -> Option<Memory> {
        match self {
            Self::Part(error) => error.memory(),
            Self::Torch(error) => memory_of_kind(error.kind),
            Self::Panic(message) => memory_of_kind(ErrorKind::from_message(message)),
            _ => None,
        }
    }

    /// An error of the operating system; `action` reads "failed to ...".
    pub(crate) fn system(action: &'static str) -> impl Fn(std::io::Error) -> Self {
        move |error| Self::System { action, error }
    }

    pub(crate) fn class(&self) -> FailureClass {
        self.exit_code().failure_class().unwrap_or(FailureClass::Crashed)
    }

    pub(crate) fn from_rules(errors: &[ConfigError]) -> Self {
        Self::Config(
            errors
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join("; "),
        )
    }
}

/// Runs `work` and returns a panic as an error: tch's plain functions panic when libtorch throws,
/// for example when a forward pass runs out of memory.
pub(crate) fn catching<T>(work: impl FnOnce() -> Result<T, TrainError>) -> Result<T, TrainError> {
    let ended = std::panic::catch_unwind(AssertUnwindSafe(work));
    ended.unwrap_or_else(|panic| {
        let message = panic
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Err(TrainError::from_panic(
            message.unwrap_or_else(|| "it panicked without a message".into()),
        ))
    })
}

impl TrainError {
    fn from_panic(message: String) -> Self {
        // The panic message of tch's plain functions.
        match message.strip_prefix("called `Result::unwrap()` on an `Err` value: Torch(\"") {
            Some(quoted) => {
                let quoted = quoted.strip_suffix("\")").unwrap_or(quoted);
                Self::from_libtorch(&quoted.replace("\\n", "\n").replace("\\\"", "\""))
            }
            None => Self::Panic(message),
        }
    }

    /// From libtorch's full text, without its stack trace.
    fn from_libtorch(text: &str) -> Self {
        let told = text.split("Exception raised from").next().unwrap_or(text);
        Self::Torch(torch_ext::Error {
            action: "failed in libtorch".into(),
            kind: ErrorKind::from_message(text),
            message: told.trim_end().into(),
        })
    }
}

/// tch's own errors carry their kind only in the text.
impl From<tch::TchError> for TrainError {
    fn from(error: tch::TchError) -> Self {
        match error {
            tch::TchError::Torch(text) => Self::from_libtorch(&text),
            other => Self::from_libtorch(&other.to_string()),
        }
    }
}

/// "rank 3", or "ranks 0, 2 and 5"; long lists are shortened.
pub(crate) fn ranks_in_words(ranks: &[u32]) -> String {
    const SHOWN: usize = 8;
    let mut words: Vec<String> = ranks.iter().take(SHOWN).map(ToString::to_string).collect();
    if ranks.len() > SHOWN {
        words.push(format!("{} more", ranks.len() - SHOWN));
    }
    match words.pop() {
        Some(last) if !words.is_empty() => format!("ranks {} and {last}", words.join(", ")),
        Some(only) => format!("rank {only}"),
        None => "no rank".into(),
    }
}

/// The exit code for a failed call into libtorch.
pub(crate) fn code_of_kind(kind: ErrorKind) -> ExitCode {
    match kind {
        ErrorKind::Communication => ExitCode::PeerLost,
        ErrorKind::OutOfDeviceMemory | ErrorKind::OutOfHostMemory => ExitCode::OutOfMemory,
        ErrorKind::Device => ExitCode::DeviceFault,
        ErrorKind::Other => ExitCode::Other(1),
    }
}

/// The memory that a failed call into libtorch ran out of.
pub(crate) fn memory_of_kind(kind: ErrorKind) -> Option<Memory> {
    match kind {
        ErrorKind::OutOfDeviceMemory => Some(Memory::Gpu),
        ErrorKind::OutOfHostMemory => Some(Memory::Host),
        ErrorKind::Communication | ErrorKind::Device | ErrorKind::Other => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_libtorch_says_is_told_without_its_stack() {
        let (left, right) = (
            tch::Tensor::from_slice(&[1.0]),
            tch::Tensor::from_slice(&[1.0, 2.0, 3.0]),
        );
        let error = TrainError::from(left.f_dot(&right).expect_err("of unlike sizes")).to_string();
        let panicked = catching(|| Ok(left.dot(&right)))
            .expect_err("of unlike sizes")
            .to_string();
        for message in [&error, &panicked] {
            assert!(
                message.starts_with("failed in libtorch: inconsistent tensor size"),
                "{message}"
            );
            assert_eq!(message.lines().count(), 1, "{message}");
        }
        assert_eq!(error, panicked);
        let panic = |text: &str| {
            let text = format!("called `Result::unwrap()` on an `Err` value: Torch(\"{text}\")");
            catching::<()>(|| panic!("{text}")).expect_err("panicked")
        };
        let out = panic(
            "CUDA out of memory. Tried to allocate 9.00 GiB.\\nException raised from malloc at c10/cuda",
        );
        assert_eq!(out.memory(), Some(Memory::Gpu));
        assert_eq!(
            out.to_string(),
            "failed in libtorch: CUDA out of memory. Tried to allocate 9.00 GiB."
        );
        let other = panic("could not create a \\\"primitive\\\"");
        assert_eq!(
            other.to_string(),
            "failed in libtorch: could not create a \"primitive\""
        );
    }

    #[test]
    fn ranks_are_named_and_of_many_the_first() {
        for (ranks, words) in [
            (vec![3], "rank 3"),
            (vec![0, 2], "ranks 0 and 2"),
            (vec![0, 2, 5], "ranks 0, 2 and 5"),
            ((0..40).collect(), "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 32 more"),
        ] {
            assert_eq!(ranks_in_words(&ranks), words);
        }
    }
}
