//! Scaling studies: one job, measured at many points.
//!
//! ```text
//!   ViTScalingStudy --(plan)--> points, and the runs they need --(the trainer)--> log.jsonl
//!   log.jsonl --(log)--> Measurement --(results)--> medians per point --(report)--> pages, tables
//!                             |                                            ^
//!                             +---(forecast)--> predicted step times ------+
//! ```
//!
//! This crate neither trains nor reads files: `vit-trainer study` or the operator runs the jobs.
#![forbid(unsafe_code)]

#[cfg(test)]
mod fixtures;
mod forecast;
mod log;
mod model;
mod plan;
mod record;
mod report;
mod results;

pub use forecast::{EnoughImages, Forecast, HeldOut, Prediction, forecasts};
pub use log::{LogError, LogRecord, LoggedSteps, LoggedSync, read_log};
pub use model::{CostModel, Link, Parts, Sample};
pub use plan::{InvalidStudy, Plan, Point, Run, fingerprint, plan};
pub use record::{Bounds, NOT_RUN, Outcome, Record, Records, most_bytes};
pub use report::{Report, Subject};
pub use results::{PointResult, Results, Spread};
