//! Placement over random clusters. The default run looks at 2,500 of them for each property.

use std::collections::{BTreeMap, BTreeSet};

use crds::spec::Homogeneity;
use crds::validate::PlacementRules;
use proptest::prelude::*;

use super::*;
use crate::facts::inventory::{Inventory, NodeFacts, NodeHealth, NodeLabels, Shared};
use crate::facts::resources::{Amount, Requests};
use crate::policy::node_fit::{Verdict, group_of, verdict};
use crate::policy::request::Shape;

pub(crate) const GPU: &str = "nvidia.com/gpu";

pub(crate) fn node() -> impl Strategy<Value = NodeFacts> {
    (
        prop::sample::select(vec!["Tesla-T4", "NVIDIA-H200", "NVIDIA-L4", ""]),
        prop::sample::select(vec![0_i64, 1, 2, 4, 8]),
        (0_i64..=8, 0_i64..=8),
        prop::sample::select(vec!["550", "570"]),
        // One in eight each.
        (0_u8..8, 0_u8..8, 0_u8..8),
        prop::sample::select(vec!["x", "y", ""]),
        prop::sample::select(vec!["1", "2", "3"]),
    )
        .prop_map(
            |(product, capacity, (used, by_gangs), driver, (down, cordoned, unhealthy), block, rack)| {
                NodeFacts {
                    labels: labels(&[
                        ("nvidia.com/gpu.product", product),
                        ("nvidia.com/cuda.driver-version.major", driver),
                        ("block", block),
                        ("rack", rack),
                    ]),
                    taints: vec![],
                    health: if down == 0 {
                        NodeHealth::NotReady(None)
                    } else {
                        NodeHealth::Ready
                    },
                    cordoned: cordoned == 0,
                    reserved_for: None,
                    resources: (capacity > 0)
                        .then(|| {
                            let gpus = Amount {
                                capacity,
                                allocatable: if unhealthy == 0 { capacity / 2 } else { capacity },
                                used: used.min(capacity),
                                used_by_gangs: by_gangs.min(used).min(capacity),
                            };
                            (GPU.into(), gpus)
                        })
                        .into_iter()
                        .collect(),
                }
            },
        )
}

fn labels(values: &[(&str, &str)]) -> Arc<NodeLabels> {
    let values = values.iter().filter(|(_, value)| !value.is_empty());
    let owned = values.map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    Arc::new(NodeLabels::new(owned.collect(), &mut Shared::default()))
}

pub(crate) fn cluster() -> impl Strategy<Value = Inventory> {
    prop::collection::vec(node(), 0..24).prop_map(|nodes| Inventory {
        nodes: nodes
            .into_iter()
            .enumerate()
            .map(|(index, node)| (format!("node-{index:02}").into(), node))
            .collect(),
    })
}

pub(crate) fn gang() -> impl Strategy<Value = GangRequest> {
    (
        1_usize..6,
        prop::sample::select(vec![1_i64, 2, 4, 8]),
        prop::sample::select(vec![
            Homogeneity::Required,
            Homogeneity::Preferred,
            Homogeneity::Off,
        ]),
        prop::option::of(Just("block".to_owned())),
        prop::sample::subsequence(vec!["block".to_owned(), "rack".to_owned()], 0..=2),
    )
        .prop_map(
            |(nodes, gpus_per_node, homogeneity, required_topology, preferred_topology)| GangRequest {
                nodes,
                larger: vec![],
                shape: Arc::new(Shape {
                    gpus_per_node,
                    gpu_resource: GPU.into(),
                    requests: Requests::from([(GPU.into(), gpus_per_node)]),
                    rules: PlacementRules {
                        homogeneity,
                        required_topology,
                        preferred_topology,
                        ..PlacementRules::default()
                    },
                    ..Shape::default()
                }),
            },
        )
}

/// A gang that may have more pods.
pub(crate) fn elastic_gang() -> impl Strategy<Value = GangRequest> {
    let more = prop::sample::subsequence(vec![12_usize, 8, 4, 2, 1], 0..=3);
    (gang(), more).prop_map(|(request, more)| GangRequest {
        larger: more.into_iter().map(|more| request.nodes + more).collect(),
        ..request
    })
}

fn gpus_of(node: &NodeFacts) -> Amount {
    node.resources.get(GPU).copied().unwrap_or_default()
}

/// The nodes that fit, by group and by what must be the same.
fn fitting(inventory: &Inventory, request: &GangRequest) -> BTreeMap<(GpuGroup, Option<String>), usize> {
    let mut fitting = BTreeMap::new();
    for (name, node) in &inventory.nodes {
        if let Some(group) = group_of(node, &request.shape)
            && fits(name, node, request)
        {
            let key = request.shape.rules.required_topology.as_ref();
            let domain = key.map(|key| node.labels.values()[key].clone());
            *fitting.entry((group, domain)).or_default() += 1;
        }
    }
    fitting
}

fn fits(name: &str, node: &NodeFacts, request: &GangRequest) -> bool {
    matches!(verdict(name, node, &request.shape), Verdict::Fits { .. })
}

