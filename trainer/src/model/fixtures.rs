//! Values for tests.

use contract::architecture::Architecture;
use contract::{ModelConfig, Pooling};

/// A model small enough to train in a test: four patches of an image of 8 x 8 pixels, two blocks, five classes.
pub(crate) fn small(pooling: Pooling) -> ModelConfig {
    ModelConfig {
        image_size: 8,
        patch_size: 4,
        hidden_size: 12,
        depth: 2,
        heads: 3,
        mlp_size: 24,
        num_classes: 5,
        channels: 3,
        pooling,
        register_tokens: 0,
        layer_scale: None,
        drop_path: 0.0,
        train_last_blocks: None,
        architecture: Architecture::default(),
        pretrained: None,
    }
}

/// The preset of that name, with 1000 classes.
pub(crate) fn preset(name: &str) -> ModelConfig {
    ModelConfig::preset(name, 1000, 3).unwrap_or_else(|| panic!("no preset {name}"))
}
