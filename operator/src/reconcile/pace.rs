//! When to look at a job again, and how often its status is written.

use std::sync::Arc;
use std::time::Duration;

use crds::status::ViTTrainingJobStatus;
use crds::{Phase, ViTTrainingJob};
use jiff::SignedDuration;
use kube::ResourceExt as _;
use kube::runtime::controller::Action;
use planner::GuardedJob;

use super::context::Context;
use super::observation::Observation;
use super::plan::Plan;
use super::poll::PROGRESS_INTERVAL;
use super::status;
use crate::error::{self, Error};
use crate::policy::gang::PodView;
use crate::policy::start;

/// Until the cache shows our own last write.
pub(super) const CATCH_UP: Duration = Duration::from_millis(100);
/// Between two looks at a gang that starts or stops; watches bring nearly all changes before.
pub(super) const IN_MOTION: Duration = Duration::from_secs(5);
/// Progress of all running jobs together is written so often a second at most.
pub(super) const PROGRESS_WRITES: u32 = 25;
/// How many of their pods are ready is written so often a second for all gangs that start together, because it takes time from
/// the API server that their pods need ...
const START_WRITES: u32 = 5;
/// ... but so often for each of them.
pub(super) const START_WRITTEN_EVERY: Duration = Duration::from_secs(60);
/// Jobs count as running whose agents were asked within this time, and as starting that were written as such within it.
const LATELY: Duration = Duration::from_secs(60);
/// Between two looks at a job that waits; watches bring new capacity before.
pub(super) const WAITING: Duration = Duration::from_secs(30);
/// Between two looks at a job that rests.
const RESTING: Duration = Duration::from_secs(300);
/// Until the next try to create the pods that a round has left out.
const NEXT_TURN: Duration = Duration::from_secs(1);

/// Whether a status has no news but what moves all the time, and the last one was written only a moment ago. A job that comes to
/// its end is looked at no more so soon: what is known of it then is written at once.
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
        _ => return false,
    };
    let written = context.memory.since_write(&job.uid().unwrap_or_default());
    written.is_some_and(|ago| ago < pace)
}

/// Time between two writes of what moves all the time, so that so many jobs together cost no more than `writes` a second.
pub(super) fn pace(least: Duration, jobs: usize, writes: u32) -> Duration {
    let jobs = u32::try_from(jobs).unwrap_or(u32::MAX);
    least.max(Duration::from_secs(1).saturating_mul(jobs) / writes)
}

/// Time between two writes of how many pods of a gang that starts are ready.
fn pace_of_starts(context: &Context) -> Duration {
    pace(IN_MOTION, context.memory.starting_within(LATELY), START_WRITES).min(START_WRITTEN_EVERY)
}

/// When to look again if nothing happens until then.
pub(super) fn next_round(
    context: &Context,
    observation: &Observation,
    plan: &Plan,
    status: &ViTTrainingJobStatus,
) -> Duration {
    let after = |time: SignedDuration| Duration::try_from(time).unwrap_or(RESTING);
    match plan {
        Plan::Follow if status.phase == Some(Phase::Running) => PROGRESS_INTERVAL,
        // How long a node has been away, and how long the gang has taken, decides without anything happening.
        Plan::Follow if !observation.unready_nodes.is_empty() => IN_MOTION,
        Plan::Follow => {
            // A pod that is not there is late like one that does not start.
            let missing = observation.missing().first().map(|_| PodView::default());
            let gang = observation.gang(status.attempt).chain(&missing);
            let left = start::left(gang, &observation.job, status, observation.now).map(after);
            pace_of_starts(context).min(left.unwrap_or(RESTING).max(CATCH_UP))
        }
        Plan::Create { .. } => NEXT_TURN,
        Plan::CleanUp { .. } if observation.is_on_unready_node() => IN_MOTION,
        Plan::Wait(_) => WAITING,
        Plan::Rest(Some(time))
        | Plan::CleanUp {
            expires_in: Some(time),
            ..
        } => after(*time),
        Plan::Rest(None) | Plan::CleanUp { expires_in: None, .. } | Plan::Refuse(_) => RESTING,
        _ => IN_MOTION,
    }
}

/// When to try again after an error.
pub(crate) fn error_policy(job: Arc<GuardedJob>, error: &Error, context: Arc<Context>) -> Action {
    match error {
        Error::InvalidObject(_) => Action::await_change(),
        // Its end is near, and no event of this job tells of it.
        Error::LastOwnersObject { .. } => Action::requeue(IN_MOTION),
        error if error.is_conflict() => Action::requeue(CATCH_UP),
        _ => Action::requeue(error::back_off(
            context.memory.failed(&job.uid().unwrap_or_default()),
        )),
    }
}
