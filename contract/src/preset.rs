//! Vision Transformers by the names of timm and torchvision.
//!
//! Sizes: "An Image is Worth 16x16 Words" (arXiv 2010.11929), table 1, for base, large and huge; "Training
//! data-efficient image transformers" (arXiv 2012.12877), table 1, for tiny and small; "Scaling Vision Transformers"
//! (arXiv 2106.04560), table 2, for giant and gigantic. timm: `timm/models/vision_transformer.py`.

mod names;

use crate::architecture::{Architecture, Mlp, Position, QkvBias};
use crate::{ModelConfig, Pooling};
pub use names::TIMM_NAMES;

/// Models of other structure, by a part of their names, and what the trainer lacks for them.
const UNSUPPORTED: [(&str, &str); 15] = [
    ("eva02", "rotary positions of other kinds than DINOv3's"),
    ("beit3", "norms within attention and MLP"),
    ("beit", "relative positions"),
    ("flexivit", "patches of variable size"),
    ("swin", "attention in windows"),
    ("_rope_", "rotary positions of other kinds than DINOv3's"),
    ("7b_patch16_dinov3", "blocks of this width"),
    ("giant_patch14_dinov2", "a gate and hidden values in one layer"),
    (
        "giant_patch14_reg4_dinov2",
        "a gate and hidden values in one layer",
    ),
    ("_pe_", "rotary positions of other kinds than DINOv3's"),
    ("18x2", "parallel branches"),
    ("36x1", "blocks of this depth and width"),
    ("_rpn_", "norms after the branches"),
    ("_xp_", "parallel branches"),
    ("resnet", "convolutions"),
];

/// What is expected instead of a name that [`ModelConfig::preset`] does not know: why not, and the nearest that it
/// knows.
pub fn expected_instead_of(name: &str) -> String {
    let lacks = UNSUPPORTED
        .iter()
        .find(|(part, _)| name.contains(part))
        .map_or_else(String::new, |(_, lacks)| format!(" (the trainer has no {lacks})"));
    let known = TIMM_NAMES.iter().chain(&TORCHVISION_NAMES);
    let nearest = known.max_by(|one, other| {
        let likeness = |known| strsim::jaro_winkler(known, name);
        likeness(one).total_cmp(&likeness(other))
    });
    let nearest = nearest.copied().unwrap_or_default();
    format!(
        "must be timm's or torchvision's name of a supported model{lacks}, such as {nearest}; or leave it out and give the sizes"
    )
}

/// torchvision's models.
pub const TORCHVISION_NAMES: [&str; 5] = ["vit_b_16", "vit_b_32", "vit_l_16", "vit_l_32", "vit_h_14"];

const PATCH_SIZES: [u32; 4] = [8, 14, 16, 32];
/// No published model has larger images.
const LARGEST_IMAGE: u32 = 1024;

/// Sizes that do not depend on patch and image.
#[derive(Clone, Copy)]
struct Dimensions {
    name: &'static str,
    hidden_size: u32,
    depth: u32,
    heads: u32,
    mlp_size: u32,
}

const fn size(name: &'static str, hidden_size: u32, depth: u32, heads: u32, mlp_size: u32) -> Dimensions {
    Dimensions {
        name,
        hidden_size,
        depth,
        heads,
        mlp_size,
    }
}

const SIZES: [Dimensions; 12] = [
    size("xsmall", 256, 10, 4, 1024),
    size("tiny", 192, 12, 3, 768),
    size("small", 384, 12, 6, 1536),
    size("medium", 512, 12, 8, 2048),
    size("betwixt", 640, 12, 10, 2560),
    size("base", 768, 12, 12, 3072),
    size("large", 1024, 24, 16, 4096),
    size("so400m", 1152, 27, 16, 4304),
    size("huge", 1280, 32, 16, 5120),
    size("giantopt", 1536, 40, 16, 6144),
    size("giant", 1408, 40, 16, 6144),
    size("gigantic", 1664, 48, 16, 8192),
];

impl ModelConfig {
    /// The network with this name of timm or torchvision, for these numbers of classes and channels.
    pub fn preset(name: &str, num_classes: u32, channels: u32) -> Option<Self> {
        Some(Self {
            num_classes,
            channels,
            ..torchvision(name).or_else(|| timm(name))?
        })
    }
}

