//! Files of a store, fetched into a folder: whole or not at all, and each once.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _};
use tokio::io::AsyncWriteExt as _;

use crate::lock::Lock;
use crate::record::{Line, Record};
use crate::{Error, Location, RemoteFile, Store};

/// Files at the same time.
const AT_ONCE: usize = 8;

/// What is to be fetched into a folder, which no other process fetches into meanwhile.
#[derive(Debug)]
pub struct Plan {
    folder: PathBuf,
    record: Record,
    tasks: Vec<Task>,
    files: usize,
    _lock: Lock,
}

/// A file that is not there yet.
#[derive(Debug)]
struct Task {
    store: Arc<Store>,
    from: String,
    file: RemoteFile,
    /// Bytes of it that are.
    present: u64,
}

/// How many bytes have come.
#[derive(Clone, Debug, Default)]
pub struct Progress(Arc<AtomicU64>);

/// What was done.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Fetched {
    /// Files of the locations.
    pub files: usize,
    /// Those that had to be fetched.
    pub fetched: usize,
}

impl Progress {
    /// Bytes.
    pub fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Plan {
    /// Looks what there is at the locations, and what is in the folder already. Waits for whoever fetches into it.
    ///
    /// # Errors
    /// Where files cannot be listed, are in the way, or do not fit.
    pub async fn new(locations: &[Location], folder: &Path, patience: Duration) -> Result<Self, Error> {
        let failed = |error| Error::Write {
            path: folder.into(),
            error,
        };
        std::fs::create_dir_all(folder).map_err(failed)?;
        let lock = Lock::take(folder).await?;
        let record = Record::open(folder)?;
        let mut found = BTreeMap::new();
        for location in locations {
            let store = Arc::new(Store::open(location.clone(), patience).await?);
            for file in store.list().await? {
                let name = file.name.clone();
                if found
                    .insert(name.clone(), (Arc::clone(&store), location.to_string(), file))
                    .is_some()
                {
                    return Err(Error::Twice { name });
                }
            }
        }
        for name in record.lines.keys() {
            let path = folder.join(name);
            if !found.contains_key(name) && path.exists() {
                return Err(Error::Leftover { path });
            }
        }
        let files = found.len();
        remove_other_parts(folder, found.values().map(|(_, _, file)| file)).map_err(failed)?;
        let mut tasks = Vec::new();
        for (name, (store, from, file)) in found {
            let path = folder.join(&name);
            let present = match std::fs::metadata(&path) {
                Ok(about) => {
                    let known = record.lines.get(&name);
                    if about.len() == file.bytes && known.is_none_or(|line| line.tag == file.tag) {
                        continue;
                    }
                    if known.is_none() {
                        return Err(Error::InTheWay {
                            path,
                            found: about.len(),
                            expected: file.bytes,
                        });
                    }
                    0
                }
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    std::fs::metadata(part_of(&path, &file)).map_or(0, |about| about.len().min(file.bytes))
                }
                Err(error) => return Err(Error::Write { path, error }),
            };
            tasks.push(Task {
                store,
                from,
                file,
                present,
            });
        }
        let plan = Self {
            folder: folder.into(),
            record,
            tasks,
            files,
            _lock: lock,
        };
        let needed = plan.bytes();
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

    /// Bytes that are to come.
    pub fn bytes(&self) -> u64 {
        self.tasks.iter().map(|task| task.file.bytes - task.present).sum()
    }

    /// Fetches. What is half there when this is dropped is gone on with the next time.
    ///
    /// # Errors
    /// At the first file that cannot be fetched or written.
    pub async fn carry_out(mut self, progress: &Progress) -> Result<Fetched, Error> {
        let fetched = self.tasks.len();
        let folder = self.folder.clone();
        let done = futures::stream::iter(std::mem::take(&mut self.tasks))
            .map(|task| {
                let folder = &folder;
                async move {
                    task.carry_out(folder, progress).await?;
                    Ok::<_, Error>(Line {
                        name: task.file.name.clone(),
                        tag: task.file.tag.clone(),
                        from: task.from.clone(),
                    })
                }
            })
            .buffer_unordered(AT_ONCE);
        let record = &mut self.record;
        done.try_for_each(|line| std::future::ready(record.add(&folder, &line)))
            .await?;
        Ok(Fetched {
            files: self.files,
            fetched,
        })
    }
}

impl Task {
    async fn carry_out(&self, folder: &Path, progress: &Progress) -> Result<(), Error> {
        let path = folder.join(&self.file.name);
        let part = part_of(&path, &self.file);
        let failed = |error| Error::Write {
            path: part.clone(),
            error,
        };
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent).map_err(failed)?;
        }
        let mut output = tokio::fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(&part)
            .await
            .map_err(failed)?;
        let mut present = output.metadata().await.map_err(failed)?.len();
        if present > self.file.bytes {
            output.set_len(0).await.map_err(failed)?;
            present = 0;
        }
        while present < self.file.bytes {
            let before = present;
            match self.append(&mut output, &mut present, progress).await {
                Ok(()) => {}
                Err(Append::Write(error)) => return Err(failed(error)),
                // A server that knows no ranges: from the beginning, which is asked for without one.
                Err(Append::Whole) => {
                    output.set_len(0).await.map_err(failed)?;
                    present = 0;
                }
                // What broke off is asked for again as long as anything came.
                Err(Append::Read(error @ Error::Unavailable { .. })) if present > before => {
                    tracing::warn!("{error}: going on at byte {present}");
                }
                Err(Append::Read(error)) => return Err(error),
            }
        }
        output.sync_all().await.map_err(failed)?;
        std::fs::rename(&part, &path).map_err(|error| Error::Write { path, error })
    }

    /// The rest of the file, as much as comes.
    async fn append(
        &self,
        output: &mut tokio::fs::File,
        present: &mut u64,
        progress: &Progress,
    ) -> Result<(), Append> {
        let place = || format!("{} of {}", self.file.name, self.from);
        let answer = self.store.get(&self.file, *present).await.map_err(Append::Read)?;
        let Some(answer) = answer else {
            return Err(Append::Whole);
        };
        let is_other = answer.meta.size != self.file.bytes
            || (self.file.e_tag.is_some() && answer.meta.e_tag != self.file.e_tag);
        if is_other {
            return Err(Append::Read(Error::Changed { place: place() }));
        }
        if answer.range.start != *present {
            return Err(Append::Read(Error::Unavailable {
                place: place(),
                reason: "the server sent another part of the file than the one asked for".into(),
            }));
        }
        let mut pieces = answer.into_stream();
        while let Some(piece) = pieces.next().await {
            let piece =
                piece.map_err(|error| Append::Read(self.store.refused(Some(&self.file.name), &error)))?;
            output.write_all(&piece).await.map_err(Append::Write)?;
            *present += piece.len() as u64;
            progress.0.fetch_add(piece.len() as u64, Ordering::Relaxed);
        }
        output.flush().await.map_err(Append::Write)?;
        if *present < self.file.bytes {
            return Err(Append::Read(Error::Unavailable {
                place: place(),
                reason: format!("it ended after {present} of {} bytes", self.file.bytes),
            }));
        }
        Ok(())
    }
}

