//! When a starting gang times out, and when it is placed again because a node no longer fits.

use contract::FailureClass;
use crds::status::Refusal;
use crds::{ViTTrainingJob, ViTTrainingJobStatus};
use jiff::{SignedDuration, Timestamp};
use planner::facts::inventory::NodeFacts;
use planner::facts::resources::{Holder, hold};
use planner::policy::node_fit::refusal;
use planner::policy::request::Shape;

use super::failure::{Blame, Failure};
use super::gang::{CannotStart, Fetch, PodState, PodView};

/// How long the first attempt waits for what the manifest names and does not exist.
const PROBATION: SignedDuration = SignedDuration::from_mins(2);

/// Why a pod cannot start, by what the job has shown before: what does not exist may appear, and is the
/// manifest's fault only if it has not in the time of the first attempt.
pub(crate) fn judged(
    why: CannotStart,
    job: &ViTTrainingJob,
    status: &ViTTrainingJobStatus,
    now: Timestamp,
) -> Option<CannotStart> {
    if why != CannotStart::Absent || status.attempt > 1 {
        return Some(why);
    }
    let timeout = SignedDuration::from_secs(job.spec.scheduling.start_timeout_seconds.into());
    let is_over = status
        .placed_at()
        .is_none_or(|time| now.duration_since(time.0) >= PROBATION.min(timeout));
    is_over.then_some(CannotStart::Misconfigured)
}

/// Time until a starting gang times out, by its earliest pod that is not ready. `None` if all are
/// ready or fetching the data set, which has no time limit.
pub(crate) fn left<'a>(
    gang: impl IntoIterator<Item = &'a PodView>,
    job: &ViTTrainingJob,
    status: &ViTTrainingJobStatus,
    now: Timestamp,
) -> Option<SignedDuration> {
    let placed = status.placed_at()?.0;
    let timeout = SignedDuration::from_secs(job.spec.scheduling.start_timeout_seconds.into());
    let late = gang.into_iter().filter(|pod| is_late(pod));
    let due = late.map(|pod| {
        let since = match pod.fetch {
            Some(Fetch::Done(time)) => placed.max(time),
            _ => placed,
        };
        let unschedulable = unschedulable_since(pod, job).map(|time| placed.max(time) + UNSCHEDULABLE);
        let unmounted = unmounted_since(pod).map(|time| placed.max(time) + UNMOUNTED);
        let sooner = [unschedulable, unmounted].into_iter().flatten().min();
        (since + timeout).min(sooner.unwrap_or(Timestamp::MAX))
    });
    Some(due.min()?.duration_since(now).max(SignedDuration::ZERO))
}

/// How long the cluster's kube-scheduler may find no node for a pod that fits its node by all that the
/// planner knows: a volume may be elsewhere, or its claim missing.
const UNSCHEDULABLE: SignedDuration = SignedDuration::from_secs(60);

/// `None` if it is not, or if another scheduler binds the pods, which may take its time.
fn unschedulable_since(pod: &PodView, job: &ViTTrainingJob) -> Option<Timestamp> {
    let scheduler = job.spec.scheduling.scheduler_name.as_deref();
    let is_default = scheduler.is_none_or(|name| name == "default-scheduler");
    pod.rejected.as_ref().filter(|_| is_default)?.unschedulable_since
}

/// How long volumes and network may not be ready while the cluster warns of them. The kubelet warns of slow
/// ones after two minutes, and they may be ready at its next try.
const UNMOUNTED: SignedDuration = SignedDuration::from_mins(3);

/// `None` if nothing warns of its volumes or network.
fn unmounted_since(pod: &PodView) -> Option<Timestamp> {
    pod.waits_for_sandbox.filter(|_| pod.stuck.is_some())
}

fn is_late(pod: &PodView) -> bool {
    !pod.ready && !pod.is_done() && pod.fetch != Some(Fetch::Runs)
}

