//! What this process remembers of its own doings until the caches show them. All of it can be lost: a new leader finds
//! its way from the status and the pods.

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use contract::Progress;
use jiff::Timestamp;
use tokio::time::Instant;

use crate::policy::straggler::Watch;

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
    standing: Option<Standing>,
    slow_ranks: Watch,
    /// Reconciles that failed in a row.
    errors: u32,
}

/// How far rank 0 is by answers of its agent, as long as they show nothing further.
#[derive(Clone, Copy, Debug)]
struct Standing {
    attempt: u32,
    moves: u64,
    /// When an answer first showed it.
    since: Instant,
}

impl Standing {
    /// After another answer; `None` where it shows something that may take any time.
    fn after(last: Option<Self>, answer: &Progress) -> Option<Self> {
        let heartbeat = answer.heartbeat.as_ref()?;
        let (attempt, moves) = (answer.attempt, heartbeat.moves);
        heartbeat.activity.is_counted().then(|| {
            last.filter(|last| (last.attempt, last.moves) == (attempt, moves))
                .unwrap_or_else(|| Self {
                    attempt,
                    moves,
                    since: Instant::now(),
                })
        })
    }
}

/// What is known of a job's progress.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Polled {
    /// The newest record.
    pub(crate) progress: Option<Progress>,
    /// Where rank 0's agent has just answered that it trains or evaluates: for how long its answers have shown that it
    /// does not get on.
    pub(crate) stands_still_for: Option<Duration>,
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
    ) -> Polled {
        let is_due = self.with(uid, |job| {
            let is_due = job.polled_at.is_none_or(|at| at.elapsed() >= interval);
            if is_due {
                job.polled_at = Some(Instant::now());
            }
            is_due
        });
        let fresh = if is_due { look().await } else { None };
        self.with(uid, |job| {
            let mut stands_still_for = None;
            if let Some(answer) = fresh {
                job.standing = Standing::after(job.standing, &answer);
                stands_still_for = job.standing.map(|standing| standing.since.elapsed());
                job.progress = Some(answer);
            }
            Polled {
                progress: job.progress.clone(),
                stands_still_for,
            }
        })
    }

    /// The stragglers after a look at the newest record; see [`Watch::after`].
    pub(crate) fn stragglers(
        &self,
        uid: &str,
        record: &Progress,
        named: impl IntoIterator<Item = (u32, f64)>,
        now: Timestamp,
    ) -> Vec<(u32, f64)> {
        self.with(uid, |job| {
            job.slow_ranks = job.slow_ranks.after(record, named, now);
            job.slow_ranks.stragglers()
        })
    }

    /// Counts a failed reconcile; returns how many failed in a row before it.
    pub(crate) fn failed(&self, uid: &str) -> u32 {
        self.with(uid, |job| {
            job.errors = job.errors.saturating_add(1);
            job.errors - 1
        })
    }

    /// Whether the last reconcile failed.
    pub(crate) fn is_failing(&self, uid: &str) -> bool {
        self.with(uid, |job| job.errors > 0)
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
    use contract::{Activity, Heartbeat};

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
            [first, early, failed].map(|polled| polled.progress.expect("a record").step),
            [1, 1, 1]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn time_counts_while_answers_show_that_rank_0_does_not_get_on() {
        let memory = Memory::default();
        let interval = Duration::from_secs(2);
        let answer = |attempt, moves, activity| {
            Some(Progress {
                attempt,
                heartbeat: Some(Heartbeat {
                    activity,
                    moves,
                    ..Heartbeat::default()
                }),
                ..Progress::default()
            })
        };
        let look = async |answer: Option<Progress>| {
            tokio::time::advance(interval).await;
            let polled = memory.polled("job", interval, || async { answer }).await;
            polled.stands_still_for.map(|time| time.as_secs())
        };
        let training = |moves| answer(1, moves, Activity::Training);
        assert_eq!(look(answer(1, 0, Activity::Starting)).await, None);
        assert_eq!(look(training(5)).await, Some(0));
        assert_eq!(look(training(5)).await, Some(2));
        assert_eq!(look(None).await, None, "nothing is said without an answer");
        assert_eq!(look(training(5)).await, Some(6), "and nothing is forgotten");
        let early = memory.polled("job", interval, || async { training(5) }).await;
        assert_eq!(early.stands_still_for, None, "nobody was asked");
        assert_eq!(look(answer(1, 6, Activity::Evaluating)).await, Some(0));
        assert_eq!(
            look(answer(1, 7, Activity::Evaluating)).await,
            Some(0),
            "another batch"
        );
        assert_eq!(look(answer(1, 7, Activity::Evaluating)).await, Some(2));
        assert_eq!(look(answer(1, 8, Activity::Checkpointing)).await, None);
        assert_eq!(look(training(9)).await, Some(0));
        assert_eq!(look(training(9)).await, Some(2));
        assert_eq!(
            look(answer(2, 9, Activity::Training)).await,
            Some(0),
            "another attempt"
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
