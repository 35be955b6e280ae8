//! Scaling studies: one job, measured at many points.
//!
//! ```text
//!   ViTScalingStudy --(plan)--> points, and the runs they need --(trainer or operator)--> Measurement
//!   Measurement --(results)--> medians per point --(study-report)--> pages, tables, predictions
//! ```
//!
//! This crate neither trains nor reads files: `vit-trainer study` or the operator runs the jobs.
#![forbid(unsafe_code)]

#[cfg(test)]
mod fixtures;
mod plan;
mod record;
mod results;

pub use plan::{InvalidStudy, MEASURED_NETWORK, Plan, Point, Run, are_equal, fingerprint, plan};
pub use record::{Bounds, NOT_RUN, Outcome, Record, Records, most_bytes};
pub use results::{Measured, MeasuredEpoch, PointResult, Results, Spread, rank_hours_per_million_images};
