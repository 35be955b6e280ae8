//! Data sets: read once, held as bytes, normalised batch by batch.

mod cifar;
mod sampler;
mod synthetic;

use std::path::PathBuf;

use contract::{DataConfig, DataFormat, ModelConfig};
use tch::{Device, Kind, Tensor};

pub(crate) use sampler::EpochOrder;

/// What is wrong with a data set. No retry helps.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DataError {
    /// A folder or file that is not there.
    #[error("{path} does not exist: {expected}")]
    Missing { path: PathBuf, expected: &'static str },
    /// A file that cannot be read.
    #[error("failed to read the data set: {0}")]
    Read(#[source] std::io::Error),
    /// A file without a record.
    #[error("{path} is empty: expected records of {record_bytes} bytes")]
    Empty { path: PathBuf, record_bytes: usize },
    /// A file that ends within a record.
    #[error(
        "{path} is truncated: the record at byte {offset} has {found_bytes} of {record_bytes} bytes (file of {file_bytes} bytes)"
    )]
    Truncated {
        path: PathBuf,
        offset: usize,
        found_bytes: usize,
        record_bytes: usize,
        file_bytes: usize,
    },
    /// A label that the data set does not have.
    #[error("{path}: label at byte {offset} is {label}, but the data set has {classes} classes (0 to {})", .classes - 1)]
    Label {
        path: PathBuf,
        offset: usize,
        label: u8,
        classes: usize,
    },
    /// Fewer images than one optimizer step takes.
    #[error(
        "the data set has {images} training images, fewer than one step of {global_batch_size} (microBatchSize x gradientAccumulationSteps x ranks): lower microBatchSize or use fewer ranks"
    )]
    TooSmall { images: u64, global_batch_size: u64 },
}

/// Labelled images, all of one size, as bytes.
#[derive(Debug)]
pub(crate) struct Dataset {
    /// Bytes, [stored, channels, height, width].
    images: Tensor,
    /// Class indices, [stored].
    labels: Tensor,
    /// Images the set counts; a synthetic set stores fewer and repeats them.
    len: u64,
}

/// The parts of a data set.
#[derive(Debug)]
pub(crate) struct Splits {
    /// What is trained on.
    pub(crate) train: Dataset,
    /// What is only evaluated; synthetic data has none.
    pub(crate) validation: Option<Dataset>,
}

/// Reads the data set into memory.
pub(crate) fn load(config: &DataConfig, model: &ModelConfig, seed: u64) -> Result<Splits, DataError> {
    let folder = config.path.as_deref().unwrap_or(std::path::Path::new("."));
    match config.format {
        DataFormat::Cifar10 => cifar::load(folder, &cifar::CIFAR_10),
        DataFormat::Cifar100 => cifar::load(folder, &cifar::CIFAR_100),
        DataFormat::Synthetic => Ok(Splits {
            train: synthetic::generate(config.synthetic_images.unwrap_or(0), model, seed),
            validation: None,
        }),
    }
}

impl Dataset {
    /// `labels` and `images` have the same first dimension, which divides the order of images where `len` is larger.
    fn new(images: Tensor, labels: Tensor, len: u64) -> Self {
        Self { images, labels, len }
    }

    /// Number of images.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Moves the bytes to where they are trained on.
    pub(crate) fn to_device(&self, device: Device) -> Self {
        Self::new(
            self.images.to_device(device),
            self.labels.to_device(device),
            self.len,
        )
    }

    /// Images of these indices as floats in -1..1 (mean 0.5, deviation 0.5 of each channel, as timm's ViT presets),
    /// BCHW with the given side, and their labels.
    pub(crate) fn batch(&self, indices: &[u64], image_size: u32) -> (Tensor, Tensor) {
        let stored = self.images.size()[0].cast_unsigned();
        let rows: Vec<i64> = indices
            .iter()
            .map(|index| (index % stored).cast_signed())
            .collect();
        let rows = Tensor::from_slice(&rows).to_device(self.images.device());
        let images = self.images.index_select(0, &rows).to_kind(Kind::Float) / 127.5 - 1.0;
        let side = i64::from(image_size);
        let images = if images.size()[2..] == [side, side] {
            images
        } else {
            images.internal_upsample_bilinear2d_aa([side, side], false, None, None)
        };
        (images, self.labels.index_select(0, &rows))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_normalised_resized_and_in_the_order_asked_for() {
        let images = Tensor::from_slice(&[0_u8, 0, 0, 0, 255, 255, 255, 255]).reshape([2, 1, 2, 2]);
        let data = Dataset::new(images, Tensor::from_slice(&[3_i64, 4]), 2);
        let (batch, labels) = data.batch(&[1, 0], 4);
        assert_eq!(batch.size(), [2, 1, 4, 4]);
        assert_eq!(Vec::<i64>::try_from(labels).expect("labels"), [4, 3]);
        let means: Vec<f32> =
            Vec::try_from(batch.mean_dim([1, 2, 3].as_slice(), false, Kind::Float)).expect("means");
        assert_eq!(means, [1.0, -1.0]);
        assert_eq!(data.batch(&[0], 2).0.size(), [1, 1, 2, 2]);
    }
}
