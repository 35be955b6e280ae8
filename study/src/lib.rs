//! Scaling studies: one job measured at many points.
//!
//! ```text
//!   ViTScalingStudy --(plan)--> points, and the runs they need --(the trainer)--> log.jsonl
//!   log.jsonl --(measurement)--> what a run measured --(results)--> a median a point --(report)--> pages and tables
//!                                         |                                            ^
//!                                         +--(forecast)--> what a step costs elsewhere -+
//! ```
//!
//! Nothing here trains or reads files: runs are carried out by `vit-trainer study`.
#![forbid(unsafe_code)]

#[cfg(test)]
mod fixtures;
mod forecast;
mod measurement;
mod model;
mod plan;
mod report;
mod results;

pub use forecast::{EnoughImages, Forecast, HeldOut, Prediction, forecasts};
pub use measurement::{Epoch, LogError, Measurement, PhaseSeconds};
pub use model::{CostModel, Link, Parts, Sample};
pub use plan::{InvalidStudy, Plan, Point, Run, plan};
pub use report::{Report, Subject};
pub use results::{PointResult, Results, Spread};
