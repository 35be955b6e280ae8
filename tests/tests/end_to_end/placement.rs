//! Placement of gangs, and reasons for waiting.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail, ensure};
use crds::Phase;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use rustix::process::Signal;
use serde_json::{Value, json};
use vit_tests::{GpuProduct, cgroup};

use crate::context::Context;
use crate::steps::{check_attempts, check_contains, nodes_of, until};

fn message(status: &crds::ViTTrainingJobStatus, condition: &str) -> String {
    status
        .condition(condition)
        .map(|found| format!("{} {}: {}", found.status, found.reason, found.message))
        .unwrap_or_default()
}

pub(crate) fn gang_waits_with_counted_reasons_and_starts_by_itself(context: &Context<'_>) -> Result<()> {
    let namespace = context.namespace("waiting")?;
    namespace.create(
        "large",
        json!({"workers": {"nodes": 4, "gpusPerNode": 2}, "training": {"epochs": 2, "microBatchSize": 8}}),
    )?;
    // Nodes of a new cluster keep their taint for a moment after they are ready.
    let status = namespace.wait("large", "waits and says why", |status| {
        let told = message(status, "Placed");
        let is_settled = told.starts_with("False NoFittingGroup") && !told.contains("taint");
        status.phase == Some(Phase::Pending) && is_settled
    })?;
    let told = message(&status, "Placed");
    check_contains(
        &told,
        &["needs 4", "2", "Tesla-T4", "3 nodes", "NVIDIA-H200", "1 node"],
    )?;
    ensure!(
        namespace.pods()?.is_empty(),
        "a gang that does not fit has no pods"
    );

    // The fourth node gets the same GPUs.
    context.set_gpu_product("node3", &GpuProduct::TESLA_T4)?;
    let started = namespace.wait("large", "starts by itself", |status| status.attempt == 1);
    let finished = started.and_then(|_| namespace.wait_phase("large", Phase::Succeeded));
    context.set_gpu_product("node3", &GpuProduct::H200)?;
    let nodes = nodes_of(&finished?)?;
    ensure!(nodes.len() == 4, "nodes: {nodes:?}");
    Ok(())
}

pub(crate) fn two_jobs_applied_at_once_never_share_a_gpu(context: &Context<'_>) -> Result<()> {
    let namespace = context.namespace("race")?;
    // Each job needs both GPUs of two nodes: three such nodes suffice for one job at a time.
    let spec = || json!({"workers": {"nodes": 2, "gpusPerNode": 2}, "training": {"epochs": 3, "microBatchSize": 16}});
    let jobs = ["first", "second"];
    for job in jobs {
        namespace.create(job, spec())?;
    }
    let mut most: BTreeMap<String, i64> = BTreeMap::new();
    let mut waited = false;
    for job in jobs {
        let status = namespace.wait(job, "succeeds without sharing", |status| {
            let pods = namespace.pods().unwrap_or_default();
            for (node, gpus) in promised_gpus(&pods) {
                let seen = most.entry(node).or_default();
                *seen = gpus.max(*seen);
            }
            // A status may be slightly older than the pods.
            waited |= jobs.iter().any(|other| {
                let status = namespace.status(other).unwrap_or_default();
                let mut owners = pods.iter().flat_map(ResourceExt::owner_references);
                message(&status, "Placed").starts_with("False NoFittingGroup")
                    && owners.all(|owner| owner.name != **other)
            });
            status.phase == Some(Phase::Succeeded)
        })?;
        check_attempts(&status, 1, 0)?;
        namespace.check_steps(job)?;
    }
    ensure!(waited, "neither job waited for the other without pods");
    ensure!(
        most.values().all(|gpus| *gpus <= 2),
        "GPUs promised at once, by node: {most:?}"
    );
    ensure!(
        most.values().sum::<i64>() >= 4,
        "too few pods were seen: {most:?}"
    );
    Ok(())
}

pub(crate) fn job_of_higher_priority_goes_first(context: &Context<'_>) -> Result<()> {
    let namespace = context.namespace("priority")?;
    // The pods evict nobody.
    let class = |name: &str, value: i32| {
        json!({
            "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name},
            "value": value, "preemptionPolicy": "Never",
        })
    };
    namespace.apply_all(&[class("vit-low", 10), class("vit-high", 20)])?;
    // Needs all GPUs of the product.
    let spec = |class: Option<&str>, epochs: u32| {
        json!({
            "workers": {"nodes": 3, "gpusPerNode": 2, "priorityClassName": class},
            "training": {"epochs": epochs, "microBatchSize": 8},
        })
    };
    let ran = || -> Result<()> {
        namespace.create("first", spec(None, 500))?;
        namespace.wait_phase("first", Phase::Running)?;
        let waits = |job: &str| {
            namespace.wait(job, "waits", |status| {
                message(status, "Placed").starts_with("False NoFittingGroup")
            })
        };
        // The older one has the lower priority.
        namespace.create("low", spec(Some("vit-low"), 1))?;
        waits("low")?;
        namespace.create("high", spec(Some("vit-high"), 1))?;
        let wait = waits("high")?.placement.and_then(|placement| placement.wait);
        let place = wait.map(|wait| (wait.position, wait.waiting));
        ensure!(
            place == Some((1, 2)),
            "position and number of waiting jobs: {place:?}"
        );
        namespace.kubectl(["delete", "vtj", "first"])?;
        let low = namespace.wait_phase("low", Phase::Succeeded)?;
        let high = namespace.wait_phase("high", Phase::Succeeded)?;
        let (placed, ended) = (
            low.placement.and_then(|placement| placement.time),
            high.completion_time,
        );
        ensure!(
            placed.is_some() && placed >= ended,
            "the job of low priority was placed at {placed:?}, the other ended at {ended:?}"
        );
        Ok(())
    };
    let ran = ran();
    context.kubectl(["delete", "priorityclass", "vit-low", "vit-high"])?;
    ran
}

