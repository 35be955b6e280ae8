//! DeepSpeed's keys without a field of the manifest, and their treatment.
//!
//! The names are those that DeepSpeed's `runtime/config.py`, `runtime/zero/config.py` and
//! `runtime/precision_config.py` read.

use super::section::Fate::{self, NoEffect, NoKey, Off};

const MEASURED: &str =
    "progress, metrics and log.jsonl are always on; see metrics in the trainer's documentation";
const OWN_WAY: &str =
    "reduction and gathering work block by block, with the next one prefetched, at any size";

pub(super) const TOP: &[(&str, Fate)] = &[
    (
        "micro_batch_per_gpu micro_batch_size_per_gpu",
        NoKey("not a key of DeepSpeed, which silently ignores it; the key is train_micro_batch_size_per_gpu"),
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
        NoEffect("the average is the same wherever it is divided"),
    ),
    (
        "steps_per_print",
        NoEffect("progress is shown by time, not by steps"),
    ),
    (
        "dump_state",
        NoEffect("the run configuration is in the job's ConfigMap"),
    ),
    (
        "disable_allgather",
        NoEffect("parallelism.zeroStage decides how ranks get weights"),
    ),
    (
        "memory_breakdown tensorboard wandb csv_monitor comet timers",
        NoEffect(MEASURED),
    ),
    (
        "comms_logger comms_config",
        NoEffect("communication is always measured"),
    ),
    ("flops_profiler", NoEffect("`vit-trainer bench` measures speed")),
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
    (
        "nebula datastates_ckpt",
        Off("checkpoints go to spec.checkpoint.volume"),
    ),
    ("aio", NoEffect("it concerns offloading to NVMe only")),
    (
        "dataloader_drop_last",
        NoEffect("the last images of an epoch that do not fill a step are always dropped"),
    ),
    (
        "zero_allow_untested_optimizer",
        NoEffect("every optimizer works at every stage"),
    ),
    (
        "zero_force_ds_cpu_optimizer",
        NoEffect("it concerns offloading only"),
    ),
    (
        "seq_parallel_communication_data_type seq_parallel_comm_data_type",
        NoEffect("activations are exchanged in their own type"),
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
        "data_types",
        Off("gradients are accumulated in the dtype of the weights"),
    ),
    (
        "sparse_gradients",
        Off("a Vision Transformer has no sparse gradients"),
    ),
    ("sparse_attention", Off("attention is dense")),
    ("amp", Off("Apex is not used; set fp16 or bf16")),
    (
        "progressive_layer_drop",
        Off("not supported; model.dropPath is the usual way for a Vision Transformer"),
    ),
    (
        "curriculum_learning data_efficiency eigenvalue quantize_training compression_training \
         weight_quantization",
        Off("not supported"),
    ),
    ("hybrid_engine", Off("it is for language models")),
    (
        "autotuning",
        Off("not supported; run `vit-trainer bench` with the batch sizes in question"),
    ),
    (
        "elasticity",
        Off("the batch size of a step follows workers.nodes; kubectl scale changes them"),
    ),
    ("compile", Off("graph compilation is not supported")),
    (
        "tensor_parallel",
        Off(
            "it changes the meaning of the batch sizes: remove it, and set parallelism.tensor in the manifest",
        ),
    ),
    ("expert_parallel", Off("there are no experts")),
];

pub(super) const ZERO: &[(&str, Fate)] = &[
    (
        "mics_shard_size mics_hierarchical_params_gather",
        NoEffect("set parallelism.shardWithinNode in the manifest if that is a node's GPUs"),
    ),
    (
        "cpu_offload_use_pin_memory allgather_bucket_size allgather_partitions reduce_scatter \
         use_multi_rank_bucket_allreduce round_robin_gradients sub_group_size legacy_stage1 \
         zero_hpz_partition_size memory_efficient_linear \
         pipeline_loading_checkpoint override_module_apply log_trace_cache_warnings enable_sanity_checks \
         save_muon_momentum_buffer_in_memory leaf_module stage3_prefetch_bucket_size \
         stage3_param_persistence_threshold stage3_model_persistence_threshold \
         stage3_max_live_parameters stage3_max_reuse_distance stage3_gather_16bit_weights_on_model_save \
         stage3_gather_fp16_weights_on_model_save stage3_module_granularity_threshold \
         stage3_use_all_reduce_for_fetch_params stage3_allgather_sequential \
         stage3_partition_stream_chunk_size",
        NoEffect(OWN_WAY),
    ),
    (
        "overlap_comm",
        NoEffect("gradients are always reduced during the backward pass"),
    ),
    (
        "reduce_bucket_size",
        NoEffect(
            "parallelism.bucketMegabytes sets the maximum size of buckets at stage 0, where DeepSpeed's is fixed; at other stages a bucket is a block of the model",
        ),
    ),
    (
        "contiguous_gradients",
        NoEffect("gradients are always stored in buckets"),
    ),
    (
        "load_from_fp32_weights",
        NoEffect("checkpoints always hold fp32 weights"),
    ),
    ("ignore_unused_parameters", NoEffect("every parameter is used")),
    (
        "elastic_checkpoint",
        NoEffect("checkpoints can be resumed on any number of ranks"),
    ),
    (
        "zero_quantized_weights zero_quantized_nontrainable_weights zero_quantized_gradients \
         zeropp_loco_param",
        Off("ZeRO++ is not supported"),
    ),
    ("zenflow", Off("not supported")),
];

pub(super) const OFFLOAD: &[(&str, Fate)] = &[
    (
        "pin_memory",
        NoEffect("copies use pinned memory, except those that change the precision"),
    ),
    (
        "buffer_size max_in_cpu",
        NoEffect("one block of the model is gathered at a time"),
    ),
    ("ratio", NoEffect("all of the optimizer is offloaded")),
    (
        "buffer_count pipeline_read pipeline_write pipeline fast_init nvme_path",
        NoEffect("it concerns offloading to NVMe only"),
    ),
    (
        "super_offload cpuadam_cores_perc",
        NoEffect("the optimizer uses the rank's share of the pod's processors"),
    ),
];

pub(super) const OPTIMIZER: &[(&str, Fate)] = &[("legacy_fusion", NoEffect("kernels are always fused"))];

pub(super) const OPTIMIZER_PARAMS: &[(&str, Fate)] = &[
    ("torch_adam", NoEffect("torch's fused AdamW is always used")),
    ("fused", NoEffect("kernels are always fused")),
    ("foreach", NoEffect("kernels are always fused")),
    ("set_grad_none", NoEffect("gradients are stored in buckets")),
    ("amsgrad", Off("not supported")),
    ("maximize", Off("the loss is minimized")),
    (
        "max_grad_norm",
        Off("DeepSpeed refuses it too; the key is gradient_clipping"),
    ),
    ("dampening", Off("momentum is not dampened")),
];
