//! Floating-point operations of a training step.

use contract::{ModelConfig, Pooling};

/// Operations of one image in forward and backward pass: six times the multiplications of its matrix products,
/// attention's included, of the forward pass. What is recomputed in the backward pass does not count.
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
    6.0 * (embedding + depth * (linear + attention) + width * classes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::fixtures::preset;

    #[test]
    fn the_operations_of_vit_b16_are_those_of_the_literature() {
        // 17.56 GMAC forward.
        let flops = flops_per_image(&preset("vit_base_patch16_224"));
        assert!((flops / 1e9 - 105.4).abs() < 0.1, "{flops}");
    }
}
