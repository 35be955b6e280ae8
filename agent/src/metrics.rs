//! Another trainer's log as Prometheus metrics, with this project's names.

use contract::log::LoggedSteps;
use contract::metrics as names;
use contract::{Progress, RunConfig};
use prometheus::core::Collector;
use prometheus::{Counter, Encoder as _, GaugeVec, HistogramOpts, HistogramVec, Opts, Registry, TextEncoder};

/// Metrics of rank 0 in its pod; in other pods only the node.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    first: Option<FirstRank>,
}

#[derive(Debug)]
struct FirstRank {
    images: Counter,
    step_seconds: HistogramVec,
    loss: GaugeVec,
    accuracy: GaugeVec,
    epoch: GaugeVec,
    step: GaugeVec,
    run_steps: GaugeVec,
    checkpoint_step: GaugeVec,
}

/// Buckets of the histogram of step phases: only infinity. Sum and count suffice, and every rank
/// has six phases.
pub const STEP_BUCKETS: [f64; 1] = [f64::INFINITY];

impl Metrics {
    /// Metrics of the pod with this node rank, on `node` if known.
    pub(crate) fn new(config: &RunConfig, node_rank: u32, node: Option<&str>) -> prometheus::Result<Self> {
        let registry = Registry::new();
        let rank = node_rank * config.ranks_per_node;
        let options = |name: &str, help: &str| {
            Opts::new(name, help)
                .const_label(names::LABEL_NAMESPACE, &config.job.namespace)
                .const_label(names::LABEL_JOB_NAME, &config.job.name)
                .const_label(names::LABEL_RANK, rank.to_string())
        };
        let registered = |metric: Box<dyn Collector>| registry.register(metric);
        // A gauge without a value has no series.
        let gauge = |name: &str, help: &str, labels: &[&str]| -> prometheus::Result<GaugeVec> {
            let gauge = GaugeVec::new(options(name, help), labels)?;
            registered(Box::new(gauge.clone()))?;
            Ok(gauge)
        };
        if let Some(node) = node {
            gauge(
                names::RANK_INFO,
                "Always 1; the node of the rank.",
                &[names::LABEL_NODE],
            )?
            .with_label_values(&[node])
            .set(1.0);
        }
        let first = || -> prometheus::Result<FirstRank> {
            let images = Counter::with_opts(options(
                names::IMAGES_TOTAL,
                "Training images that all ranks have processed.",
            ))?;
            registered(Box::new(images.clone()))?;
            let step_seconds = HistogramVec::new(
                HistogramOpts {
                    common_opts: options(names::STEP_SECONDS, "Seconds of each part of an optimizer step."),
                    buckets: STEP_BUCKETS.to_vec(),
                },
                &[names::LABEL_PHASE],
            )?;
            registered(Box::new(step_seconds.clone()))?;
            Ok(FirstRank {
                images,
                step_seconds,
                loss: gauge(
                    names::LOSS,
                    "Training loss of the last steps, mean over all ranks.",
                    &[],
                )?,
                accuracy: gauge(
                    names::ACCURACY_RATIO,
                    "Share of images classified right.",
                    &[names::LABEL_SPLIT],
                )?,
                epoch: gauge(names::EPOCH, "Epochs finished.", &[])?,
                step: gauge(names::STEP, "Optimizer steps finished.", &[])?,
                run_steps: gauge(names::RUN_STEPS, "Optimizer steps of the whole run.", &[])?,
                checkpoint_step: gauge(
                    names::CHECKPOINT_STEP,
                    "Optimizer step of the newest complete checkpoint.",
                    &[],
                )?,
            })
        };
        let first = (node_rank == 0).then(first).transpose()?;
        Ok(Self { registry, first })
    }

    /// Records steps of `images` images each.
    pub(crate) fn steps(&self, steps: &LoggedSteps, images: f64) {
        let Some(first) = &self.first else { return };
        first.images.inc_by(steps.count as f64 * images);
        let seconds = [
            steps.phases.data,
            steps.phases.forward,
            steps.phases.backward,
            steps.phases.sync_exposed,
            steps.phases.sync_straggler,
            steps.phases.optimizer,
        ];
        if steps.phases.compute() > 0.0 {
            for (phase, seconds) in names::STEP_PHASES.iter().zip(seconds) {
                // Once for all of them, because only the mean is known.
                first.step_seconds.with_label_values(&[phase]).observe(seconds);
            }
        }
    }

    /// Records the run's progress.
    pub(crate) fn progress(&self, progress: &Progress) {
        let Some(first) = &self.first else { return };
        let set = |gauge: &GaugeVec, value: Option<f64>| {
            if let Some(value) = value {
                gauge.with_label_values::<&str>(&[]).set(value);
            }
        };
        let classifies = |split: &str, accuracy: Option<f64>| {
            if let Some(accuracy) = accuracy {
                first.accuracy.with_label_values(&[split]).set(accuracy);
            }
        };
        set(&first.loss, progress.loss);
        set(&first.epoch, Some(f64::from(progress.epoch)));
        set(&first.step, Some(progress.step as f64));
        set(&first.run_steps, Some(progress.total_steps as f64));
        let newest = progress.last_checkpoint.as_ref();
        set(&first.checkpoint_step, newest.map(|newest| newest.step as f64));
        classifies(names::SPLIT_TRAIN, progress.train_accuracy);
        classifies(names::SPLIT_VALIDATION, progress.validation_accuracy);
    }

    pub(crate) fn render(&self) -> prometheus::Result<Vec<u8>> {
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        Ok(text)
    }
}