/// A rank becomes slow and passes images to the others; another is killed.
pub(crate) fn mixed_gpus_are_taken_and_share_images_by_speed_where_the_job_allows_it(
    context: &Context<'_>,
) -> Result<()> {
    let namespace = context.namespace("mixed")?;
    namespace.create(
        "mixed",
        json!({
            "workers": {"nodes": 4, "gpusPerNode": 1},
            "training": {"epochs": 5000, "microBatchSize": 8, "balance": "Weighted"},
            "placement": {"homogeneity": "Preferred"},
        }),
    )?;
    let status = namespace.wait("mixed", "is placed", |status| status.attempt == 1)?;
    let told = message(&status, "Placed");
    let gain = "up to 4.6 times as many images/s as with even shares";
    check_contains(
        &told,
        &["True MixedGpus", "1 of NVIDIA-H200", "3 of Tesla-T4", gain],
    )?;
    let placement = status.placement.context("no placement")?;
    ensure!(
        placement.group.is_none() && placement.mixed.len() == 2,
        "{placement:?}"
    );
    namespace.wait("mixed", "trains", |status| {
        status.progress.as_ref().is_some_and(|progress| progress.step > 0)
    })?;
    let process = namespace.rank_process("mixed", 1)?;
    // Less CPU per period than a step needs: steps that fit into a period would make a fast median.
    cgroup::limit_cpu(process, Some(0.03))?;
    until(|| {
        let shares = namespace.shares("mixed")?;
        let [first, slow, third, fourth] = shares[..] else {
            bail!("four ranks: {shares:?}")
        };
        ensure!(2 * slow < first.min(third).min(fourth), "{shares:?}");
        ensure!(first + slow + third + fourth == 32, "{shares:?}");
        Ok(())
    })?;
    cgroup::limit_cpu(process, None)?;
    namespace.signal_rank("mixed", 2, Signal::KILL)?;
    let status = namespace.wait_attempt("mixed", 2)?;
    check_attempts(&status, 2, 1)?;
    namespace.check_continues("mixed")?;
    Ok(())
}

pub(crate) fn gang_stays_within_one_rack(context: &Context<'_>) -> Result<()> {
    let namespace = context.namespace("rack")?;
    let label = |node: &str, rack: Option<&str>| {
        context.block_on(context.cluster.set_labels(node, [("example.com/rack", rack)]))
    };
    for (node, rack) in [("node0", "x"), ("node1", "y"), ("node2", "y")] {
        label(node, Some(rack))?;
    }
    let spec = |nodes: u32| {
        json!({
            "workers": {"nodes": nodes},
            "training": {"epochs": 2, "microBatchSize": 8},
            "placement": {"topology": {"required": "example.com/rack"}},
        })
    };
    let run = || -> Result<()> {
        namespace.create("fits", spec(2))?;
        let placement = namespace
            .wait_phase("fits", Phase::Succeeded)?
            .placement
            .context("no placement")?;
        ensure!(placement.nodes == ["node1", "node2"], "{placement:?}");
        ensure!(
            placement
                .topology
                .iter()
                .any(|spread| spread.key == "example.com/rack" && spread.domains == ["y"]),
            "{placement:?}"
        );
        namespace.create("large", spec(3))?;
        let status = namespace.wait("large", "waits and says why", |status| {
            message(status, "Placed").starts_with("False NoFittingGroup")
        })?;
        let told = message(&status, "Placed");
        ensure!(
            told.contains("3 nodes with 1 free, but at most 2 with the same example.com/rack"),
            "{told}"
        );
        Ok(())
    };
    let ran = run();
    for node in ["node0", "node1", "node2"] {
        label(node, None)?;
    }
    ran
}

/// GPUs of unfinished pods by the node that the operator chose, because kube-scheduler would hold
/// back pods that exceed a node.
fn promised_gpus(pods: &[Pod]) -> BTreeMap<String, i64> {
    const NODE: &str = "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms/0/matchFields/0/values/0";
    let mut used = BTreeMap::new();
    for pod in pods.iter().map(|pod| json!(pod)) {
        let is_finished = matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
        let Some(node) = pod.pointer(NODE).and_then(Value::as_str).filter(|_| !is_finished) else {
            continue;
        };
        let containers = pod["spec"]["containers"].as_array().into_iter().flatten();
        let gpus =
            containers.filter_map(|container| container["resources"]["limits"]["nvidia.com/gpu"].as_str());
        *used.entry(node.to_owned()).or_default() +=
            gpus.filter_map(|gpus| gpus.parse::<i64>().ok()).sum::<i64>();
    }
    used
}
