//! Random clusters and gangs. Unusual values are rare, because otherwise nothing would fit.

use std::sync::Arc;

use crds::spec::Homogeneity;
use crds::validate::PlacementRules;
use k8s_openapi::api::core::v1::{Taint, Toleration};
use proptest::collection::vec;
use proptest::option::weighted;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};

use crate::facts::inventory::{Inventory, NodeFacts, NodeHealth, NodeLabels, Shared};
use crate::facts::resources::{
    Amount, CPU, HOST_PORTS, Holder, MEMORY, PODS, Requests, Resources, STORAGE, hold,
};
use crate::policy::request::{Avoidance, GangRequest, Shape};

pub(crate) const GPU: &str = "nvidia.com/gpu";
pub(crate) const NVIDIA: &str = "nvidia.com/gpu.product";
pub(crate) const GKE: &str = "cloud.google.com/gke-accelerator";
const NIC: &str = "rdma/hca";
const SELDOM: f64 = 0.125;

const PRODUCTS: [&str; 6] = ["T4", "T4", "H200", "H200", "T4-SHARED", ""];
const WRITERS: [&str; 5] = [NVIDIA, NVIDIA, NVIDIA, NVIDIA, GKE];
const LABELS: [(&str, &str); 11] = [
    ("nvidia.com/gpu.memory", "15360"),
    ("nvidia.com/gpu.memory", "143771"),
    ("nvidia.com/gpu.sharing-strategy", "time-slicing"),
    ("nvidia.com/gpu.sharing-strategy", "none"),
    ("nvidia.com/gpu.replicas", "1"),
    ("nvidia.com/gpu.replicas", "2"),
    ("nvidia.com/gpu.count", "2"),
    ("nvidia.com/gpu.count", "4"),
    (GKE, "T4"),
    ("zone", "a"),
    ("zone", "a"),
];
/// Resources besides GPUs, with a unit: nodes have as many as [`UNITS`].
const OTHERS: [(&str, i64); 4] = [(CPU, 2_000), (MEMORY, 8 << 30), (PODS, 2), (NIC, 1)];
const UNITS: i64 = 4;
const TAINTS: [(&str, &str, &str); 4] = [
    (GPU, "present", "NoSchedule"),
    (GPU, "present", "PreferNoSchedule"),
    ("dedicated", "x", "NoExecute"),
    ("dedicated", "y", "NoSchedule"),
];
/// Key, operator, value and effect; empty means absent.
const TOLERATIONS: [[&str; 4]; 7] = [
    [GPU, "Exists", "", ""],
    [GPU, "", "absent", ""],
    ["other", "Equal", "x", ""],
    ["dedicated", "Equal", "x", "NoSchedule"],
    ["dedicated", "Equal", "y", ""],
    ["dedicated", "Exists", "", "NoExecute"],
    ["", "Exists", "", "NoSchedule"],
];
const REQUESTS: [(&str, i64); 8] = [
    (CPU, 3_000),
    (CPU, 9_000),
    (MEMORY, 20 << 30),
    (MEMORY, 40 << 30),
    (STORAGE, 1),
    (NIC, 1),
    (NIC, 5),
    (HOST_PORTS, 1),
];

fn labels() -> impl Strategy<Value = Arc<NodeLabels>> {
    let gpus = (
        select(&WRITERS[..]),
        select(&PRODUCTS[..]),
        select(&["550", "570", ""][..]),
    );
    let places = (select(&["x", "y", ""][..]), select(&["1", "2", "3"][..]));
    let labels = (gpus, places, vec(select(&LABELS[..]), 0..3));
    labels.prop_map(|((writer, product, driver), (block, rack), unusual)| {
        let driver = ("nvidia.com/cuda.driver-version.major", driver);
        let labels = [(writer, product), driver, ("block", block), ("rack", rack)];
        let labels = labels.into_iter().chain(unusual);
        let labels = labels.filter(|(_, value)| !value.is_empty());
        let owned = labels.map(|(key, value)| (key.to_owned(), value.to_owned()));
        Arc::new(NodeLabels::new(owned.collect(), &mut Shared::default()))
    })
}

fn taint() -> impl Strategy<Value = Taint> {
    select(&TAINTS[..]).prop_map(|(key, value, effect)| Taint {
        key: key.into(),
        value: Some(value.into()),
        effect: effect.into(),
        time_added: None,
    })
}

/// An amount with a used part, the second number of it by gangs.
fn amount(capacity: i64, used: i64, by_gangs: i64) -> Amount {
    let used = used.min(capacity);
    Amount {
        capacity,
        allocatable: capacity,
        used,
        used_by_gangs: by_gangs.min(used),
    }
}

