//! What a gang avoids if it fits elsewhere: nodes where the job failed or a rank was slow, and for
//! an elastic gang GPUs of another group.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crds::ValidatedJob;
use crds::status::ViTTrainingJobStatus;

use super::request::{Avoidance, GangRequest, Shape};

/// The shapes to try before the job's own, in order: without any avoided node, then with nodes on
/// which it was only slow. The job's own comes last: avoided nodes never make a job wait.
///
/// An elastic gang fits nearly everywhere in some size, so it tries the group of its last GPUs
/// first: more GPUs of a slower group may be slower.
pub(crate) fn preferred_shapes(
    job: &ValidatedJob,
    status: &ViTTrainingJobStatus,
    request: &GangRequest,
) -> Vec<Arc<Shape>> {
    let mut failed = BTreeMap::new();
    if job.spec.failure_policy.exclude_failed_nodes {
        let nodes = status
            .failed_nodes
            .iter()
            .filter(|node| node.avoided_until.is_some());
        failed.extend(nodes.map(|node| (node.node.clone(), Avoidance::FailedBefore)));
    }
    let mut avoided = failed.clone();
    if job.spec.failure_policy.exclude_stragglers {
        for node in slow_nodes(status) {
            avoided.entry(node.clone()).or_insert(Avoidance::WasSlow);
        }
    }
    let mut steps = vec![avoided, failed];
    steps.dedup();
    steps.retain(|avoided| !avoided.is_empty());
    let placement = status.placement.as_ref().filter(|_| job.sizes.len() > 1);
    let last_group = placement.and_then(|placement| placement.group.clone());
    let mut shapes = Vec::new();
    if last_group.is_some() {
        let own = steps.iter().cloned().chain([BTreeMap::new()]);
        shapes.extend(own.map(|avoided| (avoided, last_group.clone())));
    }
    shapes.extend(steps.into_iter().map(|avoided| (avoided, None)));
    let shape = |(avoided, required_group)| Shape {
        avoided,
        required_group,
        ..(*request.shape).clone()
    };
    shapes.into_iter().map(shape).map(Arc::new).collect()
}

/// The nodes on which a rank of the last gang, or of a remembered one, was slow.
fn slow_nodes(status: &ViTTrainingJobStatus) -> BTreeSet<&String> {
    let remembered = status.slow_nodes.iter().map(|node| &node.node);
    let last = status
        .stragglers
        .iter()
        .filter_map(|straggler| straggler.node.as_ref());
    remembered.chain(last).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;

    /// The shapes of a job whose gang of two was slow on `a` and failed on `b`.
    fn shapes(exclude_stragglers: bool, exclude_failed_nodes: bool) -> Vec<Arc<Shape>> {
        let mut job = fixtures::job();
        job.spec.failure_policy.exclude_stragglers = exclude_stragglers;
        job.spec.failure_policy.exclude_failed_nodes = exclude_failed_nodes;
        let mut status = fixtures::status(crds::Phase::Restarting, 1);
        status.stragglers = vec![fixtures::straggler(0, "a", 2.0)];
        status.failed_nodes = vec![
            fixtures::failed_node("b", Some(3600)),
            fixtures::failed_node("c", None),
        ];
        let valid = crds::validate(&job).expect("valid");
        preferred_shapes(&valid, &status, &GangRequest::from(&valid))
    }

    fn avoided(shapes: &[Arc<Shape>]) -> Vec<Vec<&str>> {
        shapes
            .iter()
            .map(|shape| shape.avoided.keys().map(String::as_str).collect())
            .collect()
    }

    #[test]
    fn only_what_the_job_asks_for_is_avoided_and_what_is_broken_before_what_is_slow() {
        assert_eq!(shapes(false, false), []);
        assert_eq!(avoided(&shapes(true, false)), [["a"]]);
        assert_eq!(avoided(&shapes(false, true)), [["b"]]);
        assert_eq!(avoided(&shapes(true, true)), [vec!["a", "b"], vec!["b"]]);
    }
}
