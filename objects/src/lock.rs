//! Lets one process at a time fetch into a folder, also across machines.
//!
//! It saves work but is not needed for safety: two that fetch the same file write the same bytes at
//! the same offsets.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

use crate::Error;

const NAME: &str = "lock";
const BEAT: Duration = Duration::from_secs(5);
/// Age at which an untouched lock is abandoned.
const ABANDONED: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_secs(1);

/// Held until dropped; touched every few seconds.
#[derive(Debug)]
pub(crate) struct Lock {
    path: PathBuf,
    token: String,
    beats: tokio::task::JoinHandle<()>,
}

impl Lock {
    /// Waits for the lock. It is a created file, because locks of network file systems are
    /// unreliable.
    pub(crate) async fn take(folder: &Path) -> Result<Self, Error> {
        Self::take_after(folder, ABANDONED).await
    }

    async fn take_after(folder: &Path, abandoned: Duration) -> Result<Self, Error> {
        let path = folder.join(NAME);
        let token = token();
        let failed = |error| Error::Write {
            path: path.clone(),
            error,
        };
        // The lock's time by its holder's clock, and when we saw it by ours: clocks differ.
        let mut seen: Option<(SystemTime, Instant)> = None;
        loop {
            match OpenOptions::new().write(true).create_new(true).open(&path) {
                Ok(mut file) => {
                    file.write_all(token.as_bytes()).map_err(failed)?;
                    break;
                }
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(failed(error)),
            }
            let changed = std::fs::metadata(&path).and_then(|about| about.modified()).ok();
            match (changed, seen) {
                (Some(changed), Some((before, since))) if changed == before => {
                    if since.elapsed() >= abandoned {
                        tracing::warn!(
                            "the process that fetched into {} is gone: taking over",
                            folder.display()
                        );
                        // Under a unique name, so that only one of two processes succeeds.
                        let aside = folder.join(&token);
                        if std::fs::rename(&path, &aside).is_ok() {
                            std::fs::remove_file(&aside).map_err(failed)?;
                        }
                        seen = None;
                    }
                }
                (Some(changed), _) => {
                    if seen.is_none() {
                        tracing::info!(
                            "another process fetches into {}: waiting until it ends or shows no activity for {} s",
                            folder.display(),
                            abandoned.as_secs()
                        );
                    }
                    seen = Some((changed, Instant::now()));
                }
                (None, _) => {}
            }
            tokio::time::sleep(LOOK.min(abandoned)).await;
        }
        let (beaten, own) = (path.clone(), token.clone());
        let beats = tokio::spawn(async move {
            while is_own(&beaten, &own) {
                let touched = OpenOptions::new().write(true).open(&beaten);
                let _ = touched.and_then(|file| file.set_modified(SystemTime::now()));
                tokio::time::sleep(BEAT).await;
            }
        });
        Ok(Self { path, token, beats })
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        self.beats.abort();
        if is_own(&self.path, &self.token) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn is_own(path: &Path, token: &str) -> bool {
    std::fs::read_to_string(path).is_ok_and(|found| found == token)
}

/// A token that is unique across machines.
fn token() -> String {
    let host = nix::sys::utsname::uname().map(|names| names.nodename().to_string_lossy().into_owned());
    let host = host.unwrap_or_default();
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!(
        "{}-{}-{}",
        host.replace('/', "-"),
        std::process::id(),
        since.as_nanos()
    )
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
        // It hangs, and counts as gone.
        second.beats.abort();
        let hasty = Lock::take_after(folder.path(), Duration::from_millis(100));
        let third = tokio::time::timeout(Duration::from_secs(5), hasty);
        let third = third.await.expect("in time").expect("is taken over");
        // When it continues, it does not remove its successor's lock.
        drop(second);
        assert!(is_own(&folder.path().join(NAME), &third.token));
        drop(third);
        assert!(!folder.path().join(NAME).exists());
    }
}
