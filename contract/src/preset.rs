//! Vision Transformers by the names of timm and torchvision.
//!
//! Sizes: "An Image is Worth 16x16 Words" (arXiv 2010.11929), table 1, for base, large and huge; "Training
//! data-efficient image transformers" (arXiv 2012.12877), table 1, for tiny and small; "Scaling Vision Transformers"
//! (arXiv 2106.04560), table 2, for giant and gigantic. timm: `timm/models/vision_transformer.py`.

use crate::{ModelConfig, Pooling};

/// The names that [`ModelConfig::preset`] knows, for messages.
pub const KNOWN_NAMES: &str = "vit_SIZE_patchP_PIXELS (SIZE tiny, small, medium, base, large, huge, giant or gigantic; P 8, 14, 16 or 32; \
     PIXELS 224 or another multiple of P, as vit_base_patch16_384), vit_SIZE_patch14_dinov2 and \
     vit_SIZE_patch14_reg4_dinov2 (SIZE small, base or large), vit_medium_patch16_reg1_gap_256, \
     vit_medium_patch16_reg4_gap_256, vit_base_patch16_reg4_gap_256, or torchvision's vit_b_16, vit_b_32, vit_l_16, \
     vit_l_32 and vit_h_14";

const PATCH_SIZES: [u32; 4] = [8, 14, 16, 32];
/// No published model has larger images.
const LARGEST_IMAGE: u32 = 1024;

/// Sizes that do not depend on patch and image.
struct Family {
    name: &'static str,
    hidden_size: u32,
    depth: u32,
    heads: u32,
    mlp_size: u32,
}

const fn family(name: &'static str, hidden_size: u32, depth: u32, heads: u32, mlp_size: u32) -> Family {
    Family {
        name,
        hidden_size,
        depth,
        heads,
        mlp_size,
    }
}

const FAMILIES: [Family; 8] = [
    family("tiny", 192, 12, 3, 768),
    family("small", 384, 12, 6, 1536),
    family("medium", 512, 12, 8, 2048),
    family("base", 768, 12, 12, 3072),
    family("large", 1024, 24, 16, 4096),
    family("huge", 1280, 32, 16, 5120),
    family("giant", 1408, 40, 16, 6144),
    family("gigantic", 1664, 48, 16, 8192),
];

impl ModelConfig {
    /// The network with this name of timm or torchvision, for these numbers of classes and channels.
    pub fn preset(name: &str, num_classes: u32, channels: u32) -> Option<Self> {
        let preset = match name {
            "vit_b_16" => plain("base", 16, 224),
            "vit_b_32" => plain("base", 32, 224),
            "vit_l_16" => plain("large", 16, 224),
            "vit_l_32" => plain("large", 32, 224),
            "vit_h_14" => plain("huge", 14, 224),
            "vit_medium_patch16_reg1_gap_256" => Some(plain("medium", 16, 256)?.averaging(1, Some(1e-5))),
            "vit_medium_patch16_reg4_gap_256" => Some(plain("medium", 16, 256)?.averaging(4, Some(1e-5))),
            "vit_base_patch16_reg4_gap_256" => Some(plain("base", 16, 256)?.averaging(4, None)),
            _ => {
                let (family, rest) = name.strip_prefix("vit_")?.split_once("_patch")?;
                let (patch, variant) = rest.split_once('_')?;
                let patch_size = number(patch).filter(|patch| PATCH_SIZES.contains(patch))?;
                match variant {
                    "dinov2" => dinov2(family, patch_size, 0),
                    "reg4_dinov2" => dinov2(family, patch_size, 4),
                    pixels => plain(family, patch_size, number(pixels)?),
                }
            }
        };
        Some(Self {
            num_classes,
            channels,
            ..preset?
        })
    }

    fn averaging(self, register_tokens: u32, layer_scale: Option<f64>) -> Self {
        Self {
            pooling: Pooling::Average,
            register_tokens,
            layer_scale,
            ..self
        }
    }
}

/// `vit_<family>_patch<P>_<pixels>` without classes: a class token and nothing else.
fn plain(family: &str, patch_size: u32, image_size: u32) -> Option<ModelConfig> {
    let family = FAMILIES.iter().find(|known| known.name == family)?;
    let fits = image_size.is_multiple_of(patch_size) && (patch_size..=LARGEST_IMAGE).contains(&image_size);
    fits.then_some(ModelConfig {
        image_size,
        patch_size,
        hidden_size: family.hidden_size,
        depth: family.depth,
        heads: family.heads,
        mlp_size: family.mlp_size,
        num_classes: 0,
        channels: 0,
        pooling: Pooling::Token,
        register_tokens: 0,
        layer_scale: None,
        drop_path: 0.0,
        pretrained: None,
    })
}

/// Models of self-supervised learning (arXiv 2304.07193), except giant, whose MLP differs.
fn dinov2(family: &str, patch_size: u32, register_tokens: u32) -> Option<ModelConfig> {
    if patch_size != 14 || !["small", "base", "large"].contains(&family) {
        return None;
    }
    Some(ModelConfig {
        register_tokens,
        layer_scale: Some(1e-5),
        ..plain(family, patch_size, 518)?
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

    fn preset(name: &str) -> Option<ModelConfig> {
        ModelConfig::preset(name, 1000, 3)
    }

    #[test]
    fn every_size_has_every_patch_that_divides_the_image() {
        for family in FAMILIES {
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

    #[test]
    fn names_of_other_models_are_unknown() {
        for name in [
            "vit_mega_patch16_224",
            "vit_base_patch16_225",
            "vit_base_patch12_224",
            "vit_base_patch16_0224",
            "vit_base_patch16_+224",
            "vit_base_patch16",
            "vit_base_patch16_gap_224",
            "vit_giant_patch14_dinov2",
            "vit_base_patch16_dinov2",
            "resnet50",
            "",
        ] {
            assert_eq!(preset(name), None, "{name}");
        }
    }
}
