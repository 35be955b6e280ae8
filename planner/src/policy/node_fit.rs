//! Whether a node fits a pod of a gang, why not, and the group of its GPUs.

use std::collections::BTreeMap;

use crds::spec::Homogeneity;
use crds::status::{GpuGroup, Refusal};
use k8s_openapi::api::core::v1::{Taint, Toleration};

use super::request::{Avoidance, Shape};
use crate::facts::gpu_labels::GpuLabels;
use crate::facts::inventory::{NodeFacts, NodeHealth};
use crate::facts::resources::{Amount, CPU, HOST_PORTS, MEMORY, PODS, STORAGE};

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
    let gpu_labels = &*node.labels.gpus;
    let label = |key: &String| node.labels.values.get(key).cloned().unwrap_or_default();
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
    let gpu_labels = &*node.labels.gpus;
    let label = |key: &str| node.labels.values.get(key).map_or("", String::as_str);
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
    let labels = &node.labels.values;
    let gpu_labels = &*node.labels.gpus;
    let lacks_key = || matches!(&rules.required_topology, Some(key) if !labels.contains_key(key));
    let has_other = || matches!(&shape.required_group, Some(group) if !is_of(group, node, shape));
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
    } else if lacks_key() {
        Refusal::NoTopologyLabel
    } else if gpu_labels.product.is_empty() && rules.homogeneity != Homogeneity::Off {
        Refusal::NoProductLabel
    } else if has_other() {
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
    } else if repelling_taint(node, shape).is_some() {
        Refusal::Tainted
    } else if gpus.allocatable < gpus.capacity {
        Refusal::Unhealthy
    } else {
        return None;
    })
}

/// The first taint of a node that pods of the gang do not tolerate.
pub(crate) fn repelling_taint<'a>(node: &'a NodeFacts, shape: &Shape) -> Option<&'a Taint> {
    let mut taints = node.taints.iter();
    taints.find(|taint| !is_tolerated(taint, &shape.tolerations))
}

/// Which resource of a node is too small, given what counts as free.
fn occupied(node: &NodeFacts, gpus: Amount, shape: &Shape, free: fn(Amount) -> i64) -> Option<Refusal> {
    if free(gpus) < shape.gpus_per_node {
        return Some(Refusal::InUse);
    }
    let lacks = |(resource, asked): (&String, &i64)| {
        let amount = node.resources.get(resource.as_str()).copied().unwrap_or_default();
        let (refusal, is_common) = match resource.as_str() {
            CPU => (Refusal::NoCpu, true),
            MEMORY => (Refusal::NoMemory, true),
            STORAGE => (Refusal::NoStorage, true),
            PODS => (Refusal::NoPodSlot, true),
            HOST_PORTS => return (free(amount) < 0).then_some(Refusal::HostPortsInUse),
            gpus if gpus == shape.gpu_resource => return None,
            _ => (Refusal::NoOtherResource, false),
        };
        // Some virtual nodes do not report common resources: kube-scheduler decides.
        let is_known = !is_common || amount.capacity > 0;
        (is_known && *asked > 0 && free(amount) < *asked).then_some(refusal)
    };
    shape.requests.iter().filter_map(lacks).min()
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
