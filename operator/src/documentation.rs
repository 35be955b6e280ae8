//! Checks that docs/operations.md and the metrics reference cover everything the operator exposes.

use std::time::Duration;

use contract::FailureClass;
use planner::policy::node_fit::Refusal;

use crate::error::Error;
use crate::fixtures;
use crate::metrics::Metrics;

const PAGE: &str = include_str!("../../docs/operations.md");
const METRICS: &str = include_str!("../../docs/reference/metrics.md");
const CONDITIONS: &str = include_str!("../../crds/src/conditions.rs");
const NAMES: &str = include_str!("../../contract/src/operator_metrics.rs");

fn missing<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let is_there = |name: &str| PAGE.contains(&format!("`{name}`")) || PAGE.contains(&format!("`{name}{{"));
    names.into_iter().filter(|name| !is_there(name)).collect()
}

#[test]
fn every_condition_and_reason_is_explained() {
    let values: Vec<&str> = CONDITIONS
        .lines()
        .filter(|line| line.trim_start().starts_with("pub const"))
        .filter_map(|line| line.split('"').nth(1))
        .collect();
    assert!(values.len() > 20, "{values:?}");
    assert_eq!(missing(values), [""; 0]);
}

#[test]
fn every_class_of_failures_and_category_of_errors_is_explained() {
    assert_eq!(missing(FailureClass::ALL.map(FailureClass::as_str)), [""; 0]);
    assert_eq!(missing(Error::CATEGORIES), [""; 0]);
}

#[test]
fn every_metric_is_explained() {
    let names: Vec<&str> = NAMES
        .lines()
        .filter_map(|line| line.split('"').nth(1))
        .filter(|name| name.starts_with("vit_operator_"))
        .collect();
    assert!(names.len() >= 16, "{names:?}");
    assert_eq!(missing(names), [""; 0]);
}

#[test]
fn the_reference_of_metrics_is_what_is_rendered() {
    let mut job = fixtures::job_in(crds::Phase::Running, 1);
    let status = job.status.as_mut().expect("a status");
    status.stragglers = vec![fixtures::straggler(1, "b", 2.5)];
    status.time_spent = Some(crds::status::TimeSpentStatus::default());
    let metrics = Metrics::new().expect("metrics");
    metrics.called(&http::Method::GET, Some(http::StatusCode::OK), Duration::ZERO);
    let gpus = [(("Tesla-T4".into(), "nvidia.com/gpu".into()), [].into())].into();
    let waiting = fixtures::job();
    let text = metrics.render([&job, &waiting], &gpus).expect("renders");
    let table = crds::reference::metrics(&text);
    assert!(
        METRICS.contains(&table),
        "docs/reference/metrics.md should have:\n{table}"
    );
}

#[test]
fn every_reason_to_refuse_a_node_is_explained() {
    for reason in Refusal::ALL.map(|refusal| refusal.to_string()) {
        assert!(PAGE.contains(&reason), "{reason:?} is not in docs/operations.md");
    }
}
