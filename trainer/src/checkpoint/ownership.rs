//! Which run may write to a checkpoint folder: the latest one to open it.
//!
//! A node cut off from its cluster keeps training while the gang is replaced, and its rank 0 may
//! still reach the storage. It must not add checkpoints beside its successor's, or replace them. So
//! each attempt writes its name to the folder, and stops writing if it finds another name. Shared
//! storage cannot close the gap between this check and the renaming of a finished checkpoint.
//!
//! A folder of another namespace's job is refused: namespaces with a common volume may share names.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use contract::JobIdentity;
use fs_err as fs;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::CheckpointError;

const FILE: &str = "owner.json";
const NEW_FILE: &str = ".owner.json.new";

/// The writing run.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Owner {
    /// The job's uid; `None` outside a cluster.
    job: Option<String>,
    /// Empty in files of earlier versions.
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    name: String,
    attempt: u32,
    /// When it took the folder; distinguishes runs outside a cluster.
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
    pub(crate) fn new(job: &JobIdentity, attempt: u32) -> Self {
        Self {
            job: job.uid.clone(),
            namespace: job.namespace.clone(),
            name: job.name.clone(),
            attempt,
            since: Timestamp::now(),
            process: std::process::id(),
        }
    }

    /// For names of files that belong to this run only.
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

    /// Whether this job is in another namespace than `other`, in the same cluster or another.
    fn is_elsewhere(&self, other: &Self) -> bool {
        let are_known = !self.namespace.is_empty() && !other.namespace.is_empty();
        self.job.is_some() && other.job.is_some() && are_known && self.namespace != other.namespace
    }
}

impl std::fmt::Display for Owner {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.job {
            Some(uid) => write!(
                formatter,
                "attempt {} of job {}/{} (uid {uid})",
                self.attempt, self.namespace, self.name
            )?,
            None => write!(formatter, "the run of process {}", self.process)?,
        }
        write!(formatter, ", since {}", self.since)
    }
}

impl Claim {
    /// Takes a folder, unless a later attempt of the job or a job of another namespace has it.
    pub(super) fn take(folder: &Path, owner: Owner) -> Result<Self, CheckpointError> {
        let claim = Self {
            path: folder.join(FILE),
            owner,
        };
        match claim.read().map_err(CheckpointError::Folder)? {
            Some(other) if other.is_after(&claim.owner) => {
                return Err(CheckpointError::Folder(claim.lost_to(&other)));
            }
            Some(other) if other.is_elsewhere(&claim.owner) => {
                return Err(CheckpointError::OwnedElsewhere {
                    path: claim.path,
                    owner: other.to_string(),
                    namespace: claim.owner.namespace,
                });
            }
            Some(_) | None => {}
        }
        claim.write(folder).map_err(CheckpointError::Folder)?;
        Ok(claim)
    }

    fn write(&self, folder: &Path) -> std::io::Result<()> {
        let new = folder.join(NEW_FILE);
        let mut file = fs::File::create(&new)?;
        serde_json::to_writer(&mut file, &self.owner)?;
        file.sync_all()?;
        fs::rename(new, &self.path)
    }

    /// The claim of the rank that took the folder for the run; `None` if this rank cannot see it.
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

    /// Fails if another run has taken the folder meanwhile.
    pub(super) fn check(&self) -> std::io::Result<()> {
        match self.read()?.filter(|owner| *owner != self.owner) {
            Some(other) => Err(self.lost_to(&other)),
            None => Ok(()),
        }
    }

    /// The folder's owner; `None` if the file is missing or unreadable.
    fn read(&self) -> std::io::Result<Option<Owner>> {
        match fs::read(&self.path) {
            Ok(content) => Ok(serde_json::from_slice(&content).ok()),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn lost_to(&self, other: &Owner) -> std::io::Error {
        std::io::Error::other(format!(
            "{} says that the folder now belongs to another run ({other}); each run needs a separate folder",
            self.path.display()
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(namespace: &str, uid: Option<&str>, attempt: u32) -> Owner {
        let job = JobIdentity {
            namespace: namespace.into(),
            name: "vit".into(),
            uid: uid.map(Into::into),
        };
        Owner::new(&job, attempt)
    }

    fn attempt(number: u32) -> Owner {
        of("team", Some("uid"), number)
    }

    /// Invariant G8.
    #[test]
    fn an_attempt_that_was_replaced_writes_no_more_and_cannot_come_back() {
        let place = tempfile::tempdir().expect("a folder");
        let first = Claim::take(place.path(), attempt(1)).expect("takes");
        first.check().expect("still its own");
        let second = Claim::take(place.path(), attempt(2)).expect("takes over");
        second.check().expect("its own");
        let late = Claim::take(place.path(), attempt(1)).expect_err("too late");
        for message in [first.check().expect_err("lost").to_string(), late.to_string()] {
            assert!(
                message.contains("attempt 2 of job team/vit (uid uid)"),
                "{message}"
            );
            assert!(message.contains("owner.json"), "{message}");
        }
    }

    #[test]
    fn jobs_and_runs_outside_a_cluster_take_over_from_one_another() {
        let place = tempfile::tempdir().expect("a folder");
        let outside = || of("", None, 1);
        for owner in [of("team", Some("other"), 7), attempt(1), outside(), outside()] {
            let claim = Claim::take(place.path(), owner).expect("takes");
            claim.check().expect("its own");
        }
    }

    #[test]
    fn a_job_of_another_namespace_is_refused_and_changes_nothing() {
        let place = tempfile::tempdir().expect("a folder");
        let claim = Claim::take(place.path(), attempt(1)).expect("takes");
        let error = Claim::take(place.path(), of("others", Some("uid-2"), 1)).expect_err("refused");
        assert!(error.is_refusal(), "{error}");
        let message = error.to_string();
        for part in ["owner.json", "attempt 1 of job team/vit", "namespace others"] {
            assert!(message.contains(part), "{message}");
        }
        claim.check().expect("still its own");
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
