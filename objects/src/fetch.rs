//! Fetches files of a store into a folder, atomically and each once.
//!
//! A file is written under `.fetch/`, to a part whose name is a hash of the file's name and version. Each byte is written at its own
//! offset, so two processes that both believe they hold the lock write the same content. A complete part is recorded, then renamed.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{ErrorKind, Read as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures::{StreamExt as _, TryStreamExt as _};
use sha2::{Digest as _, Sha256};
use tokio::fs::File;
use tokio::io::{AsyncSeekExt as _, AsyncWriteExt as _};

use crate::lock::Lock;
use crate::record::{Line, Record};
use crate::store::OWN;
use crate::{Error, Location, RemoteFile, Store};

/// Number of concurrent files.
const AT_ONCE: usize = 8;
/// Number of last bytes to fetch again of a partial file by another process: they may not have
/// reached the disk before a crash.
const DISTRUSTED: u64 = 8 << 20;
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(20);

/// Files to fetch into a folder, which is locked for other processes.
#[derive(Debug)]
pub struct Plan {
    folder: PathBuf,
    patience: Duration,
    record: Record,
    tasks: Vec<Task>,
    files: usize,
    _lock: Lock,
}

/// A missing file.
#[derive(Debug)]
struct Task {
    store: Arc<Store>,
    from: String,
    file: RemoteFile,
    /// Partial file.
    part: PathBuf,
    /// Bytes in the partial file.
    present: u64,
}

/// Number of received bytes.
#[derive(Clone, Debug, Default)]
pub struct Progress(Arc<AtomicU64>);

/// Result of a fetch.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Fetched {
    /// Files of the locations.
    pub files: usize,
    /// Files that were missing.
    pub fetched: usize,
}

impl Progress {
    /// Received bytes.
    pub fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Plan {
    /// Compares the locations with the folder, once no other process fetches into it.
    ///
    /// # Errors
    /// If files cannot be listed, conflict with existing ones, or do not fit.
    pub async fn new(locations: &[Location], folder: &Path, patience: Duration) -> Result<Self, Error> {
        let own = folder.join(OWN);
        let failed = |error| Error::Write {
            path: own.clone(),
            error,
        };
        std::fs::create_dir_all(&own).map_err(failed)?;
        let lock = Lock::take(&own).await?;
        let record = Record::open(&own)?;
        let found = list(locations, patience).await?;
        for (name, line) in &record.lines {
            let is_of_these = locations.iter().any(|location| location.to_string() == line.from);
            let path = folder.join(name);
            if is_of_these && !found.contains_key(name) && path.exists() {
                return Err(Error::Leftover { path });
            }
        }
        let files = found.len();
        let (mut tasks, mut parts, mut needed) = (Vec::new(), BTreeSet::new(), 0);
        for (name, (store, from, file)) in found {
            let path = folder.join(&name);
            let known = record.lines.get(&name);
            match std::fs::metadata(&path) {
                Ok(about) if known.is_none_or(|line| line.bytes != about.len()) => {
                    return Err(Error::InTheWay {
                        path,
                        found: about.len(),
                        expected: file.bytes,
                    });
                }
                Ok(_) if known.is_some_and(|line| line.bytes == file.bytes && line.tag == file.tag) => {
                    if file.tag.is_empty() {
                        tracing::warn!(
                            "{from} has no version of {name}: the existing file is kept because its size is the same"
                        );
                    }
                    continue;
                }
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    return Err(Error::Write { path, error });
                }
                _ => {}
            }
            let part = own.join(part_name(&file));
            parts.insert(part.clone());
            let held = std::fs::metadata(&part).map_or(0, |about| about.len());
            needed += file.bytes.saturating_sub(held);
            // Without a tag it may be of another version.
            let present = if file.tag.is_empty() { 0 } else { held };
            tasks.push(Task {
                present: present.min(file.bytes).saturating_sub(DISTRUSTED),
                store,
                from,
                file,
                part,
            });
        }
        remove_other_parts(&own, &parts).map_err(failed)?;
        let plan = Self {
            folder: folder.into(),
            patience,
            record,
            tasks,
            files,
            _lock: lock,
        };
        let space = nix::sys::statvfs::statvfs(folder).map_err(|error| failed(error.into()))?;
        let free = space.blocks_available() as u64 * space.fragment_size() as u64;
        if needed > free {
            return Err(Error::NoSpace {
                folder: folder.into(),
                free,
                needed,
            });
        }
        Ok(plan)
    }

