//! Whether a node can take a pod of a gang, why not, and with which others its GPUs count as alike.

use std::collections::BTreeMap;
use std::fmt;

use crds::spec::Homogeneity;
use crds::status::GpuGroup;
use k8s_openapi::api::core::v1::{Taint, Toleration};

use super::request::{Avoidance, Shape};
use crate::facts::gpu_labels::GpuLabels;
use crate::facts::inventory::{NodeFacts, NodeHealth};
use crate::facts::resources::{Amount, CPU, HOST_PORTS, MEMORY, PODS, STORAGE};

/// Why a node cannot take a pod of the gang. The order is that in which reasons are looked for and told. What is written of
/// one in `status.placement.rejected` is its [`Display`](fmt::Display).
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Refusal {
    /// `placement.excludeNodes` names it.
    Excluded,
    /// Attempts of the job failed there.
    FailedBefore,
    /// A rank of the job was slow there.
    WasSlow,
    /// It lacks labels of `workers.nodeSelector`, or of the flavors that Kueue assigned.
    SelectorMismatch,
    /// It lacks the label of `placement.topology.required`.
    NoTopologyLabel,
    /// No label tells the product of its GPUs.
    NoProductLabel,
    /// An elastic gang had other GPUs, and fits without these.
    OtherGpus,
    /// Its GPUs are not in `placement.gpu.products`.
    OtherProduct,
    /// No label tells the memory of its GPUs, for which the job asks.
    MemoryUnknown,
    /// Its GPUs have less memory than the job asks for.
    TooLittleGpuMemory,
    /// It advertises shares of GPUs.
    Shared,
    /// It has GPUs of several models.
    Mixed,
    /// It has fewer GPUs than a pod asks for.
    TooFewGpus,
    /// Its kubelet says that it is not ready, or nothing.
    NotReady,
    /// It is marked as unschedulable.
    Cordoned,
    /// It has a taint that the job does not tolerate.
    Tainted,
    /// Fewer of its GPUs are allocatable than it has.
    Unhealthy,
    /// Too few of its GPUs are free.
    InUse,
    /// Too little cpu is free.
    NoCpu,
    /// Too little memory is free.
    NoMemory,
    /// Too little ephemeral storage is free.
    NoStorage,
    /// It has as many pods as it takes.
    NoPodSlot,
    /// A pod has ports of its network that a gang with `workers.hostNetwork` needs.
    HostPortsInUse,
    /// It has too little of another resource that pods ask for: network devices, huge pages.
    NoOtherResource,
    /// It is kept for another job.
    Kept,
}

impl Refusal {
    /// Every one, in order.
    pub const ALL: [Self; 25] = [
        Self::Excluded,
        Self::FailedBefore,
        Self::WasSlow,
        Self::SelectorMismatch,
        Self::NoTopologyLabel,
        Self::NoProductLabel,
        Self::OtherGpus,
        Self::OtherProduct,
        Self::MemoryUnknown,
        Self::TooLittleGpuMemory,
        Self::Shared,
        Self::Mixed,
        Self::TooFewGpus,
        Self::NotReady,
        Self::Cordoned,
        Self::Tainted,
        Self::Unhealthy,
        Self::InUse,
        Self::NoCpu,
        Self::NoMemory,
        Self::NoStorage,
        Self::NoPodSlot,
        Self::HostPortsInUse,
        Self::NoOtherResource,
        Self::Kept,
    ];
}

impl fmt::Display for Refusal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Excluded => "excluded by placement.excludeNodes",
            Self::FailedBefore => "where attempts of this job failed",
            Self::WasSlow => "where a rank of this job was slow",
            Self::SelectorMismatch => "without the labels of workers.nodeSelector",
            Self::NoTopologyLabel => "without the label of placement.topology.required",
            Self::NoProductLabel => "without a label that tells the GPU product",
            Self::OtherGpus => "with other GPUs than the gang had",
            Self::OtherProduct => "not in placement.gpu.products",
            Self::MemoryUnknown => "without a label that tells GPU memory, which placement.gpu asks for",
            Self::TooLittleGpuMemory => "with less GPU memory than placement.gpu asks for",
            Self::Shared => "with shared GPUs or MIG slices",
            Self::Mixed => "with GPUs of several models",
            Self::TooFewGpus => "with fewer GPUs than workers.gpusPerNode",
            Self::NotReady => "not ready",
            Self::Cordoned => "cordoned",
            Self::Tainted => "with a taint that is not tolerated",
            Self::Unhealthy => "with unhealthy GPUs",
            Self::InUse => "with too few free GPUs",
            Self::NoCpu => "with too little free cpu",
            Self::NoMemory => "with too little free memory",
            Self::NoStorage => "with too little free ephemeral-storage",
            Self::NoPodSlot => "with no room for another pod",
            Self::HostPortsInUse => "where another pod uses ports that workers.hostNetwork needs",
            Self::NoOtherResource => "with too little of another resource that a pod asks for",
            Self::Kept => "kept for a job that waits longer or has a higher priority",
        })
    }
}

