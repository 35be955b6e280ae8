//! What the operator and the trainer agree on. Both compile against this crate, so that a renamed metric, a new
//! exit code or a changed field of the run configuration is a compile error and not a job that hangs.
//!
//! ```text
//!   operator                                   trainer
//!   manifest -> RunConfig  --(ConfigMap)-->    agent -> ranks
//!   pod spec -> environment names  -------->   agent
//!   status   <- Progress   <--(GET /progress)- agent (of the pod that holds rank 0)
//!   status   <- TerminationRecord, ExitCode <- agent (container termination message)
//! ```
//!
//! Plain values and serde only: no Kubernetes client, no libtorch.
#![forbid(unsafe_code)]

pub mod environment;
pub mod exit;
pub mod metrics;
pub mod preset;
pub mod progress;
pub mod run_config;

pub use exit::{ExitCode, FailureClass};
pub use preset::ModelPreset;
pub use progress::{CheckpointRecord, FailureRecord, Progress, TerminationRecord};
pub use run_config::{
    AdamW, CheckpointConfig, ConfigError, DataConfig, DataFormat, Device, JobName, ModelConfig, Parallelism,
    Pooling, Resume, RunConfig, Schedule, TrainingConfig,
};
