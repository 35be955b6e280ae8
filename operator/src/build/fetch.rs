//! The containers that fetch files into their volumes before the ranks start.

use contract::environment;
use crds::ViTTrainingJobSpec;
use crds::spec::{Origin, Volume};
use crds::validate::PRETRAINED_FOLDER;
use k8s_openapi::api::core::v1::{Container, EnvFromSource, SecretEnvSource, VolumeMount};

use super::variable;
use crate::policy::gang::{FETCH, FETCH_WEIGHTS};

/// Name of the volume of the data set.
pub(super) const DATA: &str = "data";
/// Name of the volume of weights to start from.
pub(super) const PRETRAINED: &str = "pretrained";

/// What a container fetches.
struct Files<'a> {
    container: &'static str,
    volume: &'static str,
    folder: &'a str,
    sub_path: Option<String>,
    locations: Vec<String>,
    origin: &'a Origin,
}

/// The containers, with the trainer's image, user and variables, in the order in which they run.
pub(super) fn containers(trainer: &Container, spec: &ViTTrainingJobSpec) -> Vec<Container> {
    let sub_path = |volume: Option<&Volume>| volume.and_then(|volume| volume.sub_path.clone());
    let pretrained = spec.model.pretrained.as_ref();
    let weights = pretrained.and_then(|file| {
        Some(Files {
            container: FETCH_WEIGHTS,
            volume: PRETRAINED,
            folder: PRETRAINED_FOLDER,
            sub_path: sub_path(file.volume.as_ref()),
            locations: vec![file.location()?],
            origin: file.from.as_ref()?,
        })
    });
    let data = &spec.data;
    let data = data
        .from
        .as_ref()
        .filter(|_| data.volume.is_some())
        .map(|origin| Files {
            container: FETCH,
            volume: DATA,
            folder: &data.path,
            sub_path: sub_path(data.volume.as_ref()),
            locations: origin.locations.clone(),
            origin,
        });
    let files = [weights, data].into_iter().flatten();
    files.map(|files| container(trainer, spec, files)).collect()
}

fn container(trainer: &Container, spec: &ViTTrainingJobSpec, files: Files<'_>) -> Container {
    let workers = &spec.workers;
    let sources = workers.env_from.iter().cloned();
    let sources: Vec<_> = sources.chain(credentials(files.origin)).collect();
    let mount = VolumeMount {
        name: files.volume.into(),
        mount_path: files.folder.into(),
        sub_path: files.sub_path,
        ..VolumeMount::default()
    };
    let arguments = ["fetch", "--to", files.folder, "--"].into_iter().map(Into::into);
    // The operator reads its error.
    let termination_log = variable(environment::TERMINATION_LOG, environment::TERMINATION_LOG_PATH);
    Container {
        name: files.container.into(),
        args: Some(arguments.chain(files.locations).collect()),
        env: Some(workers.env.iter().cloned().chain([termination_log]).collect()),
        env_from: (!sources.is_empty()).then_some(sources),
        // Without the trainer's GPUs. Its other resources are free until it starts.
        resources: Some(workers.resources.clone()),
        ports: None,
        readiness_probe: None,
        // Include the manifest's: variables may name files in them.
        volume_mounts: Some(
            std::iter::once(mount)
                .chain(workers.volume_mounts.iter().cloned())
                .collect(),
        ),
        ..trainer.clone()
    }
}

/// The variables with a store's credentials.
pub(super) fn credentials(origin: &Origin) -> Option<EnvFromSource> {
    origin.credentials_secret.clone().map(|name| EnvFromSource {
        secret_ref: Some(SecretEnvSource { name, optional: None }),
        ..EnvFromSource::default()
    })
}
