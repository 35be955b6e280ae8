//! Mean average precision, where images may show several classes.

use tch::{Device, IndexOp as _, Kind, Tensor};

use crate::error::TrainError;

/// Numbers that ranks exchange at once.
const MOST_NUMBERS: u64 = 1 << 22;

/// The logits of images, and which classes they show.
#[derive(Debug, Default)]
pub(crate) struct Rankings {
    /// [images, classes] each, in host memory.
    logits: Vec<Tensor>,
    shown: Vec<Tensor>,
}

impl Rankings {
    /// Takes in a batch: logits BK, and whether images show each of the classes, BK.
    pub(crate) fn add(&mut self, logits: &Tensor, shown: &Tensor) -> Result<(), TrainError> {
        self.logits.push(logits.f_to_device(Device::Cpu)?);
        self.shown.push(shown.f_to_device(Device::Cpu)?);
        Ok(())
    }

    /// Average precision, mean over the classes that some image shows, of the images of all ranks: `together` adds up
    /// what each has. Each rank's come after `before` others of `images`. `None` where no image shows a class.
    ///
    /// Of a class it is the sum over thresholds of precision times the recall that the threshold adds, as scikit-learn's
    /// `average_precision_score` has it.
    pub(crate) fn mean_average_precision(
        &self,
        (before, images, classes): (u64, u64, u32),
        together: impl Fn(&mut Tensor) -> Result<(), TrainError>,
    ) -> Result<Option<f64>, TrainError> {
        let own: i64 = self.logits.iter().map(|logits| logits.size()[0]).sum();
        let at_once = (MOST_NUMBERS / images.max(1)).clamp(1, classes.into()) as i64;
        let (mut sum, mut counted) = (0.0, 0_u32);
        for first in (0..i64::from(classes)).step_by(at_once as usize) {
            let some = first..i64::from(classes).min(first + at_once);
            // For each class its logits, then whether it is shown.
            let part = |parts: &[Tensor]| -> Result<Tensor, TrainError> {
                let whole = Tensor::zeros(
                    [images.cast_signed(), some.end - some.start],
                    (Kind::Float, Device::Cpu),
                );
                if own > 0 {
                    let mut place = whole.f_narrow(0, before.cast_signed(), own)?;
                    place.f_copy_(&Tensor::f_cat(parts, 0)?.i((.., some.clone())))?;
                }
                Ok(whole)
            };
            let mut both = Tensor::f_stack(&[part(&self.logits)?, part(&self.shown)?], 0)?;
            together(&mut both)?;
            for class in 0..some.end - some.start {
                let column = |which: i64| Vec::<f32>::try_from(both.i((which, .., class)).contiguous());
                let precision = average_precision(&column(0)?, &column(1)?);
                if let Some(precision) = precision {
                    sum += precision;
                    counted += 1;
                }
            }
        }
        Ok((counted > 0).then(|| sum / f64::from(counted)))
    }
}

/// Of one class; `None` where no image shows it.
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
        // The example of the documentation of scikit-learn's average_precision_score; the others by hand.
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
            let mut rankings = Rankings::default();
            for image in images {
                let row = |of: &Tensor| of.narrow(0, image, 1);
                rankings.add(&row(&logits), &row(&shown)).expect("memory");
            }
            rankings
        };
        let whole = of(0..9)
            .mean_average_precision((0, 9, 5), |_| Ok(()))
            .expect("sums");
        // The second of two ranks: the sum of both has the first one's images, too.
        let [first, second] = [of(0..4), of(4..9)];
        let divided = second.mean_average_precision((4, 9, 5), |both| {
            let of_first = Tensor::zeros_like(both);
            for (which, parts) in [(0, &first.logits), (1, &first.shown)] {
                let mut place = of_first.i((which, 0..4));
                place.copy_(&Tensor::cat(parts, 0));
            }
            *both += of_first;
            Ok(())
        });
        assert_eq!(divided.expect("sums"), whole);
        assert!(whole > Some(0.2) && whole < Some(1.0), "{whole:?}");
    }
}
