//! `spec.workers`: a manifest's additions to pods, which must not use the operator's names.

use std::collections::BTreeSet;
use std::path::Path;

use contract::ConfigError;
use k8s_openapi::api::core::v1::Volume;

use super::refuse;
use crate::spec::reserved::{self, is_reserved_folder, is_reserved_key};
use crate::spec::{ViTTrainingJobSpec, Workers};

pub(super) fn pods(spec: &ViTTrainingJobSpec, errors: &mut Vec<ConfigError>) {
    let workers = &spec.workers;
    environment(workers, errors);
    metadata(workers, errors);
    volumes(spec, errors);
    if let Some(capability) = workers.capabilities.first()
        && workers.run_as_user != Some(0)
    {
        refuse(
            errors,
            "workers.capabilities",
            capability,
            reserved::CAPABILITIES_MESSAGE,
        );
    }
}

fn environment(workers: &Workers, errors: &mut Vec<ConfigError>) {
    let is_taken = |name: &str| name.starts_with(reserved::ENV_PREFIX);
    for variable in workers.env.iter().filter(|variable| is_taken(&variable.name)) {
        refuse(errors, "workers.env", &variable.name, reserved::ENV_MESSAGE);
    }
    for source in &workers.env_from {
        let prefix = source.prefix.as_deref().unwrap_or_default();
        if is_taken(prefix) {
            refuse(errors, "workers.envFrom", prefix, reserved::ENV_FROM_MESSAGE);
        }
        if source.config_map_ref.is_some() == source.secret_ref.is_some() {
            let given = if source.secret_ref.is_some() {
                "both"
            } else {
                "neither"
            };
            refuse(errors, "workers.envFrom", given, reserved::ENV_SOURCE_MESSAGE);
        }
    }
}

fn metadata(workers: &Workers, errors: &mut Vec<ConfigError>) {
    for (field, entries) in [
        ("workers.podLabels", &workers.pod_labels),
        ("workers.podAnnotations", &workers.pod_annotations),
    ] {
        for key in entries.keys().filter(|key| is_reserved_key(key)) {
            refuse(errors, field, key, reserved::KEY_MESSAGE);
        }
    }
}

fn volumes(spec: &ViTTrainingJobSpec, errors: &mut Vec<ConfigError>) {
    let Workers {
        volumes,
        volume_mounts,
        ..
    } = &spec.workers;
    let mut names = BTreeSet::new();
    for volume in volumes {
        let name = volume.name.as_str();
        if reserved::VOLUMES.contains(&name) {
            refuse(errors, "workers.volumes", name, reserved::VOLUME_MESSAGE);
        }
        if !names.insert(name) {
            refuse(
                errors,
                "workers.volumes",
                name,
                "must be the name of one volume only",
            );
        }
        if !has_one_source(volume) {
            refuse(errors, "workers.volumes", name, reserved::VOLUME_SOURCE_MESSAGE);
        }
    }
    let data = spec.data.format.has_files().then_some(&spec.data.path);
    let own = [data, Some(&spec.checkpoint.path)].map(|path| path.map(Path::new));
    let mut folders = BTreeSet::new();
    for mount in volume_mounts {
        let path = mount.mount_path.as_str();
        if !names.contains(mount.name.as_str()) {
            refuse(
                errors,
                "workers.volumeMounts",
                &mount.name,
                reserved::MOUNT_MESSAGE,
            );
        }
        if is_reserved_folder(path) {
            refuse(errors, "workers.volumeMounts", path, reserved::FOLDER_MESSAGE);
        }
        if own.contains(&Some(Path::new(path))) {
            refuse(errors, "workers.volumeMounts", path, reserved::STORAGE_MESSAGE);
        }
        if !folders.insert(path) {
            refuse(
                errors,
                "workers.volumeMounts",
                path,
                "must be the mountPath of one volume only",
            );
        }
    }
}

/// Kubernetes' volume has one field per source; the schema allows some of them.
fn has_one_source(volume: &Volume) -> bool {
    let fields = serde_json::to_value(volume).unwrap_or_default();
    let fields = fields.as_object().into_iter().flatten();
    let fields = fields.map(|(field, _)| field.as_str());
    match fields.filter(|field| *field != "name").collect::<Vec<_>>()[..] {
        [source] => reserved::VOLUME_SOURCES.contains(&source),
        _ => false,
    }
}
