//! What answers for the ranks of a pod.
//!
//! The trainer's agent starts ranks itself and serves what they report. Beside another trainer, whose processes know nothing of
//! this project, [`beside`] serves what its log says:
//!
//! ```text
//!   another trainer --(lines of JSON)--> log --> beside --> GET /metrics /progress /heartbeats /healthz
//!   the trainer has ended --(SIGTERM)--> beside --> termination record
//! ```
#![forbid(unsafe_code)]

pub mod beside;
pub mod coordinator;
pub mod http;
mod metrics;
pub mod pulse;

pub use metrics::step_buckets;
