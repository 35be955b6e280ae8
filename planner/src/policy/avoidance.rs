//! What a gang does without where it can: nodes where the job failed before, or where one of its ranks was slow, and for
//! an elastic gang GPUs of another kind than it had.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crds::ValidatedJob;
use crds::status::ViTTrainingJobStatus;

use super::request::{Avoidance, GangRequest, Shape};

/// The shapes in which a place is looked for before the job's own one, in this order: without all nodes that it is to
/// avoid, then with those on which it was only slow. A job must not wait for a node that it merely avoids.
///
/// An elastic gang, which fits nearly everywhere in some size, keeps to the GPUs it had before all that: more of them of a
/// slower kind may well be fewer.
pub(crate) fn stricter(
    job: &ValidatedJob,
    status: &ViTTrainingJobStatus,
    request: &GangRequest,
) -> Vec<Arc<Shape>> {
    let mut avoided = BTreeMap::new();
    if job.exclude_failed_nodes {
        let failed = status
            .failed_nodes
            .iter()
            .filter(|node| node.avoided_until.is_some())
            .map(|node| (node.node.clone(), Avoidance::FailedBefore));
        avoided.extend(failed);
    }
    let failed = avoided.clone();
    if job.exclude_stragglers {
        for node in slow_nodes(status) {
            avoided.entry(node.clone()).or_insert(Avoidance::WasSlow);
        }
    }
    let mut steps = vec![avoided, failed];
    steps.dedup();
    steps.retain(|avoided| !avoided.is_empty());
    let had = status
        .placement
        .as_ref()
        .and_then(|placement| placement.group.clone())
        .filter(|_| job.sizes.len() > 1);
    let mut shapes = Vec::new();
    if had.is_some() {
        let own = steps.iter().cloned().chain([BTreeMap::new()]);
        shapes.extend(own.map(|avoided| (avoided, had.clone())));
    }
    shapes.extend(steps.into_iter().map(|avoided| (avoided, None)));
    shapes
        .into_iter()
        .map(|(avoided, only)| {
            Arc::new(Shape {
                avoided,
                only,
                ..(*request.shape).clone()
            })
        })
        .collect()
}

/// The nodes on which a rank of the last gang, or of one that is remembered, was slow.
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
    use std::collections::HashMap;

    use crds::status::FailedNodeStatus;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;
    use crate::facts::inventory::Inventory;
    use crate::fixtures::{self, at};
    use crate::policy::placement::place;

    /// Of a job whose gang of two was slow on `a` and failed on `b`.
    fn shapes(exclude_stragglers: bool, exclude_failed_nodes: bool) -> Vec<Arc<Shape>> {
        let mut job = fixtures::job();
        job.spec.failure_policy.exclude_stragglers = exclude_stragglers;
        job.spec.failure_policy.exclude_failed_nodes = exclude_failed_nodes;
        let mut status = fixtures::status(crds::Phase::Restarting, 1);
        status.stragglers = vec![fixtures::straggler(0, "a", 2.0)];
        let failed = |node: &str, avoided_until| FailedNodeStatus {
            node: node.into(),
            failures: 1,
            class: "DeviceFault".into(),
            time: Time(at(0)),
            avoided_until,
        };
        status.failed_nodes = vec![failed("b", Some(Time(at(3600)))), failed("c", None)];
        let valid = crds::validate(&job).expect("valid");
        stricter(&valid, &status, &GangRequest::from(&valid))
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

    #[test]
    fn what_is_avoided_is_a_counted_reason() {
        let shape = shapes(true, true).swap_remove(0);
        let nodes = ["a", "b", "c"].map(|name| fixtures::node(name, "Tesla-T4", 1));
        let inventory = Inventory::new(&nodes, [], &HashMap::new());
        let refused = place(
            &GangRequest {
                nodes: 2,
                larger: vec![],
                shape,
            },
            &inventory,
        )
        .expect_err("does not fit");
        assert_eq!(
            refused.message,
            "needs 2 x 1 like nvidia.com/gpu: Tesla-T4 has 1 node with 1 free, \
             1 node where attempts of this job failed (b), 1 node where a rank of this job was slow (a)"
        );
    }
}
