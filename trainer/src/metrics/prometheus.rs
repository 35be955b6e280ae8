//! The ranks of one agent as Prometheus metrics.

use std::collections::BTreeMap;

use ::agent::STEP_BUCKETS;
use contract::gpu::{GpuReading, ThrottleReason};
use contract::metrics as names;
use contract::{Progress, RunConfig};
use prometheus::core::Collector;
use prometheus::{
    Counter, CounterVec, Encoder as _, GaugeVec, HistogramOpts, HistogramVec, IntCounter, IntCounterVec,
    Opts, Registry, TextEncoder,
};

use super::{CheckpointCost, StepReport, sync_operations, sync_seconds};

#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    ranks: Vec<RankMetrics>,
}

#[derive(Debug)]
struct RankMetrics {
    images: Counter,
    step_seconds: HistogramVec,
    /// Only in a job with several ranks.
    slowdown_seconds: Option<Counter>,
    /// By [`names::SYNC_OPERATIONS`]; operations that the job does not use have no series.
    sync: [Option<SyncMetrics>; 4],
    accuracy: GaugeVec,
    mean_average_precision: GaugeVec,
    throttled: GaugeVec,
    /// Gauges without series until their value is known: a 0 would be drawn, and counted as a
    /// change after a restart.
    figures: BTreeMap<&'static str, GaugeVec>,
    /// Only on rank 0, so that no other rank shows a meaningless 0.
    checkpoints: Option<CheckpointMetrics>,
}

/// Metrics of one operation.
#[derive(Debug)]
struct SyncMetrics {
    seconds: [Counter; 3],
    bytes: IntCounter,
}

/// Names and descriptions of the figures of every rank.
const FIGURES: [(&str, &str); 12] = [
    (
        names::LOSS,
        "Training loss of the last step, mean over all ranks.",
    ),
    (names::LEARNING_RATE, "Learning rate of the last step."),
    (
        names::SKIPPED_STEPS,
        "Optimizer steps skipped because gradients overflowed fp16.",
    ),
    (names::EPOCH, "Epochs finished."),
    (names::STEP, "Optimizer steps finished."),
    (
        names::PROCESS_RESIDENT_MEMORY_BYTES,
        "Resident host memory of this rank's process.",
    ),
    (
        names::DEVICE_MEMORY_PEAK_BYTES,
        "Peak memory of this rank's tensors on its GPU.",
    ),
    (
        names::DEVICE_PEAK_FLOPS,
        "Dense half-precision peak of the rank's GPU, FLOP/s.",
    ),
    (
        names::DEVICE_UTILIZATION_RATIO,
        "Share of the last second, or less, in which a kernel ran on the rank's GPU.",
    ),
    (
        names::DEVICE_MEMORY_USED_BYTES,
        "Memory that all processes use on the rank's GPU, including CUDA's own.",
    ),
    (
        names::DEVICE_TEMPERATURE_CELSIUS,
        "Temperature of the rank's GPU.",
    ),
    (
        names::DEVICE_POWER_WATTS,
        "Power draw of the board of the rank's GPU.",
    ),
];
/// Figures of rank 0.
const FIGURES_OF_RUN: [(&str, &str); 3] = [
    (
        names::JOB_SLOWDOWN_RATIO,
        "Step time divided by its value if every rank computed as long as the median rank.",
    ),
    (names::RUN_STEPS, "Optimizer steps of the whole run."),
    (
        names::CHECKPOINT_STEP,
        "Optimizer step of the newest complete checkpoint.",
    ),
];

#[derive(Debug)]
struct CheckpointMetrics {
    count: IntCounter,
    bytes: IntCounter,
    seconds: [Counter; 2],
}

impl Metrics {
    /// Metrics of the ranks in the pod with this node rank, which runs on `node` if known.
    pub(crate) fn new(config: &RunConfig, node_rank: u32, node: Option<&str>) -> prometheus::Result<Self> {
        let registry = Registry::new();
        let first_rank = node_rank * config.ranks_per_node;
        let ranks = (first_rank..first_rank + config.ranks_per_node)
            .map(|rank| RankMetrics::register(&registry, config, rank, node))
            .collect::<prometheus::Result<_>>()?;
        Ok(Self { registry, ranks })
    }

