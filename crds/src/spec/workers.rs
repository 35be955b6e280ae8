use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{EnvVar, ResourceRequirements, Toleration};
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Workers sets how many pods there are, with how many GPUs each, and what else they get. There is one pod a node, and
/// one rank a GPU.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(
    validation = Rule::new("self.gpusPerNode == oldSelf.gpusPerNode && self.gpuResource == oldSelf.gpuResource && self.device == oldSelf.device").message("gpusPerNode, gpuResource and device cannot be changed; create a new job"),
    validation = Rule::new("self.resources == oldSelf.resources && self.nodeSelector == oldSelf.nodeSelector && self.tolerations == oldSelf.tolerations").message("resources, nodeSelector and tolerations cannot be changed; create a new job"),
    validation = Rule::new("self.env == oldSelf.env").message("env cannot be changed; create a new job"),
    validation = Rule::new("has(self.priorityClassName) == has(oldSelf.priorityClassName) && (!has(self.priorityClassName) || self.priorityClassName == oldSelf.priorityClassName)").message("priorityClassName cannot be changed; create a new job"),
    validation = Rule::new("has(self.runAsUser) == has(oldSelf.runAsUser) && (!has(self.runAsUser) || self.runAsUser == oldSelf.runAsUser) && has(self.fsGroup) == has(oldSelf.fsGroup) && (!has(self.fsGroup) || self.fsGroup == oldSelf.fsGroup)").message("runAsUser and fsGroup cannot be changed; create a new job")
)]
pub struct Workers {
    /// nodes is the number of pods, each on a node of its own. It can be changed (also by kubectl scale) where elastic is
    /// not given: the gang then saves, stops, and continues in the new size, with a global batch of its own, from its
    /// checkpoint.
    #[schemars(range(min = 1, max = 4096))]
    pub nodes: i32,
    /// gpusPerNode is the number of GPUs of each pod, and of ranks in it.
    #[serde(default = "default_gpus_per_node")]
    #[schemars(range(min = 1, max = 64))]
    pub gpus_per_node: i32,
    /// gpuResource is the name of the extended resource by which nodes count their GPUs.
    #[serde(default = "default_gpu_resource")]
    #[schemars(regex(pattern = "^[a-z0-9.-]+/[A-Za-z0-9._-]+$"), length(max = 253))]
    pub gpu_resource: String,
    /// device is where tensors live: auto (GPUs where the node has GPU devices, otherwise the CPU), cuda or cpu.
    #[serde(default)]
    pub device: Device,
    /// resources are further requests and limits of each pod, such as cpu and memory. GPUs are added by gpusPerNode.
    #[serde(default)]
    pub resources: ResourceRequirements,
    /// nodeSelector are labels that nodes must have.
    #[serde(default)]
    #[schemars(extend("maxProperties" = 32))]
    pub node_selector: BTreeMap<String, String>,
    /// tolerations of the pods; GPU nodes are often tainted.
    #[serde(default)]
    #[schemars(length(max = 32))]
    pub tolerations: Vec<Toleration>,
    /// env are further environment variables of the trainer, such as NCCL_DEBUG. Names that start with VIT_ are taken.
    #[serde(default)]
    #[schemars(length(max = 64))]
    #[x_kube(validation = Rule::new("self.all(e, !e.name.startsWith('VIT_'))").message("names that start with VIT_ are taken by the operator"))]
    pub env: Vec<EnvVar>,
    /// priorityClassName is the PriorityClass of the pods, and with its value the job's place among those that wait for
    /// GPUs: higher ones first, then older ones. Without one, the cluster's default class counts, or 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub priority_class_name: Option<String>,
    /// runAsUser is the user id of the trainer, never 0; the image's own (65532) if not set.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub run_as_user: Option<i64>,
    /// fsGroup is the group that owns mounted volumes, where their kind supports that.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub fs_group: Option<i64>,
}

fn default_gpus_per_node() -> i32 {
    1
}

/// The extended resource by which nodes count their GPUs, where a job names no other.
pub const DEFAULT_GPU_RESOURCE: &str = "nvidia.com/gpu";

fn default_gpu_resource() -> String {
    DEFAULT_GPU_RESOURCE.into()
}

/// Where tensors live.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Device {
    /// GPUs where the node has GPU devices, otherwise the CPU.
    #[default]
    Auto,
    /// A GPU; without one the job fails.
    Cuda,
    /// The CPU.
    Cpu,
}

/// When kubelets pull the image.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize, Deserialize, JsonSchema)]
pub enum ImagePullPolicy {
    /// At every start of a pod.
    Always,
    /// Where the node does not have it.
    #[default]
    IfNotPresent,
    /// Never: the node must have it.
    Never,
}
