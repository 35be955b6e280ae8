//! A job in a queue of a real Kueue: admitted, evicted for a higher priority and because it cannot recover
//! from a failure, and admitted again.

use anyhow::{Context as _, Result, ensure};
use crds::conditions::{reasons, types};
use crds::{Phase, ViTTrainingJobStatus};
use rustix::process::Signal;
use serde_json::{Value, json};
use vit_tests::kueue;

use crate::context::{Context, Namespace};
use crate::steps::{check_attempts, check_contains, nodes_of, saved_step, until};

/// A label of the nodes that the quota is for.
const POOL: &str = "vit-tests/pool";
const POOL_NODES: [&str; 2] = ["node1", "node2"];
/// Name of flavor, ClusterQueue and LocalQueue.
const QUEUE: &str = "team-a";
/// A class above the default.
const URGENT: &str = "urgent-for-kueue";

pub(crate) fn kueue_grants_a_job_quota_and_takes_it_back(context: &Context<'_>) -> Result<()> {
    kueue::install(&context.cluster)?;
    label(context, Some("a"))?;
    let outcome = context
        .namespace("queue")
        .and_then(|namespace| in_queue(context, &namespace));
    // Kueue removes its finalizers only while it runs, and only if no job holds quota.
    let cleaned = context
        .clean_up()
        .and_then(|()| {
            context.kubectl([
                "delete",
                "clusterqueue,resourceflavor,priorityclass",
                QUEUE,
                URGENT,
                "--ignore-not-found",
                "--timeout=60s",
            ])
        })
        .and_then(|_| label(context, None))
        .and_then(|()| kueue::uninstall(&context.cluster));
    outcome.and(cleaned)
}

fn label(context: &Context<'_>, value: Option<&str>) -> Result<()> {
    for node in POOL_NODES {
        context.block_on(context.cluster.set_labels(node, [(POOL, value)]))?;
    }
    Ok(())
}

fn in_queue(context: &Context<'_>, namespace: &Namespace<'_>) -> Result<()> {
    apply(namespace)?;
    let job = |epochs: u32, class: Option<&str>| {
        json!({
            "workers": {"priorityClassName": class},
            "training": {"epochs": epochs},
            "scheduling": {"queueName": QUEUE},
        })
    };
    namespace.create("first", job(5000, None))?;
    let first = namespace.wait_checkpoint("first")?;
    let saved = saved_step(&first)?;
    let admission = first.admission.as_ref().context("no admission")?;
    ensure!(
        admission.cluster_queue == QUEUE && admission.nodes == 2,
        "{admission:?}"
    );
    check_nodes(&first)?;
    wait_workload(namespace, "first", "PodsReady", "True")?;

    leave_alone(namespace, || namespace.create("second", job(2, None)))?;
    namespace.wait("second", "waits for quota", |status| {
        let placed = status.condition(types::PLACED);
        placed.is_some_and(|placed| placed.reason == reasons::IN_QUEUE && placed.message.contains("quota"))
    })?;
    namespace.kubectl(["delete", "vtj", "second"])?;

    namespace.create("urgent", job(2, Some(URGENT)))?;
    let evicted = namespace.wait("first", "releases its quota", |status| {
        status.phase == Some(Phase::Pending) && status.admission.is_none()
    })?;
    // It stopped with a checkpoint, without being killed.
    check_attempts(&evicted, 1, 0)?;
    let stopped_at = saved_step(&evicted)?;
    ensure!(stopped_at >= saved, "saved step {saved}, then step {stopped_at}");
    let urgent = namespace.wait_phase("urgent", Phase::Succeeded)?;
    check_nodes(&urgent)?;
    wait_workload(namespace, "urgent", "Finished", "True")?;

    let again = namespace.wait_checkpoint_after("first", stopped_at)?;
    check_attempts(&again, 2, 0)?;
    check_nodes(&again)?;
    let steps = namespace.steps("first")?;
    ensure!(steps.again == 0, "{} steps were repeated", steps.again);

    // Kueue takes back quota that a gang does not recover with, and grants it again once it can.
    let again = saved_step(&again)?;
    for node in POOL_NODES {
        context.kubectl(["cordon", node])?;
    }
    let waits = namespace
        .signal_rank("first", 1, Signal::KILL)
        .and_then(|()| {
            namespace.wait("first", "waits for nodes with its quota", |status| {
                status.phase == Some(Phase::Pending) && status.admission.is_some()
            })
        })
        .and_then(|_| {
            let evicted =
                "--for=jsonpath={.status.conditions[?(@.type==\"Evicted\")].reason}=PodsReadyTimeout";
            namespace.kubectl(["wait", "workload.kueue.x-k8s.io/first", evicted, "--timeout=120s"])
        });
    for node in POOL_NODES {
        context.kubectl(["uncordon", node])?;
    }
    waits?;
    let recovered = namespace.wait_checkpoint_after("first", again)?;
    check_nodes(&recovered)?;

    namespace.patch("first", json!({"suspend": true}))?;
    namespace.wait_phase("first", Phase::Suspended)?;
    let left = namespace.kubectl(["get", "workloads.kueue.x-k8s.io", "-o", "name"])?;
    ensure!(
        !left.contains("/first"),
        "the suspended job still holds quota: {left}"
    );
    Ok(())
}

