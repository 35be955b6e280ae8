//! What can be wrong with a data set.

use std::path::PathBuf;

use contract::ExitCode;

use crate::error::Failure;

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
    /// More classes than the model tells apart.
    #[error("{path} has {found} classes, more than model.numClasses ({classes})")]
    Classes {
        path: PathBuf,
        found: usize,
        classes: u32,
    },
    /// An image of a class that the model does not tell apart.
    #[error("{image} has label {label}, but model.numClasses is {classes} (labels 0 to {})", .classes - 1)]
    LabelOfImage { image: String, label: i64, classes: u32 },
    /// A class that is evaluated but not trained.
    #[error("{path} has no folder of the same name among the {classes} classes to train on")]
    UnknownClass { path: PathBuf, classes: usize },
    /// A folder or pattern without an image.
    #[error("{path} holds no images: {expected}")]
    NoImages { path: PathBuf, expected: &'static str },
    /// An array that cannot be used.
    #[error("{path}: {message}")]
    Array { path: PathBuf, message: String },
    /// A pattern of shard names that is none.
    #[error("data.{field} is {pattern}: {expected}")]
    Pattern {
        field: &'static str,
        pattern: String,
        expected: &'static str,
    },
    /// A shard that is no tar file.
    #[error("{path} is no tar file of images: {message}")]
    Shard { path: PathBuf, message: String },
    /// Colours of arrays that are no bytes.
    #[error(
        "{path} holds float32 images, but colorJitter, randAugment and threeAugment of data.augmentation are for uint8"
    )]
    ColorsOfFloats { path: PathBuf },
    /// An image that cannot be decoded, one more than the set may have.
    #[error(
        "{image} cannot be read: {reason} (of {images} images {left_out} cannot, by this rank's count; data.maxCorruptFraction of {fraction} allows {allowed})"
    )]
    Corrupt {
        image: String,
        reason: String,
        left_out: u64,
        images: u64,
        fraction: f64,
        allowed: u64,
    },
    /// Images that cannot be decoded, more of them over all ranks than the set may have.
    #[error(
        "{left_out} of {images} images cannot be read, by the count of all ranks; data.maxCorruptFraction of {fraction} allows {allowed} (the log names the first of each rank)"
    )]
    TooManyCorrupt {
        left_out: u64,
        images: u64,
        fraction: f64,
        allowed: u64,
    },
    /// Nothing to evaluate on.
    #[error("the data set has no held-out images to evaluate: {expected}")]
    NothingHeldOut { expected: &'static str },
    /// Fewer images than one optimizer step takes.
    #[error(
        "the data set has {images} training images, fewer than one step of {global_batch_size} (microBatchSize x gradientAccumulationSteps x ranks): lower microBatchSize or use fewer ranks"
    )]
    TooSmall { images: u64, global_batch_size: u64 },
}

impl Failure for DataError {
    fn exit_code(&self) -> ExitCode {
        ExitCode::BadData
    }
}
