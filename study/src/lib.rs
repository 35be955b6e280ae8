//! Scaling studies: one job measured at many points.
//!
//! ```text
//!   ViTScalingStudy --(plan)--> points, and the runs they need --(the trainer)--> log.jsonl
//!   log.jsonl --(measurement)--> what a run measured --(results)--> a median a point --(report)--> pages and tables
//! ```
//!
//! Nothing here trains or reads files: runs are carried out by `vit-trainer study`.
#![forbid(unsafe_code)]

#[cfg(test)]
mod fixtures;
mod measurement;
mod plan;
mod report;
mod results;

pub use measurement::{Epoch, LogError, Measurement, PhaseSeconds};
pub use plan::{InvalidStudy, Plan, Point, Run, plan};
pub use report::{Report, Subject};
pub use results::{PointResult, Results, Spread};
