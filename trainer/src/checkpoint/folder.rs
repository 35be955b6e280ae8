//! The folder of a job's checkpoints: names, order, and which are kept.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fs_err as fs;
use torch_ext::Member;

use super::ownership::{Claim, Owner};
use super::restore::{Loaded, load};
use super::shares::{Lost, LostWriter, Share, tell};
use super::{CheckpointError, Expected, Run, STATE_FILE, Snapshot};

/// Partially written or removed.
const PARTIAL_PREFIX: &str = ".partial-";
/// Complete, but not yet in its place.
const COMPLETE_PREFIX: &str = ".complete-";
const STEP_PREFIX: &str = "step-";
/// How long clients of network storage may show outdated content.
const UNTIL_SEEN: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 60 });

#[derive(Debug)]
pub(crate) struct CheckpointFolder {
    path: PathBuf,
    keep: usize,
    claim: Claim,
    /// This rank among the writers.
    member: Member,
    lost: Lost,
}

impl CheckpointFolder {
    /// Opens or creates the folder for an attempt of a run, takes it over, and finishes or removes
    /// interrupted writes. Nothing changes if the run may not continue from its contents.
    pub(crate) fn open(path: &Path, keep: u32, run: Run<'_>, attempt: u32) -> Result<Self, CheckpointError> {
        make(path).map_err(CheckpointError::Folder)?;
        if let Some(newest) = newest(path).map_err(CheckpointError::Folder)? {
            run.may_continue(&newest)?;
        }
        let owner = Owner::new(run.job, attempt);
        let folder = Self {
            path: path.into(),
            keep: keep as usize,
            claim: Claim::take(path, owner)?,
            member: Member { rank: 0, size: 1 },
            lost: Lost(Arc::new(|| None)),
        };
        folder.clean_up().map_err(CheckpointError::Folder)?;
        Ok(folder)
    }

    /// The folder as written by `ranks` ranks; `lost` ends the first one's wait for another.
    pub(crate) fn shared_by(mut self, ranks: u32, lost: Lost) -> Self {
        self.member.size = ranks;
        self.lost = lost;
        self
    }

    /// The folder that the first rank opened as `owner`, for another of the writing ranks.
    pub(crate) fn join(path: &Path, owner: Owner, member: Member) -> Result<Self, CheckpointError> {
        let deadline = Instant::now() + UNTIL_SEEN;
        let claim = loop {
            let claim = Claim::of_run(path, &owner).map_err(CheckpointError::Folder)?;
            if claim.is_some() || Instant::now() >= deadline {
                break claim;
            }
            std::thread::sleep(Duration::from_millis(100));
        };
        Ok(Self {
            path: path.into(),
            keep: usize::MAX,
            claim: claim.ok_or_else(|| CheckpointError::NotShared {
                path: path.into(),
                rank: member.rank,
            })?,
            member,
            lost: Lost(Arc::new(|| None)),
        })
    }

    /// The run that writes here.
    pub(crate) fn owner(&self) -> &Owner {
        self.claim.owner()
    }

    fn clean_up(&self) -> std::io::Result<()> {
        let names = fs::read_dir(&self.path)?
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect::<std::io::Result<Vec<_>>>()?;
        // First, because putting a checkpoint in its place may need a name that is removed here.
        for name in names.iter().filter(|name| name.starts_with(PARTIAL_PREFIX)) {
            fs::remove_dir_all(self.path.join(name))?;
        }
        for step in names
            .iter()
            .filter_map(|name| step_of(name.strip_prefix(COMPLETE_PREFIX)?))
        {
            self.put_in_place(step)?;
        }
        Ok(())
    }

