//! Files of stores that are read in parts. Each part is kept in a folder until others need the room.
//!
//! The processes of a machine share the folder: a part is read once for all of them. A lock file is held meanwhile, which ends with
//! the process that holds it.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use nix::fcntl::{Flock, FlockArg};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest as _, Sha256};
use tempfile::NamedTempFile;
use tokio::runtime::Runtime;

use crate::fetch::{hexadecimal, list};
use crate::{Error, Location, RemoteFile, Store};

/// What the cache keeps in a folder that is not its own.
const OWN: &str = ".vit-cache";
/// Characters of a boot's identity.
const BOOT_ID: usize = 36;
/// Locks, each for a part of the parts.
const LOCKS: u16 = 1024;
/// The part of the limit that is left when parts go.
const KEPT_PERCENT: u64 = 70;
/// What a process writes until it looks again what the folder holds, as a part of the limit: sixteen of them stay below it.
const LOOK_AFTER: u64 = 64;
/// A part that is used is marked as such at most so often.
const MARKED_EVERY: Duration = Duration::from_secs(30);

/// How long the part that another process reads is waited for, or its list of what is in a file.
const PART_PATIENCE: Duration = Duration::from_secs(10);
const LIST_PATIENCE: Duration = Duration::from_secs(60);
const LOCK_PAUSE: Duration = Duration::from_millis(2);
/// Age at which unused cache folders and unfinished files are removed.
const FORGOTTEN: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// Time between two log lines about the scan of files.
const TOLD_EVERY: Duration = Duration::from_secs(10);

/// Files, and the parts of them that are at hand.
#[derive(Debug)]
pub struct Cache {
    folder: PathBuf,
    /// Of all parts, in bytes.
    limit: u64,
    /// Parts begin at multiples of it, and are so long; none if a part is what was asked for.
    block: Option<u64>,
    files: Vec<Kept>,
    runtime: Runtime,
    /// By this process, since it looked what the folder holds.
    written: AtomicU64,
    has_warned: AtomicBool,
    looked_into: Mutex<LookedInto>,
}

/// Number of files scanned, and when it was last logged.
#[derive(Debug)]
struct LookedInto {
    files: usize,
    told: Instant,
}

#[derive(Debug)]
struct Kept {
    store: Arc<Store>,
    file: RemoteFile,
    /// Of its place and version.
    key: String,
}

impl Cache {
    /// The files of the locations, with parts in a folder. What a machine wrote there before it started again is removed: it may never
    /// have got to the disk. Parts are of `block` bytes, or what is asked for.
    ///
    /// # Errors
    /// Where files cannot be listed, or the folder not written.
    pub fn open(
        locations: &[Location],
        folder: &Path,
        limit: u64,
        block: Option<u64>,
        patience: Duration,
    ) -> Result<Self, Error> {
        let own = folder.join(OWN);
        let failed = |error| Error::Write {
            path: own.clone(),
            error,
        };
        // Machines may share a home folder.
        let host = nix::sys::utsname::uname().map_err(|error| failed(error.into()))?;
        let host = format!("{}-", host.nodename().to_string_lossy().replace('/', "-"));
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").map_err(failed)?;
        let folder = own.join(format!("{host}{}", boot.trim()));
        for inner in ["parts", "locks", "lists"] {
            std::fs::create_dir_all(folder.join(inner)).map_err(failed)?;
        }
        remove_old(&own, &folder, &host).map_err(failed)?;
        let threads = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build();
        let runtime = threads.map_err(failed)?;
        let found = runtime.block_on(list(locations, patience))?;
        let untagged = found.values().filter(|(_, _, file)| file.tag.is_empty()).count();
        if untagged > 0 {
            tracing::warn!(
                "{untagged} files have neither an ETag nor a modification time: changes to them will go unnoticed"
            );
        }
        // Of a file without a version only the ranks of this attempt know that they have the same one.
        let attempt = std::os::unix::process::parent_id().to_string();
        let files = found.into_values().map(|(store, from, file)| {
            let version = if file.tag.is_empty() { &attempt } else { &file.tag };
            let mut hash = Sha256::new();
            for text in [&from, &file.name, version, &file.bytes.to_string()] {
                hash.update(text.len().to_le_bytes());
                hash.update(text);
            }
            let key = hexadecimal(&hash.finalize()[..16]);
            Kept { store, file, key }
        });
        Ok(Self {
            // A few of them must have room.
            block: block.map(|block| block.min(limit / LOOK_AFTER).max(1)),
            files: files.collect(),
            folder,
            limit,
            runtime,
            written: AtomicU64::new(0),
            has_warned: AtomicBool::new(false),
            looked_into: Mutex::new(LookedInto {
                files: 0,
                told: Instant::now(),
            }),
        })
    }

