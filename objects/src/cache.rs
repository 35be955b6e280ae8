//! Reads files of stores in parts, with a cache of parts in a folder.
//!
//! The processes of a machine share the folder, so a part is read once for all. A lock file is held
//! while reading, until the holding process ends at the latest.

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

/// The cache's subfolder.
const OWN: &str = ".vit-cache";
/// Length of a boot id.
const BOOT_ID: usize = 36;
/// Number of locks, among which parts are distributed.
const LOCKS: u16 = 1024;
/// Share of the limit that is kept when parts are evicted.
const KEPT_PERCENT: u64 = 70;
/// Fraction of the limit that a process writes before it checks the folder's size: sixteen of them
/// stay below the limit.
const LOOK_AFTER: u64 = 64;
/// Minimum time between two marks of a part as used.
const MARKED_EVERY: Duration = Duration::from_secs(30);

/// How long to wait for another process that reads a part, or scans a file.
const PART_PATIENCE: Duration = Duration::from_secs(10);
const LIST_PATIENCE: Duration = Duration::from_secs(60);
const LOCK_PAUSE: Duration = Duration::from_millis(2);
/// Age at which unused cache folders and unfinished files are removed.
const FORGOTTEN: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// Time between two log lines about the scan of files.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// Files of stores, with cached parts.
#[derive(Debug)]
pub struct Cache {
    folder: PathBuf,
    /// Maximum size of all parts, in bytes.
    limit: u64,
    /// Length and alignment of parts; `None` for parts as requested.
    block: Option<u64>,
    files: Vec<CachedFile>,
    runtime: Runtime,
    /// Bytes written by this process since it last checked the folder's size.
    written: AtomicU64,
    has_warned: AtomicBool,
    scanned: Mutex<ScanProgress>,
}

/// Number of files scanned, and when it was last logged.
#[derive(Debug)]
struct ScanProgress {
    files: usize,
    logged: Instant,
}

#[derive(Debug)]
struct CachedFile {
    store: Arc<Store>,
    file: RemoteFile,
    /// Hash of its location and version.
    key: String,
}

impl Cache {
    /// The files of the locations, with a cache in a folder. Parts from before a reboot are
    /// removed: they may never have reached the disk. Parts have `block` bytes, or the requested
    /// ones.
    ///
    /// # Errors
    /// If files cannot be listed or the folder cannot be written.
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
        // Without a version, only the ranks of the same attempt can assume that a file is the same.
        let attempt = std::os::unix::process::parent_id().to_string();
        let files = found.into_values().map(|(store, from, file)| {
            let version = if file.tag.is_empty() { &attempt } else { &file.tag };
            let mut hash = Sha256::new();
            for text in [&from, &file.name, version, &file.bytes.to_string()] {
                hash.update(text.len().to_le_bytes());
                hash.update(text);
            }
            let key = hexadecimal(&hash.finalize()[..16]);
            CachedFile { store, file, key }
        });
        Ok(Self {
            // Several parts must fit.
            block: block.map(|block| block.min(limit / LOOK_AFTER).max(1)),
            files: files.collect(),
            folder,
            limit,
            runtime,
            written: AtomicU64::new(0),
            has_warned: AtomicBool::new(false),
            scanned: Mutex::new(ScanProgress {
                files: 0,
                logged: Instant::now(),
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

    /// Reads `bytes` bytes of a file from `offset`.
    ///
    /// # Errors
    /// If the store does not return them.
    pub fn read(&self, number: usize, offset: u64, bytes: usize) -> Result<Vec<u8>, Error> {
        let kept = &self.files[number];
        let end = offset.saturating_add(bytes as u64);
        if end > kept.file.bytes {
            return Err(Error::Unavailable {
                place: kept.file.name.clone(),
                reason: format!(
                    "it has {} bytes, but {bytes} at {offset} were requested",
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

    /// The result of `make` about a file, cached for other processes until the next reboot.
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
        self.log_scanned();
        Ok(found.expect("it was known or made"))
    }

    /// Logs progress every few seconds: scanning all files may take minutes.
    fn log_scanned(&self) {
        let mut scanned = self.scanned.lock().unwrap_or_else(PoisonError::into_inner);
        scanned.files += 1;
        if scanned.logged.elapsed() >= LOG_EVERY {
            scanned.logged = Instant::now();
            tracing::info!(
                "scanned {} of {} files in the store",
                scanned.files,
                self.files.len()
            );
        }
    }

    /// Maximum size of all parts, in bytes.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    fn part(&self, kept: &CachedFile, part: Range<u64>, wanted: Range<u64>) -> Result<Vec<u8>, Error> {
        let name = format!("{}-{}-{}", kept.key, part.start, part.end);
        let path = self.folder.join("parts").join(&name);
        if let Some(bytes) = cached(&path, &part, &wanted) {
            return Ok(bytes);
        }
        let hash = Sha256::digest(&name);
        let number = u16::from_le_bytes([hash[0], hash[1]]) % LOCKS;
        let _lock = lock(&self.folder.join("locks").join(number.to_string()), PART_PATIENCE);
        if let Some(bytes) = cached(&path, &part, &wanted) {
            return Ok(bytes);
        }
        let bytes = self.runtime.block_on(kept.store.read(&kept.file, part.clone()))?;
        self.keep(&path, &bytes);
        let [start, end] = [wanted.start, wanted.end].map(|place| (place - part.start) as usize);
        Ok(bytes[start..end].to_vec())
    }

    /// Writes a file of the cache atomically. If that fails, the part is read from the store the
    /// next time.
    fn keep(&self, path: &Path, bytes: &[u8]) {
        let written = NamedTempFile::new_in(&self.folder).and_then(|mut file| {
            file.write_all(bytes)?;
            file.persist(path).map_err(|error| error.error)
        });
        if let Err(error) = written {
            if !self.has_warned.swap(true, Ordering::Relaxed) {
                tracing::warn!(
                    "the cache {} cannot be written ({error}): uncached parts are read from the store each time",
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

    /// Removes the least recently used parts until at most `most` bytes remain.
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

/// Removes caches of earlier boots of this machine, and unused ones of other machines.
fn remove_old(own: &Path, folder: &Path, host: &str) -> std::io::Result<()> {
    let is_old = |path: &Path| {
        let changed = std::fs::metadata(path).and_then(|about| about.modified());
        let age = changed.ok().and_then(|changed| changed.elapsed().ok());
        age.is_some_and(|age| age > FORGOTTEN)
    };
    for entry in std::fs::read_dir(own)?.flatten() {
        let (name, path) = (entry.file_name(), entry.path());
        let boot = name.to_str().and_then(|name| name.strip_prefix(host));
        // A host name may start with another one.
        let is_ours = boot.is_some_and(|boot| boot.len() == BOOT_ID);
        if path != folder && (is_ours || is_old(&path.join("parts"))) {
            // Another process may remove it, too.
            let _ = std::fs::remove_dir_all(path);
        }
    }
    // Unfinished files of killed processes.
    for entry in std::fs::read_dir(folder)?.flatten() {
        if entry.file_name().to_string_lossy().starts_with(".tmp") && is_old(&entry.path()) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
    Ok(())
}

/// Total size of a folder's files.
fn bytes_in(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| Some(entry.metadata().ok()?.len()))
        .sum()
}

/// The wanted bytes of a part, if it is cached.
fn cached(path: &Path, part: &Range<u64>, wanted: &Range<u64>) -> Option<Vec<u8>> {
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

/// Waits for a lock, which saves work but is not needed for safety. `None` after `patience`, or
/// without support by the file system.
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
