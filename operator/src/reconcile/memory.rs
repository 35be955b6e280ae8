//! What this process knows of each job beside the caches. All of it can be lost: a new leader continues
//! from the status and the pods.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use contract::{Heartbeats, Progress, SlowRank};
use crds::Phase;
use crds::status::{StragglerStatus, ViTTrainingJobStatus};
use jiff::Timestamp;
use tokio::time::Instant;

use crate::error::Error;
use crate::policy::straggler::SlowRanks;

/// How long heartbeats count, while writes of what they show fail.
const HEARTBEATS_HOLD: Duration = Duration::from_secs(60);
/// Time between reports to Kueue if it refuses them.
const WORKLOAD_TRIED_EVERY: Duration = Duration::from_secs(60);
/// Time between reads of a pod's Events ...
const EVENTS_READ_EVERY: Duration = Duration::from_secs(20);
/// ... and of any pod of a job.
const EVENTS_READ_GAP: Duration = Duration::from_secs(2);
/// Failures after which one that may pass is reported ...
const REPORTED_AFTER: u32 = 2;
/// ... and the same for an API server that does not know a new kind: it may take half a minute, with a try a second.
const REPORTED_AFTER_OF_NEW_KIND: u32 = 60;

/// The memory of all jobs, or of studies that fail, by uid.
#[derive(Debug, Default)]
pub(crate) struct Memory(Mutex<HashMap<String, JobMemory>>);

#[derive(Debug, Default)]
struct JobMemory {
    written_at: Option<Instant>,
    /// A promise whose record may still be stored: the job's version before it, and why.
    doubt: Option<(String, String)>,
    /// A write without an answer: the job's version before it, and the status before and after it.
    unanswered: Option<(String, Box<[ViTTrainingJobStatus; 2]>)>,
    /// When Kueue last refused a report on the gang.
    workload_refused_at: Option<Instant>,
    /// Whether it wrote phase Starting.
    is_starting: bool,
    /// When agents were polled last.
    polled_at: Option<Instant>,
    /// Whether their answer is awaited.
    is_polling: bool,
    progress: Option<Progress>,
    /// All agents' last heartbeats, and when they answered.
    heartbeats: Option<(Instant, Vec<(usize, Heartbeats)>)>,
    last_move: Option<LastMove>,
    /// An attempt whose rank 0 does not answer, and since when.
    silence: Option<(i32, Instant)>,
    slow_ranks: SlowRanks,
    /// Of pods that wait for volumes or network, by uid: when their Events were read, and the newest
    /// Warning.
    warnings: HashMap<String, (Instant, Option<String>)>,
    /// Consecutive failed reconciles.
    errors: u32,
}

/// Rank 0's last progress, by the answers of its agent.
#[derive(Clone, Copy, Debug)]
struct LastMove {
    attempt: u32,
    moves: u64,
    /// When an answer first showed that.
    since: Instant,
}

impl LastMove {
    /// After another answer; `None` during an activity without a time limit.
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

/// The agents' answer to a poll.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Answer {
    Progress(Box<Progress>),
    /// Rank 0's agent runs and has no progress yet.
    NoProgress,
    /// The heartbeats of every pod that answered, by node rank.
    Heartbeats(Vec<(usize, Heartbeats)>),
}

/// The answers of a job's agents.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct AgentState {
    pub(crate) progress: Option<Progress>,
    /// How long rank 0's answers have shown no progress, if it trains or evaluates.
    pub(crate) idle_for: Option<Duration>,
    /// How long rank 0's agent has not answered; `None` if it answered the last poll.
    pub(crate) silent_for: Option<Duration>,
    /// The stragglers; `None` if rank 0 has not reported on ranks.
    pub(crate) stragglers: Option<Vec<SlowRank>>,
    /// The heartbeats of all agents since rank 0's last progress.
    pub(crate) heartbeats: Option<Vec<(usize, Heartbeats)>>,
}

impl Memory {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, JobMemory>> {
        // The state is valid after every single assignment.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T>(&self, uid: &str, change: impl FnOnce(&mut JobMemory) -> T) -> T {
        change(self.lock().entry(uid.into()).or_default())
    }

    /// Remembers a written status.
    pub(crate) fn wrote(&self, uid: &str, phase: Option<Phase>) {
        self.with(uid, |job| {
            job.is_starting = phase == Some(Phase::Starting);
            job.written_at = Some(Instant::now());
        });
    }

    /// Time since the last write, if there was one.
    pub(crate) fn since_write(&self, uid: &str) -> Option<Duration> {
        self.with(uid, |job| job.written_at.map(|at| at.elapsed()))
    }

    /// Remembers that a promise may still be stored over this version of the job, and why.
    pub(crate) fn doubt(&self, uid: &str, version: String, why: String) {
        self.with(uid, |job| job.doubt = Some((version, why)));
    }

