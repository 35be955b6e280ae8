//! Vision Transformers by timm's names.
//!
//! Sizes: "An Image is Worth 16x16 Words" (arXiv 2010.11929), table 1, for base, large and huge; "Training
//! data-efficient image transformers" (arXiv 2012.12877), table 1, for tiny and small; "Scaling Vision Transformers"
//! (arXiv 2106.04560), table 2, for giant. timm: `timm/models/vision_transformer.py`.

/// The sizes a name stands for. Lengths in pixels and in channels of the residual stream.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ModelPreset {
    /// timm's name.
    pub name: &'static str,
    /// Side of the square input image, pixels.
    pub image_size: u32,
    /// Side of a square patch, pixels.
    pub patch_size: u32,
    /// Width of the residual stream.
    pub hidden_size: u32,
    /// Number of transformer blocks.
    pub depth: u32,
    /// Attention heads of a block.
    pub heads: u32,
    /// Width of the hidden layer of a block's MLP.
    pub mlp_size: u32,
}

macro_rules! presets {
    ($($name:literal: patch $patch:literal, hidden $hidden:literal, depth $depth:literal, heads $heads:literal, mlp $mlp:literal;)*) => {
        /// Every preset.
        pub const PRESETS: &[ModelPreset] = &[$(ModelPreset {
            name: $name, image_size: 224, patch_size: $patch, hidden_size: $hidden, depth: $depth, heads: $heads, mlp_size: $mlp,
        },)*];
    };
}

presets! {
    "vit_tiny_patch16_224": patch 16, hidden 192, depth 12, heads 3, mlp 768;
    "vit_small_patch32_224": patch 32, hidden 384, depth 12, heads 6, mlp 1536;
    "vit_small_patch16_224": patch 16, hidden 384, depth 12, heads 6, mlp 1536;
    "vit_small_patch8_224": patch 8, hidden 384, depth 12, heads 6, mlp 1536;
    "vit_base_patch32_224": patch 32, hidden 768, depth 12, heads 12, mlp 3072;
    "vit_base_patch16_224": patch 16, hidden 768, depth 12, heads 12, mlp 3072;
    "vit_base_patch8_224": patch 8, hidden 768, depth 12, heads 12, mlp 3072;
    "vit_large_patch32_224": patch 32, hidden 1024, depth 24, heads 16, mlp 4096;
    "vit_large_patch16_224": patch 16, hidden 1024, depth 24, heads 16, mlp 4096;
    "vit_large_patch14_224": patch 14, hidden 1024, depth 24, heads 16, mlp 4096;
    "vit_huge_patch14_224": patch 14, hidden 1280, depth 32, heads 16, mlp 5120;
    "vit_giant_patch14_224": patch 14, hidden 1408, depth 40, heads 16, mlp 6144;
}

impl ModelPreset {
    /// The preset of that name.
    pub fn by_name(name: &str) -> Option<Self> {
        PRESETS.iter().copied().find(|preset| preset.name == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_sizes_fit_together() {
        for (index, preset) in PRESETS.iter().enumerate() {
            assert!(
                PRESETS[index + 1..].iter().all(|other| other.name != preset.name),
                "{}",
                preset.name
            );
            assert_eq!(preset.image_size % preset.patch_size, 0, "{}", preset.name);
            assert_eq!(preset.hidden_size % preset.heads, 0, "{}", preset.name);
            assert!(
                preset.name.contains(&format!("patch{}_", preset.patch_size)),
                "{}",
                preset.name
            );
        }
    }
}
