//! Mean average precision, for images that may show several classes.

use tch::{Device, Kind, Tensor};

use crate::error::TrainError;

/// Numbers that ranks exchange at once.
const MOST_NUMBERS: u64 = if cfg!(test) { 40 } else { 1 << 22 };

/// Logits and classes of some images.
#[derive(Debug)]
pub(crate) struct Rankings {
    /// [classes, images] in host memory, so that the values of a class are contiguous.
    logits: Tensor,
    shown: Tensor,
    /// Images so far.
    images: i64,
}

/// The position of a rank's images among those of all ranks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// Images of the ranks before it.
    pub(crate) before: u64,
    /// Images of all ranks.
    pub(crate) images: u64,
    /// Each rank rates the classes whose number modulo `ranks` is `rank`.
    pub(crate) rank: u32,
    pub(crate) ranks: u32,
}

/// A sum of average precisions.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Sum {
    pub(crate) precisions: f64,
    /// Classes that at least one image shows.
    pub(crate) classes: u64,
}

impl Sum {
    pub(crate) fn mean(self) -> Option<f64> {
        (self.classes > 0).then(|| self.precisions / self.classes as f64)
    }
}

impl Rankings {
    /// Room for this many images.
    pub(crate) fn new(images: u64, classes: u32) -> Result<Self, TrainError> {
        let shape = [i64::from(classes), images.cast_signed()];
        Ok(Self {
            logits: Tensor::f_zeros(shape, (Kind::Float, Device::Cpu))?,
            shown: Tensor::f_zeros(shape, (Kind::Bool, Device::Cpu))?,
            images: 0,
        })
    }

    /// Adds a batch: logits BK, and whether images show each of the classes, BK.
    pub(crate) fn add(&mut self, logits: &Tensor, shown: &Tensor) -> Result<(), TrainError> {
        let count = logits.size()[0];
        for (all, some) in [(&self.logits, logits), (&self.shown, shown)] {
            all.f_narrow(1, self.images, count)?.f_copy_(&some.f_tr()?)?;
        }
        self.images += count;
        Ok(())
    }

    /// Sums the average precision of all ranks' images over the classes that this rank rates. `together` adds up a tensor
    /// over the ranks and returns whether to continue; `None` if not.
    ///
    /// For a class it is the sum over thresholds of precision times the recall that the threshold
    /// adds, as in scikit-learn's `average_precision_score`.
    pub(crate) fn sum(
        &self,
        place: Place,
        together: impl Fn(&mut Tensor) -> Result<bool, TrainError>,
    ) -> Result<Option<Sum>, TrainError> {
        let classes = self.logits.size()[0];
        // Two numbers per image and class.
        let at_once = (MOST_NUMBERS / 2 / place.images.max(1))
            .clamp(1, classes.cast_unsigned())
            .cast_signed();
        let mut sum = Sum::default();
        for first in (0..classes).step_by(at_once as usize) {
            let count = at_once.min(classes - first);
            let mut both =
                Tensor::f_zeros([2, count, place.images.cast_signed()], (Kind::Float, Device::Cpu))?;
            for (which, own) in [(0, &self.logits), (1, &self.shown)] {
                let own = own.f_narrow(0, first, count)?.f_narrow(1, 0, self.images)?;
                let whole = both.f_select(0, which)?;
                whole
                    .f_narrow(1, place.before.cast_signed(), self.images)?
                    .f_copy_(&own)?;
            }
            if !together(&mut both)? {
                return Ok(None);
            }
            let ours =
                (0..count).filter(|class| (first + class) % i64::from(place.ranks) == i64::from(place.rank));
            for class in ours {
                let row = |which: i64| Vec::<f32>::try_from(both.f_select(0, which)?.f_select(0, class)?);
                if let Some(precision) = average_precision(&row(0)?, &row(1)?) {
                    sum.precisions += precision;
                    sum.classes += 1;
                }
            }
        }
        Ok(Some(sum))
    }
}

