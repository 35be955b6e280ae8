//! Grafana dashboards, generated from the constants of metric names, so a renamed metric does not
//! compile.
//!
//! ```text
//!   contract::metrics, contract::operator_metrics
//!        |
//!        v
//!   query   PromQL from those names ---+
//!                                      v
//!   panel   kinds of panels ------> job, fleet --(schema: Grafana's format)--> charts/vit-operator/files/dashboards/*.json
//! ```
//!
//! `generate/` writes the files, and checks that they are fresh.
#![forbid(unsafe_code)]

mod fleet;
mod job;
mod layout;
mod panel;
mod query;
mod schema;
mod variable;

pub use schema::Dashboard;

/// Folder of the files, from the root of the source tree.
pub const FOLDER: &str = "charts/vit-operator/files/dashboards";

/// Every dashboard, with its file name.
pub fn all() -> [(&'static str, Dashboard); 2] {
    [
        ("training-job.json", job::dashboard()),
        ("fleet.json", fleet::dashboard()),
    ]
}

#[cfg(test)]
mod tests;