    /// Why a promise may still be stored over this version of the job, if it may.
    pub(crate) fn doubt_about(&self, uid: &str, version: Option<&str>) -> Option<String> {
        self.with(uid, |job| {
            let (doubted, why) = job.doubt.as_ref()?;
            (Some(&**doubted) == version).then(|| why.clone())
        })
    }

    /// Remembers a status that may have been stored over this version of the job.
    pub(crate) fn unanswered(&self, uid: &str, version: String, statuses: [ViTTrainingJobStatus; 2]) {
        self.with(uid, |job| job.unanswered = Some((version, Box::new(statuses))));
    }

    /// The status before a write without an answer, once, if this status shows that it was stored.
    pub(crate) fn stored_after_all(
        &self,
        uid: &str,
        version: Option<&str>,
        status: &ViTTrainingJobStatus,
    ) -> Option<ViTTrainingJobStatus> {
        self.with(uid, |job| {
            let (_, statuses) = job.unanswered.take_if(|(before, _)| Some(&**before) != version)?;
            let [last, written] = *statuses;
            let transition =
                |status: &ViTTrainingJobStatus| (status.phase, status.attempt, status.conditions.clone());
            (transition(&written) == transition(status)).then_some(last)
        })
    }

    /// Whether to report to Kueue how a gang is, which it may refuse for long.
    pub(crate) fn may_try_workload(&self, uid: &str) -> bool {
        self.with(uid, |job| {
            job.workload_refused_at
                .is_none_or(|at| at.elapsed() >= WORKLOAD_TRIED_EVERY)
        })
    }

    pub(crate) fn workload_refused(&self, uid: &str) {
        self.with(uid, |job| job.workload_refused_at = Some(Instant::now()));
    }

    /// The pod of these, if any, whose Events are to be read, and notes that they are; forgets the others.
    pub(crate) fn asks_about<'a>(&self, uid: &str, pods: &[&'a str]) -> Option<&'a str> {
        self.with(uid, |job| {
            job.warnings.retain(|pod, _| pods.contains(&&**pod));
            let read = |pod: &str| job.warnings.get(pod).map(|(at, _)| *at);
            let pod = *pods.iter().min_by_key(|pod| read(pod))?;
            let is_read = read(pod).is_some_and(|at| at.elapsed() < EVENTS_READ_EVERY);
            let mut last = job.warnings.values();
            if is_read || last.any(|(at, _)| at.elapsed() < EVENTS_READ_GAP) {
                return None;
            }
            let now = Instant::now();
            job.warnings.entry(pod.into()).or_insert((now, None)).0 = now;
            Some(pod)
        })
    }

    pub(crate) fn learned_about(&self, uid: &str, pod: &str, warning: String) {
        self.with(uid, |job| {
            if let Some((_, known)) = job.warnings.get_mut(pod) {
                *known = Some(warning);
            }
        });
    }

    /// The newest Warning about a pod, if it is known.
    pub(crate) fn warning_of(&self, uid: &str, pod: &str) -> Option<String> {
        self.with(uid, |job| job.warnings.get(pod)?.1.clone())
    }

    /// The last answers of a job's agents.
    pub(crate) fn agents(&self, uid: &str, attempt: i32) -> AgentState {
        self.with(uid, |job| {
            let heartbeat = job.progress.as_ref().and_then(|record| record.heartbeat.as_ref());
            let silence = job.silence.filter(|(asked, _)| *asked == attempt);
            let stands_since = job.last_move.map(|last_move| last_move.since);
            let heartbeats = job.heartbeats.as_ref().filter(|(at, _)| {
                stands_since.is_some_and(|since| since <= *at) && at.elapsed() <= HEARTBEATS_HOLD
            });
            AgentState {
                progress: job.progress.clone(),
                idle_for: stands_since.map(|since| since.elapsed()),
                silent_for: silence.map(|(_, since)| since.elapsed()),
                stragglers: heartbeat.map(|_| job.slow_ranks.stragglers()),
                heartbeats: heartbeats.map(|(_, answers)| answers.clone()),
            }
        })
    }

    /// Whether agents are to be polled, and notes that they are: not during a poll or within
    /// `interval` of it.
    pub(crate) fn begin_poll(&self, uid: &str, attempt: i32, interval: Duration) -> bool {
        self.with(uid, |job| {
            if job.is_polling || job.polled_at.is_some_and(|at| at.elapsed() < interval) {
                return false;
            }
            let now = Instant::now();
            job.is_polling = true;
            job.polled_at = Some(now);
            let of_attempt = job.silence.filter(|(asked, _)| *asked == attempt);
            job.silence = of_attempt.or(Some((attempt, now)));
            true
        })
    }

    /// Ends a poll with its answer, if there is one. `stragglers` are the status's.
    pub(crate) fn end_poll(
        &self,
        uid: &str,
        answer: Option<Answer>,
        stragglers: &[StragglerStatus],
        now: Timestamp,
    ) {
        // The job may be forgotten.
        if let Some(job) = self.lock().get_mut(uid) {
            job.is_polling = false;
            match answer {
                None => {}
                Some(Answer::Progress(record)) => {
                    if record.heartbeat.is_some() {
                        job.slow_ranks = job.slow_ranks.after(&record, stragglers, now);
                    }
                    job.last_move = LastMove::after(job.last_move, &record);
                    job.progress = Some(*record);
                    job.silence = None;
                }
                Some(Answer::NoProgress) => job.silence = None,
                Some(Answer::Heartbeats(answers)) => job.heartbeats = Some((Instant::now(), answers)),
            }
        }
    }

    /// Number of jobs written within this time with phase Starting.
    pub(crate) fn starting_within(&self, time: Duration) -> usize {
        let is_one =
            |job: &&JobMemory| job.is_starting && job.written_at.is_some_and(|at| at.elapsed() <= time);
        self.lock().values().filter(is_one).count()
    }

    /// Number of jobs whose agents were polled within this time.
    pub(crate) fn polled_within(&self, time: Duration) -> usize {
        let is_polled = |job: &&JobMemory| job.polled_at.is_some_and(|at| at.elapsed() <= time);
        self.lock().values().filter(is_polled).count()
    }

    /// Counts a failed reconcile; returns the consecutive failures before it.
    pub(crate) fn failed(&self, uid: &str) -> u32 {
        self.with(uid, |job| {
            job.errors = job.errors.saturating_add(1);
            job.errors - 1
        })
    }

    /// Consecutive failed reconciles so far.
    pub(crate) fn failures(&self, uid: &str) -> u32 {
        self.with(uid, |job| job.errors)
    }

    /// Whether an error is worth an Event and a condition. A busy API server needs no further calls,
    /// unless it is busy for long.
    pub(crate) fn reports(&self, uid: &str, error: &Error) -> bool {
        let tolerated = if error.is_of_new_kind() {
            REPORTED_AFTER_OF_NEW_KIND
        } else {
            REPORTED_AFTER
        };
        !error.is_conflict() && (!error.may_pass() || self.failures(uid) >= tolerated)
    }

    pub(crate) fn succeeded(&self, uid: &str) {
        self.with(uid, |job| job.errors = 0);
    }

    pub(crate) fn forget(&self, uid: &str) {
        self.lock().remove(uid);
    }

    pub(crate) fn retain(&self, exists: impl Fn(&str) -> bool) {
        self.lock().retain(|uid, _| exists(uid));
    }
}