/// Average precision of one class; `None` if no image shows it.
fn average_precision(logits: &[f32], shown: &[f32]) -> Option<f64> {
    let all = shown.iter().filter(|shown| **shown > 0.0).count();
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_unstable_by(|one, other| logits[*other].total_cmp(&logits[*one]));
    let (mut found, mut seen, mut sum) = (0, 0, 0.0);
    // Images with the same logit are above a threshold together.
    for alike in order.chunk_by(|one, other| logits[*one].total_cmp(&logits[*other]).is_eq()) {
        let hits = alike.iter().filter(|image| shown[**image] > 0.0).count();
        found += hits;
        seen += alike.len();
        sum += hits as f64 * found as f64 / seen as f64;
    }
    (all > 0).then(|| sum / all as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_that_are_scored_alike_are_found_together() {
        let near = |found: Option<f64>, expected: f64| {
            let found = found.expect("some image shows it");
            assert!((found - expected).abs() < 1e-7, "{found}, not {expected}");
        };
        // The first is scikit-learn's example of average_precision_score; the others are by hand.
        near(
            average_precision(&[0.1, 0.4, 0.35, 0.8], &[0.0, 0.0, 1.0, 1.0]),
            0.833_333_333,
        );
        near(
            average_precision(&[0.5, 0.5, 0.5, 0.5], &[1.0, 0.0, 0.0, 0.0]),
            0.25,
        );
        near(
            average_precision(&[2.0, 1.0, 1.0, 0.0, -1.0], &[0.0, 1.0, 0.0, 1.0, 1.0]),
            0.477_777_778,
        );
        assert_eq!(average_precision(&[1.0, 2.0], &[0.0, 0.0]), None);
    }

    #[test]
    fn it_does_not_depend_on_who_has_which_images_or_how_many_classes_are_exchanged_at_once() {
        tch::manual_seed(7);
        let logits = Tensor::randn([9, 5], (Kind::Float, Device::Cpu));
        let shown = Tensor::rand([9, 5], (Kind::Float, Device::Cpu)).lt(0.4);
        let of = |images: std::ops::Range<i64>| {
            // Room for one more, as for an image that could not be read.
            let mut rankings = Rankings::new((images.end - images.start + 1) as u64, 5).expect("memory");
            for image in images {
                let row = |of: &Tensor| of.narrow(0, image, 1);
                rankings.add(&row(&logits), &row(&shown)).expect("memory");
            }
            rankings
        };
        let place = |before, rank, ranks| Place {
            before,
            images: 9,
            rank,
            ranks,
        };
        let column = |of: &Tensor, class: i64| {
            let column = of.select(1, class).to_kind(Kind::Float).contiguous();
            Vec::<f32>::try_from(column).expect("floats")
        };
        let expected: Vec<f64> = (0..5)
            .filter_map(|class| average_precision(&column(&logits, class), &column(&shown, class)))
            .collect();
        let whole = of(0..9)
            .sum(place(0, 0, 1), |_| Ok(true))
            .expect("sums")
            .expect("ends");
        assert!(
            (whole.precisions - expected.iter().sum::<f64>()).abs() < 1e-12,
            "{whole:?}"
        );
        assert_eq!(whole.classes, expected.len() as u64);

        // Each of two ranks adds the other's values, two classes at a time.
        let ranks = [of(0..4), of(4..9)];
        let part = |rank: usize| {
            let (other, at) = (&ranks[1 - rank], [4, 0][rank]);
            let first = std::cell::Cell::new(0);
            let sum = ranks[rank].sum(place([0, 4][rank], rank as u32, 2), |both| {
                let (_, count, _) = both.size3().expect("two of each");
                for (which, all) in [(0, &other.logits), (1, &other.shown)] {
                    let some = all.narrow(0, first.get(), count).narrow(1, 0, other.images);
                    let mut target = both.select(0, which).narrow(1, at, other.images);
                    target += some.to_kind(Kind::Float);
                }
                first.set(first.get() + count);
                Ok(true)
            });
            assert_eq!(first.get(), 5, "all classes were exchanged");
            sum.expect("sums").expect("ends")
        };
        let [one, other] = [part(0), part(1)];
        assert!(one.classes > 0 && other.classes > 0);
        assert!((one.precisions + other.precisions - whole.precisions).abs() < 1e-12);

        let stopped = of(0..9).sum(place(0, 0, 1), |_| Ok(false)).expect("sums");
        assert_eq!(stopped, None);
    }
}
