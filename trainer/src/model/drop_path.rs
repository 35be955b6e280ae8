//! Drop path, or stochastic depth (arXiv 1603.09382): training skips a branch of a block for some
//! images and scales it up for the others, which keeps its expectation.
//!
//! As in timm, each image draws for each branch. Draws depend on its place in the global batch, not
//! on its rank or micro-batch: an elastic gang of any size trains the same.

use tch::Tensor;

use crate::error::TrainError;
use crate::random::{SplitMix64, Stream, derive};

/// Up to this rate a mask drops results, as in timm. Above it the branch gets only the images that
/// keep it, to save time (as in arXiv 2304.07193, section 5).
const SUBSET_ABOVE: f64 = 0.1;

/// The rates of all blocks: linear from 0 to `rate`, as in timm.
pub(super) fn rates(rate: f64, depth: u32) -> Vec<f64> {
    let last = f64::from(depth.saturating_sub(1).max(1));
    (0..depth).map(|block| rate * f64::from(block) / last).collect()
}

/// Determines the draws of a micro-batch.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct DropSeed {
    pub(crate) seed: u64,
    pub(crate) step: u64,
    /// Place of the first image in the global batch; the others follow it.
    pub(crate) place: u64,
}

/// The images of one batch that keep a branch.
#[derive(Debug, Default)]
pub(super) enum KeptImages {
    #[default]
    All,
    /// Images with a nonzero factor (shape B11).
    Masked(Tensor),
    /// Images with these indices; the branch output is multiplied by the factor.
    Subset { rows: Tensor, factor: f64 },
}

/// Draws the images of `x_bnd` that keep the two branches of each block, given all rates.
pub(super) fn draw(
    rates: &[f64],
    seed: DropSeed,
    x_bnd: &Tensor,
) -> Result<Vec<[KeptImages; 2]>, TrainError> {
    let batch = x_bnd.size()[0];
    if batch == 0 || rates.iter().all(|rate| *rate <= 0.0) {
        return Ok(rates.iter().map(|_| Default::default()).collect());
    }
    let DropSeed { seed, step, place } = seed;
    let mut images: Vec<SplitMix64> = (place..place + batch.cast_unsigned())
        .map(|place| SplitMix64::new(derive(seed, Stream::DropPath, step, place)))
        .collect();
    let kept: Vec<Vec<i64>> = rates
        .iter()
        .flat_map(|rate| [rate; 2])
        .map(|rate| {
            let keeps = images.iter_mut().map(|random| random.unit() >= *rate);
            (0..)
                .zip(keeps)
                .filter_map(|(row, keeps)| keeps.then_some(row))
                .collect()
        })
        .collect();
    // Every parameter needs a gradient: if no image keeps a branch, the first one uses factor zero.
    let rows = kept
        .iter()
        .map(|rows| if rows.is_empty() { &[0] } else { rows.as_slice() });
    let sizes: Vec<i64> = rows.clone().map(|rows| rows.len() as i64).collect();
    // One copy from pinned memory for all blocks: the host does not wait.
    let rows = Tensor::from_slice(&rows.collect::<Vec<_>>().concat());
    let rows = torch_ext::sent(&rows, x_bnd.device())?;
    let rows = rows.f_split_with_sizes(sizes, 0)?;
    let mut branches = rows.into_iter().zip(&kept);
    let mut next = |rate: f64| -> Result<KeptImages, TrainError> {
        let (rows, kept) = branches.next().expect("two a block");
        let factor = if kept.is_empty() { 0.0 } else { 1.0 / (1.0 - rate) };
        Ok(if rate <= 0.0 {
            KeptImages::All
        } else if rate <= SUBSET_ABOVE {
            let mask = Tensor::f_zeros([batch, 1, 1], (x_bnd.kind(), x_bnd.device()))?;
            KeptImages::Masked(mask.f_index_fill(0, &rows, factor)?)
        } else {
            KeptImages::Subset { rows, factor }
        })
    };
    rates
        .iter()
        .map(|rate| Ok([next(*rate)?, next(*rate)?]))
        .collect()
}

