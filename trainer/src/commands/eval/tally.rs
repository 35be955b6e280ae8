//! Counts over all images. Sums stay on the device until the end, so that batches do not wait.

use tch::{Device, Kind, Reduction, Tensor};

use crate::data::Classes;
use crate::error::TrainError;
use crate::evaluation::{Place, Rankings, Sum, correct};

/// Number of the likeliest classes for top-5.
const TOP: i64 = 5;

/// Sums over the images so far.
#[derive(Debug)]
pub(super) struct Tally {
    images: u64,
    correct: Tensor,
    correct_top5: Option<Tensor>,
    loss: Tensor,
    rankings: Option<Rankings>,
    classes: u32,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Scores {
    pub(super) images: u64,
    /// Images whose likeliest class is one that they show.
    pub(super) correct: u64,
    /// Images that show one of the five likeliest classes; `None` with fewer classes.
    pub(super) correct_top5: Option<u64>,
    /// Mean of the training's loss, without label smoothing.
    pub(super) loss: f64,
    /// Only if images may show several classes.
    pub(super) mean_average_precision: Option<f64>,
}

impl Scores {
    pub(super) fn share(&self, correct: u64) -> f64 {
        correct as f64 / self.images.max(1) as f64
    }
}

impl Tally {
    /// For at most this many images.
    pub(super) fn new(images: u64, classes: Classes, device: Device) -> Result<Self, TrainError> {
        let zero = |kind| Tensor::zeros([0_i64; 0], (kind, device));
        let rankings = classes.several.then(|| Rankings::new(images, classes.count));
        Ok(Self {
            images: 0,
            correct: zero(Kind::Int64),
            correct_top5: (i64::from(classes.count) >= TOP).then(|| zero(Kind::Int64)),
            loss: zero(Kind::Double),
            rankings: rankings.transpose()?,
            classes: classes.count,
        })
    }

    /// Adds a batch: logits BK in 32 bits, and labels, B or, of several classes, BK.
    pub(super) fn add(&mut self, logits: &Tensor, labels: &Tensor) -> Result<(), TrainError> {
        self.images += labels.size()[0].cast_unsigned();
        self.correct = self.correct.f_add(&correct(logits, labels)?)?;
        if let Some(correct) = &mut self.correct_top5 {
            let (_, likeliest) = logits.f_topk(TOP, 1, true, false)?;
            let right = match &self.rankings {
                Some(_) => labels.f_gather(1, &likeliest, false)?.f_any_dim(1, false)?,
                None => likeliest.f_eq_tensor(&labels.f_unsqueeze(1)?)?,
            };
            *correct = correct.f_add(&right.f_sum(Kind::Int64)?)?;
        }
        let loss = match &mut self.rankings {
            Some(rankings) => {
                rankings.add(logits, labels)?;
                let targets = labels.f_to_kind(Kind::Float)?;
                let none = None::<&Tensor>;
                let sum = logits.f_binary_cross_entropy_with_logits(&targets, none, none, Reduction::Sum)?;
                sum.f_div_scalar(f64::from(self.classes))?
            }
            None => logits.f_cross_entropy_loss(labels, None::<&Tensor>, Reduction::Sum, -100, 0.0)?,
        };
        self.loss = self.loss.f_add(&loss.f_to_kind(Kind::Double)?)?;
        Ok(())
    }

    pub(super) fn images(&self) -> u64 {
        self.images
    }

