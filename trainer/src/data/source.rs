//! Images that are read one by one.

use std::fmt::Debug;

use super::decode::{Decoded, decode};

/// An image as it is stored.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Stored {
    /// What [`Source::decode`] takes: bytes of a JPEG or PNG file, but for images in memory.
    pub(super) file: Vec<u8>,
    pub(super) label: i64,
}

/// A number that differs between lists of other parts.
pub(super) fn fingerprint<Part: AsRef<[u8]>>(parts: impl IntoIterator<Item = Part>) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    for part in parts {
        hasher.update(&(part.as_ref().len() as u64).to_le_bytes());
        hasher.update(part.as_ref());
    }
    hasher.finalize()
}

/// A list of images that are made into squares one by one.
pub(super) trait Source: Debug + Send + Sync {
    fn len(&self) -> u64;

    /// Reads one. The error says what is wrong with it.
    fn read(&self, image: u64) -> Result<Stored, String>;

    /// The pixels of what was read, as grey (1 channel) or red, green, blue (3). The error says what is wrong with it.
    fn decode(&self, file: Vec<u8>, channels: u32) -> Result<Decoded, String> {
        decode(&file, channels)
    }

    /// Whether images are trained on whole, not cut.
    fn is_whole(&self) -> bool {
        false
    }

    /// Its class alone, as [`Self::read`] tells it.
    fn label(&self, image: u64) -> Result<i64, String>;

    /// What to call it.
    fn name(&self, image: u64) -> String;

    /// [`fingerprint`] of the images' names within the folder, wherever that is mounted.
    fn fingerprint(&self) -> u32;

    /// Images of each shard, if they lie in shards one after the other.
    fn shards(&self) -> Option<&[u32]> {
        None
    }

    /// Names of the classes, if they have any.
    fn classes(&self) -> &[String] {
        &[]
    }
}