pub(crate) fn node() -> impl Strategy<Value = NodeFacts> {
    let gpus = (select(&[0_i64, 1, 2, 4, 8][..]), 0_i64..=8, 0_i64..=8);
    let in_use = vec((0_i64..=UNITS + 1, 0_i64..=UNITS), OTHERS.len());
    let host_ports = weighted(SELDOM, 0_i64..=1);
    let state = vec(prop::bool::weighted(SELDOM), 4);
    let node = (labels(), gpus, in_use, host_ports, weighted(0.25, taint()), state);
    node.prop_map(
        |(labels, (gpus, used, by_gangs), in_use, host_ports, taint, state)| {
            let mut resources = Resources::new();
            if gpus > 0 {
                let mut gpus = amount(gpus, used, by_gangs);
                gpus.allocatable >>= i64::from(state[0]);
                resources.insert(GPU.into(), gpus);
            }
            for ((name, unit), (used, by_gangs)) in OTHERS.into_iter().zip(in_use) {
                let amount = amount(unit * UNITS, unit * (used - 1).max(0), unit * by_gangs);
                resources.insert(name.into(), amount);
            }
            if state[3] {
                resources.remove(NIC);
            }
            if let Some(by_gangs) = host_ports {
                let ports = Requests::from([(HOST_PORTS.into(), 1)]);
                let holder = if by_gangs == 1 {
                    Holder::Gang
                } else {
                    Holder::Other
                };
                hold(&mut resources, &ports, holder, 1);
            }
            NodeFacts {
                labels,
                taints: taint.into_iter().collect(),
                health: [NodeHealth::Ready, NodeHealth::NotReady][usize::from(state[1])],
                cordoned: state[2],
                reserved_for: None,
                resources,
            }
        },
    )
}

pub(crate) fn name_of(node: usize) -> String {
    format!("node-{node:02}")
}

pub(crate) fn any_cluster() -> impl Strategy<Value = Inventory> {
    vec(node(), 0..24).prop_map(|nodes| {
        let nodes = nodes.into_iter().enumerate();
        Inventory {
            nodes: nodes.map(|(index, node)| (name_of(index).into(), node)).collect(),
        }
    })
}

fn names() -> impl Strategy<Value = Vec<String>> {
    weighted(SELDOM, vec((0_usize..24).prop_map(name_of), 1..6)).prop_map(Option::unwrap_or_default)
}

fn rules() -> impl Strategy<Value = PlacementRules> {
    let homogeneity = select(&[Homogeneity::Required, Homogeneity::Preferred, Homogeneity::Off][..]);
    let preferred = subsequence(vec!["block".to_owned(), "rack".to_owned()], 0..=2);
    let by_zone = prop::bool::weighted(SELDOM);
    let product = weighted(SELDOM, select(&PRODUCTS[..]));
    let memory = weighted(SELDOM, select(&[15_360, 20_000][..]));
    let gpus = (homogeneity, by_zone, any::<bool>(), product, memory);
    let rules = (gpus, any::<bool>(), preferred, names(), names());
    rules.prop_map(|(gpus, required, preferred, named, excluded)| {
        let (homogeneity, by_zone, allow_shared, product, memory) = gpus;
        PlacementRules {
            homogeneity,
            group_by: by_zone.then(|| "zone".to_owned()).into_iter().collect(),
            allow_shared,
            required_topology: required.then(|| "block".to_owned()),
            preferred_topology: preferred,
            products: product.into_iter().map(str::to_owned).collect(),
            min_memory_mebibytes: memory,
            nodes: named.into_iter().collect(),
            exclude_nodes: excluded.into_iter().collect(),
        }
    })
}

fn toleration() -> impl Strategy<Value = Toleration> {
    select(&TOLERATIONS[..]).prop_map(|fields| {
        let field = |field: &str| Some(field.to_owned()).filter(|field| !field.is_empty());
        let [key, operator, value, effect] = fields.map(field);
        Toleration {
            key,
            operator,
            value,
            effect,
            toleration_seconds: None,
        }
    })
}

pub(crate) fn gang() -> impl Strategy<Value = GangRequest> {
    let size = (1_usize..6, select(&[1_u32, 2, 4, 8][..]));
    let request = weighted(0.4, select(&REQUESTS[..]));
    let in_zone = prop::bool::weighted(SELDOM);
    let pod = (request, vec(toleration(), 0..3), in_zone, names());
    (size, rules(), pod).prop_map(
        |((nodes, gpus), rules, (request, tolerations, in_zone, avoided))| {
            let mut shape = Shape {
                rules,
                node_selector: in_zone.then(|| ("zone".into(), "a".into())).into_iter().collect(),
                tolerations,
                avoided: avoided
                    .into_iter()
                    .map(|node| (node, Avoidance::FailedBefore))
                    .collect(),
                ..Shape::of_gpus(GPU, gpus)
            };
            let requests = [(PODS, 1)].into_iter().chain(request);
            shape
                .requests
                .extend(requests.map(|(name, amount)| (name.to_owned(), amount)));
            GangRequest::fixed(nodes, &Arc::new(shape))
        },
    )
}

/// A gang that may be elastic.
pub(crate) fn elastic_gang() -> impl Strategy<Value = GangRequest> {
    let more = subsequence(vec![12_usize, 8, 4, 2, 1], 0..=3);
    (gang(), more).prop_map(|(request, more)| GangRequest {
        larger: more.into_iter().map(|more| request.nodes + more).collect(),
        ..request
    })
}