    pub(crate) fn step(&self, local: usize, step: &StepReport) {
        let Some(rank) = self.ranks.get(local) else { return };
        rank.images.inc_by(step.images);
        for (phase, seconds) in names::STEP_PHASES.iter().zip(step.phases.values()) {
            rank.step_seconds.with_label_values(&[phase]).observe(seconds);
        }
        if let Some(counter) = &rank.slowdown_seconds {
            counter.inc_by(step.slowdown_seconds);
        }
        for (metrics, cost) in rank.sync.iter().zip(sync_operations(&step.sync)) {
            let Some(metrics) = metrics else { continue };
            for (counter, seconds) in metrics.seconds.iter().zip(sync_seconds(&cost)) {
                counter.inc_by(seconds);
            }
            metrics.bytes.inc_by(cost.bytes);
        }
        rank.set(names::LOSS, step.loss);
        rank.classifies(names::SPLIT_TRAIN, Some(step.train_accuracy));
        rank.set(names::LEARNING_RATE, step.learning_rate);
        rank.set(names::SKIPPED_STEPS, step.skipped_steps as f64);
        rank.set(names::EPOCH, f64::from(step.epoch));
        rank.set(names::STEP, step.step as f64);
        if let Some(bytes) = step.resident_bytes {
            rank.set(names::PROCESS_RESIDENT_MEMORY_BYTES, bytes as f64);
        }
        if let Some(device) = &step.device {
            rank.set(names::DEVICE_MEMORY_PEAK_BYTES, device.memory_peak_bytes as f64);
            if let Some(flops) = device.peak_flops {
                rank.set(names::DEVICE_PEAK_FLOPS, flops);
            }
            if let Some(reading) = &device.reading {
                rank.reading(reading);
            }
        }
    }

    /// Updates the run's progress, which comes from the first rank.
    pub(crate) fn progress(&self, progress: &Progress) {
        let Some(rank) = self.ranks.first() else { return };
        rank.set(names::EPOCH, f64::from(progress.epoch));
        rank.set(names::STEP, progress.step as f64);
        rank.classifies(names::SPLIT_VALIDATION, progress.validation_accuracy);
        rank.classifies(names::SPLIT_VALIDATION_EMA, progress.ema_validation_accuracy);
        if let Some(precision) = progress.validation_mean_average_precision {
            let gauge = rank
                .mean_average_precision
                .with_label_values(&[names::SPLIT_VALIDATION]);
            gauge.set(precision);
        }
        rank.set(names::RUN_STEPS, progress.total_steps as f64);
        if let Some(slowdown) = progress.slowdown {
            rank.set(names::JOB_SLOWDOWN_RATIO, slowdown);
        }
        if let Some(newest) = &progress.last_checkpoint {
            rank.set(names::CHECKPOINT_STEP, newest.step as f64);
        }
    }

    pub(crate) fn checkpoint(&self, cost: &CheckpointCost) {
        let Some(metrics) = self.ranks.first().and_then(|rank| rank.checkpoints.as_ref()) else {
            return;
        };
        metrics.count.inc();
        metrics.bytes.inc_by(cost.bytes);
        for (counter, seconds) in metrics
            .seconds
            .iter()
            .zip([cost.snapshot_seconds, cost.write_seconds])
        {
            counter.inc_by(seconds);
        }
    }

    pub(crate) fn render(&self) -> prometheus::Result<Vec<u8>> {
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        Ok(text)
    }
}

impl RankMetrics {
    /// Sets a figure, if this rank has it.
    fn set(&self, name: &str, value: f64) {
        if let Some(figure) = self.figures.get(name) {
            figure.with_label_values::<&str>(&[]).set(value);
        }
    }

