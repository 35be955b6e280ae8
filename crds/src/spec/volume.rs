use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Volume is storage that pods mount, with exactly one source.
#[derive(KubeSchema, Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(
    validation = Rule::new("has(self.persistentVolumeClaim) != has(self.hostPath)").message("give exactly one of persistentVolumeClaim and hostPath")
)]
pub struct Volume {
    /// persistentVolumeClaim is a claim in the job's namespace. For several nodes its access mode
    /// must allow them (ReadWriteMany for checkpoints).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub persistent_volume_claim: Option<PersistentVolumeClaim>,
    /// hostPath is a folder with the same content on every node, such as a mounted cluster file
    /// system. Pod Security "restricted" and "baseline" refuse it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_path: Option<HostPath>,
    /// subPath is the folder in the volume to mount instead of its root.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = "^[^/.][^:]*$"), length(max = 256))]
    pub sub_path: Option<String>,
}

/// PersistentVolumeClaim names a claim.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PersistentVolumeClaim {
    /// claimName is the name of a PersistentVolumeClaim in the job's namespace.
    #[schemars(length(min = 1, max = 253))]
    pub claim_name: String,
}

/// HostPath names a folder of the nodes.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HostPath {
    /// path is the folder on every node.
    #[schemars(regex(pattern = "^/"), length(max = 512))]
    pub path: String,
}
