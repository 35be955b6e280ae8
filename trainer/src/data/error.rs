//! Errors in data sets.

use std::io::{Error, ErrorKind};
use std::path::{Path, PathBuf};

use contract::{ExitCode, Memory};

use crate::error::{Failure, code_of_kind, memory_of_kind};

/// An error in a data set; a retry can help only if the storage failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DataError {
    #[error("{path} does not exist: {expected}")]
    Missing { path: PathBuf, expected: &'static str },
    #[error("failed to read the data set: {0}")]
    Read(#[source] std::io::Error),
    #[error("{path} is empty: expected records of {record_bytes} bytes")]
    Empty { path: PathBuf, record_bytes: usize },
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
    #[error("{path}: label at byte {offset} is {label}, but the data set has {classes} classes (0 to {})", .classes - 1)]
    Label {
        path: PathBuf,
        offset: usize,
        label: u8,
        classes: usize,
    },
    #[error("{path} has {found} classes, more than model.numClasses ({classes}): {first}")]
    Classes {
        path: PathBuf,
        found: usize,
        /// The first class names.
        first: String,
        classes: u32,
    },
    #[error(
        "{path} has folders without images: {}; each folder is a class: remove them, or put images there", .classes.join(", ")
    )]
    EmptyClasses { path: PathBuf, classes: Vec<String> },
    #[error("{image} has label {label}, but model.numClasses is {classes} (labels 0 to {})", .classes - 1)]
    LabelOfImage { image: String, label: i64, classes: u32 },
    #[error(
        "{image} has {} classes ({classes:?}), but training.loss crossEntropy allows one: use binaryCrossEntropy for several", .classes.len()
    )]
    SeveralClasses { image: String, classes: Vec<i64> },
    #[error(
        "{image} has class {class} twice ({classes:?}): a list must name each class of the image once, not a 0 or 1 for each class"
    )]
    ClassTwice {
        image: String,
        class: i64,
        classes: Vec<i64>,
    },
    #[error("{path} has no folder of the same name among the {classes} classes to train on")]
    UnknownClass { path: PathBuf, classes: usize },
    #[error("{path} holds no images: {expected}")]
    NoImages { path: PathBuf, expected: &'static str },
    #[error("{path}: {message}")]
    Array { path: PathBuf, message: String },
    /// The store of a streamed data set.
    #[error(transparent)]
    Store(#[from] objects::Error),
    /// A store that refuses access to its files.
    #[error("{0}")]
    Refused(String),
    #[error("data.{field} is {pattern}: {expected}")]
    Pattern {
        field: &'static str,
        pattern: String,
        expected: &'static str,
    },
    #[error("{path} is not a valid tar file of images: {message}")]
    Shard { path: PathBuf, message: String },
    #[error("{path} is not a Parquet file of images: {message}")]
    Parquet { path: PathBuf, message: String },
    #[error(
        "{path} holds float32 images, but colorJitter, randAugment and threeAugment of data.augmentation are for uint8"
    )]
    ColorsOfFloats { path: PathBuf },
    #[error(
        "{image} cannot be read: {reason} (this rank could not read {left_out} of {images} images; data.maxCorruptFraction of {fraction} allows {allowed})"
    )]
    Corrupt {
        image: String,
        reason: String,
        left_out: u64,
        images: u64,
        fraction: f64,
        allowed: u64,
    },
    #[error(
        "{left_out} of {images} images cannot be read, over all ranks; data.maxCorruptFraction of {fraction} allows {allowed} (the log names each rank's first ones)"
    )]
    TooManyCorrupt {
        left_out: u64,
        images: u64,
        fraction: f64,
        allowed: u64,
    },
    #[error("{image} cannot be read: {error} (tried for {seconds} s, data.retrySeconds)")]
    Storage {
        image: String,
        #[source]
        error: std::io::Error,
        /// `data.retrySeconds`, or 0 if it was read once.
        seconds: u32,
    },
    #[error("the data set has no held-out images to evaluate: {expected}")]
    NothingHeldOut { expected: &'static str },
    #[error(
        "the data set has {images} training images, fewer than one step of {global_batch_size} (microBatchSize x gradientAccumulationSteps x ranks; ranks that share images count once): lower microBatchSize or use fewer ranks"
    )]
    TooSmall { images: u64, global_batch_size: u64 },
    /// Not an error in the data: a batch could not be copied to the device.
    #[error(transparent)]
    Transfer(#[from] torch_ext::Error),
}

impl Failure for DataError {
    fn exit_code(&self) -> ExitCode {
        match self {
            Self::Transfer(error) => code_of_kind(error.kind),
            Self::Store(error) => error.exit_code(),
            Self::Refused(_) => ExitCode::BadConfig,
            Self::Storage { .. } => ExitCode::Storage,
            Self::Read(error) if is_of_storage(error) => ExitCode::Storage,
            _ => ExitCode::BadData,
        }
    }

    fn memory(&self) -> Option<Memory> {
        match self {
            Self::Transfer(error) => memory_of_kind(error.kind),
            _ => None,
        }
    }
}

/// Whether the storage failed, not the stored file: a disk error, a stale NFS handle, a timeout, a
/// file that is briefly too short.
pub(super) fn is_of_storage(error: &Error) -> bool {
    !matches!(
        error.kind(),
        ErrorKind::NotFound
            | ErrorKind::PermissionDenied
            | ErrorKind::IsADirectory
            | ErrorKind::NotADirectory
            | ErrorKind::InvalidFilename
            | ErrorKind::InvalidInput
            | ErrorKind::InvalidData
    )
}

/// The error of a file's first read. A store that refuses it will refuse every time.
pub(super) fn at_first_read(path: &Path, error: &Error) -> DataError {
    match store_error(error).filter(|error| !error.is_of_storage()) {
        Some(refusal) => DataError::Refused(refusal.to_string()),
        None => DataError::Read(Error::new(error.kind(), format!("{}: {error}", path.display()))),
    }
}

/// The store's error among the sources of an error.
fn store_error(error: &Error) -> Option<&objects::Error> {
    errors(error).find_map(|error| error.get_ref()?.downcast_ref())
}

/// Whether an error comes from the system or a store, not from the content of a file.
pub(super) fn is_of_system(error: &Error) -> bool {
    store_error(error).is_some() || errors(error).any(|error| error.raw_os_error().is_some())
}

/// The error and its sources.
fn errors(error: &Error) -> impl Iterator<Item = &Error> {
    let source = std::error::Error::source(error);
    let sources = std::iter::successors(source, |error| error.source());
    std::iter::once(error).chain(sources.filter_map(|error| error.downcast_ref()))
}
