//! The operator's own metrics, under `vit_operator_`.

use std::time::Duration;

use contract::FailureClass;
use crds::{Phase, ViTTrainingJob};
use kube::ResourceExt as _;
use prometheus::{
    Encoder as _, GaugeVec, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry, TextEncoder,
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
    stragglers: GaugeVec,
    placement_seconds: Histogram,
    restarts: IntCounterVec,
    time_to_running: Histogram,
    leader: IntGauge,
    unreadable_objects: IntGaugeVec,
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
            stragglers: GaugeVec::new(
                Opts::new(
                    "vit_operator_straggler_slowdown_ratio",
                    "Compute time of a rank that stays slow over the median of the other ranks of its job",
                ),
                &["namespace", "job_name", "rank", "node"],
            )?,
            placement_seconds: exponential(
                "vit_operator_placement_seconds",
                "Seconds until it is decided whether and where a gang fits, the wait for other decisions included",
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
            unreadable_objects: IntGaugeVec::new(
                Opts::new(
                    "vit_operator_unreadable_objects",
                    "Objects that cannot be read, of which what was last read stands, by kind",
                ),
                &["kind"],
            )?,
            registry,
        };
        let registry = &metrics.registry;
        registry.register(Box::new(metrics.reconciles.clone()))?;
        registry.register(Box::new(metrics.reconcile_seconds.clone()))?;
        registry.register(Box::new(metrics.reconcile_errors.clone()))?;
        registry.register(Box::new(metrics.jobs.clone()))?;
        registry.register(Box::new(metrics.stragglers.clone()))?;
        registry.register(Box::new(metrics.placement_seconds.clone()))?;
        registry.register(Box::new(metrics.restarts.clone()))?;
        registry.register(Box::new(metrics.time_to_running.clone()))?;
        registry.register(Box::new(metrics.leader.clone()))?;
        registry.register(Box::new(metrics.unreadable_objects.clone()))?;
        // A series that is not there before its first event cannot be alerted on.
        for category in Error::CATEGORIES {
            metrics.reconcile_errors.with_label_values(&[category]);
        }
        for class in FailureClass::ALL.into_iter().filter(|class| class.is_retryable()) {
            metrics.restarts.with_label_values(&[class.as_str()]);
        }
        for kind in ["Node", "Pod", "PriorityClass"] {
            metrics.unreadable(kind, 0);
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

    /// So many objects of a kind cannot be read now.
    pub(crate) fn unreadable(&self, kind: &str, objects: usize) {
        self.unreadable_objects
            .with_label_values(&[kind])
            .set(i64::try_from(objects).unwrap_or(i64::MAX));
    }

    /// Everything as text for Prometheus. What is told of single jobs is that of `jobs`, which are all there are now.
    pub(crate) fn render<'a>(
        &self,
        jobs: impl IntoIterator<Item = &'a ViTTrainingJob>,
    ) -> Result<String, prometheus::Error> {
        for phase in Phase::ALL {
            self.jobs.with_label_values(&[phase.as_str()]).set(0);
        }
        self.stragglers.reset();
        for job in jobs {
            // A job that has no status yet waits, too.
            let phase = job.status.as_ref().and_then(|status| status.phase);
            let phase = phase.unwrap_or(Phase::Pending);
            self.jobs.with_label_values(&[phase.as_str()]).inc();
            if phase == Phase::Running {
                self.show_stragglers(job);
            }
        }
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        String::from_utf8(text).map_err(|error| prometheus::Error::Msg(error.to_string()))
    }

    fn show_stragglers(&self, job: &ViTTrainingJob) {
        let (namespace, name) = (job.namespace().unwrap_or_default(), job.name_any());
        for straggler in job.status.iter().flat_map(|status| &status.stragglers) {
            let rank = straggler.rank.to_string();
            let node = straggler.node.as_deref().unwrap_or_default();
            self.stragglers
                .with_label_values(&[&namespace, &name, &rank, node])
                .set(straggler.slowdown);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;

    #[test]
    fn a_straggler_is_shown_while_its_job_runs() {
        let metrics = Metrics::new().expect("metrics");
        let mut job = fixtures::job_in(Phase::Running, 1);
        let series = r#"vit_operator_straggler_slowdown_ratio{job_name="digits",namespace="research",node="b",rank="1"} 2.5"#;
        let is_shown = |job: &ViTTrainingJob| metrics.render([job]).expect("renders").contains(series);
        assert!(!is_shown(&job));
        job.status.as_mut().expect("a status").stragglers = vec![fixtures::straggler(1, "b", 2.5)];
        assert!(is_shown(&job));
        job.status.as_mut().expect("a status").phase = Some(Phase::Restarting);
        assert!(!is_shown(&job));
        job.status.as_mut().expect("a status").phase = Some(Phase::Running);
        assert!(is_shown(&job));
        let text = metrics.render([]).expect("renders");
        assert!(!text.contains("digits"), "the job is gone: {text}");
    }

    #[test]
    fn every_series_is_there_from_the_start() {
        let metrics = Metrics::new().expect("metrics");
        metrics.restarted(FailureClass::Killed.as_str());
        let running = fixtures::job_in(Phase::Running, 1);
        let text = metrics.render([&running, &running]).expect("renders");
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
            "vit_operator_unreadable_objects{kind=\"Node\"} 0",
        ] {
            assert!(text.contains(line), "{line} is not in:\n{text}");
        }
        let text = metrics.render([]).expect("renders");
        assert!(text.contains("vit_operator_jobs{phase=\"Running\"} 0"), "{text}");
    }
}
