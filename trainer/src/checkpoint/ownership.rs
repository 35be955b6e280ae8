//! Which run may write to a checkpoint folder: the one that opened it last.
//!
//! A node that is cut off from its cluster goes on training while the gang is replaced elsewhere, and its rank 0 may
//! still reach the storage. It must not put checkpoints beside those of its successor, or in their place. So each
//! attempt leaves its name in the folder, and whoever finds another name there writes no more. Between that look and the
//! renaming of a finished checkpoint lies a moment that shared storage gives no means to close.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use fs_err as fs;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

const FILE: &str = "owner.json";
const NEW_FILE: &str = ".owner.json.new";

/// Who writes.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Owner {
    /// The job's uid; `None` outside a cluster.
    job: Option<String>,
    attempt: u32,
    /// When it took the folder, which tells runs outside a cluster apart.
    since: Timestamp,
    process: u32,
}

#[derive(Debug)]
pub(super) struct Claim {
    path: PathBuf,
    owner: Owner,
}

impl Owner {
    /// This process, as an attempt of a job.
    pub(crate) fn new(job: Option<String>, attempt: u32) -> Self {
        Self {
            job,
            attempt,
            since: Timestamp::now(),
            process: std::process::id(),
        }
    }

    /// For names of files that are this run's alone.
    pub(super) fn tag(&self) -> String {
        format!(
            "{}-{}-{}",
            self.attempt,
            self.since.as_millisecond(),
            self.process
        )
    }

    /// Whether this is a later attempt of the same job.
    fn is_after(&self, other: &Self) -> bool {
        self.job.is_some() && self.job == other.job && self.attempt > other.attempt
    }
}

impl std::fmt::Display for Owner {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.job {
            Some(uid) => write!(formatter, "attempt {} of the job with uid {uid}", self.attempt)?,
            None => write!(formatter, "the run of process {}", self.process)?,
        }
        write!(formatter, ", since {}", self.since)
    }
}

impl Claim {
    /// Takes a folder, unless a later attempt of the same job has it.
    pub(super) fn take(folder: &Path, owner: Owner) -> std::io::Result<Self> {
        let claim = Self {
            path: folder.join(FILE),
            owner,
        };
        if let Some(other) = claim.read()?.filter(|other| other.is_after(&claim.owner)) {
            return Err(claim.lost_to(&other));
        }
        let new = folder.join(NEW_FILE);
        let mut file = fs::File::create(&new)?;
        serde_json::to_writer(&mut file, &claim.owner)?;
        file.sync_all()?;
        fs::rename(new, &claim.path)?;
        Ok(claim)
    }

    /// That of the rank which has taken the folder for the whole run, `None` where this rank does not see it there.
    pub(super) fn of_run(folder: &Path, owner: &Owner) -> std::io::Result<Option<Self>> {
        let claim = Self {
            path: folder.join(FILE),
            owner: owner.clone(),
        };
        match claim.read()? {
            Some(other) if other.is_after(owner) => Err(claim.lost_to(&other)),
            found => Ok((found.as_ref() == Some(owner)).then_some(claim)),
        }
    }

    pub(super) fn owner(&self) -> &Owner {
        &self.owner
    }

    /// Fails where another run has taken the folder since.
    pub(super) fn check(&self) -> std::io::Result<()> {
        match self.read()?.filter(|owner| *owner != self.owner) {
            Some(other) => Err(self.lost_to(&other)),
            None => Ok(()),
        }
    }

    /// Who has the folder; nobody where the file is gone or says nothing that can be read.
    fn read(&self) -> std::io::Result<Option<Owner>> {
        match fs::read(&self.path) {
            Ok(content) => Ok(serde_json::from_slice(&content).ok()),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn lost_to(&self, other: &Owner) -> std::io::Error {
        std::io::Error::other(format!(
            "{} says that the folder belongs to another run by now ({other}); of two runs, each needs a folder of its own",
            self.path.display()
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt(number: u32) -> Owner {
        Owner::new(Some("uid".into()), number)
    }

    #[test]
    fn an_attempt_that_was_replaced_writes_no_more_and_cannot_come_back() {
        let place = tempfile::tempdir().expect("a folder");
        let first = Claim::take(place.path(), attempt(1)).expect("takes");
        first.check().expect("still its own");
        let second = Claim::take(place.path(), attempt(2)).expect("takes over");
        second.check().expect("its own");
        for error in [
            first.check().expect_err("lost"),
            Claim::take(place.path(), attempt(1)).expect_err("too late"),
        ] {
            let message = error.to_string();
            assert!(message.contains("attempt 2 of the job with uid uid"), "{message}");
            assert!(message.contains("owner.json"), "{message}");
        }
    }

    #[test]
    fn jobs_and_runs_outside_a_cluster_take_over_from_one_another() {
        let place = tempfile::tempdir().expect("a folder");
        let other_job = Owner::new(Some("other".into()), 7);
        for owner in [other_job, attempt(1), Owner::new(None, 1), Owner::new(None, 1)] {
            let claim = Claim::take(place.path(), owner).expect("takes");
            claim.check().expect("its own");
        }
    }

    #[test]
    fn a_file_that_is_damaged_or_gone_stops_nobody() {
        let place = tempfile::tempdir().expect("a folder");
        fs::write(place.path().join(FILE), "{").expect("writes");
        let claim = Claim::take(place.path(), attempt(1)).expect("takes");
        fs::remove_file(place.path().join(FILE)).expect("removes");
        claim.check().expect("its own");
    }
}
