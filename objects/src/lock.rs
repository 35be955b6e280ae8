//! One process at a time fetches into a folder, also where several machines share it.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use crate::Error;

const NAME: &str = ".fetch.lock";
const BEAT: Duration = Duration::from_secs(5);
/// A lock that nobody has touched for so long is of a process that is gone.
const ABANDONED: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_secs(1);

/// Held until it is dropped; touched every few seconds.
#[derive(Debug)]
pub(crate) struct Lock {
    path: PathBuf,
    beats: tokio::task::JoinHandle<()>,
}

impl Lock {
    /// Waits for it. A file is made, not locked: locks of network file systems are not to be relied on.
    pub(crate) async fn take(folder: &Path) -> Result<Self, Error> {
        Self::take_after(folder, ABANDONED).await
    }

    async fn take_after(folder: &Path, abandoned: Duration) -> Result<Self, Error> {
        let path = folder.join(NAME);
        // Its time by its own clock, and when that was seen by ours: clocks of machines differ.
        let mut seen: Option<(SystemTime, Instant)> = None;
        loop {
            match OpenOptions::new().write(true).create_new(true).open(&path) {
                Ok(mut file) => {
                    let _ = writeln!(file, "{}", std::process::id());
                    break;
                }
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(Error::Write { path, error }),
            }
            let changed = std::fs::metadata(&path).and_then(|about| about.modified()).ok();
            match (changed, seen) {
                (Some(changed), Some((before, since))) if changed == before => {
                    if since.elapsed() >= abandoned {
                        tracing::warn!(
                            "whoever fetched into {} is gone: going on in its place",
                            folder.display()
                        );
                        let _ = std::fs::remove_file(&path);
                        seen = None;
                        continue;
                    }
                }
                (Some(changed), _) => {
                    if seen.is_none() {
                        tracing::info!(
                            "another process fetches into {}: waiting for it",
                            folder.display()
                        );
                    }
                    seen = Some((changed, Instant::now()));
                }
                (None, _) => continue,
            }
            tokio::time::sleep(LOOK.min(abandoned)).await;
        }
        let beaten = path.clone();
        let beats = tokio::spawn(async move {
            loop {
                tokio::time::sleep(BEAT).await;
                let touched = OpenOptions::new().write(true).open(&beaten);
                let _ = touched.and_then(|file| file.set_modified(SystemTime::now()));
            }
        });
        Ok(Self { path, beats })
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        self.beats.abort();
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_holds_it_and_one_that_is_gone_is_replaced() {
        let folder = tempfile::tempdir().expect("a folder");
        let first = Lock::take(folder.path()).await.expect("free");
        let patient = Duration::from_secs(60);
        let waits = tokio::time::timeout(
            Duration::from_millis(300),
            Lock::take_after(folder.path(), patient),
        );
        assert!(waits.await.is_err(), "it is held");
        drop(first);
        let second = Lock::take(folder.path()).await.expect("free again");
        // Its process ends without a word.
        second.beats.abort();
        std::mem::forget(second);
        let taken = tokio::time::timeout(
            Duration::from_secs(5),
            Lock::take_after(folder.path(), Duration::from_millis(100)),
        );
        taken.await.expect("in time").expect("is taken over");
        assert!(!folder.path().join(NAME).exists());
    }
}