#[cfg(test)]
mod tests {
    use contract::{Activity, Heartbeat};

    use super::*;

    const INTERVAL: Duration = Duration::from_secs(2);

    fn training(attempt: u32, moves: u64, activity: Activity) -> Progress {
        Progress {
            attempt,
            heartbeat: Some(Heartbeat {
                activity,
                moves,
                ..Heartbeat::default()
            }),
            ..Progress::default()
        }
    }

    fn end_poll(memory: &Memory, answer: Option<Answer>) -> AgentState {
        memory.end_poll("job", answer, &[], Timestamp::UNIX_EPOCH);
        memory.agents("job", 1)
    }

    /// A poll with this answer, two seconds after the last.
    async fn poll(memory: &Memory, answer: Option<Answer>) -> AgentState {
        tokio::time::advance(INTERVAL).await;
        assert!(memory.begin_poll("job", 1, INTERVAL), "a poll is due");
        end_poll(memory, answer)
    }

    #[tokio::test(start_paused = true)]
    async fn silence_counts_from_the_first_poll_that_finds_no_answer() {
        let memory = Memory::default();
        let answer = |step| {
            let record = Progress {
                step,
                ..Progress::default()
            };
            Some(Answer::Progress(Box::new(record)))
        };
        let seconds = |agents: AgentState| agents.silent_for.map(|time| time.as_secs());
        assert_eq!(seconds(memory.agents("job", 1)), None, "nobody was asked");
        assert_eq!(seconds(poll(&memory, None).await), Some(0));
        assert_eq!(seconds(poll(&memory, None).await), Some(2));
        assert_eq!(seconds(poll(&memory, answer(1)).await), None);
        assert_eq!(seconds(poll(&memory, None).await), Some(0));
        let all = Some(Answer::Heartbeats(vec![]));
        assert_eq!(
            seconds(poll(&memory, all).await),
            Some(2),
            "it is not rank 0's record"
        );
        let nothing = Some(Answer::NoProgress);
        assert_eq!(seconds(poll(&memory, nothing).await), None, "its agent answers");
        assert_eq!(seconds(memory.agents("job", 2)), None, "another attempt");
        tokio::time::advance(INTERVAL).await;
        assert!(memory.begin_poll("job", 2, INTERVAL));
        assert_eq!(seconds(memory.agents("job", 2)), Some(0));
    }

