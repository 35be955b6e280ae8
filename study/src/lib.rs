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
mod outcome;
mod plan;
mod results;

pub use outcome::{NOT_RUN, RunState, StudyJob};
pub use plan::{InvalidStudy, Plan, Point, Run, are_equal, plan};
pub use results::{Measured, MeasuredEpoch, PointResult, Results, Spread};
