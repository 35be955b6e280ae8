//! The data set.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::rules::Rules;
use super::{Augmentation, Interpolation, ModelConfig, Training};

/// A data set, and the preprocessing of its images.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DataConfig {
    /// Layout of the files.
    pub format: DataFormat,
    /// Folder that holds the files; `None` for [`DataFormat::Synthetic`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<PathBuf>,
    /// Source of the files, if they are not in [`Self::path`] already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Origin>,
    /// Training images of [`DataFormat::Synthetic`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub synthetic_images: Option<u64>,
    /// File names of [`DataFormat::WebDataset`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shards: Option<Shards>,
    /// Image column of [`DataFormat::Parquet`]; the only one by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_column: Option<String>,
    /// Column of class numbers of [`DataFormat::Parquet`]; the only one by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label_column: Option<String>,
    /// Numbering of classes of [`DataFormat::ImageFolder`].
    #[serde(default)]
    pub class_order: ClassOrder,
    /// Type of decoded pixels.
    #[serde(default)]
    pub pixel_type: PixelType,
    /// Share of the training images to use, above 0 and at most 1.
    pub fraction: f64,
    /// Decoding threads per rank; by default an equal share of the processors.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decode_threads: Option<u32>,
    /// Share of unreadable images allowed in an epoch, which are skipped.
    pub max_corrupt_fraction: f64,
    /// Seconds of retrying a read after a storage error.
    #[serde(default = "default_retry_seconds")]
    pub retry_seconds: u32,
    /// Filter for resizing images to the model's size.
    pub interpolation: Interpolation,
    /// Side of the center crop over the shorter side of a validation image from a file (`crop_pct`
    /// of timm).
    pub crop_fraction: f64,
    /// Normalization of each channel.
    pub normalization: Normalization,
    /// Augmentation of training images.
    pub augmentation: Augmentation,
}

/// Files of a store.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Origin {
    /// Addresses such as `s3://bucket/folder`.
    pub locations: Vec<String>,
    /// Size of the cache in [`DataConfig::path`] for streaming. Without it, files are fetched
    /// before a rank starts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_bytes: Option<u64>,
}

impl Origin {
    /// Whether files are read from the store during training.
    pub fn is_streamed(&self) -> bool {
        self.cache_bytes.is_some()
    }
}

/// Layout of a data set.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum DataFormat {
    /// CIFAR-10 binary version: `data_batch_1.bin` to `data_batch_5.bin` and `test_batch.bin`, records of 3,073 bytes.
    Cifar10,
    /// CIFAR-100 binary version: `train.bin` and `test.bin`, records of 3,074 bytes (coarse label, fine label, pixels).
    Cifar100,
    /// Folders of image files: `train/<class>/` and `val/<class>/`, classes numbered by their sorted names.
    ImageFolder,
    /// Tar files (shards) of `key.jpg` or `key.png` with `key.cls` or `key.json`.
    WebDataset,
    /// Parquet files in the layout of Hugging Face's `datasets`: a column of image files, and one
    /// of class numbers.
    Parquet,
    /// `NumPy` arrays: `train.npz` and `val.npz` with `images` and `labels`, or a file per array.
    Numpy,
    /// HDF5 files: `train.h5` and `val.h5` with `images` and `labels`, or a file per dataset.
    Hdf5,
    /// Random images and labels in memory: to measure, not to learn from.
    Synthetic,
}

/// Order of class folders, which numbers the classes.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum ClassOrder {
    /// As bytes, like torchvision: 1, 10, 2.
    #[default]
    Name,
    /// Numbers in names by their value, like timm: 1, 2, 10.
    Natural,
}

/// Type of pixels.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum PixelType {
    /// Bytes, where 255 counts as 1. Files are converted to grayscale or RGB as by Pillow.
    #[default]
    Uint8,
    /// Unscaled numbers as stored, of any number of channels.
    Float32,
}

impl PixelType {
    /// The name in a manifest.
    pub fn name(self) -> &'static str {
        match self {
            Self::Uint8 => "uint8",
            Self::Float32 => "float32",
        }
    }

    /// Bytes per value.
    pub fn bytes(self) -> usize {
        match self {
            Self::Uint8 => 1,
            Self::Float32 => 4,
        }
    }

    /// The value that [`Normalization`] scales to 1.
    pub fn unit(self) -> f64 {
        match self {
            Self::Uint8 => 255.0,
            Self::Float32 => 1.0,
        }
    }
}

/// File names of a [`DataFormat::WebDataset`], in its folder: one `{first..last}` range or one `*`.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Shards {
    /// Shards to train on.
    pub train: String,
    /// Shards to evaluate; they may be missing.
    pub validation: String,
}