    /// Waits for the device.
    pub(super) fn scores(&self) -> Result<Scores, TrainError> {
        let count = |tensor: &Tensor| tensor.f_int64_value(&[]).map(i64::cast_unsigned);
        Ok(Scores {
            images: self.images,
            correct: count(&self.correct)?,
            correct_top5: self.correct_top5.as_ref().map(count).transpose()?,
            loss: self.loss.f_double_value(&[])? / self.images.max(1) as f64,
            mean_average_precision: match &self.rankings {
                Some(rankings) => {
                    let place = Place {
                        before: 0,
                        images: self.images,
                        rank: 0,
                        ranks: 1,
                    };
                    rankings.sum(place, |_| Ok(true))?.and_then(Sum::mean)
                }
                None => None,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one_of(count: u32) -> Classes {
        Classes {
            count,
            several: false,
        }
    }

    #[test]
    fn images_that_show_several_classes_are_counted_once() {
        let classes = Classes {
            several: true,
            ..one_of(6)
        };
        let mut tally = Tally::new(3, classes, Device::Cpu).expect("memory");
        let logits = Tensor::from_slice2(&[[5_f32, 4.0, 3.0, 2.0, 1.0, 0.0]; 3]);
        // The likeliest and the sixth; the second and the third; the sixth alone.
        let shown = Tensor::from_slice2(&[[1, 0, 0, 0, 0, 1], [0, 1, 1, 0, 0, 0], [0, 0, 0, 0, 0, 1_i32]]);
        tally.add(&logits, &shown.to_kind(Kind::Bool)).expect("counts");
        let scores = tally.scores().expect("sums");
        assert_eq!(
            (scores.images, scores.correct, scores.correct_top5),
            (3, 1, Some(2))
        );
        // -ln(sigmoid) of shown classes' logits and of others' negated ones, over images and
        // classes.
        let terms = (0..6)
            .map(|logit| (1.0 + (-f64::from(logit)).exp()).ln())
            .sum::<f64>();
        let expected = (3.0 * (terms + 15.0) - (5.0 + 0.0) - (4.0 + 3.0) - 0.0) / 18.0;
        assert!(
            (scores.loss - expected).abs() < 1e-6,
            "{} and {expected}",
            scores.loss
        );
        // All images have the same logit of each class, and one, one, one and two of three show it.
        let expected = (1.0 + 1.0 + 1.0 + 2.0) / 3.0 / 4.0;
        let found = scores.mean_average_precision.expect("classes are shown");
        assert!((found - expected).abs() < 1e-9, "{found}");
    }

    #[test]
    fn images_are_counted_over_batches_of_any_size() {
        let logits = Tensor::from_slice(&[
            5_f32, 4.0, 3.0, 2.0, 1.0, 0.0, // label 0: likeliest
            5.0, 4.0, 3.0, 2.0, 1.0, 0.0, // label 4: the fifth
            5.0, 4.0, 3.0, 2.0, 1.0, 0.0, // label 5: the sixth
        ])
        .reshape([3, 6]);
        let labels = Tensor::from_slice(&[0_i64, 4, 5]);
        let scores = |sizes: &[i64]| {
            let mut tally = Tally::new(3, one_of(6), Device::Cpu).expect("memory");
            let mut start = 0;
            for size in sizes {
                tally
                    .add(&logits.narrow(0, start, *size), &labels.narrow(0, start, *size))
                    .expect("counts");
                start += size;
            }
            tally.scores().expect("sums")
        };
        let whole = scores(&[3]);
        assert_eq!((whole.images, whole.correct, whole.correct_top5), (3, 1, Some(2)));
        // ln(sum exp) - logit of the label, by hand.
        let normalizer = (0..6).map(|logit| f64::from(logit).exp()).sum::<f64>().ln();
        let expected = normalizer - (5.0 + 1.0 + 0.0) / 3.0;
        assert!((whole.loss - expected).abs() < 1e-6, "{}", whole.loss);
        for sizes in [&[1, 2][..], &[2, 1], &[1, 1, 1]] {
            let parts = scores(sizes);
            assert_eq!((parts.images, parts.correct, parts.correct_top5), (3, 1, Some(2)));
            assert!((parts.loss - whole.loss).abs() < 1e-6);
        }
        assert!((whole.share(whole.correct) - 1.0 / 3.0).abs() < 1e-12);
    }

    #[test]
    fn few_classes_have_no_top_five() {
        let mut tally = Tally::new(1, one_of(4), Device::Cpu).expect("memory");
        let logits = Tensor::from_slice(&[0_f32, 1.0, 0.0, 0.0]).reshape([1, 4]);
        tally.add(&logits, &Tensor::from_slice(&[1_i64])).expect("counts");
        let scores = tally.scores().expect("sums");
        assert_eq!((scores.correct, scores.correct_top5), (1, None));
    }
}
