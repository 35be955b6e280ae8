//! Floating-point operations of a training step.

use contract::{ModelConfig, Pooling};

/// Operations for one image in the forward and backward passes: six times the multiplications of
/// the forward pass's matrix products, attention included. Recomputation does not count, nor does
/// skipped work: with class-token pooling the last block computes only that token's output.
pub(crate) fn flops_per_image(model: &ModelConfig) -> f64 {
    let [image, patch, width, depth, mlp, classes, channels] = [
        model.image_size,
        model.patch_size,
        model.hidden_size,
        model.depth,
        model.mlp_size,
        model.num_classes,
        model.channels,
    ]
    .map(f64::from);
    let patches = (image / patch).powi(2);
    let tokens =
        patches + f64::from(u8::from(model.pooling == Pooling::Token)) + f64::from(model.register_tokens);
    let embedding = patches * channels * patch * patch * width;
    let linear = tokens * (4.0 * width * width + 2.0 * width * mlp);
    let attention = 2.0 * tokens * tokens * width;
    let left_out = match model.pooling {
        Pooling::Token => {
            let others = tokens - 1.0;
            others * (width * width + 2.0 * width * mlp) + 2.0 * others * tokens * width
        }
        Pooling::Average => 0.0,
    };
    6.0 * (embedding + depth * (linear + attention) - left_out + width * classes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::fixtures::preset;

    #[test]
    fn the_operations_of_vit_b16_are_those_of_the_literature_less_what_the_last_block_leaves_out() {
        let model = preset("vit_base_patch16_224");
        let flops = flops_per_image(&model);
        assert!((flops / 1e9 - 98.78).abs() < 0.01, "{flops}");
        // The literature's 17.56 GMAC forward include all tokens of the last block. The register
        // token replaces the class token, which average pooling lacks.
        let average = ModelConfig {
            pooling: Pooling::Average,
            register_tokens: 1,
            ..model
        };
        let flops = flops_per_image(&average);
        assert!((flops / 1e9 - 105.38).abs() < 0.01, "{flops}");
    }
}
