//! Grafana dashboards, made from the names of the metrics: a metric that is renamed does not compile here.
//!
//! ```text
//!   contract::metrics, contract::operator_metrics
//!        |
//!        v
//!   query   PromQL from those names ---+
//!                                      v
//!   panel   kinds of panels ------> job, fleet --(schema: what Grafana reads)--> charts/vit-operator/files/dashboards/*.json
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

pub use schema::Dashboard;

/// Where the files are, from the top of the source tree.
pub const FOLDER: &str = "charts/vit-operator/files/dashboards";

/// Every dashboard, with the name of its file.
pub fn all() -> [(&'static str, Dashboard); 2] {
    [
        ("training-job.json", job::dashboard()),
        ("fleet.json", fleet::dashboard()),
    ]
}

#[cfg(test)]
mod tests;
