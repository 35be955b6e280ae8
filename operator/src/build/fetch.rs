//! The container that fetches the data set into its volume before the ranks start.

use contract::environment;
use crds::ViTTrainingJobSpec;
use crds::spec::Origin;
use k8s_openapi::api::core::v1::{Container, EnvFromSource, SecretEnvSource, VolumeMount};

use super::variable;
use crate::policy::gang::FETCH;

/// Name of the volume of the data set.
pub(super) const DATA: &str = "data";

/// The container, with the trainer's image, user and variables; `None` if nothing is fetched.
pub(super) fn container(trainer: &Container, spec: &ViTTrainingJobSpec) -> Option<Container> {
    let (data, workers) = (&spec.data, &spec.workers);
    let (volume, origin) = (data.volume.as_ref()?, data.from.as_ref()?);
    let sources = workers.env_from.iter().cloned();
    let sources: Vec<_> = sources.chain(credentials(origin)).collect();
    let mount = VolumeMount {
        name: DATA.into(),
        mount_path: data.path.clone(),
        sub_path: volume.sub_path.clone(),
        ..VolumeMount::default()
    };
    let arguments = ["fetch", "--to", &data.path, "--"].into_iter().map(Into::into);
    // The operator reads its error.
    let termination_log = variable(environment::TERMINATION_LOG, environment::TERMINATION_LOG_PATH);
    Some(Container {
        name: FETCH.into(),
        args: Some(arguments.chain(origin.locations.iter().cloned()).collect()),
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
    })
}

/// The variables with a store's credentials.
pub(super) fn credentials(origin: &Origin) -> Option<EnvFromSource> {
    origin.credentials_secret.clone().map(|name| EnvFromSource {
        secret_ref: Some(SecretEnvSource { name, optional: None }),
        ..EnvFromSource::default()
    })
}
