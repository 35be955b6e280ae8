//! What happens to a cluster while jobs run on it: the control plane goes away, nodes are drained, the operator is
//! upgraded, a namespace is deleted.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use crds::{Phase, ViTTrainingJobStatus};
use jiff::Timestamp;
use kube::ResourceExt;
use serde_json::json;

use crate::context::{Context, Namespace, check_attempts};

/// How long etcd answers nothing.
const PAUSE: Duration = Duration::from_secs(10);
/// How long a namespace may take to go.
const DELETION: Duration = Duration::from_secs(90);

pub(crate) fn training_outlives_the_control_plane(context: &Context) -> Result<()> {
    let namespace = context.namespace("control-plane")?;
    namespace.create("digits", json!({"training": {"epochs": 30}}))?;
    namespace.wait_checkpoint("digits")?;
    let began = Timestamp::now();
    context.block_on(context.cluster.restart_control_plane("kube-apiserver"))?;
    context.rights_were_unsettled(began);
    {
        let _paused = context.cluster.pause("etcd")?;
        // The fault itself takes this long.
        std::thread::sleep(PAUSE);
    }
    let status = namespace.wait_phase("digits", Phase::Succeeded)?;
    check_attempts(&status, 1, 0)?;
    namespace.check_steps("digits")
}

pub(crate) fn operator_is_upgraded_while_a_job_trains(context: &Context) -> Result<()> {
    let namespace = context.namespace("upgrade")?;
    namespace.create("digits", json!({"training": {"epochs": 24}}))?;
    namespace.wait_checkpoint("digits")?;
    let before = context.leader()?;
    let set = |filter: &str| vit_tests::operator::install(&context.cluster, &[format!("logFilter={filter}")]);
    set("debug")?;
    let status = namespace.wait_phase("digits", Phase::Succeeded)?;
    let after = context.leader()?;
    set("info")?;
    ensure!(before != after, "{before} still leads");
    check_attempts(&status, 1, 0)?;
    namespace.check_steps("digits")
}

pub(crate) fn evicted_gang_trains_on(context: &Context) -> Result<()> {
    let namespace = context.namespace("evicted")?;
    namespace.create("digits", json!({"training": {"epochs": 24}}))?;

    // As `kubectl drain` evicts.
    let saved = checkpointed_step(&namespace.wait_checkpoint("digits")?)?;
    let pod = pod_of(&namespace, 1, 1)?;
    namespace.evict(&pod)?;
    let status = namespace.wait("digits", "is on its second attempt", |status| status.attempt == 2)?;
    check_lost(&status, &pod, "EvictionByEvictionAPI")?;

    // As a node's maintenance evicts.
    let status = namespace.wait_checkpoint_after("digits", saved)?;
    let tainted = status.placement.context("placement is told")?.nodes[0].clone();
    let pod = pod_of(&namespace, 2, 0)?;
    context.kubectl(["taint", "node", &tainted, "maintenance=now:NoExecute"])?;
    let finished = namespace
        .wait("digits", "is on its third attempt", |status| status.attempt == 3)
        .and_then(|status| check_lost(&status, &pod, "DeletionByTaintManager"))
        .and_then(|()| namespace.wait_phase("digits", Phase::Succeeded));
    context.kubectl(["taint", "node", &tainted, "maintenance-"])?;

    let status = finished?;
    ensure!(status.attempt == 3, "attempt {}", status.attempt);
    let nodes = &status.placement.as_ref().context("placement is told")?.nodes;
    ensure!(
        !nodes.contains(&tainted),
        "{tainted} is tainted, and the gang went to {nodes:?}"
    );
    namespace.check_steps("digits")
}

pub(crate) fn namespace_is_deleted_while_its_job_trains(context: &Context) -> Result<()> {
    let namespace = context.namespace("deleted")?;
    namespace.create("digits", json!({"training": {"epochs": 500}}))?;
    namespace.wait_phase("digits", Phase::Running)?;
    let began = Instant::now();
    let timeout = format!("--timeout={}s", DELETION.as_secs());
    context.kubectl(["delete", "namespace", &namespace.name, "--wait=true", &timeout])?;
    // Its GPUs are free at once for a gang that needs all nodes of a kind.
    let next = context.namespace("after-deletion")?;
    next.create(
        "digits",
        json!({"workers": {"nodes": 3}, "training": {"epochs": 2}}),
    )?;
    let status = next.wait_phase("digits", Phase::Succeeded)?;
    check_attempts(&status, 1, 0)?;
    ensure!(began.elapsed() < DELETION + DELETION, "{:?}", began.elapsed());
    next.check_steps("digits")
}

fn checkpointed_step(status: &ViTTrainingJobStatus) -> Result<i64> {
    Ok(status
        .last_checkpoint
        .as_ref()
        .context("a checkpoint is told")?
        .step)
}

/// Name of the pod of an attempt and a node rank.
fn pod_of(namespace: &Namespace<'_>, attempt: i32, node_rank: u32) -> Result<String> {
    let name = format!("digits-{attempt}-{node_rank}");
    let pods = namespace.pods()?;
    let names: Vec<String> = pods.iter().map(ResourceExt::name_any).collect();
    ensure!(names.contains(&name), "{name} is none of {names:?}");
    Ok(name)
}

/// Asserts that the last failure is this pod's loss, for this reason.
fn check_lost(status: &ViTTrainingJobStatus, pod: &str, reason: &str) -> Result<()> {
    let failure = status.last_failure.as_ref().context("the failure is told")?;
    ensure!(
        failure.class == "PodLost" && failure.pod.as_deref() == Some(pod) && failure.message.contains(reason),
        "{pod} was to be lost by {reason}: {failure:?}"
    );
    Ok(())
}
