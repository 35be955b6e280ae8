use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Volume;

/// Data is the data set.
#[derive(KubeSchema, Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(
    validation = Rule::new("(self.format == 'synthetic') != has(self.volume)").message("volume must be given for every format but synthetic, which has no files"),
    validation = Rule::new("(self.format == 'synthetic') == has(self.syntheticImages)").message("syntheticImages must be given for format synthetic, and for no other")
)]
pub struct Data {
    /// format is the layout of the files: cifar10 or cifar100 (binary version), or synthetic (random images made in
    /// memory: to measure, not to learn from).
    pub format: DataFormat,
    /// path is the folder at which the volume is mounted in the pod, read-only; the files lie in it.
    #[serde(default = "default_path")]
    #[schemars(regex(pattern = "^/[^:]+$"), length(max = 256))]
    pub path: String,
    /// volume holds the files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume: Option<Volume>,
    /// syntheticImages is the number of training images of format synthetic.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000_000))]
    pub synthetic_images: Option<i64>,
}

fn default_path() -> String {
    "/data".into()
}

/// Layout of a data set.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum DataFormat {
    /// CIFAR-10 binary version.
    Cifar10,
    /// CIFAR-100 binary version.
    Cifar100,
    /// Random images with random labels.
    Synthetic,
}
