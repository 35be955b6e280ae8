//! Random numbers of one image in one epoch.

use crate::random::{SplitMix64, Stream, derive};

/// Draws for one purpose at one place of an epoch's order. They depend on nothing else: neither on
/// the thread or rank nor on the draws of other images.
#[derive(Debug)]
pub(super) struct Draws(SplitMix64);

impl Draws {
    pub(super) fn new(seed: u64, stream: Stream, epoch: u32, place: u64) -> Self {
        Self(SplitMix64::new(derive(seed, stream, u64::from(epoch), place)))
    }

    /// At least 0 and below 1.
    pub(super) fn unit(&mut self) -> f64 {
        self.0.unit()
    }

    pub(super) fn between(&mut self, [low, high]: [f64; 2]) -> f64 {
        low + self.unit() * (high - low)
    }

    /// One of `0..count`.
    pub(super) fn below(&mut self, count: usize) -> usize {
        self.0.below(count as u64) as usize
    }

    pub(super) fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// 1 or -1.
    pub(super) fn sign(&mut self) -> f64 {
        if self.chance(0.5) { 1.0 } else { -1.0 }
    }

    /// From the standard normal distribution.
    pub(super) fn normal(&mut self) -> f64 {
        self.0.normal_pair()[0]
    }

    /// From Beta(alpha, alpha), as a ratio of two Gamma variables.
    pub(super) fn beta(&mut self, alpha: f64) -> f64 {
        let (left, right) = (self.gamma(alpha), self.gamma(alpha));
        if left + right > 0.0 {
            left / (left + right)
        } else {
            // Both round to zero: the distribution then is almost a coin toss.
            f64::from(u8::from(self.chance(0.5)))
        }
    }

    /// From Gamma(shape, 1) (Marsaglia and Tsang 2000).
    fn gamma(&mut self, shape: f64) -> f64 {
        if shape < 1.0 {
            let boost = (1.0 - self.unit()).powf(1.0 / shape);
            return self.gamma(shape + 1.0) * boost;
        }
        let d = shape - 1.0 / 3.0;
        let c = 1.0 / (9.0 * d).sqrt();
        loop {
            let normal = self.normal();
            let cube = (1.0 + c * normal).powi(3);
            if cube > 0.0 && (1.0 - self.unit()).ln() < 0.5 * normal * normal + d - d * cube + d * cube.ln() {
                return d * cube;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moments(mut draw: impl FnMut(&mut Draws) -> f64) -> (f64, f64) {
        let values: Vec<f64> = (0..20_000)
            .map(|place| draw(&mut Draws::new(3, Stream::Crop, 1, place)))
            .collect();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / values.len() as f64;
        (mean, variance)
    }

    fn near(found: (f64, f64), mean: f64, variance: f64) {
        assert!(
            (found.0 - mean).abs() < 0.02 && (found.1 - variance).abs() < 0.02,
            "{found:?}, not {mean} and {variance}"
        );
    }

    #[test]
    fn distributions_have_their_moments() {
        near(moments(Draws::unit), 0.5, 1.0 / 12.0);
        near(moments(Draws::normal), 0.0, 1.0);
        near(moments(|draws| draws.beta(1.0)), 0.5, 1.0 / 12.0);
        // The variance of Beta(a, a) is 1 / (4 (2 a + 1)).
        near(moments(|draws| draws.beta(0.2)), 0.5, 1.0 / (4.0 * 1.4));
        near(moments(|draws| draws.beta(0.8)), 0.5, 1.0 / (4.0 * 2.6));
        near(moments(|draws| draws.below(3) as f64), 1.0, 2.0 / 3.0);
    }

    #[test]
    fn draws_depend_on_seed_purpose_epoch_and_place_only() {
        let draw = |seed, stream, epoch, place| Draws::new(seed, stream, epoch, place).unit().to_bits();
        let one = draw(1, Stream::Crop, 2, 3);
        assert_eq!(one, draw(1, Stream::Crop, 2, 3));
        for other in [
            draw(2, Stream::Crop, 2, 3),
            draw(1, Stream::Flip, 2, 3),
            draw(1, Stream::Crop, 3, 3),
            draw(1, Stream::Crop, 2, 4),
        ] {
            assert_ne!(one, other);
        }
    }
}
