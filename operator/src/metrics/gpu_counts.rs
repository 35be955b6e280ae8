//! Counts of GPUs by state, for metrics: a pure function of the inventory.

use std::collections::{BTreeMap, BTreeSet};

use contract::operator_metrics::GPU_STATES;
use planner::facts::inventory::{Inventory, NodeFacts, NodeHealth};
use planner::facts::resources::Amount;

/// The product if no label names it.
const UNKNOWN_PRODUCT: &str = "unknown";

/// GPUs by state, by product and resource.
pub(crate) type GpuCounts = BTreeMap<(String, String), BTreeMap<GpuState, i64>>;

/// The state of a GPU.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) enum GpuState {
    /// Held by or promised to a gang of this operator.
    Gangs,
    /// Held by another pod.
    Others,
    /// Available to a gang.
    Free,
    /// Held by nobody and not available: unhealthy, or its node is cordoned or not ready.
    Unavailable,
}

impl GpuState {
    pub(crate) const ALL: [Self; 4] = [Self::Gangs, Self::Others, Self::Free, Self::Unavailable];

    pub(crate) fn as_str(self) -> &'static str {
        GPU_STATES[self as usize]
    }
}

/// Counts GPUs of these resources. The states of a product add up to its GPUs on existing nodes.
pub(crate) fn count(inventory: &Inventory, resources: &BTreeSet<&str>) -> GpuCounts {
    let mut counts = GpuCounts::new();
    for node in inventory.nodes.values() {
        for resource in resources {
            let Some(amount) = node.resources.get(*resource).filter(|amount| amount.capacity > 0) else {
                continue;
            };
            let product = match node.labels.gpus.product.as_str() {
                "" => UNKNOWN_PRODUCT,
                product => product,
            };
            let states = counts
                .entry((product.to_owned(), (*resource).to_owned()))
                .or_default();
            for (state, gpus) in states_of(node, *amount) {
                *states.entry(state).or_default() += gpus;
            }
        }
    }
    counts
}

fn states_of(node: &NodeFacts, amount: Amount) -> [(GpuState, i64); 4] {
    let can_be_had = node.health == NodeHealth::Ready && !node.cordoned;
    let free = if can_be_had { amount.free().max(0) } else { 0 };
    [
        (GpuState::Gangs, amount.used_by_gangs),
        (GpuState::Others, amount.used - amount.used_by_gangs),
        (GpuState::Free, free),
        // On a node that lost GPUs, pods may hold more than its capacity.
        (
            GpuState::Unavailable,
            (amount.capacity - amount.used - free).max(0),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Node;
    use serde_json::json;

    use super::*;
    use planner::facts::inventory::{Shared, facts};
    use planner::facts::resources::{Holder, Requests, hold};

    const GPU: &str = "nvidia.com/gpu";

    /// A node of eight GPUs, given those allocatable, held by gangs and held by others.
    fn node(product: &str, state: &str, [allocatable, gangs, others]: [i64; 3]) -> NodeFacts {
        let node: Node = serde_json::from_value(json!({
            "metadata": {"labels": {"nvidia.com/gpu.product": product}},
            "spec": {"unschedulable": state == "cordoned"},
            "status": {
                "capacity": {GPU: "8", "cpu": "4"},
                "allocatable": {GPU: allocatable.to_string(), "cpu": "4"},
                "conditions": [{"type": "Ready", "status": if state == "lost" { "Unknown" } else { "True" }}],
            },
        }))
        .expect("a node");
        let mut facts = facts(&node, &mut Shared::default());
        let requests = |gpus| Requests::from([(GPU.to_owned(), gpus)]);
        hold(&mut facts.resources, &requests(gangs), Holder::Gang, 1);
        hold(&mut facts.resources, &requests(others), Holder::Other, 1);
        facts
    }

    #[test]
    fn every_gpu_is_in_one_state() {
        for (nodes, expected) in [
            (
                vec![
                    node("Tesla-T4", "ready", [8, 4, 1]),
                    node("Tesla-T4", "ready", [6, 2, 0]),
                    node("Tesla-T4", "cordoned", [8, 3, 0]),
                    node("Tesla-T4", "lost", [8, 0, 1]),
                ],
                vec![("Tesla-T4", [9, 2, 3 + 4, 2 + 5 + 7])],
            ),
            (
                ["Tesla-T4", ""]
                    .map(|product| node(product, "ready", [8, 0, 0]))
                    .into(),
                vec![("Tesla-T4", [0, 0, 8, 0]), ("unknown", [0, 0, 8, 0])],
            ),
            // Pods may hold more than a node has left.
            (
                vec![node("Tesla-T4", "ready", [2, 9, 0])],
                vec![("Tesla-T4", [9, 0, 0, 0])],
            ),
        ] {
            let named = (0..)
                .zip(nodes)
                .map(|(index, node)| (format!("node{index}").into(), node));
            let inventory = Inventory {
                nodes: named.collect(),
            };
            let counts = count(&inventory, &BTreeSet::from([GPU, "amd.com/gpu"]));
            let found = counts.iter().map(|((product, resource), states)| {
                assert_eq!(resource, GPU);
                (product.as_str(), GpuState::ALL.map(|state| states[&state]))
            });
            assert_eq!(found.collect::<Vec<_>>(), expected);
        }
    }
}
