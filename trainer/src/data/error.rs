//! What can be wrong with a data set.

use std::io::{Error, ErrorKind};
use std::path::{Path, PathBuf};

use contract::{ExitCode, Memory};

use crate::error::{Failure, memory_of_kind, of_kind};

/// What is wrong with a data set; no retry helps but where its storage failed.
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
        /// Names of the first ones.
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
        "{image} has {} classes ({classes:?}), but training.loss crossEntropy takes one: binaryCrossEntropy takes any number", .classes.len()
    )]
    SeveralClasses { image: String, classes: Vec<i64> },
    #[error(
        "{image} has class {class} twice ({classes:?}): a list must name each class of the image once, and is not a 0 or 1 for each class"
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
    /// The store of a data set that is streamed.
    #[error(transparent)]
    Store(#[from] objects::Error),
    /// A store that does not let its files be read as they are asked for.
    #[error("{0}")]
    Refused(String),
    #[error("data.{field} is {pattern}: {expected}")]
    Pattern {
        field: &'static str,
        pattern: String,
        expected: &'static str,
    },
    #[error("{path} is no tar file of images: {message}")]
    Shard { path: PathBuf, message: String },
    #[error("{path} is not a Parquet file of images: {message}")]
    Parquet { path: PathBuf, message: String },
    #[error(
        "{path} holds float32 images, but colorJitter, randAugment and threeAugment of data.augmentation are for uint8"
    )]
    ColorsOfFloats { path: PathBuf },
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
    #[error(
        "{left_out} of {images} images cannot be read, by the count of all ranks; data.maxCorruptFraction of {fraction} allows {allowed} (the log names the first of each rank)"
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
        /// `data.retrySeconds`, or 0 where it was read once.
        seconds: u32,
    },
    #[error("the data set has no held-out images to evaluate: {expected}")]
    NothingHeldOut { expected: &'static str },
    #[error(
        "the data set has {images} training images, fewer than one step of {global_batch_size} (microBatchSize x gradientAccumulationSteps x ranks, of which those that divide tokens or heads count once): lower microBatchSize or use fewer ranks"
    )]
    TooSmall { images: u64, global_batch_size: u64 },
    /// Not the data's fault: a batch that does not get to the device.
    #[error(transparent)]
    Transfer(#[from] torch_ext::Error),
}

impl Failure for DataError {
    fn exit_code(&self) -> ExitCode {
        match self {
            Self::Transfer(error) => of_kind(error.kind),
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

/// Whether the storage failed, and not what is stored there: a disk's error, a stale handle of NFS, a time-out, a file that is
/// shorter for a moment than it is.
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

/// The error of a file that is read for the first time. A store that refuses then will go on doing so.
pub(super) fn at_first_read(path: &Path, error: &Error) -> DataError {
    match of_store(error).filter(|error| !error.is_of_storage()) {
        Some(refusal) => DataError::Refused(refusal.to_string()),
        None => DataError::Read(Error::new(error.kind(), format!("{}: {error}", path.display()))),
    }
}

/// The store's own error that an error comes from.
fn of_store(error: &Error) -> Option<&objects::Error> {
    errors(error).find_map(|error| error.get_ref()?.downcast_ref())
}

/// Whether an error is one of the system or of a store, and not what a reader found in the file.
pub(super) fn is_of_system(error: &Error) -> bool {
    of_store(error).is_some() || errors(error).any(|error| error.raw_os_error().is_some())
}

/// The error, and those that it comes from.
fn errors(error: &Error) -> impl Iterator<Item = &Error> {
    let source = std::error::Error::source(error);
    let sources = std::iter::successors(source, |error| error.source());
    std::iter::once(error).chain(sources.filter_map(|error| error.downcast_ref()))
}
