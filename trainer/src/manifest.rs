//! A job's manifest as a run configuration for this machine, without Kubernetes.

use std::path::Path;

use contract::{DataFormat, RunConfig};
use crds::ViTTrainingJob;
use serde::de::DeserializeOwned;

use crate::error::TrainError;

const API_VERSION: &str = "vit-operator.dev/v1alpha1";

/// What a manifest says that it is.
#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct TypeMeta {
    api_version: String,
    kind: String,
}

/// A run configuration with the file of weights of the command line, if it names one.
pub(crate) fn with_pretrained(
    mut config: RunConfig,
    pretrained: Option<&Path>,
    manifest: &Path,
) -> Result<RunConfig, TrainError> {
    match (pretrained, &config.model.pretrained) {
        (Some(file), _) => config.model.pretrained = Some(file.into()),
        (None, Some(file)) if !file.exists() => {
            return Err(TrainError::Config(format!(
                "{}: spec.model.pretrained is a file of a volume, which this machine does not mount: give --pretrained FILE",
                manifest.display()
            )));
        }
        (None, _) => {}
    }
    Ok(config)
}

/// The run configuration of a manifest on this machine: volumes are folders, and `nodes` replaces the manifest's.
pub(crate) fn read_config(
    manifest: &Path,
    data: Option<&Path>,
    checkpoints: &Path,
    nodes: Option<u32>,
) -> Result<RunConfig, TrainError> {
    let job = read(manifest)?;
    let wrong = |reason: &str| TrainError::Config(format!("{}: {reason}", manifest.display()));
    if job.spec.external.is_some() {
        return Err(wrong(
            "spec.external names another trainer: it runs in a cluster, or as part of a study",
        ));
    }
    local_config(job, data, checkpoints, nodes).map_err(|error| wrong(&error.to_string()))
}

/// As [`read_config`], of a job that is read already.
pub(crate) fn local_config(
    mut job: ViTTrainingJob,
    data: Option<&Path>,
    checkpoints: &Path,
    nodes: Option<u32>,
) -> Result<RunConfig, crds::InvalidJob> {
    job.metadata.namespace = Some("local".into());
    job.metadata.uid = None;
    if let Some(nodes) = nodes {
        job.spec.workers.nodes = i32::try_from(nodes).unwrap_or(i32::MAX);
    }
    let mut config = crds::validate(&job)?.run_config;
    config.checkpoint.path = checkpoints.join(&config.job.name);
    if config.data.format != DataFormat::Synthetic
        && let Some(folder) = data
    {
        config.data.path = Some(folder.into());
    }
    Ok(config)
}

pub(crate) fn read(path: &Path) -> Result<ViTTrainingJob, TrainError> {
    read_resource(path, "ViTTrainingJob")
}

/// A resource of this project, of one kind.
pub(crate) fn read_resource<R: DeserializeOwned>(path: &Path, expected: &str) -> Result<R, TrainError> {
    let text = fs_err::read_to_string(path)
        .map_err(|error| TrainError::Config(format!("failed to read the manifest: {error}")))?;
    let wrong = |reason: &dyn std::fmt::Display| {
        TrainError::Config(format!("{} is no {expected}: {reason}", path.display()))
    };
    // The resource's own type leaves these two to the API server.
    let TypeMeta { api_version, kind } = serde_saphyr::from_str(&text).map_err(|error| wrong(&error))?;
    if (api_version.as_str(), kind.as_str()) != (API_VERSION, expected) {
        let found =
            format!("apiVersion is {api_version} and kind is {kind}: must be {API_VERSION} and {expected}");
        return Err(wrong(&found));
    }
    serde_saphyr::from_str(&text).map_err(|error| wrong(&error))
}