    /// Bytes to fetch.
    pub fn bytes(&self) -> u64 {
        self.tasks.iter().map(|task| task.file.bytes - task.present).sum()
    }

    /// Fetches the files. If dropped, the next fetch continues from partial files.
    ///
    /// # Errors
    /// At the first file that cannot be fetched or written.
    pub async fn carry_out(mut self, progress: &Progress) -> Result<Fetched, Error> {
        let (fetched, patience) = (self.tasks.len(), self.patience);
        let tasks = std::mem::take(&mut self.tasks);
        let whole = futures::stream::iter(tasks)
            .map(|task| async move {
                task.fetch(patience, progress).await?;
                Ok::<_, Error>(task)
            })
            .buffer_unordered(AT_ONCE);
        let (record, folder) = (&mut self.record, &self.folder);
        whole
            .try_for_each(|task| std::future::ready(task.name(record, folder)))
            .await?;
        Ok(Fetched {
            files: self.files,
            fetched,
        })
    }
}

impl Task {
    /// Fetches the whole content.
    async fn fetch(&self, patience: Duration, progress: &Progress) -> Result<(), Error> {
        let failed = |error| self.failed(error);
        let mut options = tokio::fs::OpenOptions::new();
        let mut output = options
            .write(true)
            .create(true)
            .truncate(false)
            .open(&self.part)
            .await
            .map_err(failed)?;
        let mut present = self.present;
        // The most bytes so far, and since when, so that a server that always fails at the same
        // place is given up.
        let (mut most, mut since, mut pause) = (present, Instant::now(), FIRST_PAUSE);
        while present < self.file.bytes {
            let ended = self.append(&mut output, &mut present).await;
            if present > most {
                progress.0.fetch_add(present - most, Ordering::Relaxed);
                (most, since, pause) = (present, Instant::now(), FIRST_PAUSE);
            }
            match ended {
                Ok(()) => {}
                Err(Append::Write(error)) => return Err(failed(error)),
                // Without range requests, start from the beginning, which needs no range.
                Err(Append::Whole) => present = 0,
                Err(Append::Read(error @ Error::Unavailable { .. })) if since.elapsed() < patience => {
                    tracing::warn!("{error}: retrying");
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                    if self.file.tag.is_empty() {
                        present = 0;
                    }
                }
                Err(Append::Read(error)) => return Err(error),
            }
        }
        output.set_len(self.file.bytes).await.map_err(failed)?;
        output.sync_all().await.map_err(failed)?;
        let (part, expected) = (self.part.clone(), self.file.sha256.clone());
        let Some(expected) = expected else { return Ok(()) };
        let sum = tokio::task::spawn_blocking(move || sha256(&part)).await;
        let sum = sum
            .map_err(std::io::Error::other)
            .and_then(|sum| sum)
            .map_err(failed)?;
        if sum == expected {
            return Ok(());
        }
        std::fs::remove_file(&self.part).map_err(failed)?;
        Err(Error::Unavailable {
            place: self.place(),
            reason: format!("the received file has SHA-256 {sum}, but the store reports {expected}"),
        })
    }

    /// Appends the rest of the file, as far as it is received.
    async fn append(&self, output: &mut File, present: &mut u64) -> Result<(), Append> {
        let unavailable = |reason: String| {
            Append::Read(Error::Unavailable {
                place: self.place(),
                reason,
            })
        };
        let answer = self.store.get(&self.file, *present).await.map_err(Append::Read)?;
        let Some(answer) = answer else {
            return Err(Append::Whole);
        };
        if !self.file.is_of(&answer.meta) {
            return Err(Append::Read(Error::Changed { place: self.place() }));
        }
        if answer.range.start != *present {
            return Err(unavailable(
                "the server sent a different part of the file than requested".into(),
            ));
        }
        output
            .seek(SeekFrom::Start(*present))
            .await
            .map_err(Append::Write)?;
        let mut pieces = answer.into_stream();
        while let Some(piece) = pieces.next().await {
            let piece =
                piece.map_err(|error| Append::Read(self.store.refused(Some(&self.file.name), &error)))?;
            output.write_all(&piece).await.map_err(Append::Write)?;
            *present += piece.len() as u64;
        }
        output.flush().await.map_err(Append::Write)?;
        if *present < self.file.bytes {
            return Err(unavailable(format!(
                "the response ended after {present} of {} bytes",
                self.file.bytes
            )));
        }
        Ok(())
    }

