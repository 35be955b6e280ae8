//! Randomness that a resumed run repeats.
//!
//! Randomness in training is a function of the run's seed and the place of use, never of a running
//! generator. It depends neither on when a run restarts nor on the number of threads.

/// Uses of random numbers. Streams of one seed are independent.
///
/// Checkpoints rely on these numbers: a new stream gets a new number, and none is reused.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Stream {
    /// The order of an epoch's images; places: epoch.
    Order = 1,
    /// Branches of blocks that an image skips; places: step, place in the global batch.
    DropPath = 2,
    /// The crop of an image; places: epoch, place in its order. So are those below.
    Crop = 16,
    Flip = 17,
    Color = 18,
    Erase = 19,
    /// How two neighbors are mixed; places: epoch, number of the pair.
    Mix = 20,
    /// The noise of erased rectangles, one for the run.
    Noise = 21,
}

/// The seed of `stream` at the place with coordinates `a` and `b`.
pub(crate) fn derive(seed: u64, stream: Stream, a: u64, b: u64) -> u64 {
    [stream as u64, a, b].into_iter().fold(mix(seed), |state, value| {
        mix(state.wrapping_add(GOLDEN_GAMMA) ^ mix(value.wrapping_add(GOLDEN_GAMMA)))
    })
}

/// 2^64 divided by the golden ratio, odd.
const GOLDEN_GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// The finalizer of `SplitMix64`: a bijection; each input bit flips half of the output bits.
fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// `SplitMix64` (Steele, Lea, Flood 2014), written out so that library upgrades do not change the
/// numbers of a resumed run.
#[derive(Debug)]
pub(crate) struct SplitMix64(u64);

impl SplitMix64 {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN_GAMMA);
        mix(self.0)
    }

    /// At least 0 and below 1.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Two independent numbers of the standard normal distribution (Box and Muller, 1958).
    pub(crate) fn normal_pair(&mut self) -> [f64; 2] {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        let (sine, cosine) = (std::f64::consts::TAU * self.unit()).sin_cos();
        [radius * cosine, radius * sine]
    }

    /// A number below `bound`, by the high half of a product (Lemire); its bias is below `bound` / 2^64.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_coordinate_matters_and_none_stands_for_another() {
        let mut seen = BTreeSet::new();
        for seed in 0..4 {
            for stream in [Stream::Order, Stream::DropPath] {
                for a in 0..16 {
                    for b in 0..16 {
                        seen.insert(derive(seed, stream, a, b));
                    }
                }
            }
        }
        assert_eq!(seen.len(), 4 * 2 * 16 * 16, "two places share a seed");
    }

    #[test]
    fn the_numbers_are_pinned_because_checkpoints_rely_on_them() {
        // The first outputs of the reference implementation for seed 0.
        let mut random = SplitMix64::new(0);
        assert_eq!(
            [random.next(), random.next()],
            [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4]
        );
        assert_eq!(derive(0, Stream::Order, 0, 0), 0x51d8_fc82_9b20_1242);
        assert_eq!(derive(7, Stream::DropPath, 3, 5), 0x8c00_ef6f_5610_f599);
    }

    #[test]
    fn normal_numbers_have_the_moments_of_the_standard_normal_distribution() {
        let mut random = SplitMix64::new(5);
        let numbers: Vec<f64> = (0..10_000).flat_map(|_| random.normal_pair()).collect();
        let moment = |power: i32| numbers.iter().map(|x| x.powi(power)).sum::<f64>() / numbers.len() as f64;
        // Six standard deviations of each mean over 20,000 numbers.
        for (power, expected, within) in [(1, 0.0, 0.042), (2, 1.0, 0.06), (3, 0.0, 0.165), (4, 3.0, 0.42)] {
            let found = moment(power);
            assert!((found - expected).abs() < within, "moment {power}: {found}");
        }
    }

    #[test]
    fn numbers_below_a_bound_are_spread_evenly() {
        let mut random = SplitMix64::new(9);
        let mut counts = [0_u32; 7];
        for _ in 0..7000 {
            counts[random.below(7) as usize] += 1;
        }
        // Seven standard deviations (29) around the mean.
        assert!(
            counts.iter().all(|count| (800..1200).contains(count)),
            "{counts:?}"
        );
    }
}