    /// Updates the driver's reading of the rank's GPU.
    fn reading(&self, reading: &GpuReading) {
        for (name, value) in [
            (names::DEVICE_UTILIZATION_RATIO, reading.utilization),
            (
                names::DEVICE_MEMORY_USED_BYTES,
                reading.memory_used_bytes.map(|bytes| bytes as f64),
            ),
            (names::DEVICE_TEMPERATURE_CELSIUS, reading.temperature_celsius),
            (names::DEVICE_POWER_WATTS, reading.power_watts),
        ] {
            match (value, self.figures.get(name)) {
                (Some(value), _) => self.set(name, value),
                // A GPU without readings, such as one that fell off the bus, has no value.
                (None, Some(figure)) => drop(figure.remove_label_values::<&str>(&[])),
                (None, None) => {}
            }
        }
        let Some(by) = &reading.throttled_by else {
            self.throttled.reset();
            return;
        };
        for reason in ThrottleReason::ALL {
            let is_throttled = f64::from(u8::from(by.contains(&reason)));
            self.throttled
                .with_label_values(&[reason.name()])
                .set(is_throttled);
        }
    }

    fn classifies(&self, split: &str, accuracy: Option<f64>) {
        if let Some(accuracy) = accuracy {
            self.accuracy.with_label_values(&[split]).set(accuracy);
        }
    }

