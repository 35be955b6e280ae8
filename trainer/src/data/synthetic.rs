//! Random images, to measure throughput without a data set.

use contract::ModelConfig;
use tch::{Device, Kind, Tensor};

use super::Dataset;

/// Distinct images stop at this many bytes; from there on they repeat.
const STORED_BYTES: u64 = 256 * 1024 * 1024;

/// `images` random images of the model's own size with random labels; `seed` determines them.
pub(super) fn generate(images: u64, model: &ModelConfig, seed: u64) -> Dataset {
    tch::manual_seed(seed.cast_signed());
    let side = u64::from(model.image_size);
    let image_bytes = u64::from(model.channels) * side * side;
    let stored = images.min((STORED_BYTES / image_bytes).max(1));
    let shape = [stored, u64::from(model.channels), side, side].map(u64::cast_signed);
    let pixels = Tensor::randint(256, shape, (Kind::Uint8, Device::Cpu));
    let labels = Tensor::randint(
        i64::from(model.num_classes),
        [stored.cast_signed()],
        (Kind::Int64, Device::Cpu),
    );
    Dataset::new(pixels, labels, images)
}

#[cfg(test)]
mod tests {
    use contract::Pooling;

    use super::*;

    #[test]
    fn images_fit_the_model_and_repeat_beyond_what_is_stored() {
        let model = ModelConfig {
            image_size: 1024,
            patch_size: 16,
            hidden_size: 8,
            depth: 1,
            heads: 1,
            mlp_size: 8,
            num_classes: 7,
            channels: 64,
            pooling: Pooling::Average,
        };
        let data = generate(1_000_000, &model, 3);
        assert_eq!((data.len(), data.images.size()[0]), (1_000_000, 4));
        let (first, _) = data.batch(&[1], 1024);
        let (again, labels) = data.batch(&[1 + 4 * 1000], 1024);
        assert!(first.equal(&again));
        assert!((0..7).contains(&labels.int64_value(&[0])));
    }
}