    /// The files, sorted by name.
    pub fn files(&self) -> impl ExactSizeIterator<Item = &RemoteFile> {
        self.files.iter().map(|kept| &kept.file)
    }

    /// One of them.
    pub fn file(&self, number: usize) -> Option<&RemoteFile> {
        self.files.get(number).map(|kept| &kept.file)
    }

    /// The number of the file of this name.
    pub fn number(&self, name: &str) -> Option<usize> {
        self.files
            .binary_search_by(|kept| kept.file.name.as_str().cmp(name))
            .ok()
    }

    /// So many bytes of a file, from a place on.
    ///
    /// # Errors
    /// Where the store does not give them.
    pub fn read(&self, number: usize, offset: u64, bytes: usize) -> Result<Vec<u8>, Error> {
        let kept = &self.files[number];
        let end = offset.saturating_add(bytes as u64);
        if end > kept.file.bytes {
            return Err(Error::Unavailable {
                place: kept.file.name.clone(),
                reason: format!(
                    "it has {} bytes, and {bytes} at {offset} were asked for",
                    kept.file.bytes
                ),
            });
        }
        if bytes == 0 {
            return Ok(Vec::new());
        }
        let Some(block) = self.block else {
            return self.part(kept, offset..end, offset..end);
        };
        let mut content = Vec::with_capacity(bytes);
        let mut start = offset - offset % block;
        while start < end {
            let part = start..(start + block).min(kept.file.bytes);
            let wanted = part.start.max(offset)..part.end.min(end);
            start = part.end;
            content.append(&mut self.part(kept, part, wanted)?);
        }
        Ok(content)
    }

    /// What `make` finds of a kind in a file, which is kept for other processes, and until the machine starts again.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn remembered<T: Serialize + DeserializeOwned, E>(
        &self,
        number: usize,
        kind: &str,
        make: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        let name = format!("{}-{}", self.files[number].key, kind.replace(['/', ' '], "-"));
        let path = self.folder.join("lists").join(name);
        let known = || serde_json::from_slice(&std::fs::read(&path).ok()?).ok();
        let mut found = known();
        if found.is_none() {
            let _lock = lock(&path.with_extension("lock"), LIST_PATIENCE);
            found = known();
            if found.is_none() {
                let made = make()?;
                if let Ok(text) = serde_json::to_vec(&made) {
                    self.keep(&path, &text);
                }
                found = Some(made);
            }
        }
        self.tell_looked_into();
        Ok(found.expect("it was known or made"))
    }

    /// Logs progress every few seconds: scanning all files may take minutes.
    fn tell_looked_into(&self) {
        let mut looked = self.looked_into.lock().unwrap_or_else(PoisonError::into_inner);
        looked.files += 1;
        if looked.told.elapsed() >= TOLD_EVERY {
            looked.told = Instant::now();
            tracing::info!(
                "scanned {} of {} files in the store",
                looked.files,
                self.files.len()
            );
        }
    }

    /// What the parts may take, in bytes.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    fn part(&self, kept: &Kept, part: Range<u64>, wanted: Range<u64>) -> Result<Vec<u8>, Error> {
        let name = format!("{}-{}-{}", kept.key, part.start, part.end);
        let path = self.folder.join("parts").join(&name);
        if let Some(bytes) = at_hand(&path, &part, &wanted) {
            return Ok(bytes);
        }
        let hash = Sha256::digest(&name);
        let number = u16::from_le_bytes([hash[0], hash[1]]) % LOCKS;
        let _lock = lock(&self.folder.join("locks").join(number.to_string()), PART_PATIENCE);
        if let Some(bytes) = at_hand(&path, &part, &wanted) {
            return Ok(bytes);
        }
        let bytes = self.runtime.block_on(kept.store.read(&kept.file, part.clone()))?;
        self.keep(&path, &bytes);
        let [start, end] = [wanted.start, wanted.end].map(|place| (place - part.start) as usize);
        Ok(bytes[start..end].to_vec())
    }

    /// Writes a file of the cache, whole or not at all. Where that fails, the part is read from the store the next time.
    fn keep(&self, path: &Path, bytes: &[u8]) {
        let written = NamedTempFile::new_in(&self.folder).and_then(|mut file| {
            file.write_all(bytes)?;
            file.persist(path).map_err(|error| error.error)
        });
        if let Err(error) = written {
            if !self.has_warned.swap(true, Ordering::Relaxed) {
                tracing::warn!(
                    "the cache {} cannot be written ({error}): what is not there is read from the store each time",
                    self.folder.display()
                );
            }
            self.shrink(self.limit / 2);
            return;
        }
        let bytes = bytes.len() as u64;
        let written = self.written.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if written >= self.limit / LOOK_AFTER {
            self.written.store(0, Ordering::Relaxed);
            self.shrink(self.limit / 100 * KEPT_PERCENT);
        }
    }

    /// Removes the parts that were used longest ago, until the others take no more than this.
    fn shrink(&self, most: u64) {
        let Some(_lock) = try_lock(&self.folder.join("locks/shrink")) else {
            return;
        };
        let Ok(entries) = std::fs::read_dir(self.folder.join("parts")) else {
            return;
        };
        let mut parts: Vec<(SystemTime, u64, PathBuf)> = entries
            .filter_map(|entry| {
                let entry = entry.ok()?;
                let about = entry.metadata().ok()?;
                Some((about.modified().ok()?, about.len(), entry.path()))
            })
            .collect();
        let mut bytes: u64 = parts.iter().map(|(_, bytes, _)| bytes).sum();
        let most = most.saturating_sub(bytes_in(&self.folder.join("lists")));
        parts.sort_unstable();
        for (_, part, path) in parts {
            if bytes <= most {
                return;
            }
            let _ = std::fs::remove_file(path);
            bytes -= part;
        }
    }
}

