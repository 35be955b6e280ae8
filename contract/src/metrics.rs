//! Names of the trainer's Prometheus metrics and their labels. Base units; counters end in `_total`.
//!
//! The label with the job's name is `job_name`: Prometheus puts the label `job` on every target,
//! and renames a scraped `job` to `exported_job`, unless configured otherwise.

/// Namespace of the job.
pub const LABEL_NAMESPACE: &str = "namespace";
/// Name of the job.
pub const LABEL_JOB_NAME: &str = "job_name";
/// Global rank.
pub const LABEL_RANK: &str = "rank";
/// Node of the rank's pod, on [`RANK_INFO`].
pub const LABEL_NODE: &str = "node";
/// Part of a step, on [`STEP_SECONDS`]: one of [`STEP_PHASES`]; part of a checkpoint, on
/// [`CHECKPOINT_SECONDS_TOTAL`]: one of [`CHECKPOINT_PHASES`].
pub const LABEL_PHASE: &str = "phase";
/// Kind of synchronization cost, on [`SYNC_SECONDS_TOTAL`]: one of [`SYNC_KINDS`].
pub const LABEL_KIND: &str = "kind";
/// Collective operation, on [`SYNC_SECONDS_TOTAL`] and [`SYNC_BYTES_TOTAL`]: one of [`SYNC_OPERATIONS`].
pub const LABEL_OPERATION: &str = "operation";
/// Part of the data set, on [`ACCURACY_RATIO`]: [`SPLIT_TRAIN`], [`SPLIT_VALIDATION`], or [`SPLIT_VALIDATION_EMA`].
pub const LABEL_SPLIT: &str = "split";
/// Why a GPU's clocks are reduced, on [`DEVICE_THROTTLED`].
pub const LABEL_REASON: &str = "reason";
/// Training images of the current epoch.
pub const SPLIT_TRAIN: &str = "train";
/// Held-out images.
pub const SPLIT_VALIDATION: &str = "validation";
/// Held-out images, classified by the averaged weights.
pub const SPLIT_VALIDATION_EMA: &str = "validation_ema";

