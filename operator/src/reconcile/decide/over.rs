//! A job that is over: its pods end, and in the end it is deleted.

use crds::Phase;
use crds::status::ViTTrainingJobStatus;
use jiff::SignedDuration;

use super::super::next::Next;
use super::super::observation::{Isolation, Observation};
use super::super::pace::{IN_MOTION, RESTING};
use super::super::step::{Step, Write};
use super::std_duration;
use super::stopping::{ENDING, beyond_reach, deletion, settle};
use crate::build::workload;
use crate::policy::gang::{PodId, PodView};
use crate::policy::restart::verdict;
use crate::policy::ttl;

/// Keeps ended pods for their logs and deletes running ones.
pub(super) fn after_the_end(seen: &Observation, status: &ViTTrainingJobStatus) -> Step {
    let spec = &seen.job.spec;
    let max_restarts = u32::try_from(spec.failure_policy.max_restarts).unwrap_or(0);
    if status.phase == Some(Phase::Failed)
        && let Some(step) = settle(seen, status, |failure, failures| {
            verdict(failure.class, false, failures, max_restarts)
        })
    {
        return step;
    }
    let expires_in = ttl::time_left(
        spec.ttl_seconds_after_finished
            .and_then(|seconds| u32::try_from(seconds).ok()),
        status.completion_time.as_ref().map(|time| time.0),
        seen.now,
    );
    let force = beyond_reach(seen);
    // After the job is deleted, nobody removes pods from a dead node.
    if expires_in == Some(SignedDuration::ZERO) && !seen.is_on_unready_node() {
        return Next::of(seen).act(vec![Write::DeleteJob], RESTING).urgent();
    }
    // The kubelet reports the container's end before the pod's. On a dead node it never will, nor while
    // other containers run on.
    let ended = status.completion_time.as_ref();
    let left = ended.map_or(SignedDuration::ZERO, |time| {
        (time.0 + ENDING).duration_since(seen.now)
    });
    let ends = |pod: &PodView| {
        let node = pod.node.as_ref();
        pod.end.is_some()
            && left.is_positive()
            && !node.is_some_and(|node| seen.unready_nodes.contains_key(node))
    };
    let pods: Vec<PodId> = seen
        .pods
        .iter()
        .filter(|pod| !pod.has_ended() && !ends(pod) && pod.deletion_timestamp.is_none())
        .map(PodView::id)
        .collect();
    let mut writes: Vec<Write> = deletion(status, pods, force).into_iter().collect();
    writes.extend(seen.has_service.then_some(Write::DeleteService));
    let has_policy = seen.network_policy == Isolation::Present;
    writes.extend(has_policy.then_some(Write::DeleteNetworkPolicy));
    if let Some(workload) = &seen.queue.workload
        && !seen.pods.iter().any(|pod| seen.holds_gpus(pod))
    {
        let (has_succeeded, words) = match status.phase {
            Some(Phase::Succeeded) => (true, "all epochs are done"),
            _ => (false, "the job failed"),
        };
        let finished = workload::finished(workload, has_succeeded, words, seen.now);
        writes.extend(finished.map(|workload| Write::UpdateWorkload(workload.into())));
    }
    let again = if seen.is_on_unready_node() {
        IN_MOTION
    } else if seen.pods.iter().any(|pod| !pod.has_ended() && ends(pod)) {
        std_duration(left)
    } else {
        expires_in.map_or(RESTING, std_duration)
    };
    Next::of(seen).act(writes, again).urgent()
}
