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
use crate::facts::resources::{Amount, CPU, HOST_PORTS, MEMORY, PODS, STORAGE};
use crate::policy::request::{Avoidance, GangRequest, Shape};

pub(crate) const GPU: &str = "nvidia.com/gpu";
pub(crate) const NVIDIA: &str = "nvidia.com/gpu.product";
pub(crate) const GKE: &str = "cloud.google.com/gke-accelerator";
const NIC: &str = "rdma/hca";
const SELDOM: f64 = 0.125;

const PRODUCTS: [&str; 6] = [
    "Tesla-T4",
    "Tesla-T4",
    "NVIDIA-H200",
    "NVIDIA-H200",
    "Tesla-T4-SHARED",
    "",
];
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
    (GKE, "Tesla-T4"),
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

fn taint_of((key, value, effect): (&str, &str, &str)) -> Taint {
    Taint {
        key: key.into(),
        value: Some(value.into()),
        effect: effect.into(),
        time_added: None,
    }
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
    let state = (
        weighted(0.25, select(&TAINTS[..])),
        vec(prop::bool::weighted(SELDOM), 4),
    );
    let node = (labels(), gpus, in_use, host_ports, state);
    node.prop_map(
        |(labels, (gpus, used, by_gangs), in_use, host_ports, (taint, state))| {
            let mut gpus = amount(gpus, used, by_gangs);
            gpus.allocatable >>= i64::from(state[0]);
            let others = OTHERS.into_iter().zip(in_use);
            let others = others.map(|((name, unit), (used, by_gangs))| {
                (
                    name,
                    amount(unit * UNITS, unit * (used - 1).max(0), unit * by_gangs),
                )
            });
            let others = others.filter(|(name, _)| *name != NIC || !state[3]);
            let host_ports = host_ports.map(|used_by_gangs| Amount {
                used: 1,
                used_by_gangs,
                ..Amount::default()
            });
            let gpus = Some((GPU, gpus)).filter(|(_, gpus)| gpus.capacity > 0);
            let special = gpus
                .into_iter()
                .chain(host_ports.map(|ports| (HOST_PORTS, ports)));
            let resources = others.chain(special);
            let health = [NodeHealth::Ready, NodeHealth::NotReady(None)][usize::from(state[1])];
            NodeFacts {
                labels,
                taints: taint.into_iter().map(taint_of).collect(),
                health,
                cordoned: state[2],
                reserved_for: None,
                resources: resources.map(|(name, amount)| (name.into(), amount)).collect(),
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

/// An order of nodes.
pub(crate) fn order() -> impl Strategy<Value = Vec<usize>> {
    Just((0..24).collect::<Vec<_>>()).prop_shuffle()
}

fn names() -> impl Strategy<Value = Vec<String>> {
    weighted(SELDOM, vec((0_usize..24).prop_map(name_of), 1..6)).prop_map(Option::unwrap_or_default)
}

fn rules() -> impl Strategy<Value = PlacementRules> {
    let homogeneity = select(&[Homogeneity::Required, Homogeneity::Preferred, Homogeneity::Off][..]);
    let topology = (
        any::<bool>(),
        subsequence(vec!["block".to_owned(), "rack".to_owned()], 0..=2),
    );
    let unusual = (
        prop::bool::weighted(SELDOM),
        weighted(SELDOM, select(&PRODUCTS[..])),
        weighted(SELDOM, select(&[15_360, 20_000][..])),
    );
    (homogeneity, topology, any::<bool>(), unusual, (names(), names())).prop_map(
        |(
            homogeneity,
            (required, preferred),
            allow_shared,
            (by_zone, product, memory),
            (named, excluded),
        )| {
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
        },
    )
}

fn toleration() -> impl Strategy<Value = Toleration> {
    select(&TOLERATIONS[..]).prop_map(|fields| {
        let [key, operator, value, effect] =
            fields.map(|field| Some(field.to_owned()).filter(|field| !field.is_empty()));
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
    let size = (1_usize..6, select(&[1_i64, 2, 4, 8][..]));
    let pod = (
        weighted(0.4, select(&REQUESTS[..])),
        vec(toleration(), 0..3),
        prop::bool::weighted(SELDOM),
        names(),
    );
    (size, rules(), pod).prop_map(
        |((nodes, gpus), rules, (request, tolerations, in_zone, avoided))| {
            let requests = [(GPU, gpus), (PODS, 1)].into_iter().chain(request);
            let avoided = avoided.into_iter().map(|node| (node, Avoidance::FailedBefore));
            GangRequest {
                nodes,
                larger: vec![],
                shape: Arc::new(Shape {
                    gpus_per_node: gpus,
                    together: 1,
                    gpu_resource: GPU.into(),
                    rules,
                    node_selector: in_zone.then(|| ("zone".into(), "a".into())).into_iter().collect(),
                    tolerations,
                    requests: requests.map(|(name, amount)| (name.to_owned(), amount)).collect(),
                    avoided: avoided.collect(),
                    required_group: None,
                }),
            }
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
