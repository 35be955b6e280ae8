//! Which rank writes which tensors of a checkpoint.
//!
//! The first rank writes all, or each rank its share: whole tensors, so that readers do not depend
//! on the run's parallelism. A part's files then have an index, as in Hugging Face's libraries.
//! Each rank flushes its files and adds a record. The first rank awaits the records, writes index
//! and checksums, and publishes the checkpoint. Ranks meet on storage only: training never waits.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fs_err as fs;
use serde::{Deserialize, Serialize};
use torch_ext::Member;

use super::checksums::Checksums;
use super::{CheckpointError, Part, Snapshot};
use crate::error::ranks_in_words;
use crate::tensor_file;

/// How long the first rank waits for the other shares after its own. At the end of an epoch the
/// others wait for it in a collective with a timeout of ten minutes.
const PATIENCE: Duration = Duration::from_mins(5);
/// How long it waits once a rank is lost: the others end too, but finish their shares first.
const PATIENCE_AFTER_LOSS: Duration = Duration::from_secs(20);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Returns the rank that is known to be lost, if any.
#[derive(Clone)]
pub(crate) struct Lost(pub(crate) Arc<dyn Fn() -> Option<u32> + Send + Sync>);

impl std::fmt::Debug for Lost {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Lost({:?})", (self.0)())
    }
}

/// Assigns each tensor, by size, to a rank: the largest first, each to the rank with the least.
pub(crate) fn assign(sizes: &[u64], ranks: u32) -> Vec<u32> {
    let mut order: Vec<usize> = (0..sizes.len()).collect();
    order.sort_by_key(|index| std::cmp::Reverse(sizes[*index]));
    let mut loads = vec![0; ranks.max(1) as usize];
    let mut owners = vec![0; sizes.len()];
    for index in order {
        let least = (0..loads.len()).min_by_key(|rank| loads[*rank]).unwrap_or(0);
        loads[least] += sizes[index];
        owners[index] = least as u32;
    }
    owners
}

/// A rank was lost before writing its share.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("rank {rank} was lost before its share was written")]
pub(super) struct LostWriter {
    pub(super) rank: u32,
}

/// A rank's report on its share: the files written, or the error.
type Record = Result<Share, String>;

/// Files that a rank has written and flushed.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Share {
    pub(super) checksums: Checksums,
    /// For each part: the file of each tensor, and the bytes of all.
    parts: BTreeMap<Part, (BTreeMap<String, String>, u64)>,
}

impl Share {
    /// Writes a rank's tensors of a snapshot.
    pub(super) fn write(folder: &Path, snapshot: &Snapshot, member: Member) -> std::io::Result<Self> {
        let mut share = Self::default();
        let metadata = snapshot.metadata();
        for (part, tensors) in &snapshot.files {
            let file = part.file_of(member);
            share
                .checksums
                .write(folder, &file, |out| tensor_file::write(out, tensors, &metadata))?;
            let bytes = tensors
                .iter()
                .map(|(_, tensor)| tensor_file::bytes_of(tensor) as u64);
            let names = tensors.iter().map(|(name, _)| (name.clone(), file.clone()));
            share.parts.insert(*part, (names.collect(), bytes.sum()));
        }
        Ok(share)
    }

    /// Adds the shares of the other ranks once they are written, and an index of each part.
    pub(super) fn complete(&mut self, folder: &Path, size: u32, lost: &Lost) -> std::io::Result<()> {
        for other in await_others(folder, size, lost)? {
            self.checksums.extend(other.checksums);
            for (part, (files, bytes)) in other.parts {
                let (all, total) = self.parts.entry(part).or_default();
                all.extend(files);
                *total += bytes;
            }
        }
        for (part, (files, bytes)) in &self.parts {
            let index = Index {
                metadata: IndexMetadata { total_size: *bytes },
                weight_map: files.clone(),
            };
            let json = serde_json::to_vec_pretty(&index)?;
            self.checksums
                .write(folder, &part.index(), |out| out.write_all(&json))?;
        }
        Ok(())
    }
}

/// Writes the record of a share, or of its error.
pub(super) fn tell(folder: &Path, member: Member, record: &Record) -> std::io::Result<()> {
    let path = folder.join(record_of(member));
    let new = path.with_extension("new");
    fs::write(&new, serde_json::to_vec(record)?)?;
    fs::rename(new, path)
}

