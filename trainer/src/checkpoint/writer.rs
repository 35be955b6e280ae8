//! Background writing, one checkpoint at a time.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, sync_channel};
use std::time::{Duration, Instant};

use super::{CheckpointError, CheckpointFolder, Position, Snapshot};

/// How long a running write may take after training has failed. It may save many steps of work, but
/// hanging storage must not delay the failure report. Pods of a failed attempt have 30 s.
const PATIENCE_AFTER_FAILURE: Duration = Duration::from_secs(25);

/// Writes snapshots on a thread. A write ends or fails before the next one starts.
#[derive(Debug)]
pub(crate) struct Writer {
    folder: Arc<CheckpointFolder>,
    pending: Option<PendingWrite>,
}

#[derive(Debug)]
struct PendingWrite {
    step: u64,
    result: Receiver<Result<Written, CheckpointError>>,
}

#[derive(Clone, Debug)]
pub(crate) struct Written {
    pub(crate) position: Position,
    pub(crate) path: PathBuf,
    pub(crate) bytes: u64,
    /// How long training was paused to copy values.
    pub(crate) snapshot: Duration,
    /// How long writing took during training.
    pub(crate) write: Duration,
}

impl Writer {
    pub(crate) fn new(folder: CheckpointFolder) -> Self {
        Self {
            folder: Arc::new(folder),
            pending: None,
        }
    }

    /// Whether a write is running whose end was not reported yet.
    pub(crate) fn is_busy(&self) -> bool {
        self.pending.is_some()
    }

    /// Starts to write after the previous write has ended, whose result it returns. `meanwhile` is
    /// kept while it writes, and dropped before the result is visible.
    pub(crate) fn begin(
        &mut self,
        snapshot: Snapshot,
        meanwhile: impl Send + 'static,
    ) -> Result<Option<Written>, CheckpointError> {
        let before = self.wait()?;
        let folder = Arc::clone(&self.folder);
        let (sender, result) = sync_channel(1);
        self.pending = Some(PendingWrite {
            step: snapshot.state.position.step,
            result,
        });
        std::thread::Builder::new()
            .name("checkpoint".into())
            .spawn(move || {
                let written = write(&folder, &snapshot);
                drop(meanwhile);
                // Nobody listens if training has failed and patience is over.
                let _ = sender.send(written);
            })
            .map_err(CheckpointError::Folder)?;
        Ok(before)
    }

    /// The result of a write that has ended since the last call.
    pub(crate) fn poll(&mut self) -> Result<Option<Written>, CheckpointError> {
        let Some(PendingWrite { step, result }) = &self.pending else {
            return Ok(None);
        };
        let ended = match result.try_recv() {
            Err(TryRecvError::Empty) => return Ok(None),
            Err(TryRecvError::Disconnected) => Err(CheckpointError::WriterLost { step: *step }),
            Ok(ended) => ended,
        };
        self.pending = None;
        ended.map(Some)
    }

    /// Waits for the running write, if any.
    pub(crate) fn wait(&mut self) -> Result<Option<Written>, CheckpointError> {
        let Some(PendingWrite { step, result }) = self.pending.take() else {
            return Ok(None);
        };
        let lost = |_| Err(CheckpointError::WriterLost { step });
        result.recv().unwrap_or_else(lost).map(Some)
    }

    /// Waits for the running write although training has failed: what it saves is valid.
    pub(crate) fn wait_after_failure(&mut self) -> Option<Written> {
        let PendingWrite { step, result } = self.pending.take()?;
        match result.recv_timeout(PATIENCE_AFTER_FAILURE) {
            Ok(Ok(written)) => Some(written),
            Ok(Err(error)) => {
                tracing::error!("{error}");
                None
            }
            Err(RecvTimeoutError::Timeout) => {
                tracing::error!(
                    "gave up the checkpoint of step {step}: it is not written after {} s",
                    PATIENCE_AFTER_FAILURE.as_secs()
                );
                None
            }
            Err(RecvTimeoutError::Disconnected) => None,
        }
    }
}

impl Drop for Writer {
    /// A panic in training ends up here.
    fn drop(&mut self) {
        self.wait_after_failure();
    }
}

fn write(folder: &CheckpointFolder, snapshot: &Snapshot) -> Result<Written, CheckpointError> {
    let start = Instant::now();
    let (path, bytes) = folder.save(snapshot)?;
    Ok(Written {
        position: snapshot.state.position,
        path,
        bytes,
        snapshot: snapshot.took,
        write: start.elapsed(),
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::{load_into, open, snapshot};
    use super::*;

    fn writer(path: &std::path::Path) -> Writer {
        Writer::new(open(path, 9, 1))
    }

    #[test]
    fn writes_end_in_the_order_in_which_they_began_and_each_is_told_once() {
        let place = tempfile::tempdir().expect("a folder");
        let mut writer = writer(place.path());
        assert!(writer.wait().expect("nothing to wait for").is_none());
        let mut told = Vec::new();
        for step in 1..=5 {
            told.extend(writer.begin(snapshot(step), ()).expect("begins"));
            assert!(writer.is_busy());
        }
        while writer.is_busy() {
            told.extend(writer.poll().expect("writes"));
        }
        assert!(writer.poll().expect("nothing new").is_none());
        let steps: Vec<u64> = told.iter().map(|written| written.position.step).collect();
        assert_eq!(steps, [1, 2, 3, 4, 5]);
        for written in told {
            let files = fs_err::read_dir(&written.path).expect("complete");
            let sizes = files.map(|file| file.expect("a file").metadata().expect("metadata").len());
            assert_eq!(sizes.sum::<u64>(), written.bytes);
        }
    }

    #[test]
    fn the_error_of_a_write_comes_with_the_next_question() {
        let place = tempfile::tempdir().expect("a folder");
        let mut writer = writer(place.path());
        fs_err::write(place.path().join(".partial-step-00000002"), "").expect("writes");
        for step in 1..=2 {
            writer.begin(snapshot(step), ()).expect("begins");
        }
        let message = loop {
            match writer.poll() {
                Ok(_) => {}
                Err(error) => break error.to_string(),
            }
        };
        assert!(
            message.starts_with("failed to write the checkpoint of step 2: ")
                && message.ends_with(
                    "; the checkpoint of step 1 is complete, and the next attempt continues from it"
                ),
            "{message}"
        );
        writer.begin(snapshot(3), ()).expect("goes on");
    }

    #[test]
    fn a_write_under_way_is_finished_when_training_panics() {
        let place = tempfile::tempdir().expect("a folder");
        let mut writer = writer(place.path());
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
            writer.begin(snapshot(4), ()).expect("begins");
            panic!("out of memory");
        }));
        assert!(panicked.is_err());
        let folder = open(place.path(), 9, 1);
        assert_eq!(load_into(&folder).expect("reads"), Some((4, 4.0, 4.5)));
    }
}
