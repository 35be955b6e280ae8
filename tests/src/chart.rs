//! Renders the shipped chart and its README.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::binaries::Binaries;
use crate::command::{command, run};
use crate::root;

/// The chart's folder.
pub fn folder() -> PathBuf {
    root().join("charts/vit-operator")
}

/// Renders a release of the chart. `values` are `path=value` pairs for `helm --set`.
pub fn template(helm: &Binaries, release: &str, namespace: &str, values: &[&str]) -> Result<String> {
    let mut template = command(helm.path("helm"), ["template", release]);
    template
        .arg(folder())
        .args(["--namespace", namespace, "--kube-version", "1.30.0"]);
    for value in values {
        template.args(["--set", value]);
    }
    run(&mut template)
}

/// The objects of a YAML stream.
pub fn manifests(text: &str) -> Result<Vec<Value>> {
    let all: Vec<Value> = serde_saphyr::from_multiple(text).context("not a stream of YAML documents")?;
    Ok(all.into_iter().filter(|manifest| !manifest.is_null()).collect())
}

/// The README, generated from the values' comments.
pub fn readme() -> Result<String> {
    let chart = folder();
    let mut helm_docs = command(
        Binaries::build_linters()?.path("helm-docs"),
        [
            "--dry-run",
            "--sort-values-order=file",
            "--log-level=warning",
            "--chart-search-root",
        ],
    );
    helm_docs.arg(chart.parent().unwrap_or(Path::new("/")));
    Ok(format!("{}\n", run(&mut helm_docs)?.trim_end()))
}

/// Writes the README.
pub fn write_readme() -> Result<()> {
    Ok(fs_err::write(folder().join("README.md"), readme()?)?)
}
