//! DeepSpeed's keys that have no field of the manifest, and what becomes of them.
//!
//! The names are those that DeepSpeed's `runtime/config.py`, `runtime/zero/config.py` and
//! `runtime/precision_config.py` read.

use super::section::Fate::{self, NoEffect, NoKey, Off};

const MEASURED: &str =
    "progress, metrics and log.jsonl are always there; see metrics in the trainer's documentation";
const STAGE_ZERO: &str = "no effect at stage 0";

pub(super) const TOP: &[(&str, Fate)] = &[
    (
        "micro_batch_per_gpu",
        NoKey(
            "no key of DeepSpeed, which ignores it without a word; the key is train_micro_batch_size_per_gpu",
        ),
    ),
    (
        "micro_batch_size_per_gpu",
        NoKey(
            "no key of DeepSpeed, which ignores it without a word; the key is train_micro_batch_size_per_gpu",
        ),
    ),
    ("pin_memory", NoEffect("DeepSpeed ignores it too at this level")),
    (
        "pipeline",
        NoEffect("only DeepSpeed's pipeline engine reads it, and a ViTTrainingJob has no pipeline"),
    ),
    (
        "prescale_gradients",
        NoEffect(
            "gradients are always divided by the number of ranks before they are added; the average is the same",
        ),
    ),
    (
        "gradient_predivide_factor",
        NoEffect("the average is the same whatever part of the division comes first"),
    ),
    (
        "steps_per_print",
        NoEffect("progress is told by time, not by steps"),
    ),
    (
        "dump_state",
        NoEffect("the run configuration is in the job's ConfigMap"),
    ),
    (
        "disable_allgather",
        NoEffect("it concerns DeepSpeed's sharded optimizers only"),
    ),
    ("memory_breakdown", NoEffect(MEASURED)),
    (
        "comms_logger",
        NoEffect("what synchronisation costs is always measured"),
    ),
    (
        "comms_config",
        NoEffect("what synchronisation costs is always measured"),
    ),
    ("flops_profiler", NoEffect("`vit-trainer bench` measures speed")),
    ("tensorboard", NoEffect(MEASURED)),
    ("wandb", NoEffect(MEASURED)),
    ("csv_monitor", NoEffect(MEASURED)),
    ("comet", NoEffect(MEASURED)),
    ("timers", NoEffect(MEASURED)),
    ("log_level", NoEffect("set RUST_LOG in workers.env")),
    (
        "activation_checkpointing",
        NoEffect(
            "it configures functions that a script calls; training.activationCheckpointing is this trainer's switch",
        ),
    ),
    (
        "checkpoint",
        NoEffect("spec.checkpoint sets where and how often checkpoints are written"),
    ),
    ("nebula", Off("checkpoints go to spec.checkpoint.volume")),
    ("datastates_ckpt", Off("checkpoints go to spec.checkpoint.volume")),
    ("aio", NoEffect("it concerns offloading to NVMe only")),
    (
        "dataloader_drop_last",
        NoEffect("the last images of an epoch that do not fill a step are always left out"),
    ),
    ("zero_allow_untested_optimizer", NoEffect("it concerns ZeRO only")),
    (
        "zero_force_ds_cpu_optimizer",
        NoEffect("it concerns offloading only"),
    ),
    (
        "seq_parallel_communication_data_type",
        NoEffect("there is no sequence parallelism"),
    ),
    (
        "seq_parallel_comm_data_type",
        NoEffect("there is no sequence parallelism"),
    ),
    (
        "use_data_before_expert_parallelism",
        NoEffect("there are no experts"),
    ),
    (
        "vocabulary_size",
        NoEffect("a Vision Transformer has no vocabulary"),
    ),
    ("graph_harvesting", NoEffect("it concerns inference")),
    (
        "sequence_parallel_size",
        NoEffect("there is no sequence parallelism"),
    ),
    (
        "data_types",
        Off("gradients are accumulated in the dtype of the weights"),
    ),
    (
        "sparse_gradients",
        Off("a Vision Transformer has no sparse gradients"),
    ),
    ("sparse_attention", Off("attention is dense")),
    ("amp", Off("Apex is not used; say fp16 or bf16")),
    (
        "progressive_layer_drop",
        Off("not there; model.dropPath is the usual way for a Vision Transformer"),
    ),
    ("curriculum_learning", Off("not there")),
    ("data_efficiency", Off("not there")),
    ("eigenvalue", Off("not there")),
    ("quantize_training", Off("not there")),
    ("compression_training", Off("not there")),
    ("weight_quantization", Off("not there")),
    ("hybrid_engine", Off("it is for language models")),
    (
        "autotuning",
        Off("not there; run `vit-trainer bench` with the batch sizes in question"),
    ),
    (
        "elasticity",
        Off("the batch size of a step follows workers.nodes; kubectl scale changes them"),
    ),
    ("compile", Off("there is no compiler for the graph")),
    ("tensor_parallel", Off("only data parallelism is there")),
    ("expert_parallel", Off("there are no experts")),
];

