//! The health check on docs/how-to/gitops.md, in Argo CD's Lua.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use crds::Phase;
use serde_json::Value;
use vit_tests::binaries::Binaries;
use vit_tests::{command, documentation};

use crate::messages::Test;

pub(crate) const TESTS: &[(&str, Test)] = &[("Argo CD shows the health of every phase", health)];

/// A part of `argocd-cm`, under `data`.
const SCRIPT: &str = "resource.customizations.health.vit-operator.dev_ViTTrainingJob";

/// Prints the health of a job with this status.
fn health_of(script: &str, status: &str) -> Result<String> {
    let file = tempfile::Builder::new().suffix(".lua").tempfile()?;
    let program = format!(
        "obj = {{status = {status}}}\nlocal function check()\n{script}\nend\n\
         local health = check()\nprint(health.status .. \": \" .. health.message)\n"
    );
    fs_err::write(file.path(), program)?;
    let mut glua = Command::new(Binaries::build_linters()?.path("glua"));
    Ok(command::run(glua.arg(file.path()))?.trim().into())
}

fn health() -> Result<()> {
    let page = documentation::page("docs/how-to/gitops.md")?;
    let block = page.blocks.iter().find(|block| block.text.contains(SCRIPT));
    let config: Value = serde_saphyr::from_str(&block.context("no health check")?.text)?;
    let script = config["data"][SCRIPT].as_str().context("no script")?;
    for phase in Phase::ALL {
        let expected = match phase {
            Phase::Succeeded => "Healthy",
            Phase::Failed => "Degraded",
            Phase::Suspended => "Suspended",
            Phase::Pending | Phase::Starting | Phase::Running | Phase::Restarting | Phase::Suspending => {
                "Progressing"
            }
        };
        let name = phase.as_str();
        let found = health_of(script, &format!("{{phase = {name:?}}}"))?;
        ensure!(found == format!("{expected}: {name}"), "{name}: {found}");
    }
    let failed = r#"{phase = "Failed", conditions = {
        {type = "Placed", status = "False", message = "released"},
        {type = "Failed", status = "True", message = "no more restarts"}}}"#;
    for (status, expected) in [
        (failed, "Degraded: no more restarts"),
        ("nil", "Progressing: not seen by the operator"),
    ] {
        let found = health_of(script, status)?;
        ensure!(found == expected, "{status}: {found}");
    }
    Ok(())
}
