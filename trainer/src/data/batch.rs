//! A batch, and how many of its images may be unreadable.

use contract::ModelConfig;
use tch::{Device, Kind, Reduction, TchError, Tensor};

use super::DataError;
use super::part;

/// The model's images and what to predict for them.
#[derive(Debug)]
pub(crate) struct Batch {
    /// Normalized floats, BCHW, on the device.
    pub(crate) images: Tensor,
    /// The class of each image, B, before mixing, or, if several, whether it shows each class, BK.
    pub(crate) labels: Tensor,
    /// The targets of the loss.
    pub(crate) targets: Targets,
    /// Weight of each class in the loss, [classes], or of the images that show it, if these may
    /// show several; equal if `None`.
    pub(crate) class_weights: Option<Tensor>,
    /// Digest of the images' numbers for ranks with the same images; 0 if all are in memory.
    pub(crate) digest: u32,
}

/// Targets of the loss.
#[derive(Debug)]
pub(crate) enum Targets {
    /// [`Batch::labels`], without label smoothing.
    Classes,
    /// One for each class, [batch, classes], with label smoothing.
    Smoothed(Tensor),
}

impl Batch {
    /// A batch without images: a pass is almost free, and gives every weight a gradient of zero.
    pub(crate) fn empty(model: &ModelConfig, device: Device) -> Result<Self, TchError> {
        let shape = [0, model.channels, model.image_size, model.image_size].map(i64::from);
        Ok(Self {
            images: Tensor::f_zeros(shape, (Kind::Float, device))?,
            labels: Tensor::f_zeros([0], (Kind::Int64, device))?,
            targets: Targets::Classes,
            class_weights: None,
            digest: 0,
        })
    }

    /// Number of images.
    pub(crate) fn len(&self) -> u64 {
        self.labels.size()[0].cast_unsigned()
    }

    /// Mean over images of the cross-entropy of logits, or of the binary one over images and
    /// classes; weighted by class; 0 without images. `label_smoothing` is for targets without it.
    pub(crate) fn loss(&self, logits_bk: &Tensor, label_smoothing: f64) -> Result<Tensor, TchError> {
        if self.len() == 0 {
            return logits_bk.f_sum(Kind::Float);
        }
        let (targets, label_smoothing) = match &self.targets {
            Targets::Classes => (&self.labels, label_smoothing),
            Targets::Smoothed(targets) => (targets, 0.0),
        };
        if self.labels.dim() == 2 {
            let of_shown = self.class_weights.as_ref();
            return logits_bk.f_binary_cross_entropy_with_logits(
                targets,
                None::<&Tensor>,
                of_shown,
                Reduction::Mean,
            );
        }
        let Some(weights) = &self.class_weights else {
            return logits_bk.f_cross_entropy_loss(
                targets,
                None::<&Tensor>,
                Reduction::Mean,
                -100,
                label_smoothing,
            );
        };
        // PyTorch divides by the sum of weights, so its mean would depend on how a step is split.
        let sum =
            logits_bk.f_cross_entropy_loss(targets, Some(weights), Reduction::Sum, -100, label_smoothing)?;
        sum.f_div_scalar(self.len() as f64)
    }
}

/// How many images of all ranks may be unreadable.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Readable {
    /// Images of the data set.
    images: u64,
    /// `data.maxCorruptFraction`.
    fraction: f64,
}

impl Readable {
    pub(super) fn new(images: u64, fraction: f64) -> Self {
        Self { images, fraction }
    }

    /// An error if all ranks left out too many images. Each rank has logged its first ones.
    pub(crate) fn check(self, left_out: u64) -> Result<(), DataError> {
        let Self { images, fraction } = self;
        let allowed = self.allowed();
        if left_out <= allowed {
            return Ok(());
        }
        Err(DataError::TooManyCorrupt {
            left_out,
            images,
            fraction,
            allowed,
        })
    }

    /// The error of a rank that has left out one more than allowed; `image` is that one.
    pub(super) fn refuse(self, image: String, reason: String, left_out: u64) -> DataError {
        DataError::Corrupt {
            image,
            reason,
            left_out,
            images: self.images,
            fraction: self.fraction,
            allowed: self.allowed(),
        }
    }

