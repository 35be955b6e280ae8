//! Upgrades a release of an earlier commit during one job, and rolls back during another.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use crds::Phase;
use serde_json::json;
use vit_tests::command;
use vit_tests::operator::{self, OPERATOR};

use crate::context::Context;
use crate::install::wait_field;
use crate::steps::check_attempts;

const IMAGE: &str = "localhost/vit-operator:earlier";
/// A field of `spec` that the earlier CRD lacks.
const NEWER_FIELD: &str = "workers.podLabels";
/// Long enough to replace a release while a job trains.
const EPOCHS: u32 = 120;

/// The folder with the earlier operator, if `VIT_EARLIER_OPERATOR` requests this test.
pub(crate) fn wanted() -> Option<PathBuf> {
    std::env::var_os("VIT_EARLIER_OPERATOR").map(PathBuf::from)
}

pub(crate) fn release_is_upgraded_and_rolled_back(context: &Context<'_>) -> Result<()> {
    let earlier = wanted().context("VIT_EARLIER_OPERATOR is not set")?;
    let dockerfile = earlier.join("Dockerfile");
    let files = [(earlier.join("vit-operator"), "vit-operator".to_owned())];
    let image = operator::build(IMAGE, &dockerfile, &files)?;
    context.cluster.load_image(&image, &context.cluster.nodes())?;
    let (_, tag) = IMAGE.rsplit_once(':').context("the image has a tag")?;
    let values = [format!("image.tag={tag}")];
    operator::install_from(&context.cluster, &earlier.join("chart"), OPERATOR, &values)?;
    wait_field(context, NEWER_FIELD, false)?;
    job_trains_on(context, "upgraded", || operator::install(&context.cluster, &[]))?;
    wait_field(context, NEWER_FIELD, true)?;
    job_trains_on(context, "rolled-back", || {
        let mut helm = context.cluster.helm();
        command::run(helm.args(["rollback", OPERATOR, "--namespace", OPERATOR, "--wait"]))
    })?;
    wait_field(context, NEWER_FIELD, false)
}

/// Replaces the release while a job trains, which must finish in its first attempt.
fn job_trains_on(context: &Context<'_>, name: &str, replace: impl FnOnce() -> Result<String>) -> Result<()> {
    let namespace = context.namespace(name)?;
    namespace.create("digits", json!({"training": {"epochs": EPOCHS}}))?;
    namespace.wait_checkpoint("digits")?;
    let leader = context.leading_pod()?;
    replace()?;
    context.wait_leader_other_than(&leader)?;
    namespace.check_continues("digits")?;
    let status = namespace.wait_phase("digits", Phase::Succeeded)?;
    check_attempts(&status, 1, 0)?;
    namespace.check_steps("digits")?;
    Ok(())
}
