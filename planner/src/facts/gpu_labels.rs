//! GPUs as described by node labels of different writers.

use std::collections::BTreeMap;

/// One writer's labels of GPUs. Values of different writers are never compared.
struct Writer {
    product: &'static str,
    memory: Option<&'static str>,
    /// Labels with the driver's version; the first existing one counts.
    driver: &'static [&'static str],
}

/// In order of trust: NVIDIA's own discovery, clouds, other vendors' discovery.
const WRITERS: [Writer; 11] = [
    Writer {
        product: "nvidia.com/gpu.product",
        memory: Some("nvidia.com/gpu.memory"),
        driver: &[
            "nvidia.com/cuda.driver-version.major",
            "nvidia.com/cuda.driver.major",
        ],
    },
    Writer::from_product_label("gpu.nvidia.com/model"),
    Writer::from_product_label("gpu.nvidia.com/class"),
    Writer::from_product_label("cloud.google.com/gke-accelerator"),
    Writer {
        memory: Some("eks.amazonaws.com/instance-gpu-memory"),
        ..Writer::from_product_label("eks.amazonaws.com/instance-gpu-name")
    },
    Writer {
        memory: Some("karpenter.k8s.aws/instance-gpu-memory"),
        ..Writer::from_product_label("karpenter.k8s.aws/instance-gpu-name")
    },
    Writer::from_product_label("karpenter.azure.com/sku-gpu-name"),
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
    Writer::from_product_label("habana.ai/product.name"),
    Writer::from_product_label("gpu.intel.com/product"),
];

impl Writer {
    const fn from_product_label(product: &'static str) -> Self {
        Self {
            product,
            memory: None,
            driver: &[],
        }
    }
}

/// A node's GPUs, by its labels.
#[derive(Clone, Debug, Default, Eq, Hash, PartialEq)]
pub struct GpuLabels {
    /// Empty if no label names it.
    pub(crate) product: String,
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
    /// The product; empty if no label names it.
    pub fn product(&self) -> &str {
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
                .and_then(|writer| {
                    writer
                        .driver
                        .iter()
                        .find_map(|label| value(label))?
                        .split('.')
                        .next()
                })
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
