//! Placement over random clusters. The default run looks at 2,500 of them for each property.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::cluster::inventory::{Amount, NodeFacts};
use crate::policy::homogeneity::{group_of, refusal};

const GPU: &str = "nvidia.com/gpu";

fn node() -> impl Strategy<Value = NodeFacts> {
    (
        prop::sample::select(vec!["Tesla-T4", "NVIDIA-H200", "NVIDIA-L4", ""]),
        prop::sample::select(vec![0_i64, 1, 2, 4, 8]),
        0_i64..=8,
        prop::sample::select(vec!["550", "570"]),
        // One in eight each.
        (0_u8..8, 0_u8..8, 0_u8..8),
    )
        .prop_map(
            |(product, capacity, used, driver, (down, cordoned, unhealthy))| NodeFacts {
                labels: BTreeMap::from([
                    ("nvidia.com/gpu.product".into(), product.into()),
                    ("nvidia.com/cuda.driver-version.major".into(), driver.into()),
                ]),
                taints: vec![],
                ready: down != 0,
                cordoned: cordoned == 0,
                resources: BTreeMap::from([(
                    GPU.into(),
                    Amount {
                        capacity,
                        allocatable: if unhealthy == 0 { capacity / 2 } else { capacity },
                        used: used.min(capacity),
                    },
                )]),
            },
        )
}

fn cluster() -> impl Strategy<Value = Inventory> {
    prop::collection::vec(node(), 0..24).prop_map(|nodes| Inventory {
        nodes: nodes
            .into_iter()
            .enumerate()
            .map(|(index, node)| (format!("node-{index:02}"), node))
            .collect(),
    })
}

fn gang() -> impl Strategy<Value = GangRequest> {
    (1_usize..6, prop::sample::select(vec![1_i64, 2, 4, 8])).prop_map(|(nodes, gpus_per_node)| GangRequest {
        nodes,
        gpus_per_node,
        gpu_resource: GPU.into(),
        requests: Requests::from([(GPU.into(), gpus_per_node)]),
        ..GangRequest::default()
    })
}

fn hold(inventory: &mut Inventory, request: &GangRequest, placement: &Placement) {
    for node in &placement.nodes {
        inventory.hold(node, &request.requests);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_500, ..ProptestConfig::default() })]

    #[test]
    fn a_gang_gets_exactly_its_size_of_like_gpus_on_fitting_nodes(inventory in cluster(), request in gang()) {
        if let Ok(placement) = place(&request, &inventory) {
            let distinct: BTreeSet<&String> = placement.nodes.iter().collect();
            prop_assert_eq!(distinct.len(), request.nodes);
            prop_assert_eq!(placement.nodes.len(), request.nodes);
            for name in &placement.nodes {
                let node = &inventory.nodes[name];
                let group = group_of(node, GPU).expect("a group");
                prop_assert_eq!(&group, &placement.group);
                prop_assert_eq!(refusal(name, node, &group, &request), None);
            }
        }
    }

    #[test]
    fn no_gpu_is_given_twice(mut inventory in cluster(), requests in prop::collection::vec(gang(), 1..12)) {
        for request in &requests {
            if let Ok(placement) = place(request, &inventory) {
                hold(&mut inventory, request, &placement);
            }
        }
        for (name, node) in &inventory.nodes {
            let gpus = node.resources[GPU];
            // Unhealthy nodes may hold more than is allocatable from before; nothing is added to them.
            if gpus.allocatable == gpus.capacity {
                prop_assert!(gpus.used <= gpus.capacity, "{}: {:?}", name, gpus);
            }
        }
    }

    #[test]
    fn whether_a_gang_fits_is_told_rightly(inventory in cluster(), request in gang()) {
        let mut fitting: BTreeMap<GpuGroup, usize> = BTreeMap::new();
        for (name, node) in &inventory.nodes {
            if let Some(group) = group_of(node, GPU)
                && refusal(name, node, &group, &request).is_none()
            {
                *fitting.entry(group).or_default() += 1;
            }
        }
        let best = fitting.values().filter(|count| **count >= request.nodes).min();
        match place(&request, &inventory) {
            Ok(placement) => prop_assert_eq!(Some(&fitting[&placement.group]), best),
            Err(unplaceable) => {
                prop_assert_eq!(best, None);
                let counted: i32 = unplaceable.rejected.iter().map(|group| group.nodes).sum();
                let with_gpus = inventory.nodes.values().filter(|node| group_of(node, GPU).is_some()).count();
                prop_assert_eq!(usize::try_from(counted).expect("a count"), with_gpus);
            }
        }
    }

    #[test]
    fn the_choice_does_not_hang_on_the_order_in_which_nodes_are_listed(
        inventory in cluster(),
        request in gang(),
        seed in any::<u64>(),
    ) {
        let mut names: Vec<&String> = inventory.nodes.keys().collect();
        names.sort_by_key(|name| {
            name.bytes().fold(seed, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
        });
        let objects: Vec<_> = names.iter().map(|name| object(name, &inventory.nodes[*name])).collect();
        let listed = Inventory::new(&objects, [], &std::collections::HashMap::new());
        let mut idle = inventory.clone();
        for node in idle.nodes.values_mut() {
            node.resources.get_mut(GPU).expect("GPUs").used = 0;
        }
        prop_assert_eq!(place(&request, &listed), place(&request, &idle));
    }

    #[test]
    fn another_free_node_of_the_chosen_kind_never_keeps_a_gang_out(inventory in cluster(), request in gang()) {
        if let Ok(placement) = place(&request, &inventory) {
            let mut more = inventory.clone();
            let mut spare = inventory.nodes[&placement.nodes[0]].clone();
            spare.resources.get_mut(GPU).expect("GPUs").used = 0;
            more.nodes.insert("node-99".into(), spare);
            prop_assert!(place(&request, &more).is_ok());
        }
    }
}

fn object(name: &str, facts: &NodeFacts) -> k8s_openapi::api::core::v1::Node {
    let gpus = facts.resources[GPU];
    serde_json::from_value(serde_json::json!({
        "metadata": {"name": name, "labels": facts.labels},
        "spec": {"unschedulable": facts.cordoned},
        "status": {
            "capacity": {GPU: gpus.capacity.to_string()},
            "allocatable": {GPU: gpus.allocatable.to_string()},
            "conditions": [{"type": "Ready", "status": if facts.ready { "True" } else { "False" }}],
        },
    }))
    .expect("a node")
}