fn record_of(member: Member) -> String {
    format!("share-{}.json", number(member))
}

/// Numbers files as Hugging Face's libraries do.
pub(super) fn number(member: Member) -> String {
    format!("{:05}-of-{:05}", member.rank + 1, member.size)
}

/// The shares of the other ranks.
fn await_others(folder: &Path, size: u32, lost: &Lost) -> std::io::Result<Vec<Share>> {
    let mut deadline = Instant::now() + PATIENCE;
    let mut missing: Vec<u32> = (1..size).collect();
    let mut shares = Vec::new();
    let mut known_lost = None;
    loop {
        // Checked first: a rank may write its record and then end.
        let lost = (lost.0)();
        // Listed, not looked up: clients of network storage cache missing names for a while.
        let names = fs::read_dir(folder)?
            .map(|entry| Ok(entry?.file_name()))
            .collect::<std::io::Result<HashSet<_>>>()?;
        let mut still = Vec::new();
        for rank in missing {
            let name = record_of(Member { rank, size });
            if !names.contains(OsStr::new(&name)) {
                still.push(rank);
                continue;
            }
            let record: Record = serde_json::from_slice(&fs::read(folder.join(name))?)?;
            match record {
                Ok(share) => shares.push(share),
                Err(problem) => return Err(std::io::Error::other(format!("rank {rank}: {problem}"))),
            }
        }
        missing = still;
        if missing.is_empty() {
            return Ok(shares);
        }
        if let Some(rank) = lost {
            if missing.contains(&rank) {
                return Err(std::io::Error::other(LostWriter { rank }));
            }
            if known_lost.replace(rank).is_none() {
                deadline = deadline.min(Instant::now() + PATIENCE_AFTER_LOSS);
            }
        }
        if Instant::now() >= deadline {
            return Err(match known_lost {
                // The others are lost with it.
                Some(rank) => std::io::Error::other(LostWriter { rank }),
                None => std::io::Error::other(format!(
                    "the shares of {} are not in {} after {} s",
                    ranks_in_words(&missing),
                    folder.display(),
                    PATIENCE.as_secs()
                )),
            });
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// `model.safetensors.index.json` and its equivalents.
#[derive(Debug, Serialize, Deserialize)]
struct Index {
    metadata: IndexMetadata,
    weight_map: BTreeMap<String, String>,
}

#[derive(Debug, Serialize, Deserialize)]
struct IndexMetadata {
    total_size: u64,
}

/// The file of a part, or the files in its index.
pub(super) fn files_of(
    folder: &Path,
    checksums: &Checksums,
    part: Part,
) -> Result<BTreeSet<String>, CheckpointError> {
    let entry = entry(checksums, part);
    if entry == part.file() {
        return Ok(BTreeSet::from([entry]));
    }
    let content = checksums.read(folder, &entry)?;
    let index: Index = serde_json::from_slice(&content).map_err(|error| CheckpointError::Corrupt {
        path: folder.join(entry),
        message: error.to_string(),
    })?;
    Ok(index.weight_map.into_values().collect())
}

/// The first file to read for a part: its index if several ranks wrote it, else the part itself.
pub(super) fn entry(checksums: &Checksums, part: Part) -> String {
    Some(part.index())
        .filter(|index| checksums.knows(index))
        .unwrap_or_else(|| part.file().into())
}

/// Whether a checkpoint has a part.
pub(super) fn has(checksums: &Checksums, part: Part) -> bool {
    checksums.knows(&entry(checksums, part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tensor_has_one_writer_and_no_writer_has_much_more_than_another() {
        let sizes = [7, 100, 1, 30, 30, 30, 9, 1];
        let owners = assign(&sizes, 3);
        let mut loads = [0; 3];
        for (owner, size) in owners.iter().zip(sizes) {
            loads[*owner as usize] += size;
        }
        loads.sort_unstable();
        assert_eq!(loads, [48, 60, 100]);
        assert_eq!(assign(&sizes, 1), [0; 8]);
        assert_eq!(assign(&[], 2), [] as [u32; 0]);
    }
}
