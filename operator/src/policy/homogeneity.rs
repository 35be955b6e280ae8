//! Which GPUs count as alike, and why a node is refused.

use std::collections::BTreeMap;
use std::fmt;

use crds::spec::Homogeneity;
use crds::status::GpuGroup;
use k8s_openapi::api::core::v1::{Taint, Toleration};

use super::avoidance::Avoidance;
use super::placement::Shape;
use crate::cluster::inventory::{Amount, CPU, HOST_PORTS, MEMORY, NodeFacts, NodeHealth, PODS, STORAGE};

/// Labels by which one writer describes GPUs. Values of different writers are never compared.
struct Writer {
    product: &'static str,
    memory: Option<&'static str>,
    /// Labels that tell the driver's version, the first that is there counts.
    driver: &'static [&'static str],
}

/// Whoever labels nodes with GPU products, in the order in which they are believed: the GPU vendor's own discovery
/// first, then clouds.
const WRITERS: [Writer; 11] = [
    Writer {
        product: "nvidia.com/gpu.product",
        memory: Some("nvidia.com/gpu.memory"),
        driver: &[
            "nvidia.com/cuda.driver-version.major",
            "nvidia.com/cuda.driver.major",
        ],
    },
    Writer::of_cloud("gpu.nvidia.com/model"),
    Writer::of_cloud("gpu.nvidia.com/class"),
    Writer::of_cloud("cloud.google.com/gke-accelerator"),
    Writer {
        memory: Some("eks.amazonaws.com/instance-gpu-memory"),
        ..Writer::of_cloud("eks.amazonaws.com/instance-gpu-name")
    },
    Writer {
        memory: Some("karpenter.k8s.aws/instance-gpu-memory"),
        ..Writer::of_cloud("karpenter.k8s.aws/instance-gpu-name")
    },
    Writer::of_cloud("karpenter.azure.com/sku-gpu-name"),
    Writer {
        product: "amd.com/gpu.product-name",
        memory: Some("amd.com/gpu.vram"),
        driver: &["amd.com/gpu.driver-version"],
    },
    Writer {
        product: "beta.amd.com/gpu.product-name",
        memory: Some("beta.amd.com/gpu.vram"),
        driver: &[],
    },
    Writer::of_cloud("habana.ai/product.name"),
    Writer::of_cloud("gpu.intel.com/product"),
];

impl Writer {
    const fn of_cloud(product: &'static str) -> Self {
        Self {
            product,
            memory: None,
            driver: &[],
        }
    }
}

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

/// What a node's labels tell of its GPUs.
#[derive(Clone, Debug, Default, Eq, Hash, PartialEq)]
pub(crate) struct GpuLabels {
    /// Empty where no label tells it.
    product: String,
    product_label: &'static str,
    memory_mebibytes: Option<i64>,
    driver_major: Option<String>,
    sharing_strategy: Option<String>,
    /// Only where several pods share a GPU.
    replicas: Option<i64>,
    /// Whether shares of GPUs are advertised as GPUs.
    is_shared: bool,
    /// GPUs by the count of NVIDIA's discovery, each as often as it is shared.
    nvidia_count: Option<i64>,
}

impl GpuLabels {
    /// The product; empty where no label tells it.
    pub(crate) fn product(&self) -> &str {
        &self.product
    }

    pub(crate) fn read(labels: &BTreeMap<String, String>) -> Self {
        let value = |label: &str| {
            labels
                .get(label)
                .map(String::as_str)
                .filter(|value| !value.is_empty())
        };
        let number = |label: &str| value(label)?.parse::<i64>().ok();
        let replicas = number("nvidia.com/gpu.replicas").filter(|replicas| *replicas > 1);
        let sharing_strategy =
            value("nvidia.com/gpu.sharing-strategy").filter(|strategy| *strategy != "none");
        let writer = WRITERS.iter().find(|writer| value(writer.product).is_some());
        let told = |labels: &[&'static str]| labels.iter().find_map(|label| value(label));
        let product = writer
            .and_then(|writer| value(writer.product))
            .unwrap_or_default();
        Self {
            product: product.into(),
            product_label: writer.map_or("", |writer| writer.product),
            memory_mebibytes: writer
                .and_then(|writer| value(writer.memory?))
                .and_then(mebibytes),
            driver_major: writer
                .and_then(|writer| told(writer.driver)?.split('.').next())
                .map(Into::into),
            is_shared: sharing_strategy.is_some()
                || replicas.is_some()
                || product.ends_with("-SHARED")
                || product.contains("-MIG-"),
            nvidia_count: number("nvidia.com/gpu.count").map(|count| count * replicas.unwrap_or(1)),
            sharing_strategy: sharing_strategy.map(Into::into),
            replicas,
        }
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
pub(crate) fn group_of(node: &NodeFacts, shape: &Shape) -> Option<GpuGroup> {
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
pub(crate) fn is_of(group: &GpuGroup, node: &NodeFacts, shape: &Shape) -> bool {
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
pub(crate) enum Verdict {
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
pub(crate) fn verdict(name: &str, node: &NodeFacts, shape: &Shape) -> Verdict {
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
pub(crate) fn refusal(name: &str, node: &NodeFacts, shape: &Shape) -> Option<Refusal> {
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

/// Memory of a GPU as labels tell it: MiB as a plain number (NVIDIA, Karpenter), or with a unit such as "64G" (AMD).
fn mebibytes(text: &str) -> Option<i64> {
    if let Ok(number) = text.parse() {
        return Some(number);
    }
    let gibibytes: i64 = text.strip_suffix('G').or(text.strip_suffix("Gi"))?.parse().ok()?;
    Some(gibibytes * 1024)
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
