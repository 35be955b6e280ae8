//! The folder that holds a job's checkpoints: names, order, and what is kept.

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

/// Half written or half removed.
const PARTIAL_PREFIX: &str = ".partial-";
/// Complete, on its way to its place.
const COMPLETE_PREFIX: &str = ".complete-";
const STEP_PREFIX: &str = "step-";
/// How long clients of network storage may still show what was there before.
const UNTIL_SEEN: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 60 });

#[derive(Debug)]
pub(crate) struct CheckpointFolder {
    path: PathBuf,
    keep: usize,
    claim: Claim,
    /// This rank among those that write.
    member: Member,
    lost: Lost,
}

impl CheckpointFolder {
    /// Opens the folder for an attempt of a run and takes it from whoever had it; makes it where it is missing, and finishes or
    /// removes what an interrupted write left. Nothing is changed where the run may not continue from what is there.
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

    /// The folder of which so many ranks write checkpoints together, the first rank with them; `lost` ends its wait for one of them.
    pub(crate) fn shared_by(mut self, ranks: u32, lost: Lost) -> Self {
        self.member.size = ranks;
        self.lost = lost;
        self
    }

    /// The folder that the first rank has opened as `owner`, for another of the ranks that write.
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

    /// Who writes here.
    pub(crate) fn owner(&self) -> &Owner {
        self.claim.owner()
    }

    fn clean_up(&self) -> std::io::Result<()> {
        let names = fs::read_dir(&self.path)?
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect::<std::io::Result<Vec<_>>>()?;
        // Before anything is put in its place: that may need a name of what is removed here.
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

    /// Writes a checkpoint and removes those beyond the number to keep; on a rank that is not the first, its share of it.
    /// Gives its folder and the size in bytes of what was written.
    pub(super) fn save(&self, snapshot: &Snapshot) -> Result<(PathBuf, u64), CheckpointError> {
        let step = snapshot.state.position.step;
        let partial = self.partial(step);
        // Not even a half-written one of this name may be removed where it is a successor's.
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
                // Free the space again; the write's own error is the one to report. What is a successor's stays, and of a share the
                // first rank hears.
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
        // Records of shares, and what an interrupted write of this step left.
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
                // The first rank waits; where it cannot be told it finds out that this one is lost.
                let _ = tell(partial, self.member, &Err(error.to_string()));
                Err(error)
            }
        }
    }

    /// What there was too little of, where that is why a write failed.
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
        // Free for this user once the half-written files are gone.
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

    /// The newest checkpoint that can be read; `is_reading` is called again and again meanwhile. One that is damaged is passed over with
    /// a warning; one that does not fit, or that this run may not continue from, is an error. `None` where there is
    /// none at all.
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
                    tracing::warn!("passing over the checkpoint of step {step}: {error}");
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

    /// Gives a complete checkpoint its name. Where the same step was saved before, as after a resume from it, the older
    /// one goes; at every moment one of the two is complete under a name that [`Self::open`] knows.
    fn put_in_place(&self, step: u64) -> std::io::Result<()> {
        let target = self.folder(step);
        if target.exists() {
            self.remove(step)?;
        }
        fs::rename(self.complete(step), target)?;
        sync_folder(&self.path)
    }

    /// Removes the checkpoint of a step. It is renamed first: a half-removed folder must not look complete.
    fn remove(&self, step: u64) -> std::io::Result<()> {
        let doomed = self.path.join(format!("{PARTIAL_PREFIX}removed-{step:08}"));
        fs::rename(self.folder(step), &doomed)?;
        fs::remove_dir_all(doomed)
    }

    /// Where a checkpoint is written. Ranks of an earlier attempt that write together may still be at it: each attempt has its own.
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

/// Whether a job's folder holds a checkpoint; a folder that is not there holds none.
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

/// Makes the folder durable too, where it is new: a checkpoint in it is worth no more than its own name.
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
