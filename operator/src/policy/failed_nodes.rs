//! Nodes on which attempts of a job failed, and which of them its next gangs avoid for how long.

use contract::{FailureClass, Progress};
use crds::ValidatedJob;
use crds::status::{FailedNodeStatus, ViTTrainingJobStatus};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::failure::{Blame, Failure};
use super::restart::Verdict;

/// How long a node's last failure is remembered, so that a job does not run out of nodes.
const REMEMBERED: SignedDuration = SignedDuration::from_hours(1);
/// Failures on a node, each within [`REMEMBERED`] of the last, after which it is avoided.
const FAILURES: i32 = 2;
/// Most nodes to remember, the latest ones, to keep the status small.
const MOST_NODES: usize = 16;

/// Whether bad data is this node's fault alone: the data is on the nodes' own disks, the job has
/// trained on it, and this attempt failed before making progress. `progress` is the attempt's.
pub(crate) fn is_of_the_node(
    class: FailureClass,
    job: &ValidatedJob,
    status: &ViTTrainingJobStatus,
    progress: Option<&Progress>,
) -> bool {
    let volume = job.spec.data.volume.as_ref();
    let is_on_nodes = volume.is_some_and(|volume| volume.host_path.is_some());
    let Some(checkpoint) = &status.last_checkpoint else {
        return false;
    };
    let placed = status
        .placement
        .as_ref()
        .and_then(|placement| placement.time.as_ref());
    let is_of_attempt =
        |time: &Option<Time>| matches!((time, placed), (Some(time), Some(placed)) if time.0 >= placed.0);
    let reported = progress.map(|progress| i64::try_from(progress.step).unwrap_or(i64::MAX));
    // Of an attempt being replaced, only the status has the progress.
    let recorded = status
        .progress
        .as_ref()
        .filter(|progress| is_of_attempt(&progress.updated_at))
        .map(|progress| progress.step);
    class == FailureClass::BadData
        && is_on_nodes
        && job.spec.failure_policy.exclude_failed_nodes
        && reported.max(recorded).is_none_or(|step| step <= checkpoint.step)
        && !is_of_attempt(&checkpoint.time)
}

/// The remembered nodes after another failure and its verdict, by name.
pub(crate) fn after(
    known: &[FailedNodeStatus],
    failure: &Failure,
    verdict: Verdict,
    now: Timestamp,
) -> Vec<FailedNodeStatus> {
    let mut nodes = remembered(known, now);
    let Some(name) = &failure.node else {
        return nodes;
    };
    let is_of_the_node = failure.class == FailureClass::BadData && verdict != Verdict::NotRetryable;
    let blame = if is_of_the_node {
        Blame::AtOnce
    } else {
        failure.blame
    };
    if blame == Blame::Never {
        return nodes;
    }
    let before = nodes.iter().position(|node| node.node == *name);
    let before = before.map(|index| nodes.swap_remove(index));
    let failures = before.map_or(0, |node| node.failures).saturating_add(1);
    let is_avoided = blame == Blame::AtOnce || failures >= FAILURES;
    nodes.push(FailedNodeStatus {
        node: name.clone(),
        failures,
        class: failure.class.as_str().into(),
        time: Time(now),
        avoided_until: is_avoided.then_some(Time(now + REMEMBERED)),
    });
    nodes.sort_by_key(|node| std::cmp::Reverse(node.time.0));
    nodes.truncate(MOST_NODES);
    nodes.sort_by(|left, right| left.node.cmp(&right.node));
    nodes
}

/// The nodes still remembered; those with `avoided_until` are avoided until then.
pub(crate) fn remembered(known: &[FailedNodeStatus], now: Timestamp) -> Vec<FailedNodeStatus> {
    let is_fresh = |node: &&FailedNodeStatus| now.duration_since(node.time.0) < REMEMBERED;
    known.iter().filter(is_fresh).cloned().collect()
}

#[cfg(test)]
mod tests {
    use crds::status::{CheckpointStatus, ProgressStatus};
    use proptest::prelude::*;

    use super::*;
    use crate::fixtures::{self, at};
    use crate::policy::gang::PodView;
    use crate::policy::restart::verdict;

    const HOUR: i64 = 3600;

    fn failure(class: FailureClass, node: &str) -> Failure {
        let pod = PodView {
            node: Some(node.into()),
            ..PodView::default()
        };
        Failure::from_pod(&pod, class, String::new())
    }

