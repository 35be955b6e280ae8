//! Images that are read one by one.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt::Debug;
use std::io::Error;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use backon::{BackoffBuilder as _, ExponentialBuilder};
use contract::PixelType;

use super::Classes;
use super::decode::{Decoded, decode};
use super::error::{DataError, is_of_storage};
use super::labels::Label;

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// A stored image.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Stored {
    /// The input of [`Source::decode`]: the bytes of an image file, or pixels of images in memory.
    pub(super) file: Vec<u8>,
    pub(super) label: Label,
}

/// Why an image was not read.
#[derive(Debug)]
pub(super) enum ReadError {
    /// The storage failed: a retry may help.
    Storage(Error),
    /// It is not an image with a label; retries do not help.
    Bad(String),
}

impl ReadError {
    /// For a file that existed when the data set was listed.
    pub(super) fn from_error(error: Error) -> Self {
        if is_of_storage(&error) {
            Self::Storage(error)
        } else {
            // The name is reported with it.
            Self::Bad(error.to_string())
        }
    }
}

impl ReadError {
    /// What is wrong with an image that was read once. An error if the storage failed.
    pub(super) fn reason(self, source: &dyn Source, image: u64) -> Result<String, DataError> {
        match self {
            Self::Bad(reason) => Ok(reason),
            Self::Storage(error) => Err(DataError::Storage {
                image: source.name(image),
                error,
                seconds: 0,
            }),
        }
    }
}

impl From<String> for ReadError {
    fn from(reason: String) -> Self {
        Self::Bad(reason)
    }
}

/// Pauses between retries of failing storage, for `seconds` from now, each twice the previous.
pub(super) fn pauses(seconds: u32) -> impl Iterator<Item = Duration> {
    let (began, most) = (Instant::now(), Duration::from_secs(seconds.into()));
    ExponentialBuilder::new()
        .with_min_delay(FIRST_PAUSE)
        .with_max_delay(LONGEST_PAUSE)
        .without_max_times()
        .build()
        // A read that gets no answer lasts long itself.
        .take_while(move |_| began.elapsed() < most)
}

/// A name for display: bytes that are not UTF-8 are in hexadecimal, as in "caf\\xe9".
pub(super) fn shown_name(name: &OsStr) -> String {
    name.as_encoded_bytes()
        .utf8_chunks()
        .flat_map(|chunk| {
            let invalid = chunk.invalid().iter().map(|byte| format!("\\x{byte:02x}"));
            std::iter::once(chunk.valid().to_owned()).chain(invalid)
        })
        .collect()
}

/// Number of files that are not read, by reason: "files that end in .webp".
pub(super) type PassedOver = BTreeMap<String, u64>;

/// A number that differs between different lists of parts.
pub(super) fn fingerprint<Part: AsRef<[u8]>>(parts: impl IntoIterator<Item = Part>) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    for part in parts {
        hasher.update(&(part.as_ref().len() as u64).to_le_bytes());
        hasher.update(part.as_ref());
    }
    hasher.finalize()
}

/// An image's label, checked before a run: an error if the model does not accept it, or if storage
/// fails. The inner error says what is wrong with the image.
pub(super) fn label_of(
    source: &dyn Source,
    image: u64,
    classes: Classes,
) -> Result<Result<Label, String>, DataError> {
    match source.label(image) {
        Ok(label) => check_label(source, image, &label, classes).map(|()| Ok(label)),
        Err(error) => error.reason(source, image).map(Err),
    }
}

/// An error if a label has classes that the model lacks, or not exactly one where it must.
pub(super) fn check_label(
    source: &dyn Source,
    image: u64,
    label: &Label,
    classes: Classes,
) -> Result<(), DataError> {
    match label.classes() {
        [_] => {}
        several if classes.several => check_once(source, image, several)?,
        several => {
            return Err(DataError::SeveralClasses {
                image: source.name(image),
                classes: several.to_vec(),
            });
        }
    }
    let known = 0..i64::from(classes.count);
    match label.classes().iter().find(|class| !known.contains(class)) {
        None => Ok(()),
        Some(class) => Err(DataError::LabelOfImage {
            image: source.name(image),
            label: *class,
            classes: classes.count,
        }),
    }
}

/// An error if a list has a class twice, as if it were a row with a column per class.
fn check_once(source: &dyn Source, image: u64, classes: &[i64]) -> Result<(), DataError> {
    let mut sorted = classes.to_vec();
    sorted.sort_unstable();
    match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        None => Ok(()),
        Some(pair) => Err(DataError::ClassTwice {
            image: source.name(image),
            class: pair[0],
            classes: classes.to_vec(),
        }),
    }
}

/// The result of `list` for each file, several at a time.
pub(super) fn list_each<Found: Send>(
    paths: &[PathBuf],
    threads: usize,
    list: impl Fn(u32, &Path) -> Found + Sync,
) -> Vec<Found> {
    let numbered: Vec<(u32, &PathBuf)> = (0..).zip(paths).collect();
    let list = |(number, path): &(u32, &PathBuf)| list(*number, path);
    std::thread::scope(|scope| {
        let parts = numbered.chunks(paths.len().div_ceil(threads).max(1));
        let running: Vec<_> = parts
            .map(|part| scope.spawn(move || part.iter().map(list).collect::<Vec<_>>()))
            .collect();
        let found = running.into_iter().map(|part| part.join().expect("no panic"));
        found.flatten().collect()
    })
}

/// Parts of a data set that are read whole, or at least sequentially.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Shards<'a> {
    /// Images of each.
    pub(super) lengths: &'a [u32],
    /// How many are read at the same time, with their images shuffled together.
    pub(super) at_once: usize,
}

/// A list of images that are made into squares one by one.
pub(super) trait Source: Debug + Send + Sync {
    fn len(&self) -> u64;

    /// Reads an image.
    fn read(&self, image: u64) -> Result<Stored, ReadError>;

    /// The pixels of a file, with this many channels. The error says what is wrong with it.
    fn decode(&self, file: Vec<u8>, channels: u32, pixel_type: PixelType) -> Result<Decoded, String> {
        decode(file, channels, pixel_type)
    }

    /// Whether training uses whole images, without cropping.
    fn is_whole(&self) -> bool {
        false
    }

    /// The image's label, without reading the image.
    fn label(&self, image: u64) -> Result<Label, ReadError>;

    /// A name for messages.
    fn name(&self, image: u64) -> String;

    /// [`fingerprint`] of the images' names within the folder, wherever it is mounted.
    fn fingerprint(&self) -> u32;

    /// The shards, if images are in some.
    fn shards(&self) -> Option<Shards<'_>> {
        None
    }

    /// Names of the classes, if they have any.
    fn classes(&self) -> &[String] {
        &[]
    }

    /// Files among the images that are not read.
    fn passed_over(&self) -> PassedOver {
        PassedOver::new()
    }
}