    /// Writes a checkpoint and removes those beyond the number to keep; ranks other than the first
    /// write their share. Returns the folder and the bytes written.
    pub(super) fn save(&self, snapshot: &Snapshot) -> Result<(PathBuf, u64), CheckpointError> {
        let step = snapshot.state.position.step;
        let partial = self.partial(step);
        // A partial folder of this name may be a successor's, and must then not be removed.
        let written = self.claim.check().and_then(|()| {
            if self.member.rank == 0 {
                self.write(snapshot, &partial)
            } else {
                self.write_share(snapshot, &partial)
            }
        });
        match written {
            Ok(bytes) if self.member.rank > 0 => Ok((self.folder(step), bytes)),
            Ok(bytes) => {
                // The new checkpoint is complete; the next save retries the removal.
                if let Err(error) = self.prune() {
                    tracing::warn!("failed to remove an old checkpoint: {error}");
                }
                Ok((self.folder(step), bytes))
            }
            Err(error) => {
                // Free the space, but report the write's own error. A successor's files stay. The
                // first rank learns of a failed share.
                if self.member.rank == 0 && self.claim.check().is_ok() {
                    let _ = fs::remove_dir_all(&partial);
                }
                if let Some(lost) = error
                    .get_ref()
                    .and_then(|error| error.downcast_ref::<LostWriter>())
                {
                    return Err(CheckpointError::LostWriter {
                        step,
                        rank: lost.rank,
                        earlier: self.earlier(),
                    });
                }
                Err(CheckpointError::Write {
                    step,
                    space: self.shortage(&error, snapshot.bytes()),
                    earlier: self.earlier(),
                    error,
                })
            }
        }
    }