    fn register(
        registry: &Registry,
        config: &RunConfig,
        rank: u32,
        node: Option<&str>,
    ) -> prometheus::Result<Self> {
        let job = &config.job;
        let options = |name: &str, help: &str| {
            Opts::new(name, help)
                .const_label(names::LABEL_NAMESPACE, &job.namespace)
                .const_label(names::LABEL_JOB_NAME, &job.name)
                .const_label(names::LABEL_RANK, rank.to_string())
        };
        let registered = |metric: Box<dyn Collector>| registry.register(metric);
        let gauges = |name: &str, help: &str, labels: &[&str]| -> prometheus::Result<GaugeVec> {
            let gauges = GaugeVec::new(options(name, help), labels)?;
            registered(Box::new(gauges.clone()))?;
            Ok(gauges)
        };
        let count = |name: &str, help: &str| -> prometheus::Result<IntCounter> {
            let counter = IntCounter::with_opts(options(name, help))?;
            registered(Box::new(counter.clone()))?;
            Ok(counter)
        };
        let counters = |name: &str, help: &str, labels: &[&str]| -> prometheus::Result<CounterVec> {
            let counters = CounterVec::new(options(name, help), labels)?;
            registered(Box::new(counters.clone()))?;
            Ok(counters)
        };
        let step_seconds = HistogramVec::new(
            HistogramOpts {
                common_opts: options(names::STEP_SECONDS, "Seconds of each part of an optimizer step."),
                buckets: STEP_BUCKETS.to_vec(),
            },
            &[names::LABEL_PHASE],
        )?;
        registered(Box::new(step_seconds.clone()))?;
        let sync_seconds = counters(
            names::SYNC_SECONDS_TOTAL,
            "Seconds of synchronization; a step waits for exposed and straggler.",
            &[names::LABEL_KIND, names::LABEL_OPERATION],
        )?;
        let sync_bytes = IntCounterVec::new(
            options(
                names::SYNC_BYTES_TOTAL,
                "Bytes of gradients reduced, weights gathered and activations exchanged.",
            ),
            &[names::LABEL_OPERATION],
        )?;
        registered(Box::new(sync_bytes.clone()))?;
        let slowdown_seconds = (config.world_size() > 1)
            .then(|| {
                counters(
                    names::RANK_SLOWDOWN_SECONDS_TOTAL,
                    "Seconds by which steps would have been shorter without this rank.",
                    &[],
                )
            })
            .transpose()?;
        gauges(
            names::MODEL_FLOPS_PER_IMAGE,
            "Floating-point operations of the model for one training image, forward and backward pass.",
            &[],
        )?
        .with_label_values::<&str>(&[])
        .set(config.model.flops_per_image());
        if let Some(node) = node {
            gauges(
                names::RANK_INFO,
                "Always 1; labels the rank with its node.",
                &[names::LABEL_NODE],
            )?
            .with_label_values(&[node])
            .set(1.0);
        }
        let mut figures = BTreeMap::new();
        let mut checkpoints = None;
        for (name, help) in FIGURES {
            figures.insert(name, gauges(name, help, &[])?);
        }
        if rank == 0 {
            for (name, help) in FIGURES_OF_RUN {
                figures.insert(name, gauges(name, help, &[])?);
            }
            let seconds = counters(
                names::CHECKPOINT_SECONDS_TOTAL,
                "Seconds of checkpointing; training pauses only for the snapshot.",
                &[names::LABEL_PHASE],
            )?;
            checkpoints = Some(CheckpointMetrics {
                count: count(names::CHECKPOINTS_TOTAL, "Checkpoints completed on storage.")?,
                bytes: count(
                    names::CHECKPOINT_BYTES_TOTAL,
                    "Bytes of all files of completed checkpoints.",
                )?,
                seconds: names::CHECKPOINT_PHASES.map(|phase| seconds.with_label_values(&[phase])),
            });
        }
        Ok(Self {
            images: counters(
                names::IMAGES_TOTAL,
                "Training images processed by this rank; its share of images that ranks compute together.",
                &[],
            )?
            .with_label_values::<&str>(&[]),
            step_seconds,
            slowdown_seconds: slowdown_seconds.map(|counters| counters.with_label_values::<&str>(&[])),
            // Created up front, so that a rank that never waited shows a 0.
            sync: names::SYNC_OPERATIONS.map(|operation| {
                uses(config, operation).then(|| SyncMetrics {
                    seconds: names::SYNC_KINDS.map(|kind| sync_seconds.with_label_values(&[kind, operation])),
                    bytes: sync_bytes.with_label_values(&[operation]),
                })
            }),
            accuracy: gauges(
                names::ACCURACY_RATIO,
                "Share of images classified correctly.",
                &[names::LABEL_SPLIT],
            )?,
            mean_average_precision: gauges(
                names::MEAN_AVERAGE_PRECISION_RATIO,
                "Average precision of the held-out images, mean over the classes.",
                &[names::LABEL_SPLIT],
            )?,
            throttled: gauges(
                names::DEVICE_THROTTLED,
                "1 while the rank's GPU is throttled for the reason.",
                &[names::LABEL_REASON],
            )?,
            figures,
            checkpoints,
        })
    }
}

/// Whether a job uses an operation.
fn uses(config: &RunConfig, operation: &str) -> bool {
    let parallelism = &config.parallelism;
    match operation {
        names::ALL_REDUCE => {
            parallelism.zero_stage == 0
                || parallelism.ranks_per_replica() > 1
                || (parallelism.shard_within_node && config.nodes > 1)
        }
        names::ALL_TO_ALL => parallelism.sequence > 1,
        _ => parallelism.zero_stage > 0,
    }
}

#[cfg(test)]
mod tests {
    use contract::{CheckpointRecord, JobIdentity};

    use torch_ext::{SyncCost, SyncTimes};

    use super::super::{DeviceReport, Phases};
    use super::*;

    /// A run of the job `vision/digits` with this many ranks per node.
    fn config(ranks_per_node: u32) -> RunConfig {
        RunConfig {
            job: JobIdentity {
                namespace: "vision".into(),
                name: "digits".into(),
                uid: None,
            },
            ranks_per_node,
            ..crate::data::fixtures::config("{format: synthetic, syntheticImages: 80}")
        }
    }

    fn cost(bytes: u64) -> SyncCost {
        SyncCost {
            total: 0.5,
            exposed: 0.25,
            straggler: 0.125,
            bytes,
            collectives: 1,
        }
    }

