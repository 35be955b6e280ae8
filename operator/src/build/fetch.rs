//! The container that fetches the data set into its volume before the ranks start.

use contract::environment;
use crds::spec::Origin;
use crds::validate::{DataFiles, PodSettings};
use k8s_openapi::api::core::v1::{Container, EnvFromSource, SecretEnvSource, VolumeMount};

use super::variable;
use crate::policy::gang::FETCH;

/// Name of the volume of the data set.
pub(super) const DATA: &str = "data";

/// The container, with the trainer's image, user and variables; `None` if nothing is fetched.
pub(super) fn container(trainer: &Container, settings: &PodSettings) -> Option<Container> {
    let Some(DataFiles::Mounted {
        mount: data,
        origin: Some(origin),
    }) = &settings.data
    else {
        return None;
    };
    let sources = settings.env_from.iter().cloned();
    let sources: Vec<_> = sources.chain(credentials(origin)).collect();
    let mount = VolumeMount {
        name: DATA.into(),
        mount_path: data.path.clone(),
        sub_path: data.volume.sub_path.clone(),
        ..VolumeMount::default()
    };
    let arguments = ["fetch", "--to", &data.path, "--"].into_iter().map(Into::into);
    // The operator reads its error.
    let termination_log = variable(environment::TERMINATION_LOG, environment::TERMINATION_LOG_PATH);
    Some(Container {
        name: FETCH.into(),
        args: Some(arguments.chain(origin.locations.iter().cloned()).collect()),
        env: Some(settings.env.iter().cloned().chain([termination_log]).collect()),
        env_from: (!sources.is_empty()).then_some(sources),
        // Without the trainer's GPUs. Its other resources are free until it starts.
        resources: Some(settings.resources.clone()),
        ports: None,
        readiness_probe: None,
        // Include the manifest's: variables may name files in them.
        volume_mounts: Some(
            std::iter::once(mount)
                .chain(settings.volume_mounts.iter().cloned())
                .collect(),
        ),
        ..trainer.clone()
    })
}

/// The variables with a store's credentials.
pub(super) fn credentials(origin: &Origin) -> Option<EnvFromSource> {
    origin.credentials_secret.clone().map(|name| EnvFromSource {
        secret_ref: Some(SecretEnvSource { name, optional: None }),
        ..EnvFromSource::default()
    })
}
