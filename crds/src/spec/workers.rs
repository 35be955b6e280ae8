use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    EnvFromSource, EnvVar, ResourceRequirements, Toleration, Volume, VolumeMount,
};
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Device, reserved};

/// Workers sets the number of pods, their GPUs and other pod settings. Each node has one pod, and
/// each GPU one rank.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(
    validation = Rule::new("self.volumeMounts.all(m, self.volumes.exists(v, v.name == m.name))").message(reserved::MOUNT_MESSAGE),
    validation = Rule::new("size(self.capabilities) == 0 || (has(self.runAsUser) && self.runAsUser == 0)").message(reserved::CAPABILITIES_MESSAGE)
)]
pub struct Workers {
    /// nodes is the number of pods, each on a separate node. It can be changed (also by kubectl
    /// scale) if elastic is not given. The gang then saves, stops, and resumes in the new size with
    /// another global batch.
    #[schemars(range(min = 1, max = 4096))]
    pub nodes: i32,
    /// gpusPerNode is the number of GPUs and ranks of each pod.
    #[serde(default = "default_gpus_per_node")]
    #[schemars(range(min = 1, max = 64))]
    pub gpus_per_node: i32,
    /// gpuResource is the extended resource for GPUs.
    #[serde(default = "default_gpu_resource")]
    #[schemars(regex(pattern = "^[a-z0-9.-]+/[A-Za-z0-9._-]+$"), length(max = 253))]
    pub gpu_resource: String,
    /// device is where tensors are: auto (GPUs if the node has any, otherwise the CPU), cuda or
    /// cpu.
    #[serde(default)]
    pub device: Device,
    /// resources are further requests and limits of each pod, such as cpu and memory. gpusPerNode
    /// adds the GPUs.
    #[serde(default)]
    pub resources: ResourceRequirements,
    /// nodeSelector are labels that nodes must have.
    #[serde(default)]
    #[schemars(extend("maxProperties" = 32))]
    pub node_selector: BTreeMap<String, String>,
    /// tolerations of the pods, besides one for taints NoSchedule whose key is gpuResource.
    #[serde(default)]
    #[schemars(length(max = 32))]
    pub tolerations: Vec<Toleration>,
    /// env are further environment variables of the trainer, such as NCCL_DEBUG, with a value or
    /// valueFrom a ConfigMap, a Secret or a pod field. Names that start with VIT_ are reserved.
    #[serde(default)]
    #[schemars(length(max = 64))]
    #[x_kube(validation = reserved::env_rule())]
    pub env: Vec<EnvVar>,
    /// envFrom are ConfigMaps and Secrets whose keys become environment variables of the trainer;
    /// env and the operator's variables take precedence.
    #[serde(default)]
    #[schemars(length(max = 16))]
    #[x_kube(
        validation = reserved::env_from_rule(),
        validation = Rule::new("self.all(e, has(e.configMapRef) != has(e.secretRef))").message(reserved::ENV_SOURCE_MESSAGE)
    )]
    pub env_from: Vec<EnvFromSource>,
    /// volumes are further volumes of the pods. Pod Security "restricted" and "baseline" refuse hostPath.
    #[serde(default)]
    #[schemars(length(max = 32), transform = reserved::narrow_volumes)]
    #[x_kube(
        validation = reserved::volume_rule(),
        validation = reserved::volume_source_rule(),
        merge_strategy = ListMerge::Map(vec!["name".into()])
    )]
    pub volumes: Vec<Volume>,
    /// volumeMounts are their mounts in the trainer's container.
    #[serde(default)]
    #[schemars(length(max = 32), transform = reserved::bound_mounts)]
    #[x_kube(
        validation = reserved::folder_rule(),
        merge_strategy = ListMerge::Map(vec!["mountPath".into()])
    )]
    pub volume_mounts: Vec<VolumeMount>,
    /// podLabels are further labels of the pods.
    #[serde(default)]
    #[schemars(extend(
        "maxProperties" = 32,
        "additionalProperties" = {
            "type": "string",
            "maxLength": 63,
            "pattern": "^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"
        }
    ))]
    #[x_kube(validation = reserved::key_rule())]
    pub pod_labels: BTreeMap<String, String>,
    /// podAnnotations are further annotations of the pods, such as those for RDMA devices of a
    /// network plugin.
    #[serde(default)]
    #[schemars(extend("maxProperties" = 32))]
    #[x_kube(validation = reserved::key_rule())]
    pub pod_annotations: BTreeMap<String, String>,
    /// serviceAccountName is the ServiceAccount of the pods, for a cloud identity and for
    /// imagePullSecrets if the job has none. Its API token is not mounted; for a token, add a
    /// projected volume with a serviceAccountToken.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub service_account_name: Option<String>,
    /// runtimeClassName is the RuntimeClass of the pods, such as nvidia if that is not the default.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub runtime_class_name: Option<String>,
    /// hostNetwork puts the pods on their nodes' network, for devices that no plugin attaches to
    /// pods. A node then has at most one such pod, which listens on the node's ports 9402 and
    /// 29500, without protection by NetworkPolicies. Pod Security "restricted" and "baseline"
    /// refuse it.
    #[serde(default)]
    pub host_network: bool,
    /// priorityClassName is the PriorityClass of the pods. Its value orders waiting jobs: higher
    /// first, then older. The default is the cluster's default class, or 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub priority_class_name: Option<String>,
    /// runAsUser is the user id of the trainer; by default the image's (65532). Pod Security
    /// "restricted" refuses 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub run_as_user: Option<i64>,
    /// fsGroup is the group that owns mounted volumes, if their kind supports that.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub fs_group: Option<i64>,
    /// supplementalGroups are further groups of the trainer, such as owners of GPU devices or NFS
    /// files.
    #[serde(default)]
    #[schemars(length(max = 16), inner(range(min = 1)))]
    pub supplemental_groups: Vec<i64>,
    /// capabilities are added to the trainer, such as IPC_LOCK, which root needs to register memory
    /// for RDMA; all others are dropped. They take effect for root only, so runAsUser must be 0.
    /// Pod Security "restricted" and "baseline" refuse most.
    #[serde(default)]
    #[schemars(
        length(max = 16),
        inner(length(max = 63), regex(pattern = "^[A-Z][A-Z0-9_]*$"))
    )]
    pub capabilities: Vec<String>,
}

fn default_gpus_per_node() -> i32 {
    1
}

/// The default extended resource for GPUs.
pub const DEFAULT_GPU_RESOURCE: &str = "nvidia.com/gpu";

fn default_gpu_resource() -> String {
    DEFAULT_GPU_RESOURCE.into()
}

/// When kubelets pull the image.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize, Deserialize, JsonSchema)]
pub enum ImagePullPolicy {
    /// At every start of a pod.
    Always,
    /// If the node does not have it.
    #[default]
    IfNotPresent,
    /// Never: the node must have it.
    Never,
}

/// ImagePullSecret names a Secret.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ImagePullSecret {
    /// name of the Secret, in the job's namespace.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}
