//! Which GPUs count as alike, and why a node is refused.

use std::collections::BTreeMap;
use std::fmt;

use crds::status::GpuGroup;
use k8s_openapi::api::core::v1::{Taint, Toleration};

use super::placement::GangRequest;
use crate::cluster::inventory::{CPU, MEMORY, NodeFacts, PODS};

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

/// Why a node cannot take a pod of the gang. The order is that in which reasons are looked for and told.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) enum Refusal {
    Excluded,
    SelectorMismatch,
    NoProductLabel,
    OtherProduct,
    MemoryUnknown,
    TooLittleGpuMemory,
    Shared,
    Mixed,
    TooFewGpus,
    NotReady,
    Cordoned,
    Tainted,
    Unhealthy,
    InUse,
    NoCpu,
    NoMemory,
    NoPodSlot,
}

impl fmt::Display for Refusal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Excluded => "excluded by placement.excludeNodes",
            Self::SelectorMismatch => "without the labels of workers.nodeSelector",
            Self::NoProductLabel => "without a label that tells the GPU product",
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
            Self::NoPodSlot => "with no room for another pod",
        })
    }
}

/// The group a node's GPUs belong to; `None` where it has none of that resource.
/// The product is empty where no label tells it.
pub(crate) fn group_of(node: &NodeFacts, gpu_resource: &str) -> Option<GpuGroup> {
    let capacity = node.resources.get(gpu_resource)?.capacity;
    if capacity <= 0 {
        return None;
    }
    let value = |label: &str| node.labels.get(label).filter(|value| !value.is_empty());
    let writer = WRITERS.iter().find(|writer| value(writer.product).is_some());
    Some(match writer {
        None => GpuGroup {
            gpus_per_node: capacity,
            ..GpuGroup::default()
        },
        Some(writer) => GpuGroup {
            product: value(writer.product).cloned().unwrap_or_default(),
            product_label: writer.product.into(),
            memory_mebibytes: writer.memory.and_then(value).and_then(|text| mebibytes(text)),
            gpus_per_node: capacity,
            driver_major: writer
                .driver
                .iter()
                .find_map(|label| value(label))
                .and_then(|version| version.split('.').next())
                .map(Into::into),
        },
    })
}

/// The first reason, if any, for which a node cannot take a pod of the gang.
pub(crate) fn refusal(
    name: &str,
    node: &NodeFacts,
    group: &GpuGroup,
    request: &GangRequest,
) -> Option<Refusal> {
    let rules = &request.rules;
    let gpus = node
        .resources
        .get(&request.gpu_resource)
        .copied()
        .unwrap_or_default();
    let lacks = |resource: &str| {
        let asked = request.requests.get(resource).copied().unwrap_or(0);
        // Nodes always tell these; where a test or a virtual node does not, kube-scheduler has the last word.
        asked > 0
            && node
                .resources
                .get(resource)
                .is_some_and(|amount| amount.free() < asked)
    };
    let checks = [
        (Refusal::Excluded, rules.exclude_nodes.contains(name)),
        (
            Refusal::SelectorMismatch,
            !has_labels(&node.labels, &request.node_selector),
        ),
        (Refusal::NoProductLabel, group.product.is_empty()),
        (
            Refusal::OtherProduct,
            !rules.products.is_empty() && !rules.products.contains(&group.product),
        ),
        (
            Refusal::MemoryUnknown,
            rules.min_memory_mebibytes.is_some() && group.memory_mebibytes.is_none(),
        ),
        (
            Refusal::TooLittleGpuMemory,
            rules.min_memory_mebibytes > group.memory_mebibytes,
        ),
        (Refusal::Shared, is_shared(node, group, &request.gpu_resource)),
        (Refusal::Mixed, is_mixed(node, group, &request.gpu_resource)),
        (Refusal::TooFewGpus, gpus.capacity < request.gpus_per_node),
        (Refusal::NotReady, !node.ready),
        (Refusal::Cordoned, node.cordoned),
        (
            Refusal::Tainted,
            node.taints
                .iter()
                .any(|taint| !is_tolerated(taint, &request.tolerations)),
        ),
        (Refusal::Unhealthy, gpus.allocatable < gpus.capacity),
        (Refusal::InUse, gpus.free() < request.gpus_per_node),
        (Refusal::NoCpu, lacks(CPU)),
        (Refusal::NoMemory, lacks(MEMORY)),
        (Refusal::NoPodSlot, lacks(PODS)),
    ];
    checks
        .into_iter()
        .find_map(|(refusal, applies)| applies.then_some(refusal))
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
fn is_shared(node: &NodeFacts, group: &GpuGroup, gpu_resource: &str) -> bool {
    let label = |key: &str| node.labels.get(key).map(String::as_str).unwrap_or_default();
    group.product.ends_with("-SHARED")
        || group.product.contains("-MIG-")
        || gpu_resource.ends_with(".shared")
        || gpu_resource.contains("/mig-")
        || !matches!(label("nvidia.com/gpu.sharing-strategy"), "" | "none")
        || label("nvidia.com/gpu.replicas")
            .parse::<i64>()
            .is_ok_and(|replicas| replicas > 1)
}

/// NVIDIA's discovery writes the labels of one model over those of the other where a node has two; its count then is
/// that of one model only.
fn is_mixed(node: &NodeFacts, group: &GpuGroup, gpu_resource: &str) -> bool {
    gpu_resource == "nvidia.com/gpu"
        && node
            .labels
            .get("nvidia.com/gpu.count")
            .and_then(|count| count.parse::<i64>().ok())
            .is_some_and(|count| count != group.gpus_per_node)
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
