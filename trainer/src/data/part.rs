//! Parts of a number of images.

/// Below an image, and above the error of binary fractions: 3 times 0.3 is a little below 0.9.
const TOLERANCE: f64 = 1e-6;

/// A share of `images`, rounded down.
pub(super) fn whole(images: u64, share: f64) -> u64 {
    (images as f64 * share + TOLERANCE) as u64
}

/// A share of `images`, rounded up.
pub(super) fn around(images: u64, share: f64) -> u64 {
    (images as f64 * share - TOLERANCE).ceil() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_neither_an_image_short_nor_one_too_many() {
        let three_tenths_of_three = 0.3 * 3.0;
        assert!(three_tenths_of_three < 0.9);
        assert_eq!(whole(3200, three_tenths_of_three), 2880);
        let three_of_a_tenth = 0.1 * 3.0;
        assert!(three_of_a_tenth > 0.3);
        assert_eq!(around(10, three_of_a_tenth), 3);
        for (images, share, inside, outside) in [
            (10, 0.25, 2, 3),
            (10, 1.0, 10, 10),
            (3, 0.001, 0, 1),
            (0, 0.5, 0, 0),
        ] {
            assert_eq!((whole(images, share), around(images, share)), (inside, outside));
        }
    }
}
