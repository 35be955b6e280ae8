//! Images in files, read one by one.

use std::fmt::Debug;

/// An image as it is stored.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Stored {
    /// Bytes of a JPEG or PNG file.
    pub(super) file: Vec<u8>,
    pub(super) label: i64,
}

/// A list of images in files.
pub(super) trait Source: Debug + Send + Sync {
    fn len(&self) -> u64;

    /// Reads one. The error says what is wrong with it.
    fn read(&self, image: u64) -> Result<Stored, String>;

    /// Its class alone, as [`Self::read`] tells it.
    fn label(&self, image: u64) -> Result<i64, String>;

    /// What to call it.
    fn name(&self, image: u64) -> String;

    /// Images of each shard, if they lie in shards one after the other.
    fn shards(&self) -> Option<&[u32]> {
        None
    }

    /// Names of the classes, if they have any.
    fn classes(&self) -> &[String] {
        &[]
    }
}