    fn avoided_at(known: &[FailedNodeStatus], second: i64) -> String {
        let avoided = remembered(known, at(second)).into_iter();
        let avoided = avoided.filter(|node| node.avoided_until.is_some());
        avoided.map(|node| node.node).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn what_may_be_chance_counts_when_it_happens_twice_within_the_hour() {
        use FailureClass::{Crashed, DeviceFault, Killed, PodLost};
        for (failures, at_second, expected) in [
            // A faulty GPU counts at once.
            (vec![(DeviceFault, "b", 0)], HOUR - 1, "b"),
            (vec![(DeviceFault, "b", 0)], HOUR, ""),
            (
                vec![(DeviceFault, "b", 0), (Killed, "b", HOUR / 2)],
                HOUR + 1,
                "b",
            ),
            (vec![(Killed, "b", 0), (Crashed, "a", 5)], 10, ""),
            (
                vec![(Killed, "b", 0), (PodLost, "b", HOUR - 1)],
                2 * HOUR - 2,
                "b",
            ),
            (vec![(Killed, "b", 0), (Killed, "b", HOUR)], HOUR + 1, ""),
        ] {
            let known = failures.iter().fold(vec![], |known, (class, node, second)| {
                let verdict = verdict(*class, false, 1, 5);
                after(&known, &failure(*class, node), verdict, at(*second))
            });
            assert_eq!(avoided_at(&known, at_second), expected, "{failures:?}");
        }
    }

    #[test]
    fn what_would_happen_anywhere_is_no_nodes_fault() {
        let is_never = |class: &FailureClass| Blame::of(*class) == Blame::Never;
        for class in FailureClass::ALL.into_iter().filter(is_never) {
            let verdict = verdict(class, false, 1, 5);
            assert_eq!(after(&[], &failure(class, "b"), verdict, at(0)), [], "{class}");
        }
        let nowhere = Failure {
            node: None,
            ..failure(FailureClass::DeviceFault, "b")
        };
        assert_eq!(after(&[], &nowhere, Verdict::Restart, at(0)), []);
        let unpulled = Failure {
            blame: Blame::Never,
            ..failure(FailureClass::StartFailed, "b")
        };
        assert_eq!(after(&[], &unpulled, Verdict::Restart, at(0)), []);
        // But for a node without the data that a job has trained on.
        let known = after(&[], &failure(FailureClass::BadData, "b"), Verdict::Restart, at(0));
        assert_eq!(avoided_at(&known, HOUR - 1), "b");
    }

    #[test]
    fn data_on_nodes_are_a_node_s_fault_while_its_attempt_has_not_got_on() {
        use FailureClass::{BadData, Diverged};
        let on_nodes = serde_json::json!({"hostPath": {"path": "/data"}});
        let shared = serde_json::json!({"persistentVolumeClaim": {"claimName": "digits"}});
        // The attempt's step, and when the status's and the checkpoint were written. Placement was
        // at second 50.
        for (volume, class, step, recorded_at, saved_at, expected) in [
            (&on_nodes, BadData, Some(40), 49, Some(49), true),
            (&on_nodes, BadData, None, 49, Some(49), true),
            (&on_nodes, BadData, Some(40), 49, None, false),
            (&on_nodes, BadData, Some(41), 49, Some(49), false),
            (&on_nodes, BadData, None, 51, Some(49), false),
            (&on_nodes, BadData, Some(40), 51, Some(49), false),
            (&on_nodes, BadData, Some(40), 49, Some(51), false),
            (&shared, BadData, Some(40), 49, Some(49), false),
            (&on_nodes, Diverged, Some(40), 49, Some(49), false),
        ] {
            let mut job = fixtures::job();
            job.spec.data.volume = serde_json::from_value(volume.clone()).expect("a volume");
            let valid = crds::validate(&job).expect("valid");
            let mut status = fixtures::status(crds::Phase::Running, 2);
            status.placement.as_mut().expect("placed").time = Some(Time(at(50)));
            status.last_checkpoint = saved_at.map(|second| CheckpointStatus {
                step: 40,
                path: "/checkpoints/digits/40".into(),
                time: Some(Time(at(second))),
            });
            status.progress = Some(ProgressStatus {
                step: 60,
                updated_at: Some(Time(at(recorded_at))),
                ..ProgressStatus::default()
            });
            let progress = step.map(|step| Progress {
                step,
                ..Progress::default()
            });
            let found = is_of_the_node(class, &valid, &status, progress.as_ref());
            assert_eq!(
                found, expected,
                "{volume} {class} {step:?} {recorded_at} {saved_at:?}"
            );
        }
    }

    proptest! {
        #[test]
        fn few_nodes_are_remembered_and_all_are_forgotten_in_the_end(
            failures in prop::collection::vec((0..FailureClass::ALL.len(), 0..40_u8, 0..100_i64), 0..200),
        ) {
            let mut now = 0;
            let mut known = vec![];
            for (class, node, pause) in failures {
                now += pause;
                let failure = failure(FailureClass::ALL[class], &format!("node-{node}"));
                known = after(&known, &failure, verdict(failure.class, false, 1, 5), at(now));
                prop_assert!(known.len() <= MOST_NODES);
                let mut names: Vec<&str> = known.iter().map(|node| node.node.as_str()).collect();
                names.dedup();
                prop_assert_eq!(names.len(), known.len(), "each once");
                if failure.blame == Blame::AtOnce {
                    let name = failure.node.as_deref().expect("a node");
                    prop_assert!(avoided_at(&known, now).split(' ').any(|node| node == name));
                }
            }
            prop_assert_eq!(remembered(&known, at(now + HOUR)), vec![]);
        }
    }
}
