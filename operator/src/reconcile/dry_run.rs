//! Dry runs of pods: what admission would make of them, known before a placement.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{Mutex, PoisonError};

use crds::ViTTrainingJob;
use crds::status::AdmittedPod;
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt as _;
use tokio::time::Instant;

/// How long a result holds: policies change while jobs wait ...
const VALID: SignedDuration = SignedDuration::from_mins(15);
/// ... and before a job is created, who may expect the policies of that time.
const SHARED: SignedDuration = SignedDuration::from_mins(1);

/// The results by namespace and spec: jobs that are created together and differ in their names alone
/// share one.
#[derive(Debug, Default)]
pub(crate) struct DryRuns(Mutex<HashMap<u64, Found>>);

impl DryRuns {
    /// What admission adds to the job's pods; `None` if that is not known.
    pub(super) fn of(&self, job: &ViTTrainingJob, now: Timestamp) -> Option<AdmittedPod> {
        let created = job.creation_timestamp().map_or(now, |time| time.0);
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = known.get(&key(job))?;
        let existed = now.duration_since(created).max(SignedDuration::ZERO);
        (found.age() < found.holds.min(existed + SHARED)).then(|| found.added.clone())
    }

    /// What a dry run showed.
    pub(super) fn keep(&self, job: &ViTTrainingJob, added: AdmittedPod) {
        self.keep_for(VALID, job, added);
    }

    /// What is assumed for a while, because a dry run was refused.
    pub(super) fn assume(&self, job: &ViTTrainingJob, added: AdmittedPod) {
        self.keep_for(SHARED, job, added);
    }

    fn keep_for(&self, holds: SignedDuration, job: &ViTTrainingJob, added: AdmittedPod) {
        let found = Found {
            at: Instant::now(),
            holds,
            added,
        };
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|_, found| found.age() < found.holds);
        known.insert(key(job), found);
    }
}

#[derive(Debug)]
struct Found {
    at: Instant,
    holds: SignedDuration,
    added: AdmittedPod,
}

impl Found {
    fn age(&self) -> SignedDuration {
        SignedDuration::try_from(self.at.elapsed()).unwrap_or(SignedDuration::MAX)
    }
}

fn key(job: &ViTTrainingJob) -> u64 {
    let mut hasher = DefaultHasher::new();
    job.namespace().hash(&mut hasher);
    // A spec always serializes.
    serde_json::to_vec(&job.spec)
        .unwrap_or_default()
        .hash(&mut hasher);
    hasher.finish()
}
