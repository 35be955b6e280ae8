//! The report on a scaling study: medians as pictures and tables, and predictions for points that
//! were not measured.
//!
//! ```text
//!   Measurements --(model)--> cost of a step by ranks and batch --(forecast)--> predicted steps
//!   Results, predictions --(report)--> report.html, report.json, report.csv, report.md
//! ```
#![forbid(unsafe_code)]

#[cfg(test)]
#[path = "../../study/src/fixtures.rs"]
mod fixtures;
mod forecast;
mod model;
mod report;

pub use forecast::{Errors, Forecast, HeldOut, Prediction, forecasts};
pub use model::{CostModel, Sizes, Step};
pub use report::{Report, Subject};
// For the fixtures.
#[cfg(test)]
use study::{Plan, plan};