    /// Records that the file is complete, and renames it.
    fn name(&self, record: &mut Record, folder: &Path) -> Result<(), Error> {
        let path = folder.join(&self.file.name);
        // After a crash, an old version of the same size would pass for the recorded new one.
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(Error::Write { path, error }),
            _ => {}
        }
        record.add(&Line {
            name: self.file.name.clone(),
            tag: self.file.tag.clone(),
            bytes: self.file.bytes,
            from: self.from.clone(),
        })?;
        let parent = path.parent().unwrap_or(folder);
        let renamed = std::fs::create_dir_all(parent).and_then(|()| std::fs::rename(&self.part, &path));
        renamed.map_err(|error| Error::Write { path, error })
    }

    fn place(&self) -> String {
        format!("{} of {}", self.file.name, self.from)
    }

    fn failed(&self, error: std::io::Error) -> Error {
        Error::Write {
            path: self.part.clone(),
            error,
        }
    }
}

enum Append {
    /// The server does not support range requests.
    Whole,
    Read(Error),
    Write(std::io::Error),
}

/// The files of all locations by name, each with its store and location.
pub(crate) async fn list(
    locations: &[Location],
    patience: Duration,
) -> Result<BTreeMap<String, (Arc<Store>, String, RemoteFile)>, Error> {
    let mut found = BTreeMap::new();
    for location in locations {
        let store = Arc::new(Store::open(location.clone(), patience).await?);
        for file in store.list().await? {
            let name = file.name.clone();
            let place = (Arc::clone(&store), location.to_string(), file);
            if found.insert(name.clone(), place).is_some() {
                return Err(Error::Twice { name });
            }
        }
    }
    Ok(found)
}

/// Name of a partial file, from the file's name and version.
fn part_name(file: &RemoteFile) -> String {
    let hash = |text: &str| hexadecimal(&Sha256::digest(text)[..8]);
    format!("{}-{}.part", hash(&file.name), hash(&file.tag))
}

/// Removes partial files of other versions of these files.
fn remove_other_parts(own: &Path, parts: &BTreeSet<PathBuf>) -> std::io::Result<()> {
    // The hash of the name comes first.
    let file_of = |part: &Path| {
        let name = part.file_name()?.to_str()?.strip_suffix(".part")?;
        Some(name.split_once('-')?.0.to_owned())
    };
    let files: BTreeSet<String> = parts.iter().filter_map(|part| file_of(part)).collect();
    for entry in std::fs::read_dir(own)? {
        let path = entry?.path();
        if !parts.contains(&path) && file_of(&path).is_some_and(|file| files.contains(&file)) {
            std::fs::remove_file(path)?;
        }
    }
    Ok(())
}

pub(crate) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// SHA-256 of a file, hexadecimal.
fn sha256(path: &Path) -> std::io::Result<String> {
    let mut file = std::fs::File::open(path)?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        let count = file.read(&mut buffer)?;
        if count == 0 {
            return Ok(hexadecimal(&hasher.finalize()));
        }
        hasher.update(&buffer[..count]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_versions_of_a_file_that_are_half_there_go() {
        let folder = tempfile::tempdir().expect("a folder");
        let part = |name: &str| folder.path().join(name);
        for name in ["01-aa.part", "01-bb.part", "02-aa.part", "lock", "01-aa"] {
            std::fs::write(part(name), "").expect("writes");
        }
        remove_other_parts(folder.path(), &BTreeSet::from([part("01-bb.part")])).expect("removes");
        let mut left: Vec<_> = std::fs::read_dir(folder.path())
            .expect("a folder")
            .map(|entry| entry.expect("an entry").file_name())
            .collect();
        left.sort();
        assert_eq!(left, ["01-aa", "01-bb.part", "02-aa.part", "lock"]);
    }
}
