//! When to reconcile a job again, and how often to write its status.

use std::sync::Arc;
use std::time::Duration;

use crds::status::ViTTrainingJobStatus;
use crds::{Phase, StoredJob, ViTTrainingJob};
use kube::ResourceExt as _;
use kube::runtime::controller::Action;

use super::context::Context;
use super::poll::PROGRESS_INTERVAL;
use super::status;
use crate::error::Error;

/// Between rounds of a starting or stopping gang; watches usually trigger earlier.
pub(super) const IN_MOTION: Duration = Duration::from_secs(5);
/// Most writes of progress per second, for all running jobs.
pub(super) const PROGRESS_WRITES: u32 = 25;
/// Most writes of ready pods per second, for all starting gangs, whose pods need the API server ...
const START_WRITES: u32 = 5;
/// ... but each gang's are written this often.
pub(super) const START_WRITTEN_EVERY: Duration = Duration::from_secs(60);
/// Most writes of the counts and names in reasons per second, for all waiting jobs.
const WAITING_WRITES: u32 = 2;
/// A job counts as running if its agents were polled within this time, as starting if written so.
const LATELY: Duration = Duration::from_secs(60);
/// Between rounds of a waiting job, which watches trigger for new capacity, and least time between
/// writes of the counts in its reasons.
pub(super) const WAITING: Duration = Duration::from_secs(30);
/// Between rounds of an idle job.
pub(super) const RESTING: Duration = Duration::from_secs(300);
/// Until the remaining pods of a round are created or deleted.
pub(super) const NEXT_TURN: Duration = Duration::from_secs(1);

/// Whether a status differs only in counters and the last was written very recently. The last
/// status of an ending job is written at once, because its next round is far off.
pub(super) fn can_wait(
    context: &Context,
    job: &ViTTrainingJob,
    last: &ViTTrainingJobStatus,
    next: &ViTTrainingJobStatus,
) -> bool {
    if !status::only_counters_changed(last, next) {
        return false;
    }
    let pace = match next.phase {
        Some(Phase::Starting) => pace_of_starts(context),
        Some(Phase::Running) => pace(
            PROGRESS_INTERVAL,
            context.memory.polled_within(LATELY),
            PROGRESS_WRITES,
        ),
        Some(Phase::Pending) => {
            let placement = next.placement.as_ref();
            let wait = placement.and_then(|placement| placement.wait.as_ref());
            // Jobs that began to wait together would also write together.
            let jobs = wait.map_or(1, |wait| wait.waiting + wait.position);
            let jobs = usize::try_from(jobs).unwrap_or(1);
            pace(WAITING, jobs, WAITING_WRITES)
        }
        _ => return false,
    };
    let written = context.memory.since_write(&job.uid().unwrap_or_default());
    written.is_some_and(|ago| ago < pace)
}

/// Least time between writes of a job's counters, for at most `writes` per second by all `jobs`.
pub(super) fn pace(least: Duration, jobs: usize, writes: u32) -> Duration {
    let jobs = u32::try_from(jobs).unwrap_or(u32::MAX);
    least.max(Duration::from_secs(1).saturating_mul(jobs) / writes)
}

/// Least time between writes of a starting gang's ready pods.
pub(super) fn pace_of_starts(context: &Context) -> Duration {
    pace(IN_MOTION, context.memory.starting_within(LATELY), START_WRITES).min(START_WRITTEN_EVERY)
}

/// When to try again after an error.
pub(crate) fn error_policy(job: Arc<StoredJob>, error: &Error, context: Arc<Context>) -> Action {
    match error {
        Error::Unreadable { .. } => Action::await_change(),
        // It will be gone soon, and no event of this job reports it.
        Error::LastOwnersObject { .. } => Action::requeue(IN_MOTION),
        _ => Action::requeue(error.back_off(context.memory.failed(&job.uid().unwrap_or_default()))),
    }
}
