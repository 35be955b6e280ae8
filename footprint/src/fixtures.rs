//! A configuration for tests.

use contract::{DataConfig, DataFormat, ModelConfig, Precision, RunConfig};
use serde_json::json;

/// A preset with 1000 classes and `AdamW`, on `nodes` nodes with `ranks_per_node` ranks.
pub(crate) fn job(preset: &str, nodes: u32, ranks_per_node: u32) -> RunConfig {
    let model = ModelConfig::preset(preset, 1000, 3).unwrap_or_else(|| panic!("no preset {preset}"));
    let config = json!({
        "job": {"namespace": "default", "name": "job", "uid": "6f0c2b9e"},
        "model": model,
        "data": DataConfig { synthetic_images: Some(64), ..DataConfig::plain(DataFormat::Synthetic) },
        "training": {
            "epochs": 2, "microBatchSize": 4, "schedule": {"warmupEpochs": 1.0}, "labelSmoothing": 0.1,
        },
        "parallelism": {"bucketMegabytes": 25, "compressGradients": "none"},
        "nodes": nodes, "ranksPerNode": ranks_per_node, "device": "auto",
        "checkpoint": {"path": "/checkpoints", "keep": 2, "everySteps": 500, "resume": "Auto"},
    });
    serde_json::from_value(config).expect("a configuration")
}

/// ViT-B/16 on four nodes with one rank each, at this stage of `ZeRO`.
pub(crate) fn at_stage(stage: u8, masters: bool) -> RunConfig {
    let mut config = job("vit_base_patch16_224", 4, 1);
    config.parallelism.zero_stage = stage;
    if masters {
        (config.training.precision, config.training.master_weights) = (Precision::Bf16, true);
    }
    config
}