    pub(super) fn allowed(self) -> u64 {
        part::whole(self.images, self.fraction)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGITS: [[f64; 3]; 4] = [
        [1.0, 0.5, -1.0],
        [0.0, 2.0, 0.1],
        [-0.3, 0.2, 0.9],
        [1.5, -0.5, 0.5],
    ];
    const WEIGHTS: [f64; 3] = [0.5, 2.0, 4.0];

    fn batch(images: std::ops::Range<usize>, targets: impl Fn(Tensor) -> Targets) -> (Batch, Tensor) {
        let labels = Tensor::from_slice(&[0_i64, 1, 2, 1][images.clone()]);
        let weights = Tensor::from_slice(&WEIGHTS.map(|weight| weight as f32));
        let logits = Tensor::from_slice2(&LOGITS[images]).to_kind(Kind::Float);
        let batch = Batch {
            images: Tensor::zeros([0], (Kind::Float, Device::Cpu)),
            targets: targets(labels.shallow_clone()),
            labels,
            class_weights: Some(weights),
            digest: 0,
        };
        (batch, logits)
    }

    /// Weights of classes times their targets times their negative log-probabilities, over the
    /// images.
    fn expected(images: std::ops::Range<usize>, targets: &[[f64; 3]]) -> f64 {
        let count = images.len() as f64;
        let sum: f64 = images
            .map(|image| {
                let all: f64 = LOGITS[image].iter().map(|logit| logit.exp()).sum();
                (0..3)
                    .map(|class| WEIGHTS[class] * targets[image][class] * (all.ln() - LOGITS[image][class]))
                    .sum::<f64>()
            })
            .sum();
        sum / count
    }

    #[test]
    fn classes_count_by_their_weights_however_a_step_is_divided() {
        let smooth = |label: usize| {
            let mut target = [0.1 / 3.0; 3];
            target[label] += 0.9;
            target
        };
        let targets = [0, 1, 2, 1].map(smooth);
        let soft = |labels: Tensor| {
            let rows: Vec<Tensor> = Vec::<i64>::try_from(labels)
                .expect("numbers")
                .into_iter()
                .map(|label| Tensor::from_slice(&targets[label as usize].map(|share| share as f32)))
                .collect();
            Targets::Smoothed(Tensor::stack(&rows, 0))
        };
        for images in [0..4, 0..1, 1..4] {
            let expected = expected(images.clone(), &targets);
            let (classes, logits) = batch(images.clone(), |_| Targets::Classes);
            let (distributions, _) = batch(images.clone(), soft);
            for batch in [classes, distributions] {
                let found = batch.loss(&logits, 0.1).expect("a loss").double_value(&[]);
                assert!(
                    (found - expected).abs() < 1e-5,
                    "{images:?}: {found}, not {expected}"
                );
            }
        }
    }

    #[test]
    fn each_class_is_decided_alone_where_images_show_several() {
        let shown = [[1.0, 0.0, 1.0], [0.0; 3], [0.0, 1.0, 0.0], [1.0; 3]];
        let targets = Tensor::from_slice2(&shown).to_kind(Kind::Float);
        for weights in [None, Some(WEIGHTS)] {
            let (mut batch, logits) = batch(0..4, |_| Targets::Smoothed(targets.shallow_clone()));
            batch.labels = targets.to_kind(Kind::Bool);
            batch.class_weights = weights.map(|weights| Tensor::from_slice(&weights).to_kind(Kind::Float));
            let term = |image: usize, class: usize| {
                let shows = 1.0 / (1.0 + (-LOGITS[image][class]).exp());
                if shown[image][class] > 0.0 {
                    -weights.map_or(1.0, |weights| weights[class]) * shows.ln()
                } else {
                    -(1.0 - shows).ln()
                }
            };
            let expected = (0..12).map(|place| term(place / 3, place % 3)).sum::<f64>() / 12.0;
            let found = batch.loss(&logits, 0.0).expect("a loss").double_value(&[]);
            assert!((found - expected).abs() < 1e-6, "{found}, not {expected}");
        }
    }
}