/// GPUs that a node has of the resource that is asked for.
fn gpus(node: &NodeFacts, shape: &Shape) -> Amount {
    node.resources
        .get(shape.gpu_resource.as_str())
        .copied()
        .unwrap_or_default()
}

/// The group a node's GPUs belong to; `None` where it has none of that resource.
/// The product is empty where no label tells it.
pub fn group_of(node: &NodeFacts, shape: &Shape) -> Option<GpuGroup> {
    let capacity = gpus(node, shape).capacity;
    let told = node.labels.gpus();
    let label = |key: &String| node.labels.values().get(key).cloned().unwrap_or_default();
    (capacity > 0).then(|| GpuGroup {
        product: told.product.clone(),
        product_label: told.product_label.into(),
        memory_mebibytes: told.memory_mebibytes,
        gpus_per_node: capacity,
        driver_major: told.driver_major.clone(),
        sharing_strategy: told.sharing_strategy.clone(),
        replicas: told.replicas,
        labels: shape
            .rules
            .group_by
            .iter()
            .map(|key| (key.clone(), label(key)))
            .collect(),
    })
}

/// Whether that is the group a node's GPUs belong to.
pub fn is_of(group: &GpuGroup, node: &NodeFacts, shape: &Shape) -> bool {
    let told = node.labels.gpus();
    let label = |key: &str| node.labels.values().get(key).map_or("", String::as_str);
    group.gpus_per_node == gpus(node, shape).capacity
        && group.product == told.product
        && group.product_label == told.product_label
        && group.memory_mebibytes == told.memory_mebibytes
        && group.driver_major == told.driver_major
        && group.sharing_strategy == told.sharing_strategy
        && group.replicas == told.replicas
        && group.labels.iter().all(|(key, value)| label(key) == value)
}

/// Whether a node can take a pod of a gang.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Verdict {
    /// It can.
    Fits {
        /// Free GPUs.
        free: i64,
    },
    /// It cannot for now: what other gangs hold, or what is kept for them, would do.
    Busy {
        /// Why not now.
        refusal: Refusal,
        /// Free GPUs.
        free: i64,
    },
    /// It cannot, whatever gangs end.
    Refused(Refusal),
}

/// Looks at a node that has some of the resource.
pub fn verdict(name: &str, node: &NodeFacts, shape: &Shape) -> Verdict {
    let gpus = gpus(node, shape);
    if let Some(refusal) = unsuitable(name, node, gpus, shape) {
        return Verdict::Refused(refusal);
    }
    let free = gpus.free();
    match occupied(node, gpus, shape, Amount::free) {
        None if node.kept_for.is_none() => Verdict::Fits { free },
        None => Verdict::Busy {
            refusal: Refusal::Kept,
            free,
        },
        Some(refusal) if occupied(node, gpus, shape, Amount::free_in_time).is_none() => {
            Verdict::Busy { refusal, free }
        }
        Some(refusal) => Verdict::Refused(refusal),
    }
}

/// The first reason, if any, for which a node cannot take a pod of the gang now. That it is kept for another job is none.
pub fn refusal(name: &str, node: &NodeFacts, shape: &Shape) -> Option<Refusal> {
    let gpus = gpus(node, shape);
    unsuitable(name, node, gpus, shape).or_else(|| occupied(node, gpus, shape, Amount::free))
}

/// The first reason, if any, for which a node cannot take a pod of the gang even if nothing on it were in use.
fn unsuitable(name: &str, node: &NodeFacts, gpus: Amount, shape: &Shape) -> Option<Refusal> {
    let rules = &shape.rules;
    let labels = node.labels.values();
    let told = node.labels.gpus();
    Some(if rules.exclude_nodes.contains(name) {
        Refusal::Excluded
    } else if let Some(why) = shape.avoided.get(name) {
        match why {
            Avoidance::FailedBefore => Refusal::FailedBefore,
            Avoidance::WasSlow => Refusal::WasSlow,
        }
    } else if !has_labels(labels, &shape.node_selector) {
        Refusal::SelectorMismatch
    } else if rules
        .required_topology
        .as_ref()
        .is_some_and(|key| !labels.contains_key(key))
    {
        Refusal::NoTopologyLabel
    } else if told.product.is_empty() && rules.homogeneity != Homogeneity::Off {
        Refusal::NoProductLabel
    } else if shape.only.as_ref().is_some_and(|only| !is_of(only, node, shape)) {
        Refusal::OtherGpus
    } else if !rules.products.is_empty() && !rules.products.contains(&told.product) {
        Refusal::OtherProduct
    } else if rules.min_memory_mebibytes.is_some() && told.memory_mebibytes.is_none() {
        Refusal::MemoryUnknown
    } else if rules.min_memory_mebibytes > told.memory_mebibytes {
        Refusal::TooLittleGpuMemory
    } else if !rules.allow_shared && is_shared(told, &shape.gpu_resource) {
        Refusal::Shared
    } else if is_mixed(told, gpus.capacity, &shape.gpu_resource) {
        Refusal::Mixed
    } else if gpus.capacity < shape.gpus_per_node {
        Refusal::TooFewGpus
    } else if node.health != NodeHealth::Ready {
        Refusal::NotReady
    } else if node.cordoned {
        Refusal::Cordoned
    } else if node
        .taints
        .iter()
        .any(|taint| !is_tolerated(taint, &shape.tolerations))
    {
        Refusal::Tainted
    } else if gpus.allocatable < gpus.capacity {
        Refusal::Unhealthy
    } else {
        return None;
    })
}

