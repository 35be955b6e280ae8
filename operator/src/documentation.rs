//! Checks that docs/operations.md and the metrics reference cover everything the operator exposes.

use std::time::Duration;

use contract::FailureClass;
use crds::status::Refusal;

use crate::error::Error;
use crate::fixtures;
use crate::metrics::Metrics;

const PAGE: &str = include_str!("../../docs/operations.md");
const METRICS: &str = include_str!("../../docs/reference/metrics.md");
const CONDITIONS: &str = include_str!("../../crds/src/conditions.rs");
const NAMES: &str = include_str!("../../contract/src/operator_metrics.rs");

#[test]
fn every_name_that_users_meet_is_explained() {
    let conditions = CONDITIONS
        .lines()
        .filter(|line| line.trim_start().starts_with("pub const"));
    let of_source = |line: &'static str| line.split('"').nth(1);
    let conditions: Vec<&str> = conditions.filter_map(of_source).collect();
    let metrics = NAMES.lines().filter_map(of_source);
    let metrics: Vec<&str> = metrics.filter(|name| name.starts_with("vit_operator_")).collect();
    assert!(
        conditions.len() > 20 && metrics.len() >= 16,
        "{conditions:?} {metrics:?}"
    );
    let classes = FailureClass::ALL.map(FailureClass::as_str);
    let names = [&conditions[..], &metrics, &classes, &Error::CATEGORIES].concat();
    let is_missing = |name: &&str| {
        ["`", "{"]
            .iter()
            .all(|end| !PAGE.contains(&format!("`{name}{end}")))
    };
    let missing: Vec<&str> = names.into_iter().filter(is_missing).collect();
    assert_eq!(missing, [""; 0]);
    for refusal in Refusal::ALL {
        let words = format!("`{refusal:?}`: {refusal}");
        assert!(PAGE.contains(&words), "{words:?} is not in docs/operations.md");
    }
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
    let text = metrics
        .render([&job, &waiting], &gpus, crate::fixtures::at(100))
        .expect("renders");
    let table = crds::reference::metrics(&text);
    assert!(
        METRICS.contains(&table),
        "docs/reference/metrics.md should have:\n{table}"
    );
}