    fn step() -> StepReport {
        StepReport {
            step: 7,
            epoch: 1,
            images: 32.0,
            micro_batches: 1,
            phases: Phases {
                forward: 0.25,
                ..Phases::default()
            },
            sync: SyncTimes {
                all_reduce: cost(1000),
                reduce_scatter: cost(2000),
                ..SyncTimes::default()
            },
            slowdown_seconds: 0.75,
            loss: 1.5,
            train_accuracy: 0.75,
            learning_rate: 0.001,
            loss_scale: Some(1024.0),
            skipped_steps: 3,
            resident_bytes: Some(4096),
            device: None,
        }
    }

    fn text(metrics: &Metrics) -> String {
        String::from_utf8(metrics.render().expect("renders")).expect("text")
    }

    fn check(text: &str, lines: &[String]) {
        for line in lines {
            assert!(
                text.lines().any(|found| found == line),
                "no line {line} in\n{text}"
            );
        }
    }

    #[test]
    fn a_job_shows_the_operations_of_its_stage_and_no_other() {
        for (stage, sequence, tensor, operations) in [
            (0, 1, 1, &["all_reduce"][..]),
            (1, 1, 1, &["reduce_scatter", "all_gather"]),
            (0, 2, 1, &["all_reduce", "all_to_all"]),
            (1, 1, 2, &["all_reduce", "reduce_scatter", "all_gather"]),
            (
                3,
                2,
                2,
                &["all_reduce", "reduce_scatter", "all_gather", "all_to_all"],
            ),
        ] {
            let mut config = config(1);
            config.parallelism.zero_stage = stage;
            (config.parallelism.sequence, config.parallelism.tensor) = (sequence, tensor);
            let metrics = Metrics::new(&config, 0, None).expect("registers");
            metrics.step(0, &step());
            let text = text(&metrics);
            for operation in names::SYNC_OPERATIONS {
                let shown = text.matches(&format!("operation=\"{operation}\"")).count();
                let expected = if operations.contains(&operation) { 4 } else { 0 };
                assert_eq!(
                    shown, expected,
                    "{operation} at {stage}, {sequence}, {tensor}:\n{text}"
                );
            }
        }
        // Also between nodes that each have all shards.
        for (nodes, is_shown) in [(1, false), (2, true)] {
            let mut config = config(2);
            config.nodes = nodes;
            (
                config.parallelism.zero_stage,
                config.parallelism.shard_within_node,
            ) = (3, true);
            let metrics = Metrics::new(&config, 0, None).expect("registers");
            let shown = text(&metrics).contains("operation=\"all_reduce\"");
            assert_eq!(shown, is_shown, "{nodes} nodes");
        }
    }

    #[test]
    fn every_rank_shows_its_steps_under_the_contracts_names() {
        let metrics = Metrics::new(&config(2), 1, Some("gpu-7")).expect("registers");
        let step = step();
        metrics.step(1, &step);
        metrics.step(1, &step);
        let text = text(&metrics);
        let labels = r#"job_name="digits",namespace="vision",rank="3""#;
        check(
            &text,
            &[
                format!("vit_images_total{{{labels}}} 64"),
                r#"vit_sync_seconds_total{job_name="digits",kind="exposed",namespace="vision",operation="all_reduce",rank="3"} 0.5"#
                    .to_owned(),
                r#"vit_sync_bytes_total{job_name="digits",namespace="vision",operation="all_reduce",rank="3"} 2000"#
                    .to_owned(),
                r#"vit_step_seconds_sum{job_name="digits",namespace="vision",phase="forward",rank="3"} 0.5"#
                    .to_owned(),
                format!("vit_step{{{labels}}} 7"),
                format!("vit_skipped_steps{{{labels}}} 3"),
                format!("vit_process_resident_memory_bytes{{{labels}}} 4096"),
                r#"vit_rank_info{job_name="digits",namespace="vision",node="gpu-7",rank="3"} 1"#.to_owned(),
                format!(
                    "vit_model_flops_per_image{{{labels}}} {}",
                    config(2).model.flops_per_image()
                ),
            ],
        );
        for of_rank_0 in ["vit_checkpoint", "vit_run_steps"] {
            assert!(!text.contains(of_rank_0), "only rank 0 knows of {of_rank_0}");
        }
        assert!(!text.contains("vit_device"), "there is no GPU");
    }

