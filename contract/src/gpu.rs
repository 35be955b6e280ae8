//! Peaks of GPU products, and the driver's readings of a GPU.

use serde::{Deserialize, Serialize};

/// The driver's reading of a GPU, through NVML. Unavailable values are absent: a MIG instance has
/// only its memory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GpuReading {
    /// Share of the driver's last sampling period (up to a second) with a running kernel, 0..1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub utilization: Option<f64>,
    /// Memory in use by all processes, including CUDA, bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_used_bytes: Option<u64>,
    /// Temperature of the chip.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature_celsius: Option<f64>,
    /// Power of the whole board.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_watts: Option<f64>,
    /// Why its clocks are reduced; empty if they are not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub throttled_by: Option<Vec<ThrottleReason>>,
}

/// Why a busy GPU's clocks are reduced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ThrottleReason {
    /// The power limit.
    PowerCap,
    /// The machine's power supply.
    PowerBrake,
    /// The temperature of the chip or its memory.
    Thermal,
    /// Another slowdown by the hardware.
    Hardware,
}

impl ThrottleReason {
    /// All reasons.
    pub const ALL: [Self; 4] = [Self::PowerCap, Self::PowerBrake, Self::Thermal, Self::Hardware];

    /// Its name in metrics and logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::PowerCap => "power_cap",
            Self::PowerBrake => "power_brake",
            Self::Thermal => "thermal",
            Self::Hardware => "hardware",
        }
    }
}

/// Dense peaks of half-precision matrix products, FLOP/s, by words of the product's name: bf16, or
/// fp16 before Ampere. From torchtitan's `get_peak_flops` and NVIDIA's data sheets. The first entry
/// whose words are all present counts.
const PEAKS: [(&[&str], f64); 17] = [
    (&["GB200"], 2.5e15),
    (&["B200"], 2.25e15),
    (&["GH200"], 989e12),
    (&["H200"], 989e12),
    (&["H100", "NVL"], 835e12),
    (&["H100", "PCIe"], 756e12),
    (&["H100"], 989e12),
    (&["A100"], 312e12),
    (&["A40"], 149.7e12),
    (&["A30"], 165e12),
    (&["A10"], 125e12),
    (&["L40S"], 362e12),
    (&["L40"], 181e12),
    (&["L4"], 121e12),
    (&["V100", "PCIE"], 112e12),
    (&["V100"], 125e12),
    (&["T4"], 65e12),
];

/// Dense peak of a GPU's half-precision matrix products, FLOP/s; `None` for unknown products and
/// parts of a GPU. `product` is as in CUDA or a node label: `NVIDIA A100-SXM4-40GB`,
/// `NVIDIA-A100-SXM4-40GB`.
pub fn peak_flops(product: &str) -> Option<f64> {
    let words: Vec<&str> = product.split([' ', '-']).collect();
    if words.contains(&"MIG") || words.contains(&"SHARED") {
        return None;
    }
    PEAKS
        .iter()
        .find(|(name, _)| name.iter().all(|word| words.contains(word)))
        .map(|(_, peak)| *peak)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_product_finds_its_own_peak() {
        for (product, peak) in [
            ("NVIDIA H100 PCIe", Some(756e12)),
            ("NVIDIA H100 80GB HBM3", Some(989e12)),
            ("NVIDIA-H100-80GB-HBM3", Some(989e12)),
            ("NVIDIA GH200 480GB", Some(989e12)),
            ("NVIDIA A100-SXM4-40GB", Some(312e12)),
            ("NVIDIA-A10", Some(125e12)),
            ("Tesla-V100-SXM2-16GB", Some(125e12)),
            ("Tesla V100-PCIE-32GB", Some(112e12)),
            ("Tesla T4", Some(65e12)),
            ("Tesla-T4-SHARED", None),
            ("NVIDIA T400 4GB", None),
            ("NVIDIA GeForce RTX 3070", None),
            ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None),
            ("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", None),
            ("", None),
        ] {
            assert_eq!(peak_flops(product), peak, "{product}");
        }
    }
}