impl KeptImages {
    /// `residual` plus the branch over the images of `x` that keep it.
    pub(super) fn add(
        &self,
        residual: &Tensor,
        x: &Tensor,
        branch: impl FnOnce(&Tensor) -> Result<Tensor, TrainError>,
    ) -> Result<Tensor, TrainError> {
        Ok(match self {
            Self::All => residual.f_add(&branch(x)?)?,
            Self::Masked(mask) => residual.f_add(&branch(x)?.f_mul(mask)?)?,
            Self::Subset { rows, factor } => {
                let added = branch(&x.f_index_select(0, rows)?)?.f_mul_scalar(*factor)?;
                // Under autocast a branch ends in half precision; this operation needs one kind.
                residual.f_index_add(0, rows, &added.f_to_kind(residual.kind())?)?
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind};

    use super::*;

    #[test]
    fn rates_rise_linearly_to_the_last_block() {
        assert_eq!(rates(0.2, 1), [0.0]);
        let four = rates(0.3, 4);
        for (found, expected) in four.iter().zip([0.0, 0.1, 0.2, 0.3]) {
            assert!((found - expected).abs() < 1e-12, "{four:?}");
        }
    }

    /// For each of two branches of a block that add one to zeros: the values added per image, and
    /// the number of images in the branch.
    fn added(rate: f64, place: u64, batch: i64) -> [(Vec<f64>, i64); 2] {
        let x = Tensor::zeros([batch, 2, 3], (Kind::Float, Device::Cpu));
        let seed = DropSeed {
            seed: 3,
            step: 7,
            place,
        };
        let [kept] = <[_; 1]>::try_from(draw(&[rate], seed, &x).expect("draws")).expect("one block");
        kept.map(|kept| {
            let mut seen = 0;
            let branch = |x: &Tensor| {
                seen = x.size()[0];
                Ok(x + 1.0)
            };
            let sum = kept.add(&x, &x, branch).expect("adds");
            let of_image = sum.mean_dim([1, 2].as_slice(), false, Kind::Double);
            (Vec::try_from(of_image).expect("a vector"), seen)
        })
    }

    #[test]
    fn each_image_drops_a_branch_at_the_rate_or_has_it_scaled_up() {
        for rate in [0.1, 0.3, 0.9] {
            let [attention, mlp] = added(rate, 0, 4000);
            assert_ne!(attention.0, mlp.0);
            for (values, seen) in [attention, mlp] {
                let factor = 1.0 / (1.0 - rate);
                let dropped = values.iter().filter(|value| **value == 0.0).count() as i64;
                let scaled = values
                    .iter()
                    .filter(|value| (**value - factor).abs() < 1e-5)
                    .count() as i64;
                assert_eq!(dropped + scaled, 4000);
                assert_eq!(seen, if rate > SUBSET_ABOVE { scaled } else { 4000 });
                // Four standard deviations.
                let deviation = (dropped as f64 - 4000.0 * rate).abs();
                assert!(
                    deviation < 4.0 * (4000.0 * rate * (1.0 - rate)).sqrt(),
                    "{dropped} at {rate}"
                );
            }
        }
        assert_eq!(added(0.0, 0, 4), [(vec![1.0; 4], 4), (vec![1.0; 4], 4)]);
    }

    #[test]
    fn an_image_keeps_the_same_in_any_micro_batch() {
        for rate in [0.1, 0.5] {
            let whole = added(rate, 0, 64);
            let (first, second) = (added(rate, 0, 24), added(rate, 24, 40));
            for branch in 0..2 {
                let parts = [first[branch].0.as_slice(), &second[branch].0].concat();
                assert_eq!(whole[branch].0, parts);
            }
        }
    }

    #[test]
    fn a_branch_that_no_image_keeps_still_runs_and_adds_nothing() {
        let all_drop = |place: &u64| added(0.9, *place, 1).iter().all(|(values, _)| values[0] == 0.0);
        let place = (0..100).find(all_drop).expect("an image that drops both");
        assert_eq!(added(0.9, place, 1), [(vec![0.0], 1), (vec![0.0], 1)]);
    }
}
