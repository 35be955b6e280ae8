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

/// An image as it is stored.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Stored {
    /// What [`Source::decode`] takes: bytes of an image file, but for images in memory.
    pub(super) file: Vec<u8>,
    pub(super) label: Label,
}

/// Why an image was not read.
#[derive(Debug)]
pub(super) enum ReadError {
    /// The storage failed: it may answer again.
    Storage(Error),
    /// What is there is no image with a label, however often it is read.
    Bad(String),
}

impl ReadError {
    /// Of a file that was there when the data set was listed.
    pub(super) fn of(error: Error) -> Self {
        if is_of_storage(&error) {
            Self::Storage(error)
        } else {
            // The name is told beside it.
            Self::Bad(error.to_string())
        }
    }
}

impl ReadError {
    /// What is wrong with an image that was read once. An error where that is the storage's fault.
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

/// The pauses between reads where the storage fails, until so many seconds from now: each twice as long as the one before.
pub(super) fn pauses(seconds: u32) -> impl Iterator<Item = Duration> {
    let (began, most) = (Instant::now(), Duration::from_secs(seconds.into()));
    ExponentialBuilder::new()
        .with_min_delay(FIRST_PAUSE)
        .with_max_delay(LONGEST_PAUSE)
        .without_max_times()
        .build()
        // A read that is not answered takes time itself.
        .take_while(move |_| began.elapsed() < most)
}

/// A name to be read by people: bytes that are no UTF-8 are in hexadecimal, as in "caf\\xe9".
pub(super) fn shown_name(name: &OsStr) -> String {
    name.as_encoded_bytes()
        .utf8_chunks()
        .flat_map(|chunk| {
            let invalid = chunk.invalid().iter().map(|byte| format!("\\x{byte:02x}"));
            std::iter::once(chunk.valid().to_owned()).chain(invalid)
        })
        .collect()
}

/// Files of a data set that are not read, by why: "files that end in .webp".
pub(super) type PassedOver = BTreeMap<String, u64>;

/// A number that differs between lists of other parts.
pub(super) fn fingerprint<Part: AsRef<[u8]>>(parts: impl IntoIterator<Item = Part>) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    for part in parts {
        hasher.update(&(part.as_ref().len() as u64).to_le_bytes());
        hasher.update(part.as_ref());
    }
    hasher.finalize()
}

/// The label of an image where it is looked at once, before a run: one that the model does not take is an error, and so is
/// storage that fails. The inner error says what is wrong with the image.
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

/// An error where a label has classes that the model has not, or not one where it takes one.
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

/// An error where a list has a class twice, as the row of an array does that has a column for each class.
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

/// What `list` finds in each file, several at a time.
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

/// Parts of files that are read as a whole, or at least one after the other.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Shards<'a> {
    /// Images of each.
    pub(super) lengths: &'a [u32],
    /// How many are read at the same time: their images are shuffled with one another.
    pub(super) at_once: usize,
}

/// A list of images that are made into squares one by one.
pub(super) trait Source: Debug + Send + Sync {
    fn len(&self) -> u64;

    /// Reads one.
    fn read(&self, image: u64) -> Result<Stored, ReadError>;

    /// The pixels of what was read, with so many channels. The error says what is wrong with it.
    fn decode(&self, file: Vec<u8>, channels: u32, pixel_type: PixelType) -> Result<Decoded, String> {
        decode(file, channels, pixel_type)
    }

    /// Whether images are trained on whole, not cut.
    fn is_whole(&self) -> bool {
        false
    }

    /// The image's label, without reading the image.
    fn label(&self, image: u64) -> Result<Label, ReadError>;

    /// What to call it.
    fn name(&self, image: u64) -> String;

    /// [`fingerprint`] of the images' names within the folder, wherever that is mounted.
    fn fingerprint(&self) -> u32;

    /// If images lie in shards one after the other.
    fn shards(&self) -> Option<Shards<'_>> {
        None
    }

    /// Names of the classes, if they have any.
    fn classes(&self) -> &[String] {
        &[]
    }

    /// What lies among the images and is not read.
    fn passed_over(&self) -> PassedOver {
        PassedOver::new()
    }
}
