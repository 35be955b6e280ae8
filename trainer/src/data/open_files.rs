//! Files that are read at any place, of which a few are held open.

use std::collections::VecDeque;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Files that are held open: those that were read last.
const OPEN: usize = 128;

#[derive(Debug)]
pub(super) struct OpenFiles {
    paths: Vec<PathBuf>,
    open: Mutex<VecDeque<(u32, Arc<File>)>>,
}

impl OpenFiles {
    pub(super) fn new(paths: Vec<PathBuf>) -> Self {
        Self {
            paths,
            open: Mutex::default(),
        }
    }

    pub(super) fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    pub(super) fn path(&self, number: u32) -> &Path {
        &self.paths[number as usize]
    }

    /// So many bytes of a file, or an error.
    pub(super) fn read(&self, number: u32, offset: u64, bytes: usize) -> std::io::Result<Vec<u8>> {
        let file = self.file(number)?;
        let mut content = vec![0; bytes];
        file.read_exact_at(&mut content, offset).inspect_err(|_| {
            // A handle of a network file system that is stale stays so.
            let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
            open.retain(|(known, _)| *known != number);
        })?;
        Ok(content)
    }

    fn file(&self, number: u32) -> std::io::Result<Arc<File>> {
        let lock = || self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let take = |open: &mut VecDeque<(u32, Arc<File>)>| {
            let place = open.iter().position(|(known, _)| *known == number)?;
            open.remove(place)
        };
        let known = take(&mut lock());
        // Other threads go on reading meanwhile.
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
}
