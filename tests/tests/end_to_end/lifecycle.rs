//! Suspending and scaling a running job, and ownership of its checkpoint folder.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use crds::Phase;
use serde_json::json;
use vit_tests::cgroup;

use crate::context::{Context, DEADLINE, Namespace};
use crate::steps::{check_attempts, nodes_of, saved_step};

/// Part of an agent's command line.
const AGENT: &str = "vit-trainer\0agent";
/// Half of a pod's grace period.
const SOON: Duration = Duration::from_secs(60);

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
        "the status has a checkpoint of step {saved}, the log: {steps:?}"
    );
    ensure!(
        suspended.last_failure.is_none(),
        "suspension counts as a failure: {:?}",
        suspended.last_failure
    );

    namespace.patch("digits", json!({"suspend": false}))?;
    let steps = namespace.check_continues("digits")?;
    ensure!(
        steps.again == 0 && steps.unlogged == 0,
        "it does not continue from its checkpoint: {steps:?}"
    );
    check_attempts(&namespace.status("digits")?, 2, 0)
}

/// Slows a job's agent down as soon as it exists, while libtorch loads, before it handles signals.
fn await_start(namespace: &Namespace<'_>) -> Result<()> {
    let began = Instant::now();
    loop {
        match namespace.process_now("digits", 0, AGENT) {
            Ok(agent) => return cgroup::limit_cpu(agent, Some(0.02)),
            Err(error) => ensure!(began.elapsed() < DEADLINE, error),
        }
    }
}

pub(crate) fn job_that_is_stopped_while_its_trainer_starts_is_gone_at_once(
    context: &Context<'_>,
) -> Result<()> {
    let namespace = context.namespace("early")?;
    namespace.create(
        "digits",
        json!({"workers": {"nodes": 1}, "training": {"epochs": 5000}}),
    )?;
    let soon = |began: Instant| -> Result<()> {
        namespace.wait_gone("pods")?;
        let passed = began.elapsed();
        ensure!(passed < SOON, "the pod remained for {passed:?}");
        Ok(())
    };
    await_start(&namespace)?;
    let began = Instant::now();
    namespace.patch("digits", json!({"suspend": true}))?;
    soon(began)?;
    let status = namespace.wait_phase("digits", Phase::Suspended)?;
    check_attempts(&status, 1, 0)?;
    ensure!(status.last_failure.is_none(), "{:?}", status.last_failure);

    namespace.patch("digits", json!({"suspend": false}))?;
    await_start(&namespace)?;
    let began = Instant::now();
    namespace.kubectl(["delete", "vtj", "digits", "--wait=false"])?;
    soon(began)
}

pub(crate) fn job_in_the_folder_of_another_namespace_is_refused_and_changes_nothing(
    context: &Context<'_>,
) -> Result<()> {
    let owner = context.namespace("folder")?;
    let job = json!({"workers": {"nodes": 1}, "training": {"epochs": 5000}});
    owner.create("digits", job.clone())?;
    owner.wait_checkpoint("digits")?;
    let other = context.namespace_beside("same-folder", &owner)?;
    other.create("digits", job)?;
    let status = other.wait_phase("digits", Phase::Failed)?;
    check_attempts(&status, 1, 0)?;
    let failure = status.last_failure.context("no lastFailure")?;
    ensure!(
        failure.class == "BadConfig" && failure.message.contains("a job of namespace same-folder"),
        "{failure:?}"
    );
    let steps = owner.check_continues("digits")?;
    ensure!(steps.again == 0, "{steps:?}");
    check_attempts(&owner.status("digits")?, 1, 0)
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
        "it does not continue from its checkpoint: {steps:?}"
    );
    Ok(())
}