/// Creates the job `second` when a foreign Workload has its name, checks the Event, and deletes it.
fn leave_alone(namespace: &Namespace<'_>, create: impl Fn() -> Result<()>) -> Result<()> {
    let container = json!({"name": "none", "image": "there.is/none:here"});
    let template = json!({"spec": {"restartPolicy": "Never", "containers": [container]}});
    namespace.apply_all(&[json!({
        "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "metadata": {"name": "second"},
        "spec": {"active": false, "podSets": [{"name": "main", "count": 1, "template": template}]},
    })])?;
    create()?;
    let told = "failed to create Workload second: an object with this name does not belong to this job";
    until(|| {
        let events = namespace.kubectl(["get", "events", "-o", "jsonpath={.items[*].message}"])?;
        check_contains(&events, &[told])
    })?;
    namespace.kubectl(["delete", "workload.kueue.x-k8s.io", "second"])?;
    Ok(())
}

/// Applies a flavor of the pool's nodes, a queue with two GPUs, and the namespace's LocalQueue.
fn apply(namespace: &Namespace<'_>) -> Result<()> {
    let kueue = |kind: &str, metadata: Value, spec: Value| json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": metadata, "spec": spec});
    let quota = |name: &str, amount: &str| json!({"name": name, "nominalQuota": amount});
    let items = [
        json!({
            "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": URGENT},
            "value": 1000, "preemptionPolicy": "Never",
        }),
        kueue(
            "ResourceFlavor",
            json!({"name": QUEUE}),
            json!({"nodeLabels": {POOL: "a"}}),
        ),
        kueue(
            "ClusterQueue",
            json!({"name": QUEUE}),
            json!({
                "namespaceSelector": {},
                "preemption": {"withinClusterQueue": "LowerPriority"},
                "resourceGroups": [{
                    "coveredResources": ["nvidia.com/gpu", "cpu", "memory"],
                    "flavors": [{
                        "name": QUEUE,
                        "resources": [quota("nvidia.com/gpu", "2"), quota("cpu", "100"), quota("memory", "1Ti")],
                    }],
                }],
            }),
        ),
        kueue(
            "LocalQueue",
            json!({"name": QUEUE, "namespace": namespace.name}),
            json!({"clusterQueue": QUEUE}),
        ),
    ];
    namespace.apply_all(&items)
}

/// Asserts that the gang is on the nodes of its quota.
fn check_nodes(status: &ViTTrainingJobStatus) -> Result<()> {
    let mut nodes = nodes_of(status)?;
    nodes.sort();
    ensure!(nodes == POOL_NODES, "the quota is not for {nodes:?}");
    Ok(())
}

/// Waits until a job's Workload has a condition with this value.
fn wait_workload(namespace: &Namespace<'_>, job: &str, condition: &str, value: &str) -> Result<()> {
    let workload = format!("workload.kueue.x-k8s.io/{job}");
    let wanted = format!("--for=condition={condition}={value}");
    namespace.kubectl(["wait", &workload, &wanted, "--timeout=60s"])?;
    Ok(())
}
