//! Parts of a pod that are reserved for the operator, and volumes that a manifest may add: for the
//! schema, for [`validate`](crate::validate()) and for the tests of built pods.

use kube::core::Rule;
use schemars::Schema;
use serde_json::{Value, json};

/// Prefix of the environment variables that configure the trainer.
pub const ENV_PREFIX: &str = "VIT_";
/// Prefixes of the operator's labels and annotations.
pub const KEY_PREFIXES: [&str; 3] = [
    "vit-operator.dev/",
    "app.kubernetes.io/managed-by",
    "prometheus.io/",
];
/// Names of the operator's volumes.
pub const VOLUMES: [&str; 6] = [
    "run-config",
    "tmp",
    "shared-memory",
    "data",
    "pretrained",
    "checkpoints",
];
/// Mount paths of the operator's volumes, except those that the manifest sets.
pub const FOLDERS: [&str; 5] = [
    "/etc/vit",
    "/tmp",
    "/dev/shm",
    "/dev/termination-log",
    "/pretrained",
];
/// Volume sources allowed in a manifest: all of Kubernetes except those replaced by CSI drivers.
pub const VOLUME_SOURCES: [&str; 11] = [
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "hostPath",
    "image",
    "nfs",
    "persistentVolumeClaim",
    "projected",
    "secret",
];

pub(crate) const ENV_MESSAGE: &str = "names that start with VIT_ are taken by the operator";
pub(crate) const ENV_FROM_MESSAGE: &str =
    "a prefix that starts with VIT_ is taken by the operator; use another prefix";
pub(crate) const ENV_SOURCE_MESSAGE: &str = "give exactly one of configMapRef and secretRef in each entry";
pub(crate) const KEY_MESSAGE: &str = "keys that start with vit-operator.dev/, app.kubernetes.io/managed-by or prometheus.io/ are taken by the operator; use other keys";
pub(crate) const VOLUME_MESSAGE: &str = "the names run-config, tmp, shared-memory, data, pretrained and checkpoints are taken by the operator; use another name";
pub(crate) const VOLUME_SOURCE_MESSAGE: &str =
    "give each volume exactly one source, such as configMap, secret, persistentVolumeClaim or csi";
pub(crate) const FOLDER_MESSAGE: &str = "the operator mounts its own volumes at /etc/vit, /tmp, /dev/shm, /dev/termination-log and /pretrained; use another mountPath";
pub(crate) const MOUNT_MESSAGE: &str = "each entry of volumeMounts must have the name of one of volumes";
pub(crate) const STORAGE_MESSAGE: &str = "a mountPath of workers.volumeMounts must differ from data.path and checkpoint.path, where the job's own volumes are";
pub(crate) const CAPABILITIES_MESSAGE: &str =
    "capabilities take effect for root only; set runAsUser to 0, or leave capabilities out";

/// Whether a label or an annotation is the operator's.
pub fn is_reserved_key(key: &str) -> bool {
    KEY_PREFIXES.iter().any(|prefix| key.starts_with(prefix))
}

/// Whether a path is one of the operator's folders or in one.
pub fn is_reserved_folder(path: &str) -> bool {
    let path = std::path::Path::new(path);
    FOLDERS.iter().any(|folder| path.starts_with(folder))
}

pub(super) fn key_rule() -> Rule {
    let is_taken = KEY_PREFIXES.map(|prefix| format!("key.startsWith('{prefix}')"));
    Rule::new(format!("!self.exists(key, {})", is_taken.join(" || "))).message(KEY_MESSAGE)
}

pub(super) fn env_rule() -> Rule {
    Rule::new(format!("!self.exists(e, e.name.startsWith('{ENV_PREFIX}'))")).message(ENV_MESSAGE)
}

pub(super) fn env_from_rule() -> Rule {
    let is_taken = format!("has(e.prefix) && e.prefix.startsWith('{ENV_PREFIX}')");
    Rule::new(format!("!self.exists(e, {is_taken})")).message(ENV_FROM_MESSAGE)
}

pub(super) fn volume_rule() -> Rule {
    Rule::new(format!("!self.exists(v, v.name in {VOLUMES:?})")).message(VOLUME_MESSAGE)
}

pub(super) fn volume_source_rule() -> Rule {
    let given = VOLUME_SOURCES.map(|source| format!("has(v.{source})"));
    let is_one = format!("[{}].exists_one(given, given)", given.join(", "));
    Rule::new(format!("self.all(v, {is_one})")).message(VOLUME_SOURCE_MESSAGE)
}

pub(super) fn folder_rule() -> Rule {
    let is_within = "m.mountPath == folder || m.mountPath.startsWith(folder + '/')";
    Rule::new(format!(
        "!self.exists(m, {FOLDERS:?}.exists(folder, {is_within}))"
    ))
    .message(FOLDER_MESSAGE)
}

/// Narrows the schema of Kubernetes' volumes to [`VOLUME_SOURCES`], and bounds their names.
pub(super) fn narrow_volumes(schema: &mut Schema) {
    let fields = schema.pointer_mut("/items/properties");
    if let Some(fields) = fields.and_then(Value::as_object_mut) {
        fields.retain(|name, _| name == "name" || VOLUME_SOURCES.contains(&name.as_str()));
    }
    let name = json!({"maxLength": 63, "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"});
    bound(schema, "/items/properties/name", name);
}

/// Bounds the strings of Kubernetes' mounts. Paths are absolute and in their shortest form, so that
/// a folder has only one path.
pub(super) fn bound_mounts(schema: &mut Schema) {
    bound(schema, "/items/properties/name", json!({"maxLength": 63}));
    let component = r"/([^/:.]|\.[^/:.]|\.\.[^/:])[^/:]*";
    let path = json!({"maxLength": 256, "pattern": format!("^({component})+$")});
    bound(schema, "/items/properties/mountPath", path);
}

/// Adds bounds, from which the API server estimates the cost of rules.
fn bound(schema: &mut Schema, pointer: &str, bounds: Value) {
    if let (Some(Value::Object(field)), Value::Object(bounds)) = (schema.pointer_mut(pointer), bounds) {
        field.extend(bounds);
    }
}
