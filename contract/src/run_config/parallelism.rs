//! Devices, and how gradients are reduced over them.

use serde::{Deserialize, Serialize};

use super::rules::Rules;

/// How gradients are reduced over the ranks.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Parallelism {
    /// Largest size of a bucket of gradients, at which it is reduced, in MiB (`bucket_cap_mb` of PyTorch's DDP).
    pub bucket_megabytes: u32,
    /// In what form gradients are sent.
    #[serde(default)]
    pub compress_gradients: GradientCompression,
}

/// In what form gradients are added up over the ranks.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum GradientCompression {
    /// In their own type.
    #[default]
    None,
    /// In bf16: half the bytes of fp32. The average is copied back into gradients of their own type.
    Bf16,
}

/// Where tensors live.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum Device {
    /// The GPUs of a machine that has some; one that cannot be used is
    /// [`ExitCode::DeviceFault`](crate::ExitCode::DeviceFault). The CPU, with a warning, where there are none.
    #[default]
    Auto,
    /// A GPU, or [`ExitCode::DeviceFault`](crate::ExitCode::DeviceFault).
    Cuda,
    /// The CPU.
    Cpu,
}

impl Parallelism {
    pub(super) fn check(&self, rules: &mut Rules) {
        rules.positive("parallelism.bucketMegabytes", self.bucket_megabytes);
    }
}