pub(super) const ZERO: &[(&str, Fate)] = &[
    ("offload_optimizer", Off("optimizer state stays on the device")),
    ("offload_param", Off("parameters stay on the device")),
    ("cpu_offload", Off("optimizer state stays on the device")),
    ("cpu_offload_param", Off("parameters stay on the device")),
    ("cpu_offload_use_pin_memory", NoEffect(STAGE_ZERO)),
    (
        "overlap_comm",
        NoEffect("gradients are always reduced while the backward pass goes on"),
    ),
    (
        "reduce_bucket_size",
        NoEffect(
            "parallelism.bucketMegabytes sets the largest size of buckets; DeepSpeed's at stage 0 is fixed",
        ),
    ),
    ("allgather_bucket_size", NoEffect(STAGE_ZERO)),
    ("allgather_partitions", NoEffect(STAGE_ZERO)),
    ("reduce_scatter", NoEffect(STAGE_ZERO)),
    (
        "contiguous_gradients",
        NoEffect("gradients always lie in their buckets"),
    ),
    ("use_multi_rank_bucket_allreduce", NoEffect(STAGE_ZERO)),
    ("round_robin_gradients", NoEffect(STAGE_ZERO)),
    ("sub_group_size", NoEffect(STAGE_ZERO)),
    (
        "load_from_fp32_weights",
        NoEffect("checkpoints always hold fp32 weights"),
    ),
    ("ignore_unused_parameters", NoEffect("every parameter is used")),
    (
        "elastic_checkpoint",
        NoEffect("checkpoints can be continued on any number of ranks"),
    ),
    ("legacy_stage1", NoEffect(STAGE_ZERO)),
    ("zero_hpz_partition_size", NoEffect(STAGE_ZERO)),
    ("zero_quantized_weights", Off("ZeRO++ is not there")),
    ("zero_quantized_nontrainable_weights", Off("ZeRO++ is not there")),
    ("zero_quantized_gradients", Off("ZeRO++ is not there")),
    ("zeropp_loco_param", Off("ZeRO++ is not there")),
    ("zenflow", Off("not there")),
    ("mics_shard_size", NoEffect(STAGE_ZERO)),
    ("mics_hierarchical_params_gather", NoEffect(STAGE_ZERO)),
    ("memory_efficient_linear", NoEffect(STAGE_ZERO)),
    ("pipeline_loading_checkpoint", NoEffect(STAGE_ZERO)),
    ("override_module_apply", NoEffect(STAGE_ZERO)),
    ("log_trace_cache_warnings", NoEffect(STAGE_ZERO)),
    ("enable_sanity_checks", NoEffect(STAGE_ZERO)),
    ("save_muon_momentum_buffer_in_memory", NoEffect(STAGE_ZERO)),
    ("leaf_module", NoEffect(STAGE_ZERO)),
    ("stage3_prefetch_bucket_size", NoEffect(STAGE_ZERO)),
    ("stage3_param_persistence_threshold", NoEffect(STAGE_ZERO)),
    ("stage3_model_persistence_threshold", NoEffect(STAGE_ZERO)),
    ("stage3_max_live_parameters", NoEffect(STAGE_ZERO)),
    ("stage3_max_reuse_distance", NoEffect(STAGE_ZERO)),
    ("stage3_gather_16bit_weights_on_model_save", NoEffect(STAGE_ZERO)),
    ("stage3_gather_fp16_weights_on_model_save", NoEffect(STAGE_ZERO)),
    ("stage3_module_granularity_threshold", NoEffect(STAGE_ZERO)),
    ("stage3_use_all_reduce_for_fetch_params", NoEffect(STAGE_ZERO)),
    ("stage3_allgather_sequential", NoEffect(STAGE_ZERO)),
    ("stage3_partition_stream_chunk_size", NoEffect(STAGE_ZERO)),
];

pub(super) const OPTIMIZER: &[(&str, Fate)] = &[("legacy_fusion", NoEffect("kernels are always fused"))];

pub(super) const OPTIMIZER_PARAMS: &[(&str, Fate)] = &[
    ("torch_adam", NoEffect("torch's fused AdamW is always used")),
    ("fused", NoEffect("kernels are always fused")),
    ("foreach", NoEffect("kernels are always fused")),
    ("set_grad_none", NoEffect("gradients live in their buckets")),
    ("amsgrad", Off("not there")),
    ("maximize", Off("the loss is minimised")),
    (
        "max_grad_norm",
        Off("DeepSpeed refuses it too; the key is gradient_clipping"),
    ),
    ("dampening", Off("momentum is not dampened")),
];