fn hold(inventory: &mut Inventory, request: &GangRequest, placement: &Placement) {
    for node in &placement.nodes {
        inventory.hold(node, &request.shape.requests);
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
            let mut groups: BTreeMap<GpuGroup, usize> = BTreeMap::new();
            for name in &placement.nodes {
                let node = &inventory.nodes[name.as_str()];
                let group = group_of(node, &request.shape).expect("a group");
                prop_assert!(fits(name, node, &request), "{:?}", node);
                *groups.entry(group).or_default() += 1;
            }
            match placement.gpus {
                Gpus::Like(group) => prop_assert_eq!(groups, BTreeMap::from([(group, request.nodes)])),
                Gpus::Mixed(mixed) => {
                    prop_assert_ne!(request.shape.rules.homogeneity, Homogeneity::Required);
                    prop_assert_eq!(groups, mixed);
                }
            }
            if let Some(key) = &request.shape.rules.required_topology {
                let domain = |name: &String| inventory.nodes[name.as_str()].labels.values()[key].clone();
                let domains: BTreeSet<String> = placement.nodes.iter().map(domain).collect();
                prop_assert_eq!(domains.len(), 1);
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
            let gpus = gpus_of(node);
            // Unhealthy nodes may hold more than is allocatable from before; nothing is added to them.
            if gpus.allocatable == gpus.capacity {
                prop_assert!(gpus.used <= gpus.capacity, "{}: {:?}", name, gpus);
            }
        }
    }

    #[test]
    fn whether_a_gang_fits_is_told_rightly(inventory in cluster(), request in gang()) {
        let fitting = fitting(&inventory, &request);
        let like = fitting.iter().any(|((group, _), count)| *count >= request.nodes && !group.product.is_empty());
        let mut of_domain: BTreeMap<&Option<String>, usize> = BTreeMap::new();
        for ((_, domain), count) in &fitting {
            *of_domain.entry(domain).or_default() += count;
        }
        let mixed = of_domain.values().any(|count| *count >= request.nodes);
        let fits = match request.shape.rules.homogeneity {
            Homogeneity::Required => like,
            Homogeneity::Preferred | Homogeneity::Off => mixed,
        };
        match place(&request, &inventory) {
            Ok(placement) => {
                prop_assert!(fits);
                if request.shape.rules.homogeneity == Homogeneity::Preferred && like {
                    prop_assert!(matches!(placement.gpus, Gpus::Like(_)));
                }
            }
            Err(unplaceable) => {
                prop_assert!(!fits);
                let counted: i32 = unplaceable.rejected.iter().map(|group| group.nodes).sum();
                let with_gpus =
                    inventory.nodes.values().filter(|node| group_of(node, &request.shape).is_some()).count();
                prop_assert_eq!(usize::try_from(counted).expect("a count"), with_gpus);
            }
        }
    }

    #[test]
    fn an_elastic_gang_gets_the_greatest_of_its_sizes_that_fits(inventory in cluster(), request in elastic_gang()) {
        let sizes = || request.larger.iter().copied().chain([request.nodes]);
        let placed = || sizes().filter_map(|nodes| place(&request.of_size(nodes), &inventory).ok());
        let is_like = |placement: &Placement| matches!(placement.gpus, Gpus::Like(_));
        // A smaller one of like GPUs comes before a larger mix.
        let like = placed().find(is_like).filter(|_| request.shape.rules.homogeneity == Homogeneity::Preferred);
        prop_assert_eq!(place(&request, &inventory).ok(), like.or_else(|| placed().next()));
    }

    #[test]
    fn the_smallest_group_that_fits_is_taken(inventory in cluster(), mut request in gang()) {
        let rules = &mut Arc::make_mut(&mut request.shape).rules;
        rules.homogeneity = Homogeneity::Required;
        rules.required_topology = None;
        let fitting = fitting(&inventory, &request);
        let size = |group: &GpuGroup, nodes: usize| group.gpus_per_node * i64::try_from(nodes).unwrap_or(i64::MAX);
        let smallest = fitting
            .iter()
            .filter(|((group, _), count)| **count >= request.nodes && !group.product.is_empty())
            .map(|((group, _), count)| size(group, *count))
            .min();
        if let Ok(Placement { gpus: Gpus::Like(group), .. }) = place(&request, &inventory) {
            let nodes = fitting[&(group.clone(), None)];
            prop_assert_eq!(Some(size(&group, nodes)), smallest);
        }
    }

    #[test]
    fn the_choice_does_not_hang_on_the_order_in_which_nodes_are_listed(
        inventory in cluster(),
        request in gang(),
        seed in any::<u64>(),
    ) {
        let mut names: Vec<&Arc<str>> = inventory.nodes.keys().collect();
        names.sort_by_key(|name| {
            name.bytes().fold(seed, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
        });
        let objects: Vec<_> = names.iter().map(|name| object(name, &inventory.nodes[*name])).collect();
        let listed = Inventory::new(&objects, [], &std::collections::HashMap::new());
        let mut idle = inventory.clone();
        for node in idle.nodes.values_mut() {
            for amount in node.resources.values_mut() {
                (amount.used, amount.used_by_gangs) = (0, 0);
            }
        }
        prop_assert_eq!(place(&request, &listed), place(&request, &idle));
    }

    #[test]
    fn another_free_node_of_the_chosen_kind_never_keeps_a_gang_out(inventory in cluster(), request in gang()) {
        if let Ok(placement) = place(&request, &inventory) {
            let mut more = inventory.clone();
            let mut spare = inventory.nodes[placement.nodes[0].as_str()].clone();
            spare.resources.get_mut(GPU).expect("GPUs").used = 0;
            more.nodes.insert("node-99".into(), spare);
            prop_assert!(place(&request, &more).is_ok());
        }
    }
}

fn object(name: &str, facts: &NodeFacts) -> k8s_openapi::api::core::v1::Node {
    let gpus = gpus_of(facts);
    serde_json::from_value(serde_json::json!({
        "metadata": {"name": name, "labels": facts.labels.values()},
        "spec": {"unschedulable": facts.cordoned},
        "status": {
            "capacity": {GPU: gpus.capacity.to_string()},
            "allocatable": {GPU: gpus.allocatable.to_string()},
            "conditions": [{"type": "Ready", "status": if facts.health == NodeHealth::Ready { "True" } else { "False" }}],
        },
    }))
    .expect("a node")
}
