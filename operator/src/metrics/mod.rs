//! The operator's own metrics, under `vit_operator_`.

pub(crate) mod gpu_counts;
mod jobs;

use std::time::Duration;

use contract::{FailureClass, operator_metrics as names};
use crds::ViTTrainingJob;
use http::{Method, StatusCode};
use jiff::Timestamp;
use prometheus::{
    Encoder as _, Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, Registry, TextEncoder,
    register_histogram_vec_with_registry, register_histogram_with_registry,
    register_int_counter_vec_with_registry, register_int_counter_with_registry,
    register_int_gauge_with_registry,
};

use crate::error::Error;
use gpu_counts::GpuCounts;

/// Metrics updated as events happen, in their own registry.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    reconciles: IntCounter,
    reconcile_seconds: Histogram,
    reconcile_errors: IntCounterVec,
    placement_seconds: Histogram,
    restarts: IntCounterVec,
    time_to_running: Histogram,
    leader: IntGauge,
    api_requests: IntCounterVec,
    api_request_seconds: HistogramVec,
}

impl Metrics {
    pub(crate) fn new() -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        let counter = |name, help| register_int_counter_with_registry!(name, help, registry);
        let counters = |name, help, labels: &[&str]| {
            register_int_counter_vec_with_registry!(name, help, labels, registry)
        };
        let buckets = |start, count| prometheus::exponential_buckets(start, 2.0, count);
        let histogram = |name, help, start, count| {
            register_histogram_with_registry!(name, help, buckets(start, count)?, registry)
        };
        let metrics = Self {
            reconciles: counter(names::RECONCILES_TOTAL, "Reconciles, successful or not")?,
            reconcile_seconds: histogram(
                names::RECONCILE_SECONDS,
                "Duration of a reconcile in seconds",
                0.001,
                18,
            )?,
            reconcile_errors: counters(
                names::RECONCILE_ERRORS_TOTAL,
                "Failed reconciles, by category",
                &[names::LABEL_CATEGORY],
            )?,
            placement_seconds: histogram(
                names::PLACEMENT_SECONDS,
                "Seconds to decide whether and where a gang fits, including the wait for other decisions",
                0.000_1,
                14,
            )?,
            restarts: counters(
                names::RESTARTS_TOTAL,
                "Gangs restarted after a failure, by its class",
                &[names::LABEL_CLASS],
            )?,
            time_to_running: histogram(
                names::TIME_TO_RUNNING_SECONDS,
                "Seconds from the creation of a job until every pod of its first gang is ready",
                0.5,
                16,
            )?,
            leader: register_int_gauge_with_registry!(
                names::LEADER,
                "1 if this replica leads, otherwise 0",
                registry
            )?,
            api_requests: counters(
                names::API_REQUESTS_TOTAL,
                "Calls to the API server, by method and response code",
                &[names::LABEL_METHOD, names::LABEL_CODE],
            )?,
            api_request_seconds: register_histogram_vec_with_registry!(
                names::API_REQUEST_SECONDS,
                "Seconds until the API server responds; for a watch, until it starts",
                &[names::LABEL_METHOD],
                buckets(0.001, 18)?,
                registry
            )?,
            registry,
        };
        // Alerts need a series to exist before its first event.
        for category in Error::CATEGORIES {
            metrics.reconcile_errors.with_label_values(&[category]);
        }
        // Bad data is retried if only one node has it, out of memory if more can be sharded.
        let is_retried = |class: &FailureClass| {
            class.is_retryable() || matches!(class, FailureClass::BadData | FailureClass::OutOfMemory)
        };
        for class in FailureClass::ALL.into_iter().filter(is_retried) {
            metrics.restarts.with_label_values(&[class.as_str()]);
        }
        Ok(metrics)
    }

    pub(crate) fn reconciled(&self, time: Duration) {
        self.reconciles.inc();
        self.reconcile_seconds.observe(time.as_secs_f64());
    }

    pub(crate) fn failed(&self, category: &'static str) {
        self.reconcile_errors.with_label_values(&[category]).inc();
    }

    pub(crate) fn placed(&self, time: Duration) {
        self.placement_seconds.observe(time.as_secs_f64());
    }

    pub(crate) fn restarted(&self, class: &str) {
        self.restarts.with_label_values(&[class]).inc();
    }

    pub(crate) fn first_run_after(&self, seconds: f64) {
        self.time_to_running.observe(seconds);
    }

    pub(crate) fn leads(&self) {
        self.leader.set(1);
    }

    pub(crate) fn is_leader(&self) -> bool {
        self.leader.get() == 1
    }

    /// Counts a call to the API server; `code` is `None` without a response.
    pub(crate) fn called(&self, method: &Method, code: Option<StatusCode>, time: Duration) {
        let code = code.as_ref().map_or("none", StatusCode::as_str);
        self.api_requests
            .with_label_values(&[method.as_str(), code])
            .inc();
        self.api_request_seconds
            .with_label_values(&[method.as_str()])
            .observe(time.as_secs_f64());
    }

    /// All metrics as text for Prometheus, with those of all `jobs` and of the cluster's `gpus`.
    pub(crate) fn render<'a>(
        &self,
        jobs: impl IntoIterator<Item = &'a ViTTrainingJob>,
        gpus: &GpuCounts,
        now: Timestamp,
    ) -> Result<String, prometheus::Error> {
        let mut families = self.registry.gather();
        families.extend(jobs::gather(jobs, gpus, now)?);
        let mut text = Vec::new();
        TextEncoder::new().encode(&families, &mut text)?;
        String::from_utf8(text).map_err(|error| prometheus::Error::Msg(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_series_is_there_from_the_start() {
        let metrics = Metrics::new().expect("metrics");
        metrics.restarted(FailureClass::Killed.as_str());
        let text = metrics
            .render([], &GpuCounts::default(), crate::fixtures::at(100))
            .expect("renders");
        for line in [
            "vit_operator_reconciles_total 0",
            "vit_operator_reconcile_errors_total{category=\"Conflict\"} 0",
            "vit_operator_jobs{phase=\"Failed\"} 0",
            "vit_operator_restarts_total{class=\"Killed\"} 1",
            "vit_operator_restarts_total{class=\"PodLost\"} 0",
            "vit_operator_time_to_running_seconds_count 0",
            "vit_operator_placement_seconds_count 0",
            "vit_operator_leader 0",
        ] {
            assert!(text.contains(line), "{line} is not in:\n{text}");
        }
    }
}
