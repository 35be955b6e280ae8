//! Whether a node fits a pod of a gang, why not, and the group of its GPUs.

use std::collections::BTreeMap;
use std::fmt;

use crds::spec::Homogeneity;
use crds::status::GpuGroup;
use k8s_openapi::api::core::v1::{Taint, Toleration};

use super::request::{Avoidance, Shape};
use crate::facts::gpu_labels::GpuLabels;
use crate::facts::inventory::{NodeFacts, NodeHealth};
use crate::facts::resources::{Amount, CPU, HOST_PORTS, MEMORY, PODS, STORAGE};

/// Defines [`Refusal`] from its variants and their texts.
macro_rules! refusals {
    ($($(#[$doc:meta])* $name:ident => $words:literal,)+) => {
        /// Why a node does not fit a pod of the gang, in the order of checks and lists.
        /// `status.placement.rejected` shows its [`Display`](fmt::Display).
        #[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
        pub enum Refusal {
            $($(#[$doc])* $name,)+
        }

        impl Refusal {
            /// All reasons, in order.
            pub const ALL: [Self; [$(Self::$name,)+].len()] = [$(Self::$name,)+];
        }

        impl fmt::Display for Refusal {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str(match self {
                    $(Self::$name => $words,)+
                })
            }
        }
    };
}

refusals! {
    /// `placement.nodes` does not name it.
    NotNamed => "not named by placement.nodes",
    /// `placement.excludeNodes` names it.
    Excluded => "excluded by placement.excludeNodes",
    /// Attempts of the job failed there.
    FailedBefore => "where attempts of this job failed",
    /// A rank of the job was slow there.
    WasSlow => "where a rank of this job was slow",
    /// It lacks labels of `workers.nodeSelector`, or of the flavors that Kueue assigned.
    SelectorMismatch => "without the labels of workers.nodeSelector",
    /// It lacks the label of `placement.topology.required`.
    NoTopologyLabel => "without the label of placement.topology.required",
    /// No label names the product of its GPUs.
    NoProductLabel => "without a label that names the GPU product",
    /// An elastic gang had GPUs of another group, and fits there.
    OtherGpus => "with other GPUs than the gang had",
    /// Its GPUs are not in `placement.gpu.products`.
    OtherProduct => "not in placement.gpu.products",
    /// The job has a minimum of GPU memory, and no label has that of these GPUs.
    MemoryUnknown => "without a label with the GPU memory, which placement.gpu asks for",
    /// Its GPUs have less memory than the job requires.
    TooLittleGpuMemory => "with less GPU memory than placement.gpu asks for",
    /// Its GPUs are shared or partitioned.
    Shared => "with shared GPUs or MIG slices",
    /// It has GPUs of several models.
    Mixed => "with GPUs of several models",
    /// It has fewer GPUs than a pod requests.
    TooFewGpus => "with fewer GPUs than workers.gpusPerNode",
    /// It is not ready.
    NotReady => "not ready",
    /// It is cordoned.
    Cordoned => "cordoned",
    /// It has a taint that the job does not tolerate.
    Tainted => "with a taint that is not tolerated",
    /// Fewer of its GPUs are allocatable than it has.
    Unhealthy => "with unhealthy GPUs",
    /// Too few of its GPUs are free.
    InUse => "with too few free GPUs",
    /// Too little cpu is free.
    NoCpu => "with too little free cpu",
    /// Too little memory is free.
    NoMemory => "with too little free memory",
    /// Too little ephemeral storage is free.
    NoStorage => "with too little free ephemeral-storage",
    /// It has its maximum of pods.
    NoPodSlot => "with no room for another pod",
    /// Another pod uses ports that a gang with `workers.hostNetwork` needs.
    HostPortsInUse => "where another pod uses ports that workers.hostNetwork needs",
    /// It has too little of another resource: network devices, huge pages.
    NoOtherResource => "with too little of another resource that a pod asks for",
    /// It is reserved for another job.
    Reserved => "reserved for a job that waits longer or has a higher priority",
}

/// The amount of the GPU resource.
pub(crate) fn gpus(node: &NodeFacts, shape: &Shape) -> Amount {
    node.resources
        .get(shape.gpu_resource.as_str())
        .copied()
        .unwrap_or_default()
}

/// The group of a node's GPUs, if it has any. The product is empty if no label names it.
pub fn group_of(node: &NodeFacts, shape: &Shape) -> Option<GpuGroup> {
    let capacity = gpus(node, shape).capacity;
    let gpu_labels = node.labels.gpus();
    let label = |key: &String| node.labels.values().get(key).cloned().unwrap_or_default();
    (capacity > 0).then(|| GpuGroup {
        product: gpu_labels.product.clone(),
        product_label: gpu_labels.product_label.into(),
        memory_mebibytes: gpu_labels.memory_mebibytes,
        gpus_per_node: capacity,
        driver_major: gpu_labels.driver_major.clone(),
        sharing_strategy: gpu_labels.sharing_strategy.clone(),
        replicas: gpu_labels.replicas,
        labels: shape
            .rules
            .group_by
            .iter()
            .map(|key| (key.clone(), label(key)))
            .collect(),
    })
}

/// Whether a node's GPUs belong to a group: [`group_of`] without building it.
pub fn is_of(group: &GpuGroup, node: &NodeFacts, shape: &Shape) -> bool {
    let gpu_labels = node.labels.gpus();
    let label = |key: &str| node.labels.values().get(key).map_or("", String::as_str);
    group.gpus_per_node == gpus(node, shape).capacity
        && group.product == gpu_labels.product
        && group.product_label == gpu_labels.product_label
        && group.memory_mebibytes == gpu_labels.memory_mebibytes
        && group.driver_major == gpu_labels.driver_major
        && group.sharing_strategy == gpu_labels.sharing_strategy
        && group.replicas == gpu_labels.replicas
        && group.labels.iter().all(|(key, value)| label(key) == value)
}

/// Whether a node fits a pod of a gang.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Verdict {
    /// It fits.
    Fits {
        /// Free GPUs.
        free: i64,
    },
    /// It fits once other gangs, on it or with a reservation, have ended.
    Busy {
        /// Why not now.
        refusal: Refusal,
        /// Free GPUs.
        free: i64,
    },
    /// It does not fit, even after other gangs have ended.
    Refused(Refusal),
}

impl Verdict {
    /// Why it does not fit now.
    pub fn refusal(self) -> Option<Refusal> {
        match self {
            Self::Fits { .. } => None,
            Self::Busy { refusal, .. } | Self::Refused(refusal) => Some(refusal),
        }
    }
}

/// The verdict on a node with some of the resource.
pub fn verdict(name: &str, node: &NodeFacts, shape: &Shape) -> Verdict {
    let gpus = gpus(node, shape);
    if let Some(refusal) = unsuitable(name, node, gpus, shape) {
        return Verdict::Refused(refusal);
    }
    let free = gpus.free();
    match occupied(node, gpus, shape, Amount::free) {
        None if node.reserved_for.is_none() => Verdict::Fits { free },
        None => Verdict::Busy {
            refusal: Refusal::Reserved,
            free,
        },
        Some(refusal) if occupied(node, gpus, shape, Amount::free_in_time).is_none() => {
            Verdict::Busy { refusal, free }
        }
        Some(refusal) => Verdict::Refused(refusal),
    }
}

/// Why a node does not fit a pod of the gang now, ignoring reservations.
pub fn refusal(name: &str, node: &NodeFacts, shape: &Shape) -> Option<Refusal> {
    let gpus = gpus(node, shape);
    unsuitable(name, node, gpus, shape).or_else(|| occupied(node, gpus, shape, Amount::free))
}

/// Why a node would not fit a pod of the gang even if it were empty.
fn unsuitable(name: &str, node: &NodeFacts, gpus: Amount, shape: &Shape) -> Option<Refusal> {
    let rules = &shape.rules;
    let labels = node.labels.values();
    let gpu_labels = node.labels.gpus();
    Some(if !rules.nodes.is_empty() && !rules.nodes.contains(name) {
        Refusal::NotNamed
    } else if rules.exclude_nodes.contains(name) {
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
    } else if gpu_labels.product.is_empty() && rules.homogeneity != Homogeneity::Off {
        Refusal::NoProductLabel
    } else if shape
        .required_group
        .as_ref()
        .is_some_and(|group| !is_of(group, node, shape))
    {
        Refusal::OtherGpus
    } else if !rules.products.is_empty() && !rules.products.contains(&gpu_labels.product) {
        Refusal::OtherProduct
    } else if rules.min_memory_mebibytes.is_some() && gpu_labels.memory_mebibytes.is_none() {
        Refusal::MemoryUnknown
    } else if rules.min_memory_mebibytes > gpu_labels.memory_mebibytes {
        Refusal::TooLittleGpuMemory
    } else if !rules.allow_shared && is_shared(gpu_labels, &shape.gpu_resource) {
        Refusal::Shared
    } else if is_mixed(gpu_labels, gpus.capacity, &shape.gpu_resource) {
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

/// Which resource of a node is too small, given what counts as free.
fn occupied(node: &NodeFacts, gpus: Amount, shape: &Shape, free: fn(Amount) -> i64) -> Option<Refusal> {
    let lacks = |resource: &str| {
        let asked = shape.requests.get(resource).copied().unwrap_or(0);
        // Nodes report these, except some virtual ones, for which kube-scheduler decides.
        let amount = node.resources.get(resource).filter(|amount| amount.capacity > 0);
        asked > 0 && amount.is_some_and(|amount| free(*amount) < asked)
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

/// Whether a node has too little of a resource other than GPUs and the common ones.
fn lacks_other(node: &NodeFacts, shape: &Shape, free: fn(Amount) -> i64) -> bool {
    let is_checked =
        |resource: &str| [CPU, MEMORY, STORAGE, PODS, HOST_PORTS, &shape.gpu_resource].contains(&resource);
    shape
        .requests
        .iter()
        .filter(|(resource, _)| !is_checked(resource))
        .any(|(resource, asked)| {
            let has = node.resources.get(&**resource).copied().unwrap_or_default();
            *asked > 0 && free(has) < *asked
        })
}

fn has_labels(labels: &BTreeMap<String, String>, wanted: &BTreeMap<String, String>) -> bool {
    wanted.iter().all(|(key, value)| labels.get(key) == Some(value))
}

/// Whether pods may share a GPU or get a part of it: time slicing, MPS, MIG.
fn is_shared(gpu_labels: &GpuLabels, gpu_resource: &str) -> bool {
    gpu_labels.is_shared
        || gpu_resource.ends_with(".shared")
        || gpu_resource
            .split_once('/')
            .is_some_and(|(_, name)| name.starts_with("mig-"))
}

/// Whether a node has GPUs of two models: the labels of NVIDIA's discovery describe one, and its
/// count differs from the capacity.
fn is_mixed(gpu_labels: &GpuLabels, capacity: i64, gpu_resource: &str) -> bool {
    gpu_resource == "nvidia.com/gpu" && gpu_labels.nvidia_count.is_some_and(|count| count != capacity)
}

/// Whether pods with these tolerations may run despite a taint, by the rules of kube-scheduler.
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
