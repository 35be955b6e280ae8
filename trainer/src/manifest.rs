//! A job's manifest as a run configuration for this machine, without Kubernetes.

use std::path::{Path, PathBuf};

use contract::{DataConfig, DataFormat, Origin, RunConfig};
use crds::ViTTrainingJob;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::error::TrainError;

const API_VERSION: &str = "vit-operator.dev/v1alpha1";

/// The type that a manifest declares.
#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct TypeMeta {
    api_version: String,
    kind: String,
}

/// Replaces the file of weights in a run configuration by the command line's, if it names one.
pub(crate) fn with_pretrained(
    mut config: RunConfig,
    pretrained: Option<&Path>,
    manifest: &Path,
) -> Result<RunConfig, TrainError> {
    match (pretrained, &config.model.pretrained) {
        (Some(file), _) => config.model.pretrained = Some(file.into()),
        (None, Some(file)) if !file.exists() => {
            return Err(TrainError::Config(format!(
                "{}: spec.model.pretrained is a file in pods: pass --pretrained FILE (vit-trainer fetch downloads one)",
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

/// As [`read_config`], for a job that is already read.
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
        config.data.from = None;
    }
    cache_here(&mut config.data);
    Ok(config)
}

/// Caches streamed data in the user's cache folder, because there is no pod.
pub(crate) fn cache_here(data: &mut DataConfig) {
    if data.from.as_ref().is_some_and(Origin::is_streamed) {
        let folder = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
        let folder = folder.or_else(|| Some(std::env::home_dir()?.join(".cache")));
        data.path = Some(folder.unwrap_or_else(std::env::temp_dir).join("vit-trainer"));
    }
}

pub(crate) fn read(path: &Path) -> Result<ViTTrainingJob, TrainError> {
    read_resource(path, "ViTTrainingJob")
}

/// A YAML or JSON error without hints for programmers.
pub(crate) fn in_words(error: &serde_saphyr::Error) -> String {
    error.render_with_formatter(&serde_saphyr::UserMessageFormatter)
}

/// The only document of this kind in a file that may have others, such as claims. Empty lines
/// replace the others. The error says how many there are.
fn only_document(text: &str, expected: &str) -> Result<String, String> {
    let mut documents = vec![Vec::new()];
    for (number, line) in text.lines().enumerate() {
        if line == "---" || line.starts_with("--- ") {
            documents.push(Vec::new());
        }
        documents.last_mut().expect("one was pushed").push(number);
    }
    let lines: Vec<&str> = text.lines().collect();
    let only = |document: &Vec<usize>| {
        let mut kept = vec![""; document.first().copied().unwrap_or(0)];
        kept.extend(document.iter().map(|number| lines[*number]));
        kept.join("\n") + "\n"
    };
    let is_expected =
        |text: &String| serde_saphyr::from_str::<TypeMeta>(text).is_ok_and(|found| found.kind == expected);
    let mut found: Vec<String> = documents.iter().map(only).filter(is_expected).collect();
    match (documents.len(), found.len()) {
        (_, 1) => Ok(found.remove(0)),
        // The parser reports its errors.
        (1, _) => Ok(text.into()),
        (all, 0) => Err(format!("none of its {all} documents is a {expected}")),
        (_, several) => Err(format!(
            "it has {several} documents of kind {expected}: put each in a separate file"
        )),
    }
}

/// Reads a resource of this project, of one kind.
pub(crate) fn read_resource<R: DeserializeOwned>(path: &Path, expected: &str) -> Result<R, TrainError> {
    // As in kubectl.
    let text = if path == Path::new("-") {
        std::io::read_to_string(std::io::stdin())
    } else {
        fs_err::read_to_string(path)
    };
    let text = text.map_err(|error| TrainError::Config(format!("failed to read the manifest: {error}")))?;
    let text = only_document(&text, expected)
        .map_err(|found| TrainError::Config(format!("{}: {found}", path.display())))?;
    let wrong = |reason: &dyn std::fmt::Display| {
        TrainError::Config(format!("{} is not a valid {expected}: {reason}", path.display()))
    };
    // The resource's own type leaves checking these two to the API server.
    let TypeMeta { api_version, kind } =
        serde_saphyr::from_str(&text).map_err(|error| wrong(&in_words(&error)))?;
    if (api_version.as_str(), kind.as_str()) != (API_VERSION, expected) {
        let found =
            format!("apiVersion is {api_version} and kind is {kind}: must be {API_VERSION} and {expected}");
        return Err(wrong(&found));
    }
    as_the_api_server_reads(&text).map_err(|error| wrong(&error))
}

/// Parses a manifest as an API server does: text is not a number, and 1.0 is an integer.
fn as_the_api_server_reads<R: DeserializeOwned>(text: &str) -> Result<R, String> {
    let mut manifest: Value = serde_saphyr::from_str(text).map_err(|error| in_words(&error))?;
    make_integers(&mut manifest);
    serde_path_to_error::deserialize(manifest).map_err(|error| {
        // The YAML parser knows the line, but accepts text as numbers.
        match serde_saphyr::from_str::<R>(text) {
            Err(with_line) => in_words(&with_line),
            Ok(_) => format!("{}: {}", error.path(), error.inner()),
        }
    })
}

/// Turns numbers such as 1.0 into integers.
fn make_integers(value: &mut Value) {
    match value {
        Value::Number(number) => {
            let whole = number.as_f64().filter(|float| float.fract() == 0.0);
            // Larger ones belong to floating-point fields.
            if let Some(whole) = whole.filter(|whole| number.is_f64() && whole.abs() < 1e15) {
                *number = (whole as i64).into();
            }
        }
        Value::Array(values) => values.iter_mut().for_each(make_integers),
        Value::Object(fields) => fields.values_mut().for_each(make_integers),
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOB: &str = "apiVersion: vit-operator.dev/v1alpha1\nkind: ViTTrainingJob\nspec: 1\n";
    const CLAIM: &str = "# for the data\napiVersion: v1\nkind: PersistentVolumeClaim\n";

    #[test]
    fn numbers_are_those_of_an_api_server() {
        let read = |epochs: &str| {
            let digits = include_str!("../../examples/digits.yaml");
            let line = digits.lines().find(|line| line.trim().starts_with("epochs:"));
            let line = line.expect("a line with epochs");
            let changed = digits.replace(line, &format!("    epochs: {epochs}"));
            as_the_api_server_reads::<ViTTrainingJob>(
                &only_document(&changed, "ViTTrainingJob").expect("one"),
            )
            .map(|job| job.spec.training.epochs)
        };
        assert_eq!((read("7"), read("7.0")), (Ok(7), Ok(7)));
        let text = read("\"7\"").expect_err("text");
        assert!(
            text.starts_with("spec.training.epochs: invalid type: string \"7\""),
            "{text}"
        );
        let line = read("many").expect_err("a word");
        assert!(line.contains("line "), "{line}");
    }

    #[test]
    fn the_one_job_of_a_file_keeps_its_lines() {
        let only = |text: &str| only_document(text, "ViTTrainingJob");
        assert_eq!(only(JOB).as_deref(), Ok(JOB));
        let file = format!("{CLAIM}---\n{JOB}--- # more\n{CLAIM}");
        let found = only(&file).expect("one job");
        let at = |text: &str| text.lines().position(|line| line == "spec: 1");
        assert_eq!((at(&found), found.contains("Claim")), (at(&file), false));
        assert_eq!(
            only(&format!("{CLAIM}---\n{CLAIM}")).expect_err("none"),
            "none of its 2 documents is a ViTTrainingJob"
        );
        assert_eq!(
            only(&format!("{JOB}---\n{JOB}")).expect_err("two"),
            "it has 2 documents of kind ViTTrainingJob: put each in a separate file"
        );
        assert_eq!(only("no: yaml: at all").as_deref(), Ok("no: yaml: at all"));
    }
}
