//! Placement in random clusters, checked against an oracle that shares no code with it.

use std::collections::{BTreeMap, BTreeSet};

use crds::spec::Homogeneity;
use k8s_openapi::api::core::v1::{Taint, Toleration};
use proptest::prelude::*;

use super::random::{GKE, GPU, NVIDIA, any_cluster, elastic_gang, gang, name_of};
use super::*;
use crate::facts::inventory::{Inventory, NodeFacts, NodeHealth};
use crate::facts::resources::{Amount, CPU, HOST_PORTS, MEMORY, PODS, STORAGE};
use crate::policy::node_fit::{Verdict, verdict};
use crate::policy::request::Shape;

fn label<'a>(node: &'a NodeFacts, key: &str) -> &'a str {
    node.labels.values.get(key).map_or("", String::as_str)
}

fn product(node: &NodeFacts) -> (&str, &str) {
    let labels = [NVIDIA, GKE].map(|key| (key, label(node, key)));
    labels
        .into_iter()
        .find(|(_, product)| !product.is_empty())
        .unwrap_or_default()
}

/// Only NVIDIA's discovery has more than the product.
fn of_nvidia<'a>(node: &'a NodeFacts, key: &str) -> &'a str {
    if product(node).0 == NVIDIA {
        label(node, key)
    } else {
        ""
    }
}

fn replicas(node: &NodeFacts) -> i64 {
    label(node, "nvidia.com/gpu.replicas").parse().unwrap_or(1)
}

fn strategy(node: &NodeFacts) -> &str {
    label(node, "nvidia.com/gpu.sharing-strategy").trim_start_matches("none")
}

/// The common properties of a group's nodes: the product's label, the product, and more.
fn kind(node: &NodeFacts, shape: &Shape) -> Option<Vec<String>> {
    let gpus = node.resources.get(GPU)?;
    let (writer, product) = product(node);
    let mut kind = vec![
        writer.to_owned(),
        product.to_owned(),
        gpus.capacity.to_string(),
        of_nvidia(node, "nvidia.com/gpu.memory").to_owned(),
        of_nvidia(node, "nvidia.com/cuda.driver-version.major").to_owned(),
        strategy(node).to_owned(),
        replicas(node).to_string(),
    ];
    kind.extend(shape.rules.group_by.iter().map(|key| label(node, key).to_owned()));
    Some(kind)
}

/// By the rules of Kubernetes: an empty key or effect matches all, and `Equal` is the default.
fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let matches_all = |given: &Option<String>| given.as_ref().is_none_or(String::is_empty);
    let is_same = |given: &Option<String>, wanted: &str| given.as_deref() == Some(wanted);
    let is_of_key = is_same(&toleration.key, &taint.key);
    (matches_all(&toleration.effect) || is_same(&toleration.effect, &taint.effect))
        && if is_same(&toleration.operator, "Exists") {
            is_of_key || matches_all(&toleration.key)
        } else {
            is_of_key && toleration.value == taint.value
        }
}

/// Whether a node fits a pod, given what counts as free: the rules of docs/operations.md.
fn is_usable(name: &str, node: &NodeFacts, shape: &Shape, free: fn(Amount) -> i64) -> bool {
    let rules = &shape.rules;
    let gpus = node.resources.get(GPU).copied().unwrap_or_default();
    let product = product(node).1;
    let is_shared = replicas(node) > 1 || !strategy(node).is_empty() || product.ends_with("-SHARED");
    let memory = of_nvidia(node, "nvidia.com/gpu.memory").parse::<i64>().ok();
    let count = label(node, "nvidia.com/gpu.count").parse::<i64>().ok();
    let has_room =
        |(resource, asked): (&String, &i64)| match (resource.as_str(), node.resources.get(resource.as_str()))
        {
            (HOST_PORTS, amount) => amount.is_none_or(|amount| free(*amount) == 0),
            // If a virtual node does not report them, kube-scheduler decides.
            (CPU | MEMORY | STORAGE | PODS, amount) if amount.is_none_or(|amount| amount.capacity == 0) => {
                true
            }
            (_, amount) => *asked <= amount.map_or(0, |amount| free(*amount)),
        };
    let is_tolerated = |taint: &Taint| {
        taint.effect == "PreferNoSchedule"
            || shape
                .tolerations
                .iter()
                .any(|toleration| tolerates(toleration, taint))
    };
    gpus.capacity > 0
        && gpus.allocatable == gpus.capacity
        && node.health == NodeHealth::Ready
        && !node.cordoned
        && (rules.nodes.is_empty() || rules.nodes.contains(name))
        && !rules.exclude_nodes.contains(name)
        && !shape.avoided.contains_key(name)
        && shape
            .node_selector
            .iter()
            .all(|(key, value)| label(node, key) == value)
        && rules
            .required_topology
            .iter()
            .all(|key| !label(node, key).is_empty())
        && (rules.homogeneity == Homogeneity::Off || !product.is_empty())
        && (rules.products.is_empty() || rules.products.contains(product))
        && rules
            .min_memory_mebibytes
            .is_none_or(|least| memory.is_some_and(|memory| memory >= least))
        && (rules.allow_shared || !is_shared)
        && count.is_none_or(|count| count * replicas(node) == gpus.capacity)
        && node.taints.iter().all(is_tolerated)
        && shape.requests.iter().all(has_room)
}