fn torchvision(name: &str) -> Option<ModelConfig> {
    let (size, patch_size) = match name {
        "vit_b_16" => ("base", 16),
        "vit_b_32" => ("base", 32),
        "vit_l_16" => ("large", 16),
        "vit_l_32" => ("large", 32),
        "vit_h_14" => ("huge", 14),
        _ => return None,
    };
    plain(size, patch_size, 224)
}

/// `FAMILY_SIZE[_plus|_distilled]_patchP[_VARIANT][_PIXELS]`.
fn timm(name: &str) -> Option<ModelConfig> {
    let (family, rest) = name.split_once('_')?;
    let (size, rest) = rest.split_once("_patch")?;
    let (patch, variant) = rest.split_once('_')?;
    let patch_size = number(patch).filter(|patch| PATCH_SIZES.contains(patch))?;
    let (size, is_distilled) = match size.strip_suffix("_distilled") {
        Some(size) => (size, true),
        None => (size, false),
    };
    // The last word of a variant may be the image's size.
    let (words, pixels) = match variant.rsplit_once('_') {
        Some((words, last)) if number(last).is_some() => (words, number(last)),
        _ => number(variant).map_or((variant, None), |pixels| ("", Some(pixels))),
    };
    let plain = |pixels| plain(size, patch_size, pixels);
    let is_deit = ["deit", "deit3"].contains(&family);
    if is_distilled && family != "deit" || is_deit && !words.is_empty() {
        return None;
    }
    match (family, words) {
        ("deit", "") => Some(deit(plain(pixels?)?, is_distilled)),
        ("deit3", "") => Some(deit3(plain(pixels?)?)),
        ("vit", "") => plain(pixels?),
        ("vit", "gap") => Some(gap(plain(pixels?)?, size)),
        ("vit", "reg1_gap" | "reg4_gap") => registers(size, words, plain(pixels?)?),
        ("vit", "clip") => Some(clip(plain(pixels?)?, Mlp::Gelu)),
        ("vit", "clip_quickgelu") => Some(clip(plain(pixels?)?, Mlp::QuickGelu)),
        ("vit", "siglip") => Some(siglip(plain(pixels?)?, size, Pooling::Attention)),
        ("vit", "siglip_gap") => Some(siglip(plain(pixels?)?, size, Pooling::Average)),
        ("vit", "dinov2") if pixels.is_none() => dinov2(size, patch_size, 0),
        ("vit", "reg4_dinov2") if pixels.is_none() => dinov2(size, patch_size, 4),
        ("vit", "dinov3") if pixels.is_none() => dinov3(size, patch_size, QkvBias::None),
        ("vit", "dinov3_qkvb") if pixels.is_none() => dinov3(size, patch_size, QkvBias::QueriesAndValues),
        _ => None,
    }
}

/// `vit_SIZE_patchP_PIXELS` without classes: a class token and nothing else.
fn plain(size: &str, patch_size: u32, image_size: u32) -> Option<ModelConfig> {
    let size = SIZES.iter().find(|known| known.name == size)?;
    let fits = image_size.is_multiple_of(patch_size) && (patch_size..=LARGEST_IMAGE).contains(&image_size);
    fits.then_some(ModelConfig {
        image_size,
        patch_size,
        hidden_size: size.hidden_size,
        depth: size.depth,
        heads: size.heads,
        mlp_size: size.mlp_size,
        num_classes: 0,
        channels: 0,
        pooling: Pooling::Token,
        register_tokens: 0,
        layer_scale: None,
        drop_path: 0.0,
        train_last_blocks: None,
        architecture: Architecture::default(),
        pretrained: None,
    })
}

/// The mean over patches, without a class token; timm's `gap` models.
fn gap(model: ModelConfig, size: &str) -> ModelConfig {
    let is_of_timm = ["medium", "betwixt"].contains(&size);
    // The others are of I-JEPA (arXiv 2301.08243).
    let heads = if size == "base" { 16 } else { model.heads };
    let architecture = Architecture {
        norm_before_pooling: true,
        qkv_bias: if is_of_timm { QkvBias::None } else { QkvBias::All },
        ..Architecture::default()
    };
    ModelConfig {
        pooling: Pooling::Average,
        layer_scale: is_of_timm.then_some(1e-6),
        heads,
        architecture,
        ..model
    }
}

/// Registers (arXiv 2309.16588) and the mean over patches.
fn registers(size: &str, words: &str, model: ModelConfig) -> Option<ModelConfig> {
    let (register_tokens, layer_scale) = match (size, words) {
        ("medium" | "betwixt", "reg1_gap") => (1, Some(1e-5)),
        ("medium" | "betwixt", "reg4_gap") => (4, Some(1e-5)),
        ("base", "reg4_gap") => (4, None),
        _ => return None,
    };
    Some(ModelConfig {
        pooling: Pooling::Average,
        register_tokens,
        layer_scale,
        ..model
    })
}

