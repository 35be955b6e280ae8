//! Random images, to measure throughput without a data set.

use tch::Tensor;

use super::Expected;
use super::labels::Labels;
use super::resident::Resident;
use crate::random::SplitMix64;

/// Maximum bytes of distinct images; more images repeat them.
const STORED_BYTES: u64 = 256 * 1024 * 1024;

/// `images` random images of the model's size with random labels, determined by `seed`.
pub(super) fn generate(images: u64, expected: Expected, seed: u64) -> Resident {
    // Not from libtorch's generator, which all threads of a process share.
    let mut random = SplitMix64::new(seed);
    let side = u64::from(expected.side);
    let image_bytes = u64::from(expected.channels) * side * side;
    let stored = images.min((STORED_BYTES / image_bytes).max(1));
    let shape = [stored, u64::from(expected.channels), side, side].map(u64::cast_signed);
    let mut pixels = vec![0; (stored * image_bytes) as usize];
    for some in pixels.chunks_mut(8) {
        some.copy_from_slice(&random.next().to_le_bytes()[..some.len()]);
    }
    let classes = u64::from(expected.classes.count);
    let labels: Vec<i32> = (0..stored).map(|_| random.below(classes) as i32).collect();
    let pixels = Tensor::from_slice(&pixels).reshape(shape);
    Resident::new(pixels, Labels::from_classes(labels), images)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::order::Item;

    #[test]
    fn images_fit_the_model_and_repeat_beyond_what_is_stored() {
        let expected = Expected {
            channels: 64,
            classes: crate::data::Classes {
                count: 7,
                several: false,
            },
            side: 1024,
        };
        let data = generate(1_000_000, expected, 3);
        assert_eq!((data.len(), data.stored().0.size()[0]), (1_000_000, 4));
        let row = |image| data.rows(&[Item { image, place: 0 }]);
        assert_eq!(row(1 + 4 * 1000), row(1));
        let (_, labels) = data.stored();
        assert!(labels.classes().iter().all(|class| (0..7).contains(class)));
    }
}