    #[tokio::test(start_paused = true)]
    async fn agents_are_polled_once_an_interval_and_one_poll_at_a_time() {
        let memory = Memory::default();
        let record = |step| {
            Some(Answer::Progress(Box::new(Progress {
                step,
                ..Progress::default()
            })))
        };
        let step = |agents: AgentState| agents.progress.map(|progress| progress.step);
        let is_due = || memory.begin_poll("job", 1, INTERVAL);
        assert!(is_due());
        assert_eq!(step(memory.agents("job", 1)), None, "no round waits for it");
        tokio::time::advance(INTERVAL).await;
        assert!(!is_due(), "the first is in progress");
        assert_eq!(step(end_poll(&memory, record(1))), Some(1));
        assert!(is_due());
        assert_eq!(step(end_poll(&memory, None)), Some(1), "the last answer is kept");
        assert!(!is_due(), "not so soon");
        assert_eq!(
            (
                memory.polled_within(INTERVAL),
                memory.polled_within(Duration::ZERO)
            ),
            (1, 1)
        );
        tokio::time::advance(INTERVAL).await;
        assert_eq!(
            (
                memory.polled_within(INTERVAL),
                memory.polled_within(Duration::ZERO)
            ),
            (1, 0)
        );
        assert_eq!(step(poll(&memory, record(2)).await), Some(2));
        memory.end_poll("gone", record(1), &[], Timestamp::UNIX_EPOCH);
        assert_eq!(step(memory.agents("gone", 1)), None);
    }

    #[tokio::test(start_paused = true)]
    async fn time_counts_while_answers_show_that_rank_0_does_not_get_on() {
        let memory = Memory::default();
        let stands = async |attempt, moves, activity| {
            let answer = Answer::Progress(Box::new(training(attempt, moves, activity)));
            let agents = poll(&memory, Some(answer)).await;
            agents.idle_for.map(|time| time.as_secs())
        };
        assert_eq!(stands(1, 0, Activity::Starting).await, None);
        assert_eq!(stands(1, 5, Activity::Training).await, Some(0));
        assert_eq!(stands(1, 5, Activity::Training).await, Some(2));
        poll(&memory, None).await;
        assert_eq!(
            stands(1, 5, Activity::Training).await,
            Some(6),
            "nothing is forgotten"
        );
        assert_eq!(stands(1, 6, Activity::Evaluating).await, Some(0));
        assert_eq!(stands(1, 7, Activity::Evaluating).await, Some(0), "another batch");
        assert_eq!(stands(1, 7, Activity::Evaluating).await, Some(2));
        assert_eq!(stands(1, 8, Activity::Checkpointing).await, None);
        assert_eq!(stands(1, 9, Activity::Training).await, Some(0));
        assert_eq!(stands(1, 9, Activity::Training).await, Some(2));
        assert_eq!(stands(2, 9, Activity::Training).await, Some(0), "another attempt");
    }

    #[tokio::test(start_paused = true)]
    async fn heartbeats_are_kept_for_a_minute_unless_rank_0_gets_on() {
        let memory = Memory::default();
        let progress = |moves, activity| Some(Answer::Progress(Box::new(training(1, moves, activity))));
        let all = || Some(Answer::Heartbeats(vec![(0, Heartbeats::default())]));
        let is_kept = |agents: AgentState| agents.heartbeats.is_some();
        assert!(!is_kept(poll(&memory, all()).await), "nothing is known of rank 0");
        assert!(!is_kept(poll(&memory, progress(1, Activity::Training)).await));
        assert!(is_kept(poll(&memory, all()).await));
        assert!(is_kept(poll(&memory, progress(1, Activity::Training)).await));
        assert!(is_kept(poll(&memory, None).await));
        tokio::time::advance(HEARTBEATS_HOLD).await;
        assert!(!is_kept(memory.agents("job", 1)), "they are old");
        for (moves, activity) in [(2, Activity::Training), (2, Activity::Checkpointing)] {
            poll(&memory, all()).await;
            assert!(!is_kept(poll(&memory, progress(moves, activity)).await));
        }
    }

    #[test]
    fn errors_count_up_until_a_success() {
        let memory = Memory::default();
        assert_eq!((memory.failed("job"), memory.failed("job")), (0, 1));
        memory.succeeded("job");
        assert_eq!(memory.failed("job"), 0);
    }
}