/// Why the node of a rejected pod no longer fits: another pod took its place, or the node changed.
/// `None` if the planner would choose the node again.
pub(crate) fn unfit(pod: &PodView, node: &NodeFacts, shape: &Shape) -> Option<Refusal> {
    let own = &pod.rejected.as_ref()?.requests;
    let mut others = node.clone();
    hold(&mut others.resources, own, Holder::Gang, -1);
    refusal(pod.node.as_deref()?, &others, shape)
}

/// The failure of a gang with pods not ready after its start timeout, unschedulable for a minute, or
/// without volumes for three. Blames the first pod with an obstacle reported by scheduler or kubelet, then the first that has not
/// started.
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
    let is_unschedulable = |pod: &PodView| {
        let since = unschedulable_since(pod, job);
        since.is_some_and(|since| now.duration_since(since) >= UNSCHEDULABLE)
    };
    let placed = status.placed_at()?.0;
    let is_unmounted = |pod: &PodView| {
        let since = unmounted_since(pod);
        since.is_some_and(|since| now.duration_since(placed.max(since)) >= UNMOUNTED)
    };
    let pod = gang.iter().filter(late).min_by_key(|pod| {
        let has_started = pod.state != PodState::Pending;
        (
            !is_unschedulable(pod),
            !is_unmounted(pod),
            pod.stuck.is_none(),
            has_started,
            pod.node_rank,
        )
    })?;
    let name = &pod.name;
    let what = match &pod.stuck {
        Some(words) => words.as_str(),
        None if pod.state == PodState::Pending => "it is pending",
        None => "it runs, but its agent does not answer",
    };
    let message = if is_unschedulable(pod) {
        let seconds = UNSCHEDULABLE.as_secs();
        format!("kube-scheduler found no node for pod {name} in {seconds} s: {what}")
    } else if is_unmounted(pod) {
        let seconds = UNMOUNTED.as_secs();
        format!("volumes or network of pod {name} were not ready in {seconds} s: {what}")
    } else {
        format!(
            "{} of {} pods were not ready within {} s (scheduling.startTimeoutSeconds); pod {name}: {what}",
            gang.iter().filter(late).count(),
            gang.len(),
            job.spec.scheduling.start_timeout_seconds,
        )
    };
    Some(Failure {
        blame: blame(what),
        ..Failure::from_pod(pod, FailureClass::StartFailed, message)
    })
}

/// Whether the node is to blame for what kube-scheduler says of a pod that is pinned to it
/// (`pkg/scheduler/framework/plugins/volumebinding`), or kubelet and attach controller of its volumes
/// (`pkg/controller/volume/attachdetach`).
fn blame(words: &str) -> Blame {
    let words = words.to_lowercase();
    let mentions = |some: &[&str]| some.iter().any(|some| words.contains(some));
    let is_absent = words.contains("not found") && mentions(&["secret \"", "configmap \""]);
    if is_absent || mentions(&["persistentvolumeclaim", "non-existent pv", "multi-attach"]) {
        Blame::Never
    } else if mentions(&[
        "volume node affinity conflict",
        "match persistentvolume's node affinity",
    ]) {
        Blame::AtOnce
    } else {
        Blame::WhenRepeated
    }
}

#[cfg(test)]
mod tests {
    use crds::Phase;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;
    use crate::fixtures::{at, job_in, pod};
    use crate::policy::gang::Rejected;

    /// Of a gang placed at second 0 with a timeout of a minute.
    fn overdue_at(second: i64, gang: &[PodView]) -> Option<String> {
        let mut job = job_in(Phase::Starting, 1);
        job.spec.scheduling.start_timeout_seconds = 60;
        let mut status = job.status.clone().expect("a status");
        status.placement.as_mut().expect("placed").time = Some(Time(at(0)));
        let failure = overdue(gang, &job, &status, at(second))?;
        assert_eq!(failure.class, FailureClass::StartFailed);
        Some(failure.message)
    }

    fn waiting(node_rank: usize, fetch: Option<Fetch>) -> PodView {
        PodView {
            state: PodState::Pending,
            ready: false,
            fetch,
            ..pod(1, node_rank)
        }
    }

