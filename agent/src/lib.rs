//! The agent of a pod's ranks.
//!
//! The trainer's agent starts ranks and serves their reports. Another trainer's processes know
//! nothing of this project, so [`beside`] serves their log:
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

pub use metrics::STEP_BUCKETS;