/// Normalization subtracts a mean and divides by a standard deviation, after scaling pixels to 0..1
/// (float32 values are not scaled). ImageNet has mean [0.485, 0.456, 0.406] and std [0.229, 0.224,
/// 0.225]; timm's ViT presets have 0.5 for both.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Normalization {
    /// mean is subtracted: one value, or one per channel.
    #[schemars(length(min = 1, max = 64))]
    pub mean: Vec<f64>,
    /// std is the divisor: one value, or one per channel.
    #[schemars(length(min = 1, max = 64), inner(range(min = 1e-9)))]
    pub std: Vec<f64>,
}

impl Default for Normalization {
    fn default() -> Self {
        Self {
            mean: vec![0.5],
            std: vec![0.5],
        }
    }
}

impl DataFormat {
    /// Whether the data set has files.
    pub fn has_files(self) -> bool {
        self != Self::Synthetic
    }

    /// Whether images are in image formats such as JPEG.
    pub fn has_image_files(self) -> bool {
        matches!(self, Self::ImageFolder | Self::Parquet | Self::WebDataset)
    }

    /// Whether its files can be streamed.
    pub fn can_stream(self) -> bool {
        matches!(self, Self::WebDataset | Self::Parquet)
    }
}

fn default_retry_seconds() -> u32 {
    60
}

impl DataConfig {
    /// Training images of the whole data set, if the format determines them.
    pub fn known_images(&self) -> Option<u64> {
        match self.format {
            DataFormat::Cifar10 | DataFormat::Cifar100 => Some(50_000),
            _ => self.synthetic_images,
        }
    }

    /// All images of `format`, resized and normalized as for timm's ViT presets, without
    /// augmentation.
    pub fn plain(format: DataFormat) -> Self {
        Self {
            format,
            path: None,
            from: None,
            synthetic_images: None,
            shards: None,
            image_column: None,
            label_column: None,
            class_order: ClassOrder::Name,
            pixel_type: PixelType::Uint8,
            fraction: 1.0,
            decode_threads: None,
            max_corrupt_fraction: 0.0,
            retry_seconds: default_retry_seconds(),
            interpolation: Interpolation::Bicubic,
            crop_fraction: 0.875,
            normalization: Normalization::default(),
            augmentation: Augmentation::default(),
        }
    }

    pub(super) fn check(&self, model: &ModelConfig, training: &Training, rules: &mut Rules) {
        self.check_format(model, rules);
        self.normalization.check(model.channels, rules);
        self.augmentation.check(model, training, rules);
    }

    fn check_format(&self, model: &ModelConfig, rules: &mut Rules) {
        rules.require(
            self.path.is_some() || !self.format.has_files(),
            "data.path",
            "missing",
            "must name the folder of the data set",
        );
        rules.require(
            self.format.can_stream() || !self.from.as_ref().is_some_and(Origin::is_streamed),
            "data.from.cacheBytes",
            "given",
            "is for the formats webDataset and parquet",
        );
        match self.format {
            DataFormat::Cifar10 | DataFormat::Cifar100 => {
                rules.require(
                    model.channels == 3,
                    "model.channels",
                    model.channels,
                    "must be 3: CIFAR images have 3 channels",
                );
                let classes = if self.format == DataFormat::Cifar10 {
                    10
                } else {
                    100
                };
                rules.require(
                    model.num_classes >= classes,
                    "model.numClasses",
                    model.num_classes,
                    format!("must be at least {classes}, the number of classes of the data set"),
                );
            }
            DataFormat::ImageFolder | DataFormat::Parquet | DataFormat::WebDataset => rules.require(
                [1, 3].contains(&model.channels) || self.pixel_type == PixelType::Float32,
                "model.channels",
                model.channels,
                "must be 1 (gray) or 3 (red, green, blue) for image files, unless data.pixelType is float32",
            ),
            DataFormat::Numpy | DataFormat::Hdf5 => {}
            DataFormat::Synthetic => rules.require(
                self.synthetic_images.is_some(),
                "data.syntheticImages",
                "missing",
                "must be at least 1 for synthetic data",
            ),
        }
        rules.require(
            self.format.has_image_files() || self.pixel_type == PixelType::Uint8,
            "data.pixelType",
            self.pixel_type.name(),
            "is for the formats imageFolder, parquet and webDataset",
        );
        rules.require(
            self.pixel_type == PixelType::Uint8 || !self.augmentation.changes_colors(),
            "data.pixelType",
            self.pixel_type.name(),
            "is not for colorJitter, randAugment and threeAugment of data.augmentation",
        );
        rules.require(
            (self.format == DataFormat::WebDataset) == self.shards.is_some(),
            "data.shards",
            if self.shards.is_some() { "given" } else { "missing" },
            "must be given for format webDataset, and for no other",
        );
    }
}

impl Normalization {
    fn check(&self, channels: u32, rules: &mut Rules) {
        for (field, values) in [
            ("data.normalization.mean", &self.mean),
            ("data.normalization.std", &self.std),
        ] {
            rules.require(
                values.len() == 1 || values.len() == channels as usize,
                field,
                format_args!("a list of {}", values.len()),
                format!("must have one value, or one for each of the {channels} channels (model.channels)"),
            );
        }
    }
}
