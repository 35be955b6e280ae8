//! Validates manifests in pages and `examples/`.

use anyhow::{Result, ensure};
use crds::ViTTrainingJob;
use serde_json::{Value, json};

use super::Block;

/// A YAML document.
#[derive(Clone, Debug, PartialEq)]
pub enum Manifest {
    /// A whole job.
    Job(Value),
    /// A part of a job's `spec`.
    PartOfSpec(Value),
    /// A whole study.
    Study(Value),
    /// A part of a study's `spec`, with sweeps.
    PartOfStudy(Value),
    /// An object of another kind.
    Other(Value),
}

/// The manifests in a YAML text.
pub fn parse(text: &str) -> Result<Vec<Manifest>> {
    let documents = text.split("\n---\n").filter(|document| {
        document
            .lines()
            .any(|line| !line.trim().is_empty() && !line.starts_with('#'))
    });
    documents
        .map(|document| {
            let value: Value = serde_saphyr::from_str(document)?;
            ensure!(value.is_object(), "not an object: {document}");
            Ok(match (&value["apiVersion"], &value["kind"]) {
                (Value::Null, _) if value["sweeps"].is_array() => Manifest::PartOfStudy(value),
                (Value::Null, _) => Manifest::PartOfSpec(value),
                (Value::String(version), Value::String(kind)) if kind == "ViTScalingStudy" => {
                    ensure!(version == "vit-operator.dev/v1alpha1", "apiVersion {version}");
                    Manifest::Study(value)
                }
                (Value::String(version), Value::String(kind)) if kind == "ViTTrainingJob" => {
                    ensure!(version == "vit-operator.dev/v1alpha1", "apiVersion {version}");
                    Manifest::Job(value)
                }
                _ => Manifest::Other(value),
            })
        })
        .collect()
}

/// The manifests of a block; empty if it has none.
pub fn of_block(block: &Block) -> Result<Vec<Manifest>> {
    match block.info.split_whitespace().collect::<Vec<_>>()[..] {
        ["yaml"] => parse(&block.text),
        ["yaml", more] if more.starts_with("file=") => parse(&block.text),
        _ => Ok(vec![]),
    }
}

impl Manifest {
    /// Validates it like the operator and `vit-trainer run`.
    pub fn validate(&self) -> Result<()> {
        let job = match self {
            Self::Job(job) => job.clone(),
            Self::PartOfSpec(part) => with(part),
            Self::Study(study) => return plan(study.clone()),
            Self::PartOfStudy(part) => {
                let mut study = json!({"metadata": {}, "spec": part});
                let template = json!({"spec": with(&json!({}))["spec"]});
                if study["spec"]["template"].is_null() {
                    study["spec"]["template"] = template;
                }
                return plan(study);
            }
            Self::Other(object) => {
                ensure!(
                    object["metadata"]["name"].is_string(),
                    "an object without a name: {object}"
                );
                return Ok(());
            }
        };
        let job: ViTTrainingJob = serde_json::from_value(job)?;
        crds::validate(&job)?;
        Ok(())
    }
}

/// Validates a study like `vit-trainer study`.
fn plan(study: Value) -> Result<()> {
    let study: crds::ViTScalingStudy = serde_json::from_value(study)?;
    study::plan(&study.spec)?;
    Ok(())
}

/// A job with this part of a `spec`.
fn with(part: &Value) -> Value {
    let mut job = json!({
        "apiVersion": "vit-operator.dev/v1alpha1",
        "kind": "ViTTrainingJob",
        "metadata": {"name": "documented"},
        "spec": {
            "image": "trainer",
            "model": {"name": "vit_base_patch16_224", "numClasses": 1000},
            "data": {"format": "imageFolder", "volume": {"persistentVolumeClaim": {"claimName": "images"}}},
            "training": {"epochs": 5, "microBatchSize": 64},
            "workers": {"nodes": 4},
            "checkpoint": {"volume": {"persistentVolumeClaim": {"claimName": "checkpoints"}}},
        },
    });
    // Streamed data have no volume.
    if part["data"].get("cache").is_some() {
        job["spec"]["data"]["volume"].take();
    }
    json_patch::merge(&mut job["spec"], part);
    job
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_spec_and_a_whole_job_are_validated() {
        let good = "elastic: {minNodes: 2, maxNodes: 8}\ntraining: {precision: bf16}";
        for manifest in parse(good).expect("parses") {
            manifest.validate().expect(good);
        }
        let study = "sweeps: [{name: strong, mode: Strong, ranks: [1, 2]}]";
        parse(study).expect("parses")[0].validate().expect(study);
        for bad in [
            "sweeps: [{name: strong, mode: Strong, ranks: [1]}]",
            "elastic: {minNodes: 5}",
            "elastik: {}",
            "training: {epoch: 3}",
            "apiVersion: vit-operator.dev/v1alpha1\nkind: ViTTrainingJob\nmetadata: {name: a}\nspec: {}",
            "apiVersion: v1\nkind: Namespace",
        ] {
            let manifests = parse(bad).expect("parses");
            assert!(manifests[0].validate().is_err(), "{bad} is accepted");
        }
    }
}
