//! Variables: what a reader chooses at the top of a dashboard.

use std::fmt::Display;

use contract::operator_metrics as operator;
use serde_json::{Value, json};

use crate::query::LABEL_CLUSTER;
use crate::schema::DataSource;

/// The queried Prometheus.
pub(crate) fn data_source() -> Value {
    json!({"type": "datasource", "name": "datasource", "label": "Data source", "query": "prometheus"})
}

/// The clusters, in a Prometheus of several. Without the label, the only choice is All.
pub(crate) fn clusters() -> Value {
    let description = "Clusters, if series have the label cluster";
    any_of("Cluster", description, LABEL_CLUSTER, operator::LEADER)
}

/// One value of a label on these series.
pub(crate) fn one_of(name: &str, title: &str, description: &str, label: &str, series: impl Display) -> Value {
    json!({
        "type": "query",
        "name": name,
        "label": title,
        "description": description,
        "datasource": DataSource::CHOSEN,
        "query": {"query": format!("label_values({series}, {label})"), "refId": "A"},
        // Whenever the time range changes.
        "refresh": 2,
        // In natural order, so that 10 comes after 9.
        "sort": 7,
        "multi": false,
        "includeAll": false,
    })
}

/// Any values of a label on these series, by default all, under the label's name.
pub(crate) fn any_of(title: &str, description: &str, label: &str, series: impl Display) -> Value {
    let mut variable = one_of(label, title, description, label, series);
    variable["multi"] = true.into();
    variable["includeAll"] = true.into();
    // Also matches series without the label.
    variable["allValue"] = ".*".into();
    variable["current"] = json!({"text": "All", "value": "$__all"});
    variable
}
