//! Suspending, scaling and deleting a job that runs.

use anyhow::{Context as _, Result, ensure};
use crds::Phase;
use serde_json::json;

use crate::context::{Context, check_attempts};

pub(crate) fn suspend_and_resume(context: &Context<'_>) -> Result<()> {
    let namespace = context.namespace("suspend")?;
    namespace.create("digits", json!({"training": {"epochs": 5000}}))?;
    namespace.wait_checkpoint("digits")?;
    namespace.patch("digits", json!({"suspend": true}))?;
    let suspended = namespace.wait_phase("digits", Phase::Suspended)?;
    namespace.wait_gone("pods")?;
    let saved = suspended.last_checkpoint.context("the checkpoint is told")?.step;
    let steps = namespace.steps("digits")?;
    ensure!(
        steps.saved == saved && steps.done == saved,
        "the checkpoint of step {saved} is told; by the log: {steps:?}"
    );
    ensure!(
        suspended.last_failure.is_none(),
        "being told to stop is no failure: {:?}",
        suspended.last_failure
    );

    namespace.patch("digits", json!({"suspend": false}))?;
    let steps = namespace.check_continues("digits")?;
    ensure!(
        steps.again == 0 && steps.unlogged == 0,
        "it does not continue from what it saved: {steps:?}"
    );
    check_attempts(&namespace.status("digits")?, 2, 0)
}

pub(crate) fn scale(context: &Context<'_>) -> Result<()> {
    let namespace = context.namespace("scale")?;
    namespace.create(
        "digits",
        json!({"workers": {"nodes": 1}, "training": {"epochs": 5000}}),
    )?;
    namespace.wait_checkpoint("digits")?;
    namespace.kubectl(["scale", "vtj/digits", "--replicas=2"])?;
    let status = namespace.wait("digits", "trains in its new size", |status| {
        status.attempt == 2 && status.phase == Some(Phase::Running)
    })?;
    check_attempts(&status, 2, 0)?;
    let nodes = status.placement.context("placement is told")?.nodes;
    ensure!(nodes.len() == 2, "nodes: {nodes:?}");
    let steps = namespace.check_continues("digits")?;
    ensure!(
        steps.again == 0 && steps.unlogged == 0,
        "it does not continue from what it saved: {steps:?}"
    );
    Ok(())
}

pub(crate) fn deletion(context: &Context<'_>) -> Result<()> {
    let namespace = context.namespace("deletion")?;
    namespace.create("digits", json!({"training": {"epochs": 500}}))?;
    namespace.wait_phase("digits", Phase::Running)?;
    namespace.kubectl(["delete", "vtj", "digits", "--wait=true"])?;
    namespace.wait_gone("pods,services,configmaps")
}