    #[test]
    fn a_rank_with_a_gpu_shows_its_memory_and_its_peak_where_that_is_known() {
        let metrics = Metrics::new(&config(1), 0, None).expect("registers");
        let device = |peak_flops| {
            Some(DeviceReport {
                memory_peak_bytes: 1 << 30,
                peak_flops,
                reading: None,
            })
        };
        let mut step = StepReport {
            device: device(None),
            ..step()
        };
        metrics.step(0, &step);
        let labels = r#"job_name="digits",namespace="vision",rank="0""#;
        let memory = format!("vit_device_memory_peak_bytes{{{labels}}} {}", 1 << 30);
        check(&text(&metrics), std::slice::from_ref(&memory));
        assert!(!text(&metrics).contains("vit_device_peak_flops"));
        step.device = device(Some(989e12));
        metrics.step(0, &step);
        check(
            &text(&metrics),
            &[
                memory,
                format!("vit_device_peak_flops{{{labels}}} 989000000000000"),
            ],
        );
    }

    fn reading(throttled_by: Vec<ThrottleReason>) -> GpuReading {
        GpuReading {
            utilization: Some(0.75),
            memory_used_bytes: Some(1 << 20),
            temperature_celsius: Some(57.0),
            power_watts: Some(558.5),
            throttled_by: Some(throttled_by),
        }
    }

    #[test]
    fn a_rank_shows_what_the_driver_tells_of_its_gpu_and_nothing_of_the_rest() {
        let metrics = Metrics::new(&config(1), 0, None).expect("registers");
        let step = |reading| StepReport {
            device: Some(DeviceReport {
                memory_peak_bytes: 1,
                peak_flops: None,
                reading: Some(reading),
            }),
            ..step()
        };
        let of_instance = GpuReading {
            memory_used_bytes: Some(7),
            ..GpuReading::default()
        };
        metrics.step(0, &step(of_instance));
        let labels = r#"job_name="digits",namespace="vision",rank="0""#;
        let throttled = |reason, value| {
            format!(
                r#"vit_device_throttled{{job_name="digits",namespace="vision",rank="0",reason="{reason}"}} {value}"#
            )
        };
        check(
            &text(&metrics),
            &[format!("vit_device_memory_used_bytes{{{labels}}} 7")],
        );
        for unknown in ["utilization", "temperature", "power", "throttled"] {
            assert!(
                !text(&metrics).contains(&format!("vit_device_{unknown}")),
                "{unknown} is a guess"
            );
        }
        metrics.step(0, &step(reading(vec![ThrottleReason::PowerCap])));
        check(
            &text(&metrics),
            &[
                format!("vit_device_utilization_ratio{{{labels}}} 0.75"),
                format!("vit_device_memory_used_bytes{{{labels}}} {}", 1 << 20),
                format!("vit_device_temperature_celsius{{{labels}}} 57"),
                format!("vit_device_power_watts{{{labels}}} 558.5"),
                throttled("power_cap", 1),
                throttled("thermal", 0),
            ],
        );
        metrics.step(0, &step(reading(vec![])));
        check(&text(&metrics), &[throttled("power_cap", 0)]);
        metrics.step(0, &step(GpuReading::default()));
        for lost in ["utilization", "memory_used", "temperature", "power", "throttled"] {
            assert!(
                !text(&metrics).contains(&format!("vit_device_{lost}")),
                "{lost} is of the past"
            );
        }
    }

