//! Writes the generated files, or checks that they are up to date.

mod models;

use std::path::{Path, PathBuf};

use anyhow::{Result, bail, ensure};
use crds::{ViTScalingStudy, ViTTrainingJob, reference};
use fs_err as fs;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt as _;

/// Helm keeps objects with this annotation on uninstall; without the CRD all jobs would be deleted.
const KEEP: (&str, &str) = ("helm.sh/resource-policy", "keep");

fn main() -> Result<()> {
    let wanted = std::env::args().nth(1);
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for (path, content) in files()? {
        let target = root.join(&path);
        match wanted.as_deref() {
            Some("write") => {
                fs::create_dir_all(target.parent().unwrap_or(&root))?;
                fs::write(&target, content)?;
            }
            Some("check") => ensure!(
                fs::read_to_string(&target).is_ok_and(|found| found == content),
                "{} is outdated: run `make generate` and commit the result",
                path.display()
            ),
            other => bail!("generate write|check: got {}", other.unwrap_or("nothing")),
        }
    }
    Ok(())
}

/// Every file, by its path from the root of the source tree.
fn files() -> Result<Vec<(PathBuf, String)>> {
    let mut files = vec![
        ("docs/reference/vittrainingjob.md".into(), reference::jobs()),
        ("docs/reference/vitscalingstudy.md".into(), reference::studies()),
        ("docs/reference/models.md".into(), models::page()?),
    ];
    for (name, resource) in [
        ("vittrainingjobs.yaml", ViTTrainingJob::crd()),
        ("vitscalingstudies.yaml", ViTScalingStudy::crd()),
    ] {
        let yaml = format!(
            "# Made from crds/src by `make generate`; do not edit.\n{}",
            serde_saphyr::to_string(&keep(resource))?
        );
        files.push((Path::new("charts/vit-operator/files").join(name), yaml));
    }
    for (name, dashboard) in dashboards::all() {
        let json = serde_json::to_string_pretty(&dashboard)?;
        files.push((Path::new(dashboards::FOLDER).join(name), json + "\n"));
    }
    Ok(files)
}

fn keep(mut crd: CustomResourceDefinition) -> CustomResourceDefinition {
    crd.metadata
        .annotations
        .get_or_insert_default()
        .insert(KEEP.0.into(), KEEP.1.into());
    crd
}
