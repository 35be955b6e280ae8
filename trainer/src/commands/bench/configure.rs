//! The run configuration of a benchmark: a manifest's or a small default, plus the command line's.

use std::path::Path;

use contract::{DataFormat, Resume, RunConfig};
use crds::ViTTrainingJob;
use serde_json::{Value, json};

use super::Arguments;
use crate::error::TrainError;

/// Distinct synthetic images, in steps: too many for a cache, but few enough for memory.
const SYNTHETIC_STEPS: u64 = 8;

/// The configuration to measure; the run writes to `folder`.
pub(super) fn configure(arguments: &Arguments, folder: &Path) -> Result<RunConfig, TrainError> {
    let mut manifest = match &arguments.manifest {
        Some(path) => read(path)?,
        None => default_manifest(),
    };
    let replacements = [
        ("model.name", arguments.model.as_ref().map(|name| json!(name))),
        ("training.microBatchSize", arguments.batch_size.map(Value::from)),
        ("workers.nodes", arguments.nodes.map(Value::from)),
        ("workers.gpusPerNode", arguments.gpus_per_node.map(Value::from)),
    ];
    for (field, value) in replacements {
        if let Some(value) = value {
            set(&mut manifest["spec"], field, value)?;
        }
    }
    for Setting { field, value } in &arguments.set {
        set(&mut manifest["spec"], field, value.clone())?;
    }
    if arguments.data.is_none() {
        manifest["spec"]["data"] = json!({"format": "synthetic", "syntheticImages": 1});
    }
    let job: ViTTrainingJob = serde_json::from_value(manifest)
        .map_err(|error| TrainError::Config(format!("the result is not a valid ViTTrainingJob: {error}")))?;
    let mut config = crds::validate(&job)
        .map_err(|error| TrainError::Config(error.to_string()))?
        .run_config;
    if config.data.format == DataFormat::Synthetic {
        config.data.synthetic_images = Some(SYNTHETIC_STEPS * config.global_batch_size());
    }
    if let Some(data) = &arguments.data {
        config.data.path = Some(data.clone());
        config.data.from = None;
    }
    config.checkpoint.path = folder.join("checkpoints");
    config.checkpoint.resume = Resume::Never;
    Ok(config)
}

fn default_manifest() -> Value {
    json!({
        "apiVersion": "vit-operator.dev/v1alpha1",
        "kind": "ViTTrainingJob",
        "metadata": {"name": "bench", "namespace": "local"},
        "spec": {
            "image": "unused",
            "model": {"name": "vit_tiny_patch16_224", "numClasses": 1000},
            "data": {"format": "synthetic", "syntheticImages": 1},
            "training": {"epochs": 1, "microBatchSize": 16, "schedule": {"name": "constant"}},
            "workers": {"nodes": 1, "gpusPerNode": 1},
            "checkpoint": {"volume": {"persistentVolumeClaim": {"claimName": "unused"}}},
        },
    })
}

fn read(path: &Path) -> Result<Value, TrainError> {
    let text = fs_err::read_to_string(path)
        .map_err(|error| TrainError::Config(format!("failed to read the manifest: {error}")))?;
    let manifest: Value = serde_saphyr::from_str(&text).map_err(|error| {
        TrainError::Config(format!("{} is not a valid manifest: {error}", path.display()))
    })?;
    if manifest["spec"].is_object() {
        Ok(manifest)
    } else {
        Err(TrainError::Config(format!("{} has no spec", path.display())))
    }
}

/// `FIELD=VALUE` of the command line: a field of the manifest's spec, and its value.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Setting {
    field: String,
    value: Value,
}

impl std::str::FromStr for Setting {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (field, value) = text
            .split_once('=')
            .ok_or_else(|| "must be FIELD=VALUE, such as training.precision=bf16".to_owned())?;
        let value =
            serde_saphyr::from_str(value).map_err(|error| format!("{value:?} is not valid YAML: {error}"))?;
        Ok(Self {
            field: field.to_owned(),
            value,
        })
    }
}

fn set(spec: &mut Value, field: &str, value: Value) -> Result<(), TrainError> {
    let mut place = spec;
    for part in field.split('.') {
        place = place
            .as_object_mut()
            .ok_or_else(|| TrainError::Config(format!("{field}: {part} is not a field of an object")))?
            .entry(part)
            .or_insert_with(|| json!({}));
    }
    *place = value;
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct CommandLine {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn configured(words: &[&str]) -> Result<RunConfig, TrainError> {
        let words = std::iter::once("bench").chain(words.iter().copied());
        let arguments = CommandLine::try_parse_from(words).expect("parses").arguments;
        configure(&arguments, Path::new("/tmp/bench"))
    }

    #[test]
    fn without_a_manifest_it_is_vit_tiny_on_one_rank() {
        let config = configured(&[]).expect("sound");
        assert_eq!(
            (config.model.hidden_size, config.training.micro_batch_size),
            (192, 16)
        );
        assert_eq!(config.world_size(), 1);
        assert_eq!(config.data.synthetic_images, Some(8 * 16));
        assert_eq!(config.checkpoint.path, Path::new("/tmp/bench/checkpoints"));
    }

    #[test]
    fn the_command_line_replaces_fields_of_the_manifest() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let manifest = include_str!("../../../../examples/digits.yaml");
        fs_err::write(file.path(), manifest).expect("writes");
        let path = file.path().to_str().expect("a name");
        let config = configured(&[
            "-f",
            path,
            "--batch-size",
            "4",
            "--nodes",
            "3",
            "--set",
            "model.depth=1",
            "--set",
            "training.optimizer.betas=[0.5, 0.6]",
        ])
        .expect("sound");
        assert_eq!((config.model.depth, config.global_batch_size()), (1, 12));
        assert_eq!(config.data.format, DataFormat::Synthetic, "no data was given");
        let config = configured(&["-f", path, "--data", "/digits"]).expect("sound");
        assert_eq!(config.data.path.as_deref(), Some(Path::new("/digits")));
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let message = |words: &[&str]| configured(words).expect_err("refused").to_string();
        let unknown = message(&["--set", "training.sped=1"]);
        assert!(unknown.contains("sped"), "{unknown}");
        let scalar = message(&["--set", "model.name.first=1"]);
        assert_eq!(scalar, "model.name.first: first is not a field of an object");
        let missing = message(&["-f", "/nowhere/job.yaml"]);
        assert!(missing.contains("/nowhere/job.yaml"), "{missing}");
        let error = "depth".parse::<Setting>().expect_err("refused");
        assert!(error.contains("FIELD=VALUE"), "{error}");
    }
}
