//! Random images, to measure throughput without a data set.

use tch::{Device, Kind, Tensor};

use super::Expected;
use super::resident::Resident;

/// Distinct images stop at this many bytes; from there on they repeat.
const STORED_BYTES: u64 = 256 * 1024 * 1024;

/// `images` random images of the model's own size with random labels; `seed` determines them.
pub(super) fn generate(images: u64, expected: Expected, seed: u64) -> Resident {
    tch::manual_seed(seed.cast_signed());
    let side = u64::from(expected.side);
    let image_bytes = u64::from(expected.channels) * side * side;
    let stored = images.min((STORED_BYTES / image_bytes).max(1));
    let shape = [stored, u64::from(expected.channels), side, side].map(u64::cast_signed);
    let pixels = Tensor::randint(256, shape, (Kind::Uint8, Device::Cpu));
    let labels = Tensor::randint(
        i64::from(expected.classes),
        [stored.cast_signed()],
        (Kind::Int64, Device::Cpu),
    );
    Resident::new(pixels, &labels, images)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::order::Item;

    #[test]
    fn images_fit_the_model_and_repeat_beyond_what_is_stored() {
        let expected = Expected {
            channels: 64,
            classes: 7,
            side: 1024,
        };
        let data = generate(1_000_000, expected, 3);
        assert_eq!((data.len(), data.stored().0.size()[0]), (1_000_000, 4));
        let row = |image| data.rows(&[Item { image, place: 0 }]);
        assert_eq!(row(1 + 4 * 1000), row(1));
        let (_, labels) = data.stored();
        assert!(labels.iter().all(|label| (0..7).contains(label)));
    }
}
