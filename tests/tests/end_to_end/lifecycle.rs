//! Suspending and scaling a job that runs.

use anyhow::{Result, ensure};
use crds::Phase;
use serde_json::json;

use crate::context::Context;
use crate::steps::{check_attempts, nodes_of, saved_step};

pub(crate) fn suspended_job_saves_and_resumes_where_it_stopped(context: &Context<'_>) -> Result<()> {
    let namespace = context.namespace("suspend")?;
    namespace.create("digits", json!({"training": {"epochs": 5000}}))?;
    namespace.wait_checkpoint("digits")?;
    namespace.patch("digits", json!({"suspend": true}))?;
    let suspended = namespace.wait_phase("digits", Phase::Suspended)?;
    namespace.wait_gone("pods")?;
    let saved = saved_step(&suspended)?;
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

pub(crate) fn scaled_job_continues_in_its_new_size(context: &Context<'_>) -> Result<()> {
    let namespace = context.namespace("scale")?;
    namespace.create(
        "digits",
        json!({"workers": {"nodes": 1}, "training": {"epochs": 5000}}),
    )?;
    namespace.wait_checkpoint("digits")?;
    namespace.kubectl(["scale", "vtj/digits", "--replicas=2"])?;
    let status = namespace.wait_attempt("digits", 2)?;
    check_attempts(&status, 2, 0)?;
    let nodes = nodes_of(&status)?;
    ensure!(nodes.len() == 2, "nodes: {nodes:?}");
    let steps = namespace.check_continues("digits")?;
    ensure!(
        steps.again == 0 && steps.unlogged == 0,
        "it does not continue from what it saved: {steps:?}"
    );
    Ok(())
}
