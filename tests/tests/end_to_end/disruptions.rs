//! Disruptions of jobs: control plane outage, eviction, operator upgrade, namespace deletion.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use crds::{Phase, ViTTrainingJobStatus};
use jiff::Timestamp;
use kube::ResourceExt;
use serde_json::json;

use crate::context::{Context, Namespace};
use crate::steps::{check_attempts, nodes_of, saved_step};

/// How long etcd is paused.
const PAUSE: Duration = Duration::from_secs(10);
/// Time limit for the deletion of a namespace.
const DELETION: Duration = Duration::from_secs(90);

pub(crate) fn training_outlives_the_control_plane(context: &Context<'_>) -> Result<()> {
    let namespace = context.namespace("control-plane")?;
    namespace.create("digits", json!({"training": {"epochs": 5000}}))?;
    namespace.wait_checkpoint("digits")?;
    let began = Timestamp::now();
    context.block_on(context.cluster.restart_control_plane("kube-apiserver"))?;
    context.rights_were_unsettled(began);
    {
        let _paused = context.cluster.pause("etcd")?;
        // The duration of the fault itself.
        std::thread::sleep(PAUSE);
    }
    namespace.check_continues("digits")?;
    check_attempts(&namespace.status("digits")?, 1, 0)
}

pub(crate) fn operator_is_upgraded_while_a_job_trains(context: &Context<'_>) -> Result<()> {
    let namespace = context.namespace("upgrade")?;
    namespace.create("digits", json!({"training": {"epochs": 5000}}))?;
    namespace.wait_checkpoint("digits")?;
    let before = context.leading_pod()?;
    let set = |filter: &str| vit_tests::operator::install(&context.cluster, &[format!("logFilter={filter}")]);
    set("debug")?;
    let continues = context
        .wait_leader_other_than(&before)
        .and_then(|()| namespace.check_continues("digits"));
    set("info")?;
    continues?;
    check_attempts(&namespace.status("digits")?, 1, 0)
}

pub(crate) fn evicted_gang_trains_on(context: &Context<'_>) -> Result<()> {
    let namespace = context.namespace("evicted")?;
    namespace.create("digits", json!({"training": {"epochs": 5000}}))?;

    // Evicts like `kubectl drain`.
    namespace.wait_checkpoint("digits")?;
    let pod = pod_of(&namespace, 1, 1)?;
    namespace.evict(&pod)?;
    let status = namespace.wait_attempt("digits", 2)?;
    check_lost(&status, &pod, "EvictionByEvictionAPI")?;

    // Evicts like a node's maintenance.
    let status = namespace.wait_checkpoint_after("digits", saved_step(&status)?)?;
    let tainted = nodes_of(&status)?[0].clone();
    let pod = pod_of(&namespace, 2, 0)?;
    context.kubectl(["taint", "node", &tainted, "maintenance=now:NoExecute"])?;
    let again = namespace.wait_attempt("digits", 3);
    context.kubectl(["taint", "node", &tainted, "maintenance-"])?;

    let status = again?;
    check_lost(&status, &pod, "DeletionByTaintManager")?;
    let nodes = nodes_of(&status)?;
    ensure!(
        !nodes.contains(&tainted),
        "{tainted} is tainted, but the gang was placed on {nodes:?}"
    );
    let steps = namespace.check_continues("digits")?;
    ensure!(
        steps.again == 0 && steps.unlogged == 0,
        "it had time to save both times, but repeated steps: {steps:?}"
    );
    Ok(())
}

pub(crate) fn namespace_is_deleted_while_its_job_trains(context: &Context<'_>) -> Result<()> {
    let namespace = context.namespace("deleted")?;
    namespace.create("digits", json!({"training": {"epochs": 500}}))?;
    namespace.wait_phase("digits", Phase::Running)?;
    let timeout = format!("--timeout={}s", DELETION.as_secs());
    context.kubectl(["delete", "namespace", &namespace.name, "--wait=true", &timeout])?;
    // Its GPUs are immediately free for a gang that needs all nodes of the product.
    let next = context.namespace("after-deletion")?;
    next.create(
        "digits",
        json!({"workers": {"nodes": 3}, "training": {"epochs": 2}}),
    )?;
    let status = next.wait_phase("digits", Phase::Succeeded)?;
    check_attempts(&status, 1, 0)?;
    next.check_steps("digits")?;
    Ok(())
}

/// Name of the pod of an attempt and node rank.
fn pod_of(namespace: &Namespace<'_>, attempt: i32, node_rank: u32) -> Result<String> {
    let name = format!("digits-{attempt}-{node_rank}");
    let pods = namespace.pods()?;
    let names: Vec<String> = pods.iter().map(ResourceExt::name_any).collect();
    ensure!(names.contains(&name), "{name} is not in {names:?}");
    Ok(name)
}

/// Asserts that the last failure is the loss of this pod, for this reason.
fn check_lost(status: &ViTTrainingJobStatus, pod: &str, reason: &str) -> Result<()> {
    let failure = status.last_failure.as_ref().context("no lastFailure")?;
    ensure!(
        failure.class == "PodLost" && failure.pod.as_deref() == Some(pod) && failure.message.contains(reason),
        "{pod} should be lost by {reason}: {failure:?}"
    );
    Ok(())
}