/// Removes what earlier starts of this machine have left, and what was forgotten on others.
fn remove_old(own: &Path, folder: &Path, host: &str) -> std::io::Result<()> {
    let is_old = |path: &Path| {
        let changed = std::fs::metadata(path).and_then(|about| about.modified());
        let age = changed.ok().and_then(|changed| changed.elapsed().ok());
        age.is_some_and(|age| age > FORGOTTEN)
    };
    for entry in std::fs::read_dir(own)?.flatten() {
        let (name, path) = (entry.file_name(), entry.path());
        let boot = name.to_str().and_then(|name| name.strip_prefix(host));
        // A host's name may begin with that of another.
        let is_ours = boot.is_some_and(|boot| boot.len() == BOOT_ID);
        if path != folder && (is_ours || is_old(&path.join("parts"))) {
            // Another process may be at it, too.
            let _ = std::fs::remove_dir_all(path);
        }
    }
    // What was being written when a process was killed.
    for entry in std::fs::read_dir(folder)?.flatten() {
        if entry.file_name().to_string_lossy().starts_with(".tmp") && is_old(&entry.path()) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
    Ok(())
}

/// Of all files in a folder.
fn bytes_in(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| Some(entry.metadata().ok()?.len()))
        .sum()
}

/// Of a part that is at hand, the wanted bytes.
fn at_hand(path: &Path, part: &Range<u64>, wanted: &Range<u64>) -> Option<Vec<u8>> {
    let file = File::open(path).ok()?;
    let about = file.metadata().ok()?;
    if about.len() != part.end - part.start {
        return None;
    }
    let mut bytes = vec![0; (wanted.end - wanted.start) as usize];
    file.read_exact_at(&mut bytes, wanted.start - part.start).ok()?;
    let now = SystemTime::now();
    let is_old = |changed: SystemTime| now.duration_since(changed).is_ok_and(|age| age > MARKED_EVERY);
    if about.modified().is_ok_and(is_old) {
        let _ = OpenOptions::new()
            .write(true)
            .open(path)
            .and_then(|file| file.set_modified(now));
    }
    Some(bytes)
}

/// Waits for a lock, for a while: it spares work and guards nothing. None where the file system has no locks.
fn lock(path: &Path, patience: Duration) -> Option<Flock<File>> {
    let began = Instant::now();
    loop {
        let held = try_lock(path);
        if held.is_some() || began.elapsed() >= patience {
            return held;
        }
        std::thread::sleep(LOCK_PAUSE);
    }
}

fn try_lock(path: &Path) -> Option<Flock<File>> {
    let file = OpenOptions::new().create(true).append(true).open(path).ok()?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock).ok()
}
