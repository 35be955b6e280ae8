//! A batch, and how many images it may lack.

use contract::ModelConfig;
use tch::{Device, Kind, Reduction, TchError, Tensor};

use super::DataError;
use super::part;

/// Images as the model takes them, and what it is to say of them.
#[derive(Debug)]
pub(crate) struct Batch {
    /// Normalised floats, BCHW, on the device.
    pub(crate) images: Tensor,
    /// The class of each image, before any mixing.
    pub(crate) labels: Tensor,
    /// What the loss compares with.
    pub(crate) targets: Targets,
    /// Of the images' numbers: ranks that have the same images compare it. 0 of images that all are in memory.
    pub(crate) digest: u32,
}

/// What the loss compares with.
#[derive(Debug)]
pub(crate) enum Targets {
    /// [`Batch::labels`], to which label smoothing is still to be added.
    Classes,
    /// Distributions over the classes, [batch, classes], with label smoothing in them.
    Distribution(Tensor),
}

impl Batch {
    /// Of no image: what goes through the model costs next to nothing, and gives every weight a gradient of zero.
    pub(crate) fn empty(model: &ModelConfig, device: Device) -> Result<Self, TchError> {
        let shape = [0, model.channels, model.image_size, model.image_size].map(i64::from);
        Ok(Self {
            images: Tensor::f_zeros(shape, (Kind::Float, device))?,
            labels: Tensor::f_zeros([0], (Kind::Int64, device))?,
            targets: Targets::Classes,
            digest: 0,
        })
    }

    /// Images that it has.
    pub(crate) fn len(&self) -> u64 {
        self.labels.size()[0].cast_unsigned()
    }

    /// Mean cross-entropy of logits, 0 of no image; `label_smoothing` is for targets without it.
    pub(crate) fn loss(&self, logits_bk: &Tensor, label_smoothing: f64) -> Result<Tensor, TchError> {
        if self.len() == 0 {
            return logits_bk.f_sum(Kind::Float);
        }
        let (targets, label_smoothing) = match &self.targets {
            Targets::Classes => (&self.labels, label_smoothing),
            Targets::Distribution(targets) => (targets, 0.0),
        };
        logits_bk.f_cross_entropy_loss(targets, None::<&Tensor>, Reduction::Mean, -100, label_smoothing)
    }
}

/// How many images of all ranks together may be unreadable.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Readable {
    /// Images of the set.
    images: u64,
    /// `data.maxCorruptFraction`.
    fraction: f64,
}

impl Readable {
    pub(super) fn new(images: u64, fraction: f64) -> Self {
        Self { images, fraction }
    }

    /// An error where more images than that were left out, over all ranks. Each rank has named its first ones in its log.
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

    /// The error of a rank that alone has one more than that, which is `image`.
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