    fn write(&self, snapshot: &Snapshot, partial: &Path) -> std::io::Result<u64> {
        fs::create_dir_all(partial)?;
        let mut share = Share::write(partial, snapshot, self.member)?;
        if self.member.size > 1 {
            share.complete(partial, self.member.size, &self.lost)?;
        }
        let mut checksums = share.checksums;
        let state = snapshot.state.to_json()?;
        checksums.write(partial, STATE_FILE, |out| out.write_all(&state))?;
        let bytes = checksums.finish(partial)?;
        // Records of shares, and leftovers of an interrupted write of this step.
        for entry in fs::read_dir(partial)? {
            let entry = entry?;
            if checksums.lists(&entry.file_name().to_string_lossy()) {
                continue;
            }
            match fs::remove_file(entry.path()) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        sync_folder(partial)?;
        let step = snapshot.state.position.step;
        self.claim.check()?;
        fs::rename(partial, self.complete(step))?;
        sync_folder(&self.path)?;
        self.put_in_place(step)?;
        Ok(bytes)
    }

    fn write_share(&self, snapshot: &Snapshot, partial: &Path) -> std::io::Result<u64> {
        let written = fs::create_dir_all(partial).and_then(|()| {
            let share = Share::write(partial, snapshot, self.member)?;
            sync_folder(partial)?;
            self.claim.check()?;
            Ok(share)
        });
        match written {
            Ok(share) => {
                let bytes = share.checksums.bytes();
                tell(partial, self.member, &Ok(share))?;
                Ok(bytes)
            }
            Err(error) => {
                // The first rank waits; if it gets no record, it finds out that this rank is lost.
                let _ = tell(partial, self.member, &Err(error.to_string()));
                Err(error)
            }
        }
    }

    /// The space that was missing, if that is why a write failed.
    fn shortage(&self, error: &std::io::Error, needed: u64) -> String {
        let full = [
            ErrorKind::StorageFull,
            ErrorKind::QuotaExceeded,
            ErrorKind::FileTooLarge,
        ];
        if !full.contains(&error.kind()) {
            return String::new();
        }
        let folder = self.path.display();
        // Free for this user once partial files are removed.
        let place = match nix::sys::statvfs::statvfs(&self.path) {
            Ok(storage) => {
                let free = storage.blocks_available() * storage.fragment_size();
                format!(", the file system of {folder} has {free} free")
            }
            Err(_) => format!(" in {folder}"),
        };
        let what = match self.member.size {
            1 => "a checkpoint",
            _ => "this rank's share of a checkpoint",
        };
        format!("; {what} needs {needed} bytes{place}")
    }

    fn earlier(&self) -> String {
        match self.steps().ok().and_then(|steps| steps.last().copied()) {
            Some(step) => {
                format!("the checkpoint of step {step} is complete, and the next attempt continues from it")
            }
            None => "there is no earlier checkpoint".into(),
        }
    }

    /// The newest readable checkpoint; `is_reading` is called repeatedly meanwhile. Damaged ones
    /// are skipped with a warning; one that does not fit, or that this run may not continue from,
    /// is an error. `None` if there are none.
    pub(crate) fn load_newest(
        &self,
        run: Run<'_>,
        parts: &[Expected],
        is_reading: &mut dyn FnMut(),
    ) -> Result<Option<Loaded>, CheckpointError> {
        let steps = self.steps()?;
        let mut newest_error = None;
        for step in steps.iter().rev() {
            match load(&self.folder(*step), run, parts, is_reading) {
                Ok(loaded) => return Ok(Some(loaded)),
                Err(error) if error.is_refusal() => return Err(error),
                Err(error) => {
                    tracing::warn!("skipping the checkpoint of step {step}: {error}");
                    newest_error.get_or_insert_with(|| error.to_string());
                }
            }
        }
        match newest_error {
            Some(newest) => Err(CheckpointError::AllCorrupt {
                count: steps.len(),
                folder: self.path.clone(),
                newest,
            }),
            None => Ok(None),
        }
    }

    /// Moves a complete checkpoint to its place, and removes an older one of the same step. At any
    /// moment one of the two is complete under a name that [`Self::open`] knows.
    fn put_in_place(&self, step: u64) -> std::io::Result<()> {
        let target = self.folder(step);
        if target.exists() {
            self.remove(step)?;
        }
        fs::rename(self.complete(step), target)?;
        sync_folder(&self.path)
    }

    /// Removes a step's checkpoint. Renamed first: a partially removed one must not look complete.
    fn remove(&self, step: u64) -> std::io::Result<()> {
        let doomed = self.path.join(format!("{PARTIAL_PREFIX}removed-{step:08}"));
        fs::rename(self.folder(step), &doomed)?;
        fs::remove_dir_all(doomed)
    }

    /// The folder for writing a checkpoint. If ranks write together, each attempt has its own.
    fn partial(&self, step: u64) -> PathBuf {
        let attempt = match self.member.size {
            1 => String::new(),
            _ => format!("{}-", self.owner().tag()),
        };
        self.path
            .join(format!("{PARTIAL_PREFIX}{attempt}{STEP_PREFIX}{step:08}"))
    }

    fn complete(&self, step: u64) -> PathBuf {
        self.path.join(format!("{COMPLETE_PREFIX}{STEP_PREFIX}{step:08}"))
    }

    fn folder(&self, step: u64) -> PathBuf {
        folder_of(&self.path, step)
    }

    /// Steps of all complete checkpoints, ascending.
    pub(super) fn steps(&self) -> Result<Vec<u64>, CheckpointError> {
        steps_in(&self.path).map_err(CheckpointError::Folder)
    }

    fn prune(&self) -> Result<(), CheckpointError> {
        let steps = self.steps()?;
        for step in &steps[..steps.len().saturating_sub(self.keep)] {
            self.remove(*step).map_err(CheckpointError::Folder)?;
        }
        Ok(())
    }
}

/// Whether a job's folder has a checkpoint; a missing folder has none.
pub(crate) fn has_checkpoints(folder: &Path) -> bool {
    newest(folder).is_ok_and(|found| found.is_some())
}

pub(super) fn newest(folder: &Path) -> std::io::Result<Option<PathBuf>> {
    Ok(steps_in(folder)?.last().map(|step| folder_of(folder, *step)))
}

/// Steps of the complete checkpoints in a job's folder, ascending.
fn steps_in(folder: &Path) -> std::io::Result<Vec<u64>> {
    let mut steps = Vec::new();
    for entry in fs::read_dir(folder)? {
        steps.extend(entry?.file_name().to_str().and_then(step_of));
    }
    steps.sort_unstable();
    Ok(steps)
}

fn folder_of(job: &Path, step: u64) -> PathBuf {
    job.join(format!("{STEP_PREFIX}{step:08}"))
}

fn step_of(name: &str) -> Option<u64> {
    name.strip_prefix(STEP_PREFIX)?.parse().ok()
}

/// Creates a folder. A new one is also made durable: a checkpoint needs its parent's entry.
fn make(path: &Path) -> std::io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    fs::create_dir_all(path)?;
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => sync_folder(parent),
        _ => Ok(()),
    }
}

fn sync_folder(path: &Path) -> std::io::Result<()> {
    fs::File::open(path)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_is_the_one_of_the_highest_step() {
        let place = tempfile::tempdir().expect("a folder");
        assert!(!has_checkpoints(place.path()));
        assert!(!has_checkpoints(&place.path().join("missing")));
        for name in [
            "step-00000009",
            "step-100000000",
            ".partial-step-99999999999",
            "log.jsonl",
        ] {
            fs::create_dir(place.path().join(name)).expect("makes");
        }
        let newest = newest(place.path()).expect("lists");
        assert_eq!(newest, Some(place.path().join("step-100000000")));
        assert!(has_checkpoints(place.path()));
    }
}
