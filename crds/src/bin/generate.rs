//! Writes the files that are made from the types, or checks that they are fresh.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crds::{ViTTrainingJob, reference};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt as _;

/// Helm leaves objects with this annotation behind when a release is uninstalled: with the CRD all jobs would go.
const KEEP: (&str, &str) = ("helm.sh/resource-policy", "keep");

fn main() -> ExitCode {
    let check = match std::env::args().nth(1).as_deref() {
        Some("write") => false,
        Some("check") => true,
        other => {
            return fail(&format!(
                "generate write|check: got {}",
                other.unwrap_or("nothing")
            ));
        }
    };
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let files = match files() {
        Ok(files) => files,
        Err(error) => return fail(&format!("failed to render the CRD as YAML: {error}")),
    };
    for (path, content) in files {
        let target = root.join(&path);
        if check {
            if std::fs::read_to_string(&target).ok().as_deref() != Some(content.as_str()) {
                return fail(&format!(
                    "{} is not fresh: run `make generate` and commit the result",
                    path.display()
                ));
            }
        } else if let Err(error) = std::fs::create_dir_all(target.parent().unwrap_or(&root))
            .and_then(|()| std::fs::write(&target, content))
        {
            return fail(&format!("failed to write {}: {error}", path.display()));
        }
    }
    ExitCode::SUCCESS
}

fn files() -> Result<Vec<(PathBuf, String)>, serde_saphyr::ser::Error> {
    let crd = ViTTrainingJob::crd();
    let yaml = format!(
        "# Made from crds/src by `make generate`; do not edit.\n{}",
        serde_saphyr::to_string(&keep(crd.clone()))?
    );
    Ok(vec![
        ("crds/generated/vittrainingjobs.yaml".into(), yaml.clone()),
        ("charts/vit-operator/files/vittrainingjobs.yaml".into(), yaml),
        (
            "docs/reference/vittrainingjob.md".into(),
            reference::markdown(&crd),
        ),
    ])
}

fn keep(mut crd: CustomResourceDefinition) -> CustomResourceDefinition {
    crd.metadata
        .annotations
        .get_or_insert_default()
        .insert(KEEP.0.into(), KEEP.1.into());
    crd
}

#[expect(clippy::print_stderr, reason = "a command-line tool")]
fn fail(message: &str) -> ExitCode {
    eprintln!("{message}");
    ExitCode::FAILURE
}