enum Append {
    /// The server sends whole files only.
    Whole,
    Read(Error),
    Write(std::io::Error),
}

/// Removes what is half there of files that are others by now.
fn remove_other_parts<'a>(folder: &Path, files: impl Iterator<Item = &'a RemoteFile>) -> std::io::Result<()> {
    let mut wanted = BTreeMap::<PathBuf, BTreeSet<PathBuf>>::new();
    for file in files {
        let part = part_of(&folder.join(&file.name), file);
        let parent = part.parent().unwrap_or(folder).to_owned();
        wanted.entry(parent).or_default().insert(part);
    }
    for (parent, parts) in wanted.into_iter().filter(|(parent, _)| parent.is_dir()) {
        for entry in std::fs::read_dir(parent)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().as_encoded_bytes();
            if name.starts_with(b".") && name.ends_with(b".part") && !parts.contains(&path) {
                std::fs::remove_file(path)?;
            }
        }
    }
    Ok(())
}

/// The name of a file that is not whole: hidden, and another one for another content.
fn part_of(path: &Path, file: &RemoteFile) -> PathBuf {
    let name = path
        .file_name()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default();
    let tag: String = file
        .tag
        .chars()
        .filter(char::is_ascii_alphanumeric)
        .take(40)
        .collect();
    path.with_file_name(format!(".{name}.{tag}.part"))
}
