//! Scaling studies: one job measured at many points.
//!
//! ```text
//!   ViTScalingStudy --(plan)--> points, and the runs they need --(the trainer)--> log.jsonl
//!   log.jsonl --(log)--> what a run measured --(results)--> a median a point --(report)--> pages and tables
//!                                         |                                            ^
//!                                         +--(forecast)--> what a step costs elsewhere -+
//! ```
//!
//! Nothing here trains or reads files: runs are carried out by `vit-trainer study`, or in a cluster by the operator.
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
