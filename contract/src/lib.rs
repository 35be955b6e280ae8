//! The interface of operator and trainer. Both compile against this crate, so a renamed metric, a
//! new exit code or a changed field of the run configuration is a compile error, not a hanging job.
//!
//! ```text
//!   operator                                   trainer
//!   manifest -> RunConfig  --(ConfigMap)-->    agent -> ranks
//!   pod spec -> environment names  -------->   agent
//!   status   <- Progress   <--(GET /progress)- agent (of the pod that holds rank 0)
//!   stalls   <- Heartbeats <--(GET /heartbeats) agents
//!   status   <- TerminationRecord, ExitCode <- agent (container termination message)
//! ```
//!
//! Plain values, serde and schemas only, without a Kubernetes client or libtorch.
#![forbid(unsafe_code)]

pub mod architecture;
pub mod environment;
pub mod exit;
mod file_names;
pub mod gpu;
pub mod heartbeat;
pub mod log;
#[allow(
    clippy::doc_markdown,
    reason = "`kubectl explain` prints these texts, where backticks are noise"
)]
pub mod measurement;
pub mod metrics;
pub mod operator_metrics;
pub mod preset;
pub mod progress;
pub mod progress_line;
#[allow(
    clippy::doc_markdown,
    clippy::struct_excessive_bools,
    reason = "`kubectl explain` prints these texts, where backticks are noise; options are independent"
)]
pub mod run_config;
pub mod schema;

pub use exit::{ExitCode, FailureClass, Memory};
pub use file_names::FileNames;
pub use heartbeat::{Activity, Heartbeat, Heartbeats, ProcessState};
pub use measurement::{Epoch, GpuUse, Machine, Measurement, PhaseSeconds, RankSeconds};
pub use progress::{
    CheckpointRecord, FailureRecord, Progress, ProgressQuery, SlowRank, Spent, TerminationRecord,
};
pub use run_config::*;