/// arXiv 2012.12877. timm: `timm/models/deit.py`.
fn deit(model: ModelConfig, is_distilled: bool) -> ModelConfig {
    let architecture = Architecture {
        distillation_token: is_distilled,
        ..Architecture::default()
    };
    ModelConfig {
        architecture,
        ..model
    }
}

/// arXiv 2204.07118.
fn deit3(model: ModelConfig) -> ModelConfig {
    ModelConfig {
        layer_scale: Some(1e-6),
        architecture: Architecture {
            position: Position::LearnedOfPatches,
            ..Architecture::default()
        },
        ..model
    }
}

/// arXiv 2103.00020.
fn clip(model: ModelConfig, mlp: Mlp) -> ModelConfig {
    let architecture = Architecture {
        input_norm: true,
        norm_epsilon: 1e-5,
        mlp,
        ..Architecture::default()
    };
    ModelConfig {
        architecture,
        ..model
    }
}

/// arXiv 2303.15343, and SigLIP 2 (arXiv 2502.14786).
fn siglip(model: ModelConfig, size: &str, pooling: Pooling) -> ModelConfig {
    // As in timm, where only sizes that came with SigLIP 2 have the approximation of both papers' code.
    let mlp = match (size, model.patch_size, model.image_size) {
        ("giantopt", ..) | ("so400m", 16, _) | ("large", _, 512) | ("base", 32, _) => Mlp::GeluTanh,
        _ => Mlp::Gelu,
    };
    let architecture = Architecture {
        mlp,
        norm_before_pooling: pooling == Pooling::Average,
        ..Architecture::default()
    };
    ModelConfig {
        pooling,
        architecture,
        ..model
    }
}

/// Models of self-supervised learning (arXiv 2304.07193), except giant, whose MLP differs.
fn dinov2(size: &str, patch_size: u32, register_tokens: u32) -> Option<ModelConfig> {
    if patch_size != 14 || !["small", "base", "large"].contains(&size) {
        return None;
    }
    Some(ModelConfig {
        register_tokens,
        layer_scale: Some(1e-5),
        ..plain(size, patch_size, 518)?
    })
}

/// arXiv 2508.10104. As in timm, the mean over patches by default.
fn dinov3(size: &str, patch_size: u32, qkv_bias: QkvBias) -> Option<ModelConfig> {
    let (size, mlp) = match size {
        "tiny" | "small" | "base" | "large" => (size, Mlp::Gelu),
        "small_plus" => ("small", Mlp::SwiGlu),
        "huge_plus" => ("huge", Mlp::SwiGlu),
        _ => return None,
    };
    let model = plain(size, patch_size, 256).filter(|_| patch_size == 16)?;
    Some(ModelConfig {
        pooling: Pooling::Average,
        register_tokens: 4,
        layer_scale: Some(1e-5),
        heads: if size == "huge" { 20 } else { model.heads },
        architecture: Architecture {
            unread_class_token: true,
            position: Position::Rotary,
            norm_before_pooling: true,
            norm_epsilon: 1e-5,
            qkv_bias,
            mlp,
            ..Architecture::default()
        },
        ..model
    })
}

