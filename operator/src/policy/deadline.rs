//! When a job exceeds its time limits.

use std::time::Duration;

use crds::conditions::types;
use crds::{Phase, ViTTrainingJob};
use jiff::{SignedDuration, Timestamp};

/// Whether a job whose first gang was placed at `started` has used up its time. A suspended or
/// suspending job has no deadline: its clock restarts when it is resumed.
pub(crate) fn is_over(
    deadline: Option<Duration>,
    started: Option<Timestamp>,
    phase: Phase,
    now: Timestamp,
) -> bool {
    let (Some(deadline), Some(started)) = (deadline, started) else {
        return false;
    };
    let deadline = SignedDuration::try_from(deadline).unwrap_or(SignedDuration::MAX);
    !matches!(phase, Phase::Suspending | Phase::Suspended) && now.duration_since(started) >= deadline
}

/// How long a job may still wait for its first gang; `None` without a limit.
pub(crate) fn left_to_wait(job: &ViTTrainingJob, now: Timestamp) -> Option<SignedDuration> {
    let timeout = job.spec.scheduling.pending_timeout_seconds?;
    let status = job.status.as_ref();
    let phase = status.and_then(|status| status.phase).unwrap_or(Phase::Pending);
    if phase != Phase::Pending || status.is_some_and(|status| status.start_time.is_some()) {
        return None;
    }
    let suspended = status.and_then(|status| status.condition(types::SUSPENDED));
    let resumed = suspended.map(|condition| condition.last_transition_time.0);
    let created = job.metadata.creation_timestamp.as_ref().map(|time| time.0);
    let since = created.max(resumed)?;
    Some(SignedDuration::from_secs(timeout.into()) - now.duration_since(since))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::at;

    #[test]
    fn the_clock_runs_from_the_first_gang_and_stands_still_while_suspended() {
        for (deadline, started, phase, now, expected) in [
            (Some(60), Some(0), Phase::Running, 59, false),
            (Some(60), Some(0), Phase::Restarting, 60, true),
            (Some(60), Some(0), Phase::Suspending, 1000, false),
            (Some(60), Some(0), Phase::Suspended, 1000, false),
            (Some(60), None, Phase::Pending, 1000, false),
            (None, Some(0), Phase::Running, 1000, false),
        ] {
            let found = is_over(deadline.map(Duration::from_secs), started.map(at), phase, at(now));
            assert_eq!(found, expected, "{deadline:?} {started:?} {phase:?} {now}");
        }
    }
}