/// What a node has too little of, given what of each resource counts as free.
fn occupied(node: &NodeFacts, gpus: Amount, shape: &Shape, free: fn(Amount) -> i64) -> Option<Refusal> {
    let lacks = |resource: &str| {
        let asked = shape.requests.get(resource).copied().unwrap_or(0);
        // Nodes always tell these; where a test or a virtual node does not, kube-scheduler has the last word.
        asked > 0
            && node
                .resources
                .get(resource)
                .is_some_and(|amount| free(*amount) < asked)
    };
    if free(gpus) < shape.gpus_per_node {
        return Some(Refusal::InUse);
    }
    [
        (CPU, Refusal::NoCpu),
        (MEMORY, Refusal::NoMemory),
        (STORAGE, Refusal::NoStorage),
        (PODS, Refusal::NoPodSlot),
    ]
    .into_iter()
    .find_map(|(resource, refusal)| lacks(resource).then_some(refusal))
    .or_else(|| {
        let held = node
            .resources
            .get(HOST_PORTS)
            .filter(|_| shape.requests.contains_key(HOST_PORTS));
        held.is_some_and(|held| free(*held) < 0)
            .then_some(Refusal::HostPortsInUse)
    })
    .or_else(|| lacks_other(node, shape, free).then_some(Refusal::NoOtherResource))
}

/// Whether a node has too little of what pods ask for beside GPUs and what every node has.
fn lacks_other(node: &NodeFacts, shape: &Shape, free: fn(Amount) -> i64) -> bool {
    let is_told =
        |resource: &str| [CPU, MEMORY, STORAGE, PODS, HOST_PORTS, &shape.gpu_resource].contains(&resource);
    shape
        .requests
        .iter()
        .filter(|(resource, _)| !is_told(resource))
        .any(|(resource, asked)| {
            let has = node.resources.get(&**resource).copied().unwrap_or_default();
            *asked > 0 && free(has) < *asked
        })
}

fn has_labels(labels: &BTreeMap<String, String>, wanted: &BTreeMap<String, String>) -> bool {
    wanted.iter().all(|(key, value)| labels.get(key) == Some(value))
}

/// Several pods that think they have a GPU each would train on one: time slices, MPS, MIG.
fn is_shared(told: &GpuLabels, gpu_resource: &str) -> bool {
    told.is_shared
        || gpu_resource.ends_with(".shared")
        || gpu_resource
            .split_once('/')
            .is_some_and(|(_, name)| name.starts_with("mig-"))
}

/// NVIDIA's discovery writes the labels of one model over those of the other where a node has two; its count then is
/// that of one model only. It counts GPUs, of which each is advertised as often as it is shared.
fn is_mixed(told: &GpuLabels, capacity: i64, gpu_resource: &str) -> bool {
    gpu_resource == "nvidia.com/gpu" && told.nvidia_count.is_some_and(|count| count != capacity)
}

/// Whether a taint does not matter to pods with these tolerations, by the rules of kube-scheduler.
fn is_tolerated(taint: &Taint, tolerations: &[Toleration]) -> bool {
    if taint.effect == "PreferNoSchedule" {
        return true;
    }
    tolerations.iter().any(|toleration| {
        let any_effect = toleration.effect.as_deref().unwrap_or_default().is_empty();
        if !any_effect && toleration.effect.as_deref() != Some(&taint.effect) {
            return false;
        }
        let key = toleration.key.as_deref().unwrap_or_default();
        match toleration.operator.as_deref().unwrap_or("Equal") {
            "Exists" => key.is_empty() || key == taint.key,
            "Equal" => {
                key == taint.key
                    && toleration.value.as_deref().unwrap_or_default()
                        == taint.value.as_deref().unwrap_or_default()
            }
            _ => false,
        }
    })
}