/// A number in timm's notation: digits only, no leading zero.
fn number(text: &str) -> Option<u32> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit()) && !text.starts_with('0');
    text.parse().ok().filter(|_| digits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::architecture::{BlockSpec, VitSpec};

    fn preset(name: &str) -> Option<ModelConfig> {
        ModelConfig::preset(name, 1000, 3)
    }

    #[test]
    fn every_size_has_every_patch_that_divides_the_image() {
        for family in SIZES {
            assert_eq!(family.hidden_size % family.heads, 0, "{}", family.name);
            for patch in PATCH_SIZES {
                let name = format!("vit_{}_patch{patch}_224", family.name);
                let found = preset(&name).expect(&name);
                assert_eq!((found.patch_size, found.image_size), (patch, 224), "{name}");
                assert_eq!(found.hidden_size, family.hidden_size, "{name}");
            }
        }
        let large = preset("vit_base_patch16_384").expect("a preset");
        assert_eq!((large.image_size, large.mlp_size), (384, 3072));
    }

    #[test]
    fn torchvisions_names_are_timms_models() {
        for (torchvision, timm) in [
            ("vit_b_16", "vit_base_patch16_224"),
            ("vit_b_32", "vit_base_patch32_224"),
            ("vit_l_16", "vit_large_patch16_224"),
            ("vit_l_32", "vit_large_patch32_224"),
            ("vit_h_14", "vit_huge_patch14_224"),
        ] {
            let found = preset(torchvision);
            assert!(found.is_some() && found == preset(timm), "{torchvision}");
        }
    }

    #[test]
    fn registers_and_layer_scale_come_with_their_presets() {
        let medium = preset("vit_medium_patch16_reg4_gap_256").expect("a preset");
        assert_eq!(
            (medium.pooling, medium.register_tokens, medium.layer_scale),
            (Pooling::Average, 4, Some(1e-5))
        );
        let dino = preset("vit_small_patch14_reg4_dinov2").expect("a preset");
        assert_eq!(
            (dino.pooling, dino.register_tokens, dino.image_size),
            (Pooling::Token, 4, 518)
        );
    }

    /// From `tests/peers/make_goldens.py`.
    fn timms() -> serde_json::Map<String, serde_json::Value> {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/peers/goldens/presets.json");
        let text = std::fs::read_to_string(path).expect("a golden");
        serde_json::from_str(&text).expect("models")
    }

    #[test]
    fn all_that_has_a_name_of_timm_is_timms() {
        let mut known = Vec::new();
        for (name, timms) in timms() {
            let Some(model) = preset(&name) else { continue };
            let vit = VitSpec::of(&model);
            let blocks = vit.blocks.iter().flat_map(BlockSpec::parameters);
            let parameters: Vec<_> = vit
                .embedding
                .parameters()
                .chain(blocks)
                .chain(vit.head.parameters())
                .collect();
            let values: f64 = parameters.iter().map(|parameter| parameter.values(1)).sum();
            let kept = parameters.iter().filter(|parameter| !parameter.decays);
            let undecayed: f64 = kept.map(|parameter| parameter.values(1)).sum();
            let activation = match model.architecture.mlp {
                Mlp::Gelu => "GELU",
                Mlp::GeluTanh => "GELUTanh",
                Mlp::QuickGelu => "QuickGELU",
                Mlp::SwiGlu => "SiLU",
            };
            let pool = match model.pooling {
                Pooling::Token => "token",
                Pooling::Average => "avg",
                Pooling::Attention => "map",
            };
            let mut found = serde_json::json!({
                "image": model.image_size, "parameters": values as u64, "tensors": parameters.len(),
                "undecayed": undecayed as u64,
                "heads": model.heads, "activation": activation, "epsilon": model.architecture.norm_epsilon,
                "pool": pool, "layer_scale": model.layer_scale,
            });
            if model.architecture.position == Position::Rotary {
                // Its layer scale has no module.
                found["layer_scale"] = serde_json::Value::Null;
            }
            assert_eq!(found, timms, "{name}");
            known.push(name);
        }
        known.sort();
        assert_eq!(known, TIMM_NAMES);
    }

    #[test]
    fn an_unknown_name_is_answered_by_the_nearest_and_what_is_lacking() {
        assert_eq!(
            expected_instead_of("vit_base_patch16_dino3"),
            "must be timm's or torchvision's name of a supported model, such as vit_base_patch16_dinov3; or leave it out and give the sizes"
        );
        let found = expected_instead_of("eva02_base_patch14_448");
        assert!(
            found.contains("(the trainer has no rotary positions of other kinds than DINOv3's)"),
            "{found}"
        );
        // Of timm's names that are no presets, those of these kinds.
        for name in [
            "vit_7b_patch16_dinov3",
            "vit_base_patch16_rope_224",
            "vit_base_patch16_rpn_224",
        ] {
            assert!(expected_instead_of(name).contains("the trainer has no"), "{name}");
        }
    }

    #[test]
    fn names_of_other_models_are_unknown() {
        for name in [
            "vit_mega_patch16_224",
            "vit_base_patch16_225",
            "vit_base_patch12_224",
            "vit_base_patch16_0224",
            "vit_base_patch16_+224",
            "vit_base_patch16",
            "vit_base_patch16_gap",
            "vit_giant_patch14_dinov2",
            "deit_base_patch16_clip_224",
            "vit_base_distilled_patch16_224",
            "vit_base_patch16_dinov2",
            "resnet50",
            "",
        ] {
            assert_eq!(preset(name), None, "{name}");
        }
    }
}