    #[test]
    fn a_gang_has_its_time_and_the_pod_that_is_stuck_is_to_blame() {
        use PodState::{Pending, Running, Succeeded};
        let pending = "digits-1-0: it is pending";
        let silent = "digits-1-1: it runs, but its agent does not answer";
        for (first, state, stuck, late, why) in [
            (
                waiting(0, None),
                Pending,
                Some("no node"),
                2,
                "digits-1-1: no node",
            ),
            (waiting(0, None), Running, None, 2, pending),
            // Pods that are ready or done are not late.
            (waiting(0, None), Succeeded, None, 1, pending),
            (pod(1, 0), Running, None, 1, silent),
        ] {
            let second = PodView {
                state,
                stuck: stuck.map(Into::into),
                ..waiting(1, None)
            };
            let gang = [first, second];
            let limit = "not ready within 60 s (scheduling.startTimeoutSeconds)";
            let expected = format!("{late} of 2 pods were {limit}; pod {why}");
            assert_eq!(overdue_at(59, &gang), None);
            assert_eq!(overdue_at(60, &gang), Some(expected));
        }
        assert_eq!(overdue_at(1000, &[pod(1, 0), pod(1, 1)]), None);
        let (job, unplaced) = (job_in(Phase::Starting, 1), ViTTrainingJobStatus::default());
        assert_eq!(overdue(&[waiting(0, None)], &job, &unplaced, at(1000)), None);
    }

    #[test]
    fn what_is_fetched_takes_its_time_and_the_rest_has_its_own() {
        let runs = Some(Fetch::Runs);
        for (fetch, overdue_from) in [
            (runs, 9001),
            // One trainer does not start while the other pod fetches.
            (Some(Fetch::Done(at(500))), 560),
            // A pod that never fetched has its time from the placement on.
            (None, 60),
        ] {
            let gang = [waiting(0, fetch), waiting(1, runs)];
            assert_eq!(overdue_at(overdue_from - 1, &gang), None);
            assert_eq!(overdue_at(overdue_from, &gang).is_some(), fetch != runs);
        }
    }

    #[test]
    fn what_does_not_exist_is_the_manifest_s_fault_after_a_while_of_the_first_attempt() {
        use CannotStart::{Absent, Misconfigured, Unavailable};
        for (why, attempt, timeout, second, expected) in [
            (Absent, 1, 900, 119, None),
            (Absent, 1, 900, 120, Some(Misconfigured)),
            (Absent, 1, 60, 60, Some(Misconfigured)),
            (Absent, 2, 900, 0, Some(Absent)),
            (Misconfigured, 1, 900, 0, Some(Misconfigured)),
            (Unavailable, 1, 900, 120, Some(Unavailable)),
        ] {
            let mut job = job_in(Phase::Starting, attempt);
            job.spec.scheduling.start_timeout_seconds = timeout;
            let mut status = job.status.clone().expect("a status");
            status.placement.as_mut().expect("placed").time = Some(Time(at(0)));
            let found = judged(why, &job, &status, at(second));
            assert_eq!(found, expected, "{why:?} in attempt {attempt} at {second} s");
        }
    }

    /// A pod about which kube-scheduler has said this since second 10.
    fn unschedulable(words: &str) -> PodView {
        PodView {
            stuck: Some(format!("Unschedulable: {words}")),
            rejected: Some(Box::new(Rejected {
                unschedulable_since: Some(at(10)),
                ..Rejected::default()
            })),
            ..waiting(1, None)
        }
    }

    #[test]
    fn a_pod_that_the_scheduler_refuses_for_a_minute_is_not_waited_for_longer() {
        let mut job = job_in(Phase::Starting, 1);
        let mut status = job.status.clone().expect("a status");
        status.placement.as_mut().expect("placed").time = Some(Time(at(0)));
        let gang = [waiting(0, None), unschedulable("no")];
        let at_second = |job: &ViTTrainingJob, second| {
            let left = left(&gang, job, &status, at(second)).map(|left| left.as_secs());
            let failure = overdue(&gang, job, &status, at(second));
            (left, failure.map(|failure| failure.message))
        };
        assert_eq!(at_second(&job, 69), (Some(1), None));
        let words = "kube-scheduler found no node for pod digits-1-1 in 60 s: Unschedulable: no";
        assert_eq!(at_second(&job, 70), (Some(0), Some(words.into())));
        // Another scheduler may take its time.
        job.spec.scheduling.scheduler_name = Some("volcano".into());
        assert_eq!(at_second(&job, 70), (Some(830), None));
    }

