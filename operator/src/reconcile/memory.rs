//! What this process remembers of its own doings until the caches show them. All of it can be lost: a new leader finds
//! its way from the status and the pods.

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use contract::Progress;
use tokio::time::Instant;

/// How long a pod that was created may stay out of the cache before it counts as gone.
const UNSEEN: Duration = Duration::from_secs(30);

/// What is remembered of all jobs, by uid.
#[derive(Debug, Default)]
pub(crate) struct Memory(Mutex<HashMap<String, JobMemory>>);

#[derive(Debug, Default)]
struct JobMemory {
    /// Resource version that our last write gave.
    written: Option<String>,
    /// The attempt whose pods were created here.
    attempt: i32,
    /// Its pods that have not come into the cache yet, and since when.
    unseen: HashMap<String, Instant>,
    /// Whether all of its pods were created.
    complete: bool,
    polled_at: Option<Instant>,
    progress: Option<Progress>,
    /// Reconciles that failed in a row.
    errors: u32,
}

impl Memory {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, JobMemory>> {
        // What is in there is valid after every single assignment.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T>(&self, uid: &str, change: impl FnOnce(&mut JobMemory) -> T) -> T {
        change(self.lock().entry(uid.into()).or_default())
    }

    /// Remembers the version that a write gave.
    pub(crate) fn wrote(&self, uid: &str, version: Option<String>) {
        self.with(uid, |job| job.written = version);
    }

    /// Whether a cached version is older than our own last write. Versions of custom resources are numbers that rise.
    pub(crate) fn is_behind(&self, uid: &str, cached: Option<&str>) -> bool {
        let number = |version: &str| version.parse::<u64>().ok();
        self.with(uid, |job| {
            match (cached.and_then(number), job.written.as_deref().and_then(number)) {
                (Some(cached), Some(written)) => cached < written,
                _ => false,
            }
        })
    }

    /// Remembers that pods of an attempt are being created.
    pub(crate) fn creating(&self, uid: &str, attempt: i32, names: impl IntoIterator<Item = String>) {
        let now = Instant::now();
        self.with(uid, |job| {
            if job.attempt != attempt {
                job.attempt = attempt;
                job.unseen.clear();
                job.complete = false;
            }
            job.unseen.extend(names.into_iter().map(|name| (name, now)));
        });
    }

    /// Remembers that a pod could not be created.
    pub(crate) fn not_created(&self, uid: &str, name: &str) {
        self.with(uid, |job| job.unseen.remove(name));
    }

    /// Remembers that every pod of an attempt is created.
    pub(crate) fn gang_created(&self, uid: &str, attempt: i32) {
        self.with(uid, |job| job.complete = job.attempt == attempt);
    }

    /// Which pods of an attempt are created but not cached yet, and whether all were created; given those that are
    /// cached.
    pub(crate) fn created<'a>(
        &self,
        uid: &str,
        attempt: i32,
        cached: impl IntoIterator<Item = &'a String>,
    ) -> (HashSet<String>, bool) {
        self.with(uid, |job| {
            if job.attempt != attempt {
                return (HashSet::new(), false);
            }
            for name in cached {
                job.unseen.remove(name);
            }
            job.unseen.retain(|_, since| since.elapsed() < UNSEEN);
            (job.unseen.keys().cloned().collect(), job.complete)
        })
    }

    /// The progress record: a fresh one where the last look is at least `interval` ago, otherwise that one.
    pub(crate) async fn polled<F: Future<Output = Option<Progress>>>(
        &self,
        uid: &str,
        interval: Duration,
        look: impl FnOnce() -> F,
    ) -> Option<Progress> {
        let is_due = self.with(uid, |job| {
            let is_due = job.polled_at.is_none_or(|at| at.elapsed() >= interval);
            if is_due {
                job.polled_at = Some(Instant::now());
            }
            is_due
        });
        let fresh = if is_due { look().await } else { None };
        self.with(uid, |job| {
            if fresh.is_some() {
                job.progress = fresh;
            }
            job.progress.clone()
        })
    }

    /// Counts a failed reconcile; returns how many failed in a row before it.
    pub(crate) fn failed(&self, uid: &str) -> u32 {
        self.with(uid, |job| {
            job.errors = job.errors.saturating_add(1);
            job.errors - 1
        })
    }

    /// A reconcile went well.
    pub(crate) fn succeeded(&self, uid: &str) {
        self.with(uid, |job| job.errors = 0);
    }

    /// Forgets jobs that are gone.
    pub(crate) fn retain(&self, exists: impl Fn(&str) -> bool) {
        self.lock().retain(|uid, _| exists(uid));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_behind_our_own_write_is_noticed() {
        let memory = Memory::default();
        assert!(!memory.is_behind("job", Some("7")));
        memory.wrote("job", Some("10".into()));
        assert!(memory.is_behind("job", Some("9")));
        assert!(!memory.is_behind("job", Some("10")));
        assert!(!memory.is_behind("job", Some("11")));
        assert!(!memory.is_behind("other", Some("1")));
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_that_never_comes_into_the_cache_counts_as_gone_in_the_end() {
        let memory = Memory::default();
        memory.creating("job", 1, ["a".into(), "b".into()]);
        memory.gang_created("job", 1);
        let seen = ["a".to_owned()];
        assert_eq!(
            memory.created("job", 1, &seen),
            (HashSet::from(["b".into()]), true)
        );
        tokio::time::advance(UNSEEN).await;
        assert_eq!(memory.created("job", 1, &seen), (HashSet::new(), true));
        assert_eq!(memory.created("job", 2, &seen), (HashSet::new(), false));
    }

    #[tokio::test(start_paused = true)]
    async fn progress_is_asked_for_once_an_interval_and_outlives_a_failed_look() {
        let memory = Memory::default();
        let record = |step| Progress {
            step,
            ..Progress::default()
        };
        let interval = Duration::from_secs(2);
        let first = memory.polled("job", interval, || async { Some(record(1)) }).await;
        let early = memory.polled("job", interval, || async { Some(record(2)) }).await;
        tokio::time::advance(interval).await;
        let failed = memory.polled("job", interval, || async { None }).await;
        assert_eq!(
            [first, early, failed].map(|progress| progress.expect("a record").step),
            [1, 1, 1]
        );
    }

    #[test]
    fn errors_count_up_until_a_success() {
        let memory = Memory::default();
        assert_eq!((memory.failed("job"), memory.failed("job")), (0, 1));
        memory.succeeded("job");
        assert_eq!(memory.failed("job"), 0);
    }
}
