//! The estimates of the `footprint` crate match this model.

use contract::{ActivationCheckpointing, ModelConfig, Pooling};
use footprint::Footprint;
use tch::{Device, Kind, Tensor};
use torch_ext::memory::Meter;

use super::fixtures::{preset, small};
use super::{DropSeed, Mode, VisionTransformer};
use crate::data::fixtures::config;

const SYNTHETIC: &str = "{format: synthetic, syntheticImages: 64}";

#[test]
fn parameters_are_as_many_as_the_model_has() {
    for pooling in [Pooling::Token, Pooling::Average] {
        for (register_tokens, layer_scale) in [(0, None), (2, Some(0.1))] {
            let model = ModelConfig {
                register_tokens,
                layer_scale,
                ..small(pooling)
            };
            let built = VisionTransformer::new(&model, 0, Device::Cpu);
            let count: usize = built.parameters().tensors().iter().map(Tensor::numel).sum();
            assert_eq!(footprint::parameters(&model) as usize, count, "{model:?}");
        }
    }
}

/// A small version of a preset. It averages where the preset reads a token, because its last block would compute that
/// token alone.
fn like(name: &str) -> ModelConfig {
    let preset = preset(name);
    ModelConfig {
        pooling: match preset.pooling {
            Pooling::Token => Pooling::Average,
            other => other,
        },
        image_size: 64,
        patch_size: 4,
        hidden_size: 64,
        heads: 4,
        mlp_size: 256,
        depth: 4,
        num_classes: 5,
        ..preset
    }
}

#[test]
fn activations_are_those_that_autograd_keeps() {
    for blocks in [0, 2] {
        let part = ModelConfig {
            train_last_blocks: Some(blocks),
            ..like("vit_base_patch16_gap_224")
        };
        check_activations(&part, ActivationCheckpointing::None);
    }
    for name in [
        "vit_base_patch16_reg4_gap_256",
        "deit3_base_patch16_224",
        "vit_base_patch16_clip_quickgelu_224",
        "vit_base_patch16_siglip_224",
        "vit_so400m_patch14_siglip_224",
        "vit_small_patch16_dinov3_qkvb",
        "vit_small_plus_patch16_dinov3",
    ] {
        for checkpointing in [
            ActivationCheckpointing::None,
            ActivationCheckpointing::Selective,
            ActivationCheckpointing::Block,
        ] {
            check_activations(&like(name), checkpointing);
        }
    }
}

fn check_activations(model: &ModelConfig, checkpointing: ActivationCheckpointing) {
    let name = format!(
        "{:?}",
        (&model.architecture, model.pooling, model.train_last_blocks)
    );
    let mut config = config(SYNTHETIC);
    config.model = model.clone();
    config.training.micro_batch_size = 4;
    config.training.activation_checkpointing = checkpointing;
    let side = i64::from(model.image_size);
    let mut model = VisionTransformer::new(model, 0, Device::Cpu);
    model.checkpoint_activations(checkpointing);
    let meter = Meter::start().expect("counts");
    let images = Tensor::zeros(
        [4, i64::from(config.model.channels), side, side],
        (Kind::Float, Device::Cpu),
    );
    let logits = model
        .forward(&images, Mode::Train(DropSeed::default()))
        .expect("logits");
    let held = meter.held() as f64;
    let Footprint {
        activations: expected,
        working,
        ..
    } = footprint::footprint(&config);
    let share = held / expected;
    assert!(
        (0.97..1.03).contains(&share),
        "{name}, {checkpointing:?}: {share} of what was expected"
    );
    logits.sum(Kind::Float).backward();
    // At the peak, gradients of some or all weights exist too.
    let gradients: usize = model.parameters().tensors().iter().map(Tensor::numel).sum();
    let (peak, expected) = (meter.peak() as f64, expected + working);
    let least = peak - 4.0 * gradients as f64;
    assert!(
        least < 1.05 * expected && expected < 1.05 * peak,
        "{name}, {checkpointing:?}: {least} to {peak} at the peak, and {expected} expected"
    );
}
