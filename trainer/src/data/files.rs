//! The files of a data set, in a folder or in a store, read at any offset.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::File;
use std::io::{Error, Read, Result, Seek, SeekFrom};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use objects::Cache;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Files kept open: those read last.
const OPEN: usize = 128;

/// The location of the files.
#[derive(Clone, Debug)]
pub(super) enum Root {
    Folder(PathBuf),
    /// The names of its files are relative to it.
    Store {
        cache: Arc<Cache>,
        shown: PathBuf,
    },
}

impl<Folder: AsRef<Path> + ?Sized> From<&Folder> for Root {
    fn from(folder: &Folder) -> Self {
        Self::Folder(folder.as_ref().into())
    }
}

impl Root {
    /// Files in a store.
    pub(super) fn from_store(cache: Cache, locations: &[String]) -> Self {
        let shown = match locations {
            // A pattern is not part of the folder's name.
            [one] if one.contains(['*', '{']) => one.rsplit_once('/').map_or("", |(folder, _)| folder),
            [one] => one.trim_end_matches('/'),
            _ => "data.from",
        };
        Self::Store {
            cache: Arc::new(cache),
            shown: shown.into(),
        }
    }

    /// The folder, with which the paths of its files begin.
    pub(super) fn path(&self) -> &Path {
        match self {
            Self::Folder(folder) => folder,
            Self::Store { shown, .. } => shown,
        }
    }

    /// The store's number of a file.
    fn number(&self, cache: &Cache, path: &Path) -> Option<usize> {
        cache.number(path.strip_prefix(self.path()).ok()?.to_str()?)
    }

    /// Names in a subfolder.
    pub(super) fn names_in(&self, folder: &Path) -> Result<Vec<OsString>> {
        match self {
            Self::Folder(root) => fs_err::read_dir(root.join(folder))?
                .map(|entry| Ok(entry?.file_name()))
                .collect(),
            Self::Store { cache, .. } => Ok(cache
                .files()
                .filter_map(|file| Path::new(&file.name).strip_prefix(folder).ok())
                .filter(|name| name.components().count() == 1)
                .map(|name| name.as_os_str().to_owned())
                .collect()),
        }
    }

    /// Whether a file exists.
    pub(super) fn has(&self, path: &Path) -> bool {
        match self {
            Self::Folder(_) => path.is_file(),
            Self::Store { cache, .. } => self.number(cache, path).is_some(),
        }
    }

    /// These files, for reading.
    pub(super) fn files(&self, paths: Vec<PathBuf>) -> Files {
        let place = match self {
            Self::Folder(_) => Place::Folder(Mutex::default()),
            Self::Store { cache, .. } => {
                let numbers = paths
                    .iter()
                    .map(|path| self.number(cache, path).unwrap_or(usize::MAX));
                Place::Store(Arc::clone(cache), numbers.collect())
            }
        };
        Files { paths, place }
    }
}

/// Files by their numbers.
#[derive(Debug)]
pub(super) struct Files {
    paths: Vec<PathBuf>,
    place: Place,
}

#[derive(Debug)]
enum Place {
    Folder(Mutex<VecDeque<(u32, Arc<File>)>>),
    /// With each file's number in the store.
    Store(Arc<Cache>, Vec<usize>),
}

impl Files {
    pub(super) fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    pub(super) fn path(&self, number: u32) -> &Path {
        &self.paths[number as usize]
    }

    /// The size of a file.
    pub(super) fn bytes(&self, number: u32) -> Result<u64> {
        match &self.place {
            Place::Folder(_) => Ok(fs_err::metadata(self.path(number))?.len()),
            Place::Store(cache, numbers) => {
                let file = cache.file(numbers[number as usize]);
                file.map(|file| file.bytes)
                    .ok_or_else(|| Error::other("it is not among the files of the store"))
            }
        }
    }

    /// Exactly `bytes` bytes of a file, or an error.
    pub(super) fn read(&self, number: u32, offset: u64, bytes: usize) -> Result<Vec<u8>> {
        let open = match &self.place {
            Place::Folder(open) => open,
            // The files could be listed, so any error of the store during a run may pass.
            Place::Store(cache, numbers) => {
                let number = numbers[number as usize];
                return cache.read(number, offset, bytes).map_err(Error::other);
            }
        };
        let file = self.file(open, number)?;
        let mut content = vec![0; bytes];
        file.read_exact_at(&mut content, offset).inspect_err(|_| {
            // A stale handle of a network file system stays stale.
            let mut open = open.lock().unwrap_or_else(PoisonError::into_inner);
            open.retain(|(known, _)| *known != number);
        })?;
        Ok(content)
    }

    fn file(&self, open: &Mutex<VecDeque<(u32, Arc<File>)>>, number: u32) -> Result<Arc<File>> {
        let lock = || open.lock().unwrap_or_else(PoisonError::into_inner);
        let take = |open: &mut VecDeque<(u32, Arc<File>)>| {
            let place = open.iter().position(|(known, _)| *known == number)?;
            open.remove(place)
        };
        let known = take(&mut lock());
        // Other threads keep reading meanwhile.
        let (_, file) = match known {
            Some(known) => known,
            None => (number, Arc::new(File::open(self.path(number))?)),
        };
        let mut open = lock();
        take(&mut open);
        if open.len() == OPEN {
            open.pop_front();
        }
        open.push_back((number, Arc::clone(&file)));
        Ok(file)
    }

    /// What `list` finds in a file; in a store, once for all ranks of the machine with this kind.
    pub(super) fn listed<T: Serialize + DeserializeOwned, E>(
        &self,
        number: u32,
        kind: &str,
        list: impl FnOnce() -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        match &self.place {
            Place::Folder(_) => list(),
            Place::Store(cache, numbers) => cache.remembered(numbers[number as usize], kind, list),
        }
    }

    /// A file from its start.
    pub(super) fn reader(self: &Arc<Self>, number: u32) -> Result<Reader> {
        Ok(Reader {
            bytes: self.bytes(number)?,
            files: Arc::clone(self),
            number,
            offset: 0,
        })
    }
}

/// Reads a file from some offset on.
#[derive(Debug)]
pub(super) struct Reader {
    files: Arc<Files>,
    number: u32,
    bytes: u64,
    offset: u64,
}

impl Read for Reader {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        let rest = self.bytes.saturating_sub(self.offset);
        let count = (buffer.len() as u64).min(rest) as usize;
        if count == 0 {
            return Ok(0);
        }
        let bytes = self.files.read(self.number, self.offset, count)?;
        buffer[..count].copy_from_slice(&bytes);
        self.offset += count as u64;
        Ok(count)
    }
}

impl Seek for Reader {
    fn seek(&mut self, to: SeekFrom) -> Result<u64> {
        let place = match to {
            SeekFrom::Start(place) => Some(place),
            SeekFrom::Current(by) => self.offset.checked_add_signed(by),
            SeekFrom::End(by) => self.bytes.checked_add_signed(by),
        };
        self.offset = place.ok_or(std::io::ErrorKind::InvalidInput)?;
        Ok(self.offset)
    }
}
