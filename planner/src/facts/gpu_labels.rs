//! GPUs as described by node labels of different writers.

use std::collections::BTreeMap;

/// Each writer's labels for the product, the GPU memory ("" if it has none) and the driver's version;
/// the first label of the version that a node has counts. In order of trust: NVIDIA's own discovery,
/// clouds, other vendors' discovery. Values of different writers are never compared.
const WRITERS: [(&str, &str, &[&str]); 11] = [
    ("nvidia.com/gpu.product", "nvidia.com/gpu.memory", &NVIDIA_DRIVER),
    ("gpu.nvidia.com/model", "", &[]),
    ("gpu.nvidia.com/class", "", &[]),
    ("cloud.google.com/gke-accelerator", "", &[]),
    (
        "eks.amazonaws.com/instance-gpu-name",
        "eks.amazonaws.com/instance-gpu-memory",
        &[],
    ),
    (
        "karpenter.k8s.aws/instance-gpu-name",
        "karpenter.k8s.aws/instance-gpu-memory",
        &[],
    ),
    ("karpenter.azure.com/sku-gpu-name", "", &[]),
    (
        "amd.com/gpu.product-name",
        "amd.com/gpu.vram",
        &["amd.com/gpu.driver-version"],
    ),
    ("beta.amd.com/gpu.product-name", "beta.amd.com/gpu.vram", &[]),
    ("habana.ai/product.name", "", &[]),
    ("gpu.intel.com/product", "", &[]),
];
const NVIDIA_DRIVER: [&str; 2] = [
    "nvidia.com/cuda.driver-version.major",
    "nvidia.com/cuda.driver.major",
];

/// The label of the driver's version by the writer of a product label, if it has one.
pub(crate) fn driver_label(product_label: &str) -> Option<&'static str> {
    let (.., labels) = WRITERS.iter().find(|(product, ..)| *product == product_label)?;
    labels.first().copied()
}

/// A node's GPUs, by its labels.
#[derive(Clone, Debug, Default, Eq, Hash, PartialEq)]
pub struct GpuLabels {
    /// Empty if no label names it.
    pub product: String,
    pub(crate) product_label: &'static str,
    pub(crate) memory_mebibytes: Option<i64>,
    pub(crate) driver_major: Option<String>,
    pub(crate) sharing_strategy: Option<String>,
    /// Pods per shared GPU.
    pub(crate) replicas: Option<i64>,
    /// Whether a share or slice of a GPU counts as a GPU.
    pub(crate) is_shared: bool,
    /// NVIDIA's discovered count, times the pods per shared GPU.
    pub(crate) nvidia_count: Option<i64>,
}

impl GpuLabels {
    pub(crate) fn read(labels: &BTreeMap<String, String>) -> Self {
        let value = |label: &str| Some(labels.get(label)?.as_str()).filter(|value| !value.is_empty());
        let number = |label: &str| value(label)?.parse::<i64>().ok();
        let replicas = number("nvidia.com/gpu.replicas").filter(|replicas| *replicas > 1);
        let sharing_strategy =
            value("nvidia.com/gpu.sharing-strategy").filter(|strategy| *strategy != "none");
        let written = |(label, ..): &&(&str, _, _)| value(label).is_some();
        let (product_label, memory, driver) = WRITERS.iter().find(written).unwrap_or(&("", "", &[]));
        let product = value(product_label).unwrap_or_default();
        let driver = driver.iter().find_map(|label| value(label));
        Self {
            product: product.into(),
            product_label,
            memory_mebibytes: value(memory).and_then(mebibytes),
            driver_major: driver
                .and_then(|version| version.split('.').next())
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

/// A label's GPU memory: a number of MiB (NVIDIA, Karpenter), or with a unit such as "64G" (AMD).
fn mebibytes(text: &str) -> Option<i64> {
    if let Ok(number) = text.parse() {
        return Some(number);
    }
    let gibibytes: i64 = text.strip_suffix('G').or(text.strip_suffix("Gi"))?.parse().ok()?;
    Some(gibibytes * 1024)
}
