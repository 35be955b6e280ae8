//! The operator's own metrics, under `vit_operator_`.

use std::time::Duration;

use contract::FailureClass;
use crds::Phase;
use prometheus::{
    Encoder as _, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
    TextEncoder,
};

use crate::error::Error;

/// The metrics, in a registry of their own.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    reconciles: IntCounter,
    reconcile_seconds: Histogram,
    reconcile_errors: IntCounterVec,
    jobs: IntGaugeVec,
    placement_seconds: Histogram,
    restarts: IntCounterVec,
    time_to_running: Histogram,
    leader: IntGauge,
}

impl Metrics {
    pub(crate) fn new() -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        let exponential = |name: &str, help: &str, start: f64, count: usize| {
            let buckets = prometheus::exponential_buckets(start, 2.0, count)?;
            Histogram::with_opts(HistogramOpts::new(name, help).buckets(buckets))
        };
        let metrics = Self {
            reconciles: IntCounter::new(
                "vit_operator_reconciles_total",
                "Reconciles that ended, well or not",
            )?,
            reconcile_seconds: exponential(
                "vit_operator_reconcile_seconds",
                "Seconds a reconcile takes",
                0.001,
                14,
            )?,
            reconcile_errors: IntCounterVec::new(
                Opts::new(
                    "vit_operator_reconcile_errors_total",
                    "Reconciles that failed, by category",
                ),
                &["category"],
            )?,
            jobs: IntGaugeVec::new(
                Opts::new("vit_operator_jobs", "ViTTrainingJobs, by phase"),
                &["phase"],
            )?,
            placement_seconds: exponential(
                "vit_operator_placement_seconds",
                "Seconds it takes to count what the cluster has free and to find a place for a gang",
                0.000_1,
                14,
            )?,
            restarts: IntCounterVec::new(
                Opts::new(
                    "vit_operator_restarts_total",
                    "Gangs restarted after a failure, by its class",
                ),
                &["class"],
            )?,
            time_to_running: exponential(
                "vit_operator_time_to_running_seconds",
                "Seconds from the creation of a job until every pod of its first gang is ready",
                0.5,
                16,
            )?,
            leader: IntGauge::new("vit_operator_leader", "1 where this replica leads, otherwise 0")?,
            registry,
        };
        let registry = &metrics.registry;
        registry.register(Box::new(metrics.reconciles.clone()))?;
        registry.register(Box::new(metrics.reconcile_seconds.clone()))?;
        registry.register(Box::new(metrics.reconcile_errors.clone()))?;
        registry.register(Box::new(metrics.jobs.clone()))?;
        registry.register(Box::new(metrics.placement_seconds.clone()))?;
        registry.register(Box::new(metrics.restarts.clone()))?;
        registry.register(Box::new(metrics.time_to_running.clone()))?;
        registry.register(Box::new(metrics.leader.clone()))?;
        // A series that is not there before its first event cannot be alerted on.
        for category in Error::CATEGORIES {
            metrics.reconcile_errors.with_label_values(&[category]);
        }
        for class in FailureClass::ALL.into_iter().filter(|class| class.is_retryable()) {
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

    /// Everything as text for Prometheus; `phases` are those of all jobs now.
    pub(crate) fn render(
        &self,
        phases: impl IntoIterator<Item = Phase>,
    ) -> Result<String, prometheus::Error> {
        for phase in Phase::ALL {
            self.jobs.with_label_values(&[phase.as_str()]).set(0);
        }
        for phase in phases {
            self.jobs.with_label_values(&[phase.as_str()]).inc();
        }
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
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
        let text = metrics.render([Phase::Running, Phase::Running]).expect("renders");
        for line in [
            "vit_operator_reconciles_total 0",
            "vit_operator_reconcile_errors_total{category=\"Conflict\"} 0",
            "vit_operator_jobs{phase=\"Running\"} 2",
            "vit_operator_jobs{phase=\"Failed\"} 0",
            "vit_operator_restarts_total{class=\"Killed\"} 1",
            "vit_operator_restarts_total{class=\"PodLost\"} 0",
            "vit_operator_time_to_running_seconds_count 0",
            "vit_operator_placement_seconds_count 0",
            "vit_operator_leader 0",
        ] {
            assert!(text.contains(line), "{line} is not in:\n{text}");
        }
        let text = metrics.render([]).expect("renders");
        assert!(text.contains("vit_operator_jobs{phase=\"Running\"} 0"), "{text}");
    }
}
