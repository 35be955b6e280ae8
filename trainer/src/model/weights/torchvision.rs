//! The names of torchvision's `VisionTransformer` (`torchvision/models/vision_transformer.py`).
//! Tensor shapes are timm's: `in_proj_weight` of its attention is `qkv.weight`.

use std::collections::BTreeMap;

use contract::{ModelConfig, Pooling};
use tch::Tensor;

/// Channels of its models.
const COLORS: u32 = 3;

const OUTSIDE_BLOCKS: [(&str, &str); 8] = [
    ("class_token", "cls_token"),
    ("encoder.pos_embedding", "pos_embed"),
    ("conv_proj.weight", "patch_embed.proj.weight"),
    ("conv_proj.bias", "patch_embed.proj.bias"),
    ("encoder.ln.weight", "norm.weight"),
    ("encoder.ln.bias", "norm.bias"),
    ("heads.head.weight", "head.weight"),
    ("heads.head.bias", "head.bias"),
];

const BLOCK: &str = "encoder.layers.encoder_layer_";
const TIMM_BLOCK: &str = "blocks.";

const IN_BLOCKS: [(&str, &str); 12] = [
    ("ln_1.weight", "norm1.weight"),
    ("ln_1.bias", "norm1.bias"),
    ("self_attention.in_proj_weight", "attn.qkv.weight"),
    ("self_attention.in_proj_bias", "attn.qkv.bias"),
    ("self_attention.out_proj.weight", "attn.proj.weight"),
    ("self_attention.out_proj.bias", "attn.proj.bias"),
    ("ln_2.weight", "norm2.weight"),
    ("ln_2.bias", "norm2.bias"),
    ("mlp.0.weight", "mlp.fc1.weight"),
    ("mlp.0.bias", "mlp.fc1.bias"),
    ("mlp.3.weight", "mlp.fc2.weight"),
    ("mlp.3.bias", "mlp.fc2.bias"),
];

/// Whether tensors have torchvision's names.
pub(super) fn is_its(tensors: &BTreeMap<String, Tensor>) -> bool {
    tensors.contains_key("conv_proj.weight")
}

/// The same tensors under timm's names. Unknown names stay, for the error message.
pub(super) fn to_timm(tensors: BTreeMap<String, Tensor>) -> BTreeMap<String, Tensor> {
    tensors
        .into_iter()
        .map(|(name, tensor)| (timm_name(&name).unwrap_or(name), tensor))
        .collect()
}

/// Features of a model that torchvision's `VisionTransformer` does not have.
pub(super) fn lacks(model: &ModelConfig) -> Vec<String> {
    let ModelConfig {
        channels,
        pooling,
        register_tokens,
        layer_scale,
        ..
    } = model;
    let mut lacks = Vec::new();
    if *pooling == Pooling::Average {
        lacks.push("average pooling (model.pooling)".into());
    }
    if *register_tokens > 0 {
        lacks.push("register tokens (model.registerTokens)".into());
    }
    if layer_scale.is_some() {
        lacks.push("layer scale (model.layerScale)".into());
    }
    if *channels != COLORS {
        lacks.push(format!("images of {channels} channels (model.channels)"));
    }
    lacks
}

fn timm_name(name: &str) -> Option<String> {
    translate(name, [BLOCK, TIMM_BLOCK], |(own, timm)| (own, timm))
}

/// torchvision's name of timm's `name`.
pub(super) fn name_of(name: &str) -> Option<String> {
    translate(name, [TIMM_BLOCK, BLOCK], |(own, timm)| (timm, own))
}

type Pair = (&'static str, &'static str);

/// `name` in the other library. `direction` orders the pairs of names as from, to.
fn translate(name: &str, [from, to]: [&str; 2], direction: fn(Pair) -> Pair) -> Option<String> {
    let other = |pairs: &[Pair], name: &str| {
        let mut pairs = pairs.iter().copied().map(direction);
        pairs.find(|(from, _)| *from == name).map(|(_, to)| to)
    };
    match name.strip_prefix(from) {
        Some(rest) => {
            let (index, part) = rest.split_once('.')?;
            Some(format!("{to}{index}.{}", other(&IN_BLOCKS, part)?))
        }
        None => other(&OUTSIDE_BLOCKS, name).map(str::to_owned),
    }
}
