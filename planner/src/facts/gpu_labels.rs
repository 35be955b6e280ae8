//! What node labels tell of GPUs: the vocabulary of whoever writes such labels.

use std::collections::BTreeMap;

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

/// What a node's labels tell of its GPUs.
#[derive(Clone, Debug, Default, Eq, Hash, PartialEq)]
pub struct GpuLabels {
    /// Empty where no label tells it.
    pub(crate) product: String,
    pub(crate) product_label: &'static str,
    pub(crate) memory_mebibytes: Option<i64>,
    pub(crate) driver_major: Option<String>,
    pub(crate) sharing_strategy: Option<String>,
    /// Only where several pods share a GPU.
    pub(crate) replicas: Option<i64>,
    /// Whether shares of GPUs are advertised as GPUs.
    pub(crate) is_shared: bool,
    /// GPUs by the count of NVIDIA's discovery, each as often as it is shared.
    pub(crate) nvidia_count: Option<i64>,
}

impl GpuLabels {
    /// The product; empty where no label tells it.
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

/// Memory of a GPU as labels tell it: MiB as a plain number (NVIDIA, Karpenter), or with a unit such as "64G" (AMD).
fn mebibytes(text: &str) -> Option<i64> {
    if let Ok(number) = text.parse() {
        return Some(number);
    }
    let gibibytes: i64 = text.strip_suffix('G').or(text.strip_suffix("Gi"))?.parse().ok()?;
    Some(gibibytes * 1024)
}
