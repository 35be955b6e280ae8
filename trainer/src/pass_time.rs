//! The duration of a pass over a micro-batch.

use serde::{Deserialize, Serialize};

/// Seconds of a pass: a line through the times of two micro-batches.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct PassTime {
    /// Per micro-batch, whatever its size.
    pub(crate) fixed_seconds: f64,
    /// Per image.
    pub(crate) image_seconds: f64,
}

impl PassTime {
    /// Minimum cost of an image, as a share of its average cost. It applies if noise exceeds the
    /// difference of the two times.
    const LEAST_SHARE: f64 = 0.1;

    /// From the times of two micro-batches; the first has at least as many images.
    pub(crate) fn through([(more, long), (fewer, short)]: [(u64, f64); 2]) -> Self {
        let per_image = long / more as f64;
        let image_seconds = if more > fewer {
            ((long - short) / (more - fewer) as f64).clamp(Self::LEAST_SHARE * per_image, per_image)
        } else {
            per_image
        };
        Self {
            fixed_seconds: (long - image_seconds * more as f64).max(0.0),
            image_seconds,
        }
    }

    /// For this many images.
    pub(crate) fn seconds(self, images: u64) -> f64 {
        self.fixed_seconds + self.image_seconds * images as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_goes_through_both_times_unless_noise_says_otherwise() {
        for (points, images, seconds) in [
            ([(16, 0.02), (2, 0.006)], 9, 0.013),
            ([(16, 0.02), (2, 0.006)], 64, 0.068),
            // Equal sizes: the time is proportional to the images.
            ([(2, 0.006), (2, 0.006)], 64, 0.192),
            // More images take less time; and more than proportionally longer.
            ([(4, 0.02), (2, 0.03)], 8, 0.022),
            ([(4, 0.02), (2, 0.002)], 8, 0.04),
        ] {
            let found = PassTime::through(points).seconds(images);
            assert!((found - seconds).abs() < 1e-12, "{points:?}: {found}");
        }
    }
}