/// Counter: training images that this rank has processed.
pub const IMAGES_TOTAL: &str = "vit_images_total";
/// Histogram: seconds of each part of an optimizer step, by phase.
pub const STEP_SECONDS: &str = "vit_step_seconds";
/// Counter: seconds of synchronization, by kind and operation.
pub const SYNC_SECONDS_TOTAL: &str = "vit_sync_seconds_total";
/// Counter: bytes of reduced gradients and gathered weights, by operation.
pub const SYNC_BYTES_TOTAL: &str = "vit_sync_bytes_total";
/// Counter: seconds that steps would have been shorter without this rank: its compute time beyond
/// the next slowest, in steps where it was the slowest.
pub const RANK_SLOWDOWN_SECONDS_TOTAL: &str = "vit_rank_slowdown_seconds_total";
/// Gauge: step time over the step time if every rank computed as fast as the median one, at least
/// 1; only of rank 0.
pub const JOB_SLOWDOWN_RATIO: &str = "vit_job_slowdown_ratio";
/// Gauge: training loss of the last step, mean over all ranks.
pub const LOSS: &str = "vit_loss";
/// Gauge: share of images classified right, by split.
pub const ACCURACY_RATIO: &str = "vit_accuracy_ratio";
/// Gauge: mean average precision of the held-out images, by split; if images may show several
/// classes.
pub const MEAN_AVERAGE_PRECISION_RATIO: &str = "vit_mean_average_precision_ratio";
/// Gauge: learning rate of the last step.
pub const LEARNING_RATE: &str = "vit_learning_rate";
/// Gauge: optimizer steps skipped because gradients overflowed fp16.
pub const SKIPPED_STEPS: &str = "vit_skipped_steps";
/// Gauge: epochs finished.
pub const EPOCH: &str = "vit_epoch";
/// Gauge: optimizer steps finished.
pub const STEP: &str = "vit_step";
/// Gauge: optimizer steps of the whole run; only of rank 0.
pub const RUN_STEPS: &str = "vit_run_steps";
/// Gauge: always 1; has the node of a rank, if the agent knows it, to join with other metrics.
pub const RANK_INFO: &str = "vit_rank_info";
/// Gauge: floating-point operations of the model for one training image, forward and backward pass,
/// without recomputation. Times the rate of [`IMAGES_TOTAL`] it is the model FLOP/s, on any device.
pub const MODEL_FLOPS_PER_IMAGE: &str = "vit_model_flops_per_image";
/// Gauge: dense half-precision peak of the rank's GPU in FLOP/s, in any precision; known products
/// only.
pub const DEVICE_PEAK_FLOPS: &str = "vit_device_peak_flops";
/// Gauge: peak memory of this rank's tensors on its GPU, bytes; only on GPUs.
pub const DEVICE_MEMORY_PEAK_BYTES: &str = "vit_device_memory_peak_bytes";
/// Gauge: share of the driver's last sampling period with a running kernel on the rank's GPU, 0..1.
/// This and the next four come from NVML ([`crate::gpu::GpuReading`]), once a second.
pub const DEVICE_UTILIZATION_RATIO: &str = "vit_device_utilization_ratio";
/// Gauge: memory of the rank's GPU in use by all processes, including CUDA, bytes.
pub const DEVICE_MEMORY_USED_BYTES: &str = "vit_device_memory_used_bytes";
/// Gauge: temperature of the rank's GPU.
pub const DEVICE_TEMPERATURE_CELSIUS: &str = "vit_device_temperature_celsius";
/// Gauge: power of the board of the rank's GPU.
pub const DEVICE_POWER_WATTS: &str = "vit_device_power_watts";
/// Gauge: 1 while the clocks of the rank's GPU are reduced, by reason: one of
/// [`crate::gpu::ThrottleReason`].
pub const DEVICE_THROTTLED: &str = "vit_device_throttled";
/// Gauge: optimizer step of the newest complete checkpoint.
pub const CHECKPOINT_STEP: &str = "vit_checkpoint_step";
/// Counter: checkpoints that this rank has completed on storage.
pub const CHECKPOINTS_TOTAL: &str = "vit_checkpoints_total";
/// Counter: bytes of all files of those checkpoints.
pub const CHECKPOINT_BYTES_TOTAL: &str = "vit_checkpoint_bytes_total";
/// Counter: seconds of checkpointing, by phase: one of [`CHECKPOINT_PHASES`].
pub const CHECKPOINT_SECONDS_TOTAL: &str = "vit_checkpoint_seconds_total";
/// Gauge: resident host memory of this rank's process in bytes, without GPU memory.
pub const PROCESS_RESIDENT_MEMORY_BYTES: &str = "vit_process_resident_memory_bytes";

/// Parts of an optimizer step, in order; together they are the whole step.
pub const STEP_PHASES: [&str; 6] = [
    "data",
    "forward",
    "backward",
    "sync_exposed",
    "sync_straggler",
    "optimizer",
];

/// Parts of a checkpoint: `snapshot`, while training pauses, and `write`, while it continues.
pub const CHECKPOINT_PHASES: [&str; 2] = ["snapshot", "write"];

/// Kinds of synchronization cost:
/// - `total`: time of collectives that every rank had started;
/// - `exposed`: the part of `total` that the step waited for;
/// - `straggler`: waiting for ranks that had not started a collective, above all for their last
///   gradients.
///
/// A step waits for `exposed + straggler`.
pub const SYNC_KINDS: [&str; 3] = ["total", "exposed", "straggler"];

/// In [`SYNC_OPERATIONS`]: gradients at `parallelism.zeroStage` 0 or, with
/// `parallelism.shardWithinNode`, between nodes; activations with `parallelism.sequence` and
/// `parallelism.tensor`.
pub const ALL_REDUCE: &str = "all_reduce";
/// In [`SYNC_OPERATIONS`]: activations with `parallelism.sequence`.
pub const ALL_TO_ALL: &str = "all_to_all";

/// Operations of synchronization:
/// - `all_reduce`: whole gradients at `parallelism.zeroStage` 0; their shards between nodes with
///   `parallelism.shardWithinNode`, whose exposed time counts as `reduce_scatter`; activations with
///   `parallelism.tensor` and, at the classifier, `parallelism.sequence`;
/// - `reduce_scatter`: gradient shards from stage 1 on;
/// - `all_gather`: weights from stage 1 on;
/// - `all_to_all`: activations with `parallelism.sequence`, to swap tokens for heads.
pub const SYNC_OPERATIONS: [&str; 4] = [ALL_REDUCE, "reduce_scatter", "all_gather", ALL_TO_ALL];