    #[test]
    fn the_reference_of_metrics_is_what_is_told() {
        let config = RunConfig {
            nodes: 2,
            ..config(1)
        };
        let metrics = Metrics::new(&config, 0, Some("gpu-7")).expect("registers");
        metrics.step(
            0,
            &StepReport {
                device: Some(DeviceReport {
                    memory_peak_bytes: 1,
                    peak_flops: Some(1.0),
                    reading: Some(reading(vec![])),
                }),
                ..step()
            },
        );
        metrics.progress(&Progress {
            validation_accuracy: Some(0.5),
            ema_validation_accuracy: Some(0.5),
            validation_mean_average_precision: Some(0.5),
            last_checkpoint: Some(CheckpointRecord {
                step: 7,
                path: "/checkpoints/digits/step-00000007".into(),
                time: "2026-01-02T03:04:05Z".into(),
            }),
            slowdown: Some(1.0),
            ..Progress::default()
        });
        // One job uses only some operations.
        let mut operations = names::SYNC_OPERATIONS;
        operations.sort_unstable();
        let all = format!("`operation`: `{}`", operations.join("`, `"));
        let table = crds::reference::metrics(&text(&metrics)).replace("`operation`: `all_reduce`", &all);
        let page = include_str!("../../../docs/reference/metrics.md");
        assert!(
            page.contains(&table),
            "docs/reference/metrics.md should have:\n{table}"
        );
    }

    #[test]
    fn what_slow_ranks_cost_is_shown_where_there_are_several() {
        let shown = |ranks| {
            let metrics = Metrics::new(&config(ranks), 0, None).expect("registers");
            metrics.step(0, &step());
            metrics.step(0, &step());
            metrics.progress(&Progress {
                slowdown: (ranks > 1).then_some(1.25),
                ..Progress::default()
            });
            text(&metrics)
        };
        check(
            &shown(2),
            &[
                r#"vit_rank_slowdown_seconds_total{job_name="digits",namespace="vision",rank="0"} 1.5"#
                    .to_owned(),
                r#"vit_job_slowdown_ratio{job_name="digits",namespace="vision",rank="0"} 1.25"#.to_owned(),
            ],
        );
        assert!(!shown(1).contains("slowdown"));
    }

    #[test]
    fn rank_0_shows_how_long_the_run_is() {
        let metrics = Metrics::new(&config(1), 0, None).expect("registers");
        metrics.progress(&Progress {
            step: 3,
            total_steps: 400,
            ..Progress::default()
        });
        let line = r#"vit_run_steps{job_name="digits",namespace="vision",rank="0"} 400"#;
        check(&text(&metrics), &[line.to_owned()]);
    }

    #[test]
    fn what_is_not_known_yet_is_not_shown() {
        let metrics = Metrics::new(&config(1), 0, None).expect("registers");
        for name in [
            names::LOSS,
            names::STEP,
            names::EPOCH,
            names::LEARNING_RATE,
            names::CHECKPOINT_STEP,
            names::RUN_STEPS,
            names::JOB_SLOWDOWN_RATIO,
        ] {
            let series = format!("{name}{{");
            assert!(!text(&metrics).contains(&series), "{name} is a guess");
        }
    }

    #[test]
    fn rank_0_shows_what_checkpoints_cost() {
        let metrics = Metrics::new(&config(1), 0, None).expect("registers");
        let cost = CheckpointCost {
            snapshot_seconds: 0.25,
            write_seconds: 2.0,
            bytes: 1000,
        };
        metrics.checkpoint(&cost);
        metrics.checkpoint(&cost);
        check(
            &text(&metrics),
            &[
            r#"vit_checkpoints_total{job_name="digits",namespace="vision",rank="0"} 2"#,
            r#"vit_checkpoint_bytes_total{job_name="digits",namespace="vision",rank="0"} 2000"#,
            r#"vit_checkpoint_seconds_total{job_name="digits",namespace="vision",phase="snapshot",rank="0"} 0.5"#,
            r#"vit_checkpoint_seconds_total{job_name="digits",namespace="vision",phase="write",rank="0"} 4"#,
            ].map(str::to_owned),
        );
    }
}
