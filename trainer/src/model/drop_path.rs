//! Drop path, or stochastic depth ("Deep Networks with Stochastic Depth", arXiv 1603.09382): in training, a branch of a
//! block is left out for some images of a batch, and scaled up for the others so that its expectation stays.

use tch::{Device, Kind, Tensor};

use crate::error::TrainError;

/// Up to this rate every image goes through the branch and a mask drops results, as in timm; above it the branch sees
/// only the images that keep it, which saves its time (as in arXiv 2304.07193, section 5).
const SUBSET_ABOVE: f64 = 0.1;

/// The rates of all blocks: linear from 0 to `rate`, as in timm.
pub(super) fn rates(rate: f64, depth: u32) -> Vec<f64> {
    let last = f64::from(depth.saturating_sub(1).max(1));
    (0..depth).map(|block| rate * f64::from(block) / last).collect()
}

/// The images of one batch that keep a branch.
#[derive(Debug, Default)]
pub(super) enum Kept {
    /// Every one.
    #[default]
    All,
    /// Those whose factor (shape B11) is not zero.
    Masked(Tensor),
    /// Those of these indices; what comes out is multiplied by the factor.
    Subset { rows: Tensor, factor: f64 },
}

impl Kept {
    /// Draws from the generator of `device`.
    pub(super) fn draw(rate: f64, batch: i64, kind: Kind, device: Device) -> Result<Self, TrainError> {
        let keep = 1.0 - rate;
        if rate <= 0.0 {
            Ok(Self::All)
        } else if rate <= SUBSET_ABOVE {
            let mask = Tensor::f_full([batch, 1, 1], keep, (Kind::Float, device))?.f_bernoulli()?;
            Ok(Self::Masked(mask.f_div_scalar(keep)?.f_to_kind(kind)?))
        } else {
            let size = ((batch as f64 * keep) as i64).max(1);
            Ok(Self::Subset {
                rows: Tensor::f_randperm(batch, (Kind::Int64, device))?.f_narrow(0, 0, size)?,
                factor: batch as f64 / size as f64,
            })
        }
    }

    /// `x` plus the branch of the images that keep it.
    pub(super) fn add(
        &self,
        x: &Tensor,
        branch: impl FnOnce(&Tensor) -> Result<Tensor, TrainError>,
    ) -> Result<Tensor, TrainError> {
        self.add_to(x, x, branch)
    }

    /// `residual` plus the branch over `x` of the images that keep it.
    pub(super) fn add_to(
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
                // Under autocast a branch ends in half precision, and this operation wants one kind.
                residual.f_index_add(0, rows, &added.f_to_kind(residual.kind())?)?
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CPU: (Kind, Device) = (Kind::Float, Device::Cpu);

    #[test]
    fn rates_rise_linearly_to_the_last_block() {
        assert_eq!(rates(0.2, 1), [0.0]);
        let four = rates(0.3, 4);
        for (found, expected) in four.iter().zip([0.0, 0.1, 0.2, 0.3]) {
            assert!((found - expected).abs() < 1e-12, "{four:?}");
        }
    }

    /// A branch that adds one, over images of zeros: what is added to each image.
    fn added(rate: f64, batch: i64) -> (Vec<f64>, i64) {
        let x = Tensor::zeros([batch, 2, 3], CPU);
        let mut seen = 0;
        let kept = Kept::draw(rate, batch, Kind::Float, Device::Cpu).expect("draws");
        let sum = kept
            .add(&x, |x| {
                seen = x.size()[0];
                Ok(x + 1.0)
            })
            .expect("adds");
        let of_image = sum.mean_dim([1, 2].as_slice(), false, Kind::Double);
        (Vec::try_from(of_image).expect("a vector"), seen)
    }

    #[test]
    fn a_low_rate_masks_each_image_and_keeps_the_expectation() {
        tch::manual_seed(3);
        let (values, seen) = added(0.1, 4000);
        assert_eq!(seen, 4000);
        assert!(
            values
                .iter()
                .all(|value| *value == 0.0 || (value - 1.0 / 0.9).abs() < 1e-6)
        );
        let mean = values.iter().sum::<f64>() / 4000.0;
        // Four standard deviations of the mean.
        assert!(
            (mean - 1.0).abs() < 4.0 * (0.1_f64 / 0.9).sqrt() / 4000.0_f64.sqrt(),
            "{mean}"
        );
        let dropped = values.iter().filter(|value| **value == 0.0).count();
        assert!(dropped > 0, "nothing was dropped");
    }

    #[test]
    fn a_high_rate_computes_the_branch_for_a_subset_only() {
        let (values, seen) = added(0.25, 8);
        assert_eq!(seen, 6);
        assert_eq!(values.iter().filter(|value| **value == 0.0).count(), 2);
        let mean = values.iter().sum::<f64>() / 8.0;
        assert!(
            (mean - 1.0).abs() < 1e-6,
            "the expectation is kept exactly: {values:?}"
        );
        assert_eq!(added(0.9, 2).1, 1, "never none");
        assert_eq!(added(0.0, 4), (vec![1.0; 4], 4));
    }

    #[test]
    fn the_generator_decides_which_images_are_dropped() {
        let draw = |seed| {
            tch::manual_seed(seed);
            added(0.5, 16).0
        };
        // Tests that run side by side share the generator, and may draw between the seed and the draw.
        assert!((0..20).any(|_| draw(1) == draw(1)));
        assert_ne!(draw(1), draw(2));
    }
}
