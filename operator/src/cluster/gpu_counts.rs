//! How many GPUs there are and what becomes of them, for metrics: a pure function of the inventory.

use std::collections::{BTreeMap, BTreeSet};

use contract::operator_metrics::GPU_STATES;
use planner::facts::inventory::{Inventory, NodeFacts, NodeHealth};
use planner::facts::resources::Amount;

/// Where no label tells the product.
const UNKNOWN_PRODUCT: &str = "unknown";

/// GPUs by state, by product and resource.
pub(crate) type GpuCounts = BTreeMap<(String, String), BTreeMap<GpuState, i64>>;

/// What becomes of a GPU: each is in one state.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) enum GpuState {
    /// A gang of this operator holds it, or is promised it.
    Gangs,
    /// Another pod holds it.
    Others,
    /// A gang could have it.
    Free,
    /// Nobody holds it and nobody can get it: it is unhealthy, or its node is cordoned or not ready.
    Unavailable,
}

impl GpuState {
    /// Every state.
    pub(crate) const ALL: [Self; 4] = [Self::Gangs, Self::Others, Self::Free, Self::Unavailable];

    /// The value of the metric's label.
    pub(crate) fn as_str(self) -> &'static str {
        GPU_STATES[self as usize]
    }
}

/// Counts what nodes have of these resources. The states of a product add up to its GPUs, those of nodes that are gone
/// left out.
pub(crate) fn count(inventory: &Inventory, resources: &BTreeSet<&str>) -> GpuCounts {
    let mut counts = GpuCounts::new();
    for node in inventory.nodes.values() {
        for resource in resources {
            let Some(amount) = node.resources.get(*resource).filter(|amount| amount.capacity > 0) else {
                continue;
            };
            let product = match node.labels.gpus().product() {
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
        // Of a node that lost GPUs, pods may still hold more than it has.
        (
            GpuState::Unavailable,
            (amount.capacity - amount.used - free).max(0),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use k8s_openapi::api::core::v1::Node;
    use serde_json::json;

    use super::*;
    use planner::facts::inventory::{Shared, facts};
    use planner::facts::resources::{Holder, Requests, hold};

    const GPU: &str = "nvidia.com/gpu";

    struct Given {
        product: &'static str,
        ready: bool,
        cordoned: bool,
        allocatable: u8,
        gangs: i64,
        others: i64,
    }

    const PLAIN: Given = Given {
        product: "Tesla-T4",
        ready: true,
        cordoned: false,
        allocatable: 8,
        gangs: 0,
        others: 0,
    };

    /// A node of eight GPUs.
    fn node(given: &Given) -> NodeFacts {
        let node: Node = serde_json::from_value(json!({
            "metadata": {"labels": {"nvidia.com/gpu.product": given.product}},
            "spec": {"unschedulable": given.cordoned},
            "status": {
                "capacity": {GPU: "8", "cpu": "4"},
                "allocatable": {GPU: given.allocatable.to_string(), "cpu": "4"},
                "conditions": [{"type": "Ready", "status": if given.ready { "True" } else { "Unknown" }}],
            },
        }))
        .expect("a node");
        let mut facts = facts(&node, &mut Shared::default());
        let requests = |gpus| Requests::from([(GPU.to_owned(), gpus)]);
        hold(&mut facts.resources, &requests(given.gangs), Holder::Gang, 1);
        hold(&mut facts.resources, &requests(given.others), Holder::Other, 1);
        facts
    }

    fn counted(given: &[Given]) -> GpuCounts {
        let nodes = given
            .iter()
            .enumerate()
            .map(|(index, given)| (Arc::from(format!("node{index}")), node(given)));
        let inventory = Inventory {
            nodes: nodes.collect(),
        };
        count(&inventory, &BTreeSet::from([GPU, "amd.com/gpu"]))
    }

    fn of(counts: &GpuCounts, product: &str) -> [i64; 4] {
        let states = &counts[&(product.to_owned(), GPU.to_owned())];
        GpuState::ALL.map(|state| states[&state])
    }

    #[test]
    fn every_gpu_is_in_one_state() {
        let counts = counted(&[
            Given {
                gangs: 4,
                others: 1,
                ..PLAIN
            },
            Given {
                allocatable: 6,
                gangs: 2,
                ..PLAIN
            },
            Given {
                cordoned: true,
                gangs: 3,
                ..PLAIN
            },
            Given {
                ready: false,
                others: 1,
                ..PLAIN
            },
        ]);
        assert_eq!(of(&counts, "Tesla-T4"), [9, 2, 3 + 4, 2 + 5 + 7]);
        assert_eq!(
            counts.len(),
            1,
            "nothing of a resource that no node has: {counts:?}"
        );
    }

    #[test]
    fn products_are_told_apart_and_one_that_no_label_tells_has_a_name() {
        let counts = counted(&[PLAIN, Given { product: "", ..PLAIN }]);
        assert_eq!(of(&counts, "Tesla-T4"), [0, 0, 8, 0]);
        assert_eq!(of(&counts, "unknown"), [0, 0, 8, 0]);
    }

    #[test]
    fn pods_that_hold_more_than_a_node_has_left_leave_nothing_free() {
        let counts = counted(&[Given {
            allocatable: 2,
            gangs: 8,
            ..PLAIN
        }]);
        assert_eq!(of(&counts, "Tesla-T4"), [8, 0, 0, 0]);
    }
}