fn fits(name: &str, node: &NodeFacts, shape: &Shape) -> bool {
    node.reserved_for.is_none() && is_usable(name, node, shape, Amount::free)
}

/// Counts of matching nodes, by kind and by value of the required topology key.
fn count(
    inventory: &Inventory,
    shape: &Shape,
    holds: impl Fn(&str, &NodeFacts, &Shape) -> bool,
) -> BTreeMap<(Vec<String>, String), usize> {
    let mut counts = BTreeMap::new();
    for (name, node) in &inventory.nodes {
        if let Some(kind) = kind(node, shape).filter(|_| holds(name, node, shape)) {
            let domain = shape
                .rules
                .required_topology
                .as_ref()
                .map_or("", |key| label(node, key));
            *counts.entry((kind, domain.to_owned())).or_default() += 1;
        }
    }
    counts
}

/// The largest gang of identical GPUs, and the largest of any GPUs that the job allows.
fn largest(counts: &BTreeMap<(Vec<String>, String), usize>, shape: &Shape) -> (usize, usize) {
    let like = counts.iter().filter(|((kind, _), _)| !kind[1].is_empty());
    let like = like.map(|(_, count)| *count).max().unwrap_or(0);
    let mut of_domain: BTreeMap<&str, usize> = BTreeMap::new();
    for ((_, domain), count) in counts {
        *of_domain.entry(domain).or_default() += count;
    }
    match shape.rules.homogeneity {
        Homogeneity::Required => (like, like),
        Homogeneity::Preferred | Homogeneity::Off => (like, of_domain.into_values().max().unwrap_or(0)),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]

    #[test]
    fn a_node_fits_now_or_in_time_if_and_only_if_the_rules_say_so(inventory in any_cluster(), request in gang()) {
        let shape = &request.shape;
        for (name, node) in inventory.nodes.iter().filter(|(_, node)| node.resources.contains_key(GPU)) {
            let verdict = verdict(name, node, shape);
            prop_assert_eq!(matches!(verdict, Verdict::Fits { .. }), fits(name, node, shape), "{:?}", node);
            let in_time = is_usable(name, node, shape, Amount::free_in_time);
            prop_assert_eq!(!matches!(verdict, Verdict::Refused(_)), in_time, "{:?}", node);
        }
    }

    #[test]
    fn a_gang_is_placed_if_and_only_if_it_fits_on_its_number_of_like_gpus(
        mut inventory in any_cluster(),
        request in gang(),
        reserved in prop::collection::vec(0_usize..24, 0..4),
    ) {
        for node in reserved {
            if let Some(node) = inventory.nodes.get_mut(name_of(node).as_str()) {
                node.reserved_for = Some("research/other".into());
            }
        }
        let shape = &request.shape;
        let (like, most) = largest(&count(&inventory, shape, fits), shape);
        let placed = place(&request, &inventory);
        prop_assert_eq!(placed.is_ok(), most >= request.nodes);
        let placement = match placed {
            Ok(placement) => placement,
            Err(rejected) => {
                let counted: i32 = rejected.iter().map(|group| group.nodes).sum();
                let with_gpus = inventory.nodes.values().filter(|node| node.resources.contains_key(GPU));
                prop_assert_eq!(usize::try_from(counted).expect("a count"), with_gpus.count());
                return Ok(());
            }
        };
        let distinct: BTreeSet<_> = placement.nodes.iter().collect();
        prop_assert_eq!((placement.nodes.len(), distinct.len()), (request.nodes, request.nodes));
        let mut kinds: BTreeMap<Vec<String>, usize> = BTreeMap::new();
        let mut domains = BTreeSet::new();
        for name in &placement.nodes {
            let node = &inventory.nodes[name];
            prop_assert!(fits(name, node, shape), "{:?}", node);
            *kinds.entry(kind(node, shape).expect("GPUs")).or_default() += 1;
            domains.extend(shape.rules.required_topology.iter().map(|key| label(node, key)));
        }
        prop_assert!(domains.len() <= 1);
        let mut found: Vec<(&str, usize)> = kinds.iter().map(|(kind, count)| (&*kind[1], *count)).collect();
        let mut recorded: Vec<(&str, usize)> = match &placement.gpus {
            Gpus::Identical(group) => vec![(&group.product, request.nodes)],
            Gpus::Mixed(groups) => {
                prop_assert!(shape.rules.homogeneity != Homogeneity::Preferred || like < request.nodes);
                groups.iter().map(|(group, count)| (&*group.product, *count)).collect()
            }
        };
        found.sort_unstable();
        recorded.sort_unstable();
        prop_assert_eq!(found, recorded);
    }

    #[test]
    fn nodes_are_reserved_if_and_only_if_the_gang_fits_in_time(inventory in any_cluster(), request in gang()) {
        let shape = &request.shape;
        let in_time = |name: &str, node: &NodeFacts, shape: &Shape| is_usable(name, node, shape, Amount::free_in_time);
        let (_, most) = largest(&count(&inventory, shape, in_time), shape);
        let mut view = View::new(Arc::clone(shape), &inventory);
        if view.choose(&request).is_none() {
            let nodes = view.nodes_to_reserve(request.nodes, |_| Claim::Free);
            prop_assert_eq!(nodes.len(), if most >= request.nodes { request.nodes } else { 0 });
            let mut reserved = inventory.clone();
            reserved.nodes.retain(|name, node| nodes.contains(name) && in_time(name, node, shape));
            prop_assert_eq!(largest(&count(&reserved, shape, in_time), shape).1, nodes.len());
        }
    }

    #[test]
    fn an_elastic_gang_gets_the_greatest_of_its_sizes_that_fits(inventory in any_cluster(), request in elastic_gang()) {
        let sizes = || request.larger.iter().copied().chain([request.nodes]);
        let placed = || sizes().filter_map(|nodes| place(&GangRequest::fixed(nodes, &request.shape), &inventory).ok());
        let is_like = |placement: &Placement| matches!(placement.gpus, Gpus::Identical(_));
        // A smaller gang of identical GPUs comes before a larger mix.
        let like = placed().find(is_like).filter(|_| request.shape.rules.homogeneity == Homogeneity::Preferred);
        prop_assert_eq!(place(&request, &inventory).ok(), like.or_else(|| placed().next()));
    }

    #[test]
    fn the_smallest_group_that_fits_is_taken(inventory in any_cluster(), mut request in gang()) {
        let rules = &mut Arc::make_mut(&mut request.shape).rules;
        rules.homogeneity = Homogeneity::Required;
        rules.required_topology = None;
        let fitting = count(&inventory, &request.shape, fits);
        let gpus = |(kind, nodes): (&Vec<String>, usize)| kind[2].parse::<usize>().unwrap_or(0) * nodes;
        let smallest = fitting.iter().filter(|(_, nodes)| **nodes >= request.nodes);
        let smallest = smallest.map(|((kind, _), nodes)| gpus((kind, *nodes))).min();
        if let Ok(placement) = place(&request, &inventory) {
            let kind = kind(&inventory.nodes[&placement.nodes[0]], &request.shape).expect("GPUs");
            let nodes = fitting[&(kind.clone(), String::new())];
            prop_assert_eq!(Some(gpus((&kind, nodes))), smallest);
        }
    }
}