    #[test]
    fn volumes_that_the_cluster_warns_of_are_not_waited_for_longer_than_three_minutes() {
        let mut job = job_in(Phase::Starting, 1);
        let mut status = job.status.clone().expect("a status");
        status.placement.as_mut().expect("placed").time = Some(Time(at(0)));
        let unmounted = |words: Option<&str>| PodView {
            waits_for_sandbox: Some(at(0)),
            stuck: words.map(Into::into),
            ..waiting(1, None)
        };
        let pulls = PodView {
            stuck: Some("ImagePullBackOff".into()),
            ..waiting(0, None)
        };
        let at_second = |job: &ViTTrainingJob, words: Option<&str>, second| {
            let gang = [pulls.clone(), unmounted(words)];
            let left = left(&gang, job, &status, at(second)).map(|left| left.as_secs());
            let failure = overdue(&gang, job, &status, at(second));
            (left, failure.map(|failure| (failure.blame, failure.message)))
        };
        let warning = Some("FailedAttachVolume: Multi-Attach error for volume \"a\"");
        assert_eq!(at_second(&job, warning, 179), (Some(1), None));
        let (left, failure) = at_second(&job, warning, 180);
        let (blame, message) = failure.expect("a failure");
        assert_eq!((left, blame), (Some(0), Blame::Never));
        assert_eq!(
            message,
            "volumes or network of pod digits-1-1 were not ready in 180 s: FailedAttachVolume: Multi-Attach \
             error for volume \"a\""
        );
        // They may only be slow.
        assert_eq!(at_second(&job, None, 180), (Some(720), None));
        // It was bound a minute after the placement.
        let late = [PodView {
            waits_for_sandbox: Some(at(60)),
            ..unmounted(warning)
        }];
        let left = |second| super::left(&late, &job, &status, at(second)).map(|left| left.as_secs());
        assert_eq!((left(180), left(240)), (Some(60), Some(0)));
        assert_eq!(overdue(&late, &job, &status, at(239)), None);
        job.spec.scheduling.start_timeout_seconds = 60;
        let (_, failure) = at_second(&job, warning, 60);
        let (_, message) = failure.expect("a failure");
        assert!(message.contains("not ready within 60 s"), "{message}");
    }

    #[test]
    fn a_claim_that_is_missing_is_no_node_s_fault_and_a_volume_elsewhere_is_at_once() {
        for (words, expected) in [
            (r#"persistentvolumeclaim "a" not found"#, Blame::Never),
            (
                "0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims",
                Blame::Never,
            ),
            (
                "1 node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)",
                Blame::Never,
            ),
            (
                "0/3 nodes are available: 1 node(s) had volume node affinity conflict",
                Blame::AtOnce,
            ),
            (
                "0/3 nodes are available: 1 node(s) didn't match PersistentVolume's node affinity",
                Blame::AtOnce,
            ),
            ("0/3 nodes are available: 1 Insufficient cpu", Blame::WhenRepeated),
        ] {
            let mut job = job_in(Phase::Starting, 1);
            let mut status = job.status.clone().expect("a status");
            status.placement.as_mut().expect("placed").time = Some(Time(at(0)));
            let gang = [unschedulable(words)];
            // In whatever time.
            for (timeout, second) in [(900, 70), (30, 30)] {
                job.spec.scheduling.start_timeout_seconds = timeout;
                let failure = overdue(&gang, &job, &status, at(second));
                assert_eq!(failure.expect("a failure").blame, expected, "{words}");
            }
        }
    }
}
