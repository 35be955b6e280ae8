//! `checksums.json`: length and CRC-32 of every other file of a checkpoint, so that truncated or
//! changed files are detected before their values are used.

use std::collections::BTreeMap;
use std::io::{BufWriter, Read as _, Write};
use std::path::{Path, PathBuf};

use fs_err as fs;
use serde::{Deserialize, Serialize};

use super::CheckpointError;

pub(super) const CHECKSUMS_FILE: &str = "checksums.json";
const BUFFER_BYTES: usize = 1024 * 1024;

/// Checksums of a checkpoint's files by name.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Checksums(BTreeMap<String, Checksum>);

#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Checksum {
    bytes: u64,
    /// As zlib's `crc32`, in hexadecimal.
    crc32: String,
}

impl Checksum {
    fn new(bytes: u64, crc32: u32) -> Self {
        Self {
            bytes,
            crc32: format!("{crc32:08x}"),
        }
    }
}

impl Checksums {
    /// Writes a file of the checkpoint in `folder`, flushes it and records its checksum.
    pub(super) fn write(
        &mut self,
        folder: &Path,
        name: &str,
        body: impl FnOnce(&mut dyn Write) -> std::io::Result<()>,
    ) -> std::io::Result<()> {
        let mut file = Summing::new(fs::File::create(folder.join(name))?);
        let mut buffered = BufWriter::with_capacity(BUFFER_BYTES, &mut file);
        body(&mut buffered)?;
        buffered.flush()?;
        drop(buffered);
        file.inner.sync_all()?;
        let checksum = Checksum::new(file.bytes, file.hasher.finalize());
        self.0.insert(name.into(), checksum);
        Ok(())
    }

    /// Writes the checksums. Returns the bytes of all files together.
    pub(super) fn finish(&self, folder: &Path) -> std::io::Result<u64> {
        let json = serde_json::to_vec_pretty(self)?;
        let mut file = fs::File::create(folder.join(CHECKSUMS_FILE))?;
        file.write_all(&json)?;
        file.sync_all()?;
        Ok(json.len() as u64 + self.bytes())
    }

    pub(super) fn open(folder: &Path) -> Result<Self, CheckpointError> {
        let path = folder.join(CHECKSUMS_FILE);
        let bytes = fs::read(&path).map_err(CheckpointError::Read)?;
        serde_json::from_slice(&bytes).map_err(|error| CheckpointError::Corrupt {
            path,
            message: error.to_string(),
        })
    }

    /// Adds the checksums of other files.
    pub(super) fn extend(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    /// Bytes of all files together.
    pub(super) fn bytes(&self) -> u64 {
        self.0.values().map(|file| file.bytes).sum()
    }

    /// Whether a file belongs to the checkpoint, as does that with the checksums.
    pub(super) fn lists(&self, name: &str) -> bool {
        name == CHECKSUMS_FILE || self.knows(name)
    }

    pub(super) fn knows(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// The verified content of a file of the checkpoint in `folder`.
    pub(super) fn read(&self, folder: &Path, name: &str) -> Result<Vec<u8>, CheckpointError> {
        let path = folder.join(name);
        let bytes = fs::read(&path).map_err(CheckpointError::Read)?;
        let found = Checksum::new(bytes.len() as u64, crc32fast::hash(&bytes));
        self.compare(path, name, &found)?;
        Ok(bytes)
    }

    /// Verifies a file of the checkpoint in `folder` in pieces; calls `is_reading` after each.
    pub(super) fn check(
        &self,
        folder: &Path,
        name: &str,
        is_reading: &mut dyn FnMut(),
    ) -> Result<(), CheckpointError> {
        let path = folder.join(name);
        let mut file = fs::File::open(&path).map_err(CheckpointError::Read)?;
        let mut buffer = vec![0; BUFFER_BYTES];
        let (mut hasher, mut bytes) = (crc32fast::Hasher::new(), 0);
        loop {
            let read = file.read(&mut buffer).map_err(CheckpointError::Read)?;
            if read == 0 {
                break;
            }
            hasher.update(&buffer[..read]);
            bytes += read as u64;
            is_reading();
        }
        self.compare(path, name, &Checksum::new(bytes, hasher.finalize()))
    }

    fn compare(&self, path: PathBuf, name: &str, found: &Checksum) -> Result<(), CheckpointError> {
        let problem = match self.0.get(name) {
            Some(expected) if expected == found => return Ok(()),
            Some(expected) if expected.bytes != found.bytes => {
                format!(
                    "it has {} bytes instead of {}: it was cut short or overwritten",
                    found.bytes, expected.bytes
                )
            }
            Some(expected) => format!(
                "its CRC-32 is {} instead of {}: it was changed after it was written",
                found.crc32, expected.crc32
            ),
            None => format!("{CHECKSUMS_FILE} does not list it"),
        };
        Err(CheckpointError::Corrupt {
            path,
            message: problem,
        })
    }
}

/// Counts the bytes written through it, and computes their checksum.
struct Summing {
    inner: fs::File,
    hasher: crc32fast::Hasher,
    bytes: u64,
}

impl Summing {
    fn new(inner: fs::File) -> Self {
        Self {
            inner,
            hasher: crc32fast::Hasher::new(),
            bytes: 0,
        }
    }
}

impl Write for Summing {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.hasher.update(&bytes[..written]);
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.inner.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_changed_bit_and_every_missing_byte_is_found_out() {
        let place = tempfile::tempdir().expect("a folder");
        let mut sums = Checksums::default();
        let content = b"weights".as_slice();
        sums.write(place.path(), "a", |out| out.write_all(content))
            .expect("writes");
        let bytes = sums.finish(place.path()).expect("writes");
        let sums = Checksums::open(place.path()).expect("opens");
        assert_eq!(sums.read(place.path(), "a").expect("reads"), content);
        let check = || sums.check(place.path(), "a", &mut || {});
        check().expect("whole");
        let on_disk = |name| fs::metadata(place.path().join(name)).expect("a file").len();
        assert_eq!(bytes, on_disk("a") + on_disk(CHECKSUMS_FILE));

        let file = place.path().join("a");
        for bit in 0..content.len() * 8 {
            let mut changed = content.to_vec();
            changed[bit / 8] ^= 1 << (bit % 8);
            fs::write(&file, changed).expect("writes");
            let message = sums.read(place.path(), "a").expect_err("found out").to_string();
            assert!(message.contains("its CRC-32 is"), "{message}");
            assert_eq!(check().expect_err("found out").to_string(), message);
        }
        for length in 0..content.len() {
            fs::write(&file, &content[..length]).expect("writes");
            let message = sums.read(place.path(), "a").expect_err("found out").to_string();
            assert!(
                message.contains(&format!("it has {length} bytes instead of 7")),
                "{message}"
            );
            assert_eq!(check().expect_err("found out").to_string(), message);
        }
    }
}
