//! When a starting gang times out, and when it is placed again because a node no longer fits.

use contract::FailureClass;
use crds::{ViTTrainingJob, ViTTrainingJobStatus};
use jiff::{SignedDuration, Timestamp};
use planner::facts::inventory::NodeFacts;
use planner::facts::resources::{Holder, hold};
use planner::policy::node_fit::{Refusal, refusal};
use planner::policy::request::Shape;

use super::failure::Failure;
use super::gang::{Fetch, PodState, PodView};

/// Time until a starting gang times out, by its earliest pod that is not ready. `None` if all are
/// ready or fetching the data set, which has no time limit.
pub(crate) fn left<'a>(
    gang: impl IntoIterator<Item = &'a PodView>,
    job: &ViTTrainingJob,
    status: &ViTTrainingJobStatus,
    now: Timestamp,
) -> Option<SignedDuration> {
    let placed = status.placement.as_ref()?.time.as_ref()?.0;
    let timeout = SignedDuration::from_secs(job.spec.scheduling.start_timeout_seconds.into());
    let late = gang.into_iter().filter(|pod| is_late(pod));
    let since = late.map(|pod| match pod.fetch {
        Some(Fetch::Done(time)) => placed.max(time),
        _ => placed,
    });
    let first = since.min()?;
    Some((timeout - now.duration_since(first)).max(SignedDuration::ZERO))
}

fn is_late(pod: &PodView) -> bool {
    !pod.ready && pod.state != PodState::Succeeded && pod.fetch != Some(Fetch::Runs)
}

/// Why the node of a rejected pod no longer fits: another pod took its place, or the node changed.
/// `None` if the planner would choose the node again.
pub(crate) fn unfit(pod: &PodView, node: &NodeFacts, shape: &Shape) -> Option<Refusal> {
    let own = pod.rejected.as_deref()?;
    let mut others = node.clone();
    hold(&mut others.resources, own, Holder::Gang, -1);
    refusal(pod.node.as_deref()?, &others, shape)
}

/// The failure of a gang with pods not ready after its start timeout. Blames the first pod with an
/// obstacle reported by scheduler or kubelet, then the first that has not started.
pub(crate) fn overdue(
    gang: &[PodView],
    job: &ViTTrainingJob,
    status: &ViTTrainingJobStatus,
    now: Timestamp,
) -> Option<Failure> {
    if left(gang, job, status, now)?.is_positive() {
        return None;
    }
    let late = |pod: &&PodView| is_late(pod);
    let pod = gang
        .iter()
        .filter(late)
        .min_by_key(|pod| (pod.stuck.is_none(), pod.state != PodState::Pending, pod.node_rank))?;
    let what = match &pod.stuck {
        Some(words) => words.as_str(),
        None if pod.state == PodState::Pending => "it is pending",
        None => "it runs, but its agent does not answer",
    };
    let message = format!(
        "{} of {} pods were not ready within {} s (scheduling.startTimeoutSeconds); pod {}: {what}",
        gang.iter().filter(late).count(),
        gang.len(),
        job.spec.scheduling.start_timeout_seconds,
        pod.name
    );
    Some(Failure::from_pod(pod, FailureClass::StartFailed, message))
}

#[cfg(test)]
mod tests {
    use crds::Phase;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;
    use crate::fixtures::{assert_contains, at, gang, job_in, pod};

    /// Of a gang placed at second 0 with a timeout of a minute.
    fn overdue_at(second: i64, gang: &[PodView]) -> Option<Failure> {
        let mut job = job_in(Phase::Starting, 1);
        job.spec.scheduling.start_timeout_seconds = 60;
        let mut status = job.status.clone().expect("a status");
        status.placement.as_mut().expect("placed").time = Some(Time(at(0)));
        overdue(gang, &job, &status, at(second))
    }

    #[test]
    fn a_gang_has_its_time_and_the_pod_that_is_stuck_is_to_blame() {
        let waiting = PodView {
            state: PodState::Pending,
            ready: false,
            ..pod(1, 0)
        };
        let stuck = PodView {
            stuck: Some("Unschedulable: 0/4 nodes are available".into()),
            node_rank: 1,
            ..waiting.clone()
        };
        let gang = [waiting, stuck];
        assert_eq!(overdue_at(59, &gang), None);
        let unplaced = ViTTrainingJobStatus::default();
        assert_eq!(
            overdue(&gang, &job_in(Phase::Starting, 1), &unplaced, at(1000)),
            None
        );
        let failure = overdue_at(60, &gang).expect("overdue");
        assert_eq!(failure.class, FailureClass::StartFailed);
        assert!(
            failure
                .message
                .starts_with("2 of 2 pods were not ready within 60 s")
                && failure
                    .message
                    .ends_with("Unschedulable: 0/4 nodes are available"),
            "{}",
            failure.message
        );
    }

    #[test]
    fn what_is_fetched_takes_its_time_and_the_rest_has_its_own() {
        let pods = |first, second| {
            let pod = |fetch| PodView {
                state: PodState::Pending,
                ready: false,
                fetch,
                ..pod(1, 0)
            };
            [pod(first), pod(second)]
        };
        let done = |second| Some(Fetch::Done(at(second)));
        let runs = Some(Fetch::Runs);
        assert_eq!(overdue_at(9000, &pods(runs, runs)), None);
        // One trainer does not start while the other pod fetches.
        let fetched = pods(done(500), runs);
        assert_eq!(overdue_at(559, &fetched), None);
        assert!(overdue_at(560, &fetched).is_some());
        // A pod that never fetched has its time from the placement on.
        assert_eq!(overdue_at(59, &pods(None, runs)), None);
        assert!(overdue_at(60, &pods(None, runs)).is_some());
    }

    #[test]
    fn pods_that_are_ready_or_done_are_not_late() {
        let mut gang = gang(1);
        assert_eq!(overdue_at(1000, &gang), None);
        gang[1].ready = false;
        gang[1].state = PodState::Succeeded;
        assert_eq!(overdue_at(1000, &gang), None);
        gang[1].state = PodState::Running;
        let failure = overdue_at(1000, &gang).expect("overdue");
        assert_contains(&failure.message, "its agent does not answer");
    }
}
