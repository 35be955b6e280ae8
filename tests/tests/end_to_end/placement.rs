//! Where gangs go, and why they wait.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use crds::Phase;
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;
use vit_tests::GpuProduct;

use crate::context::Context;

fn message(status: &crds::ViTTrainingJobStatus, condition: &str) -> String {
    let found = status.conditions.iter().find(|found| found.type_ == condition);
    found
        .map(|found| format!("{} {}: {}", found.status, found.reason, found.message))
        .unwrap_or_default()
}

pub(crate) fn gang_waits_and_starts_by_itself(context: &Context) -> Result<()> {
    let namespace = context.namespace("waiting")?;
    namespace.create(
        "large",
        json!({"workers": {"nodes": 4, "gpusPerNode": 2}, "training": {"epochs": 2, "microBatchSize": 8}}),
    )?;
    let status = namespace.wait("large", "waits and says why", |status| {
        status.phase == Some(Phase::Pending) && message(status, "Placed").starts_with("False NoFittingGroup")
    })?;
    let told = message(&status, "Placed");
    for part in ["needs 4", "2", "Tesla-T4", "3 nodes", "NVIDIA-H200", "1 node"] {
        ensure!(told.contains(part), "{part:?} is not in: {told}");
    }
    ensure!(
        namespace.pods()?.is_empty(),
        "a gang that does not fit has no pods"
    );

    // The fourth node turns out to hold the same GPUs.
    context.set_gpu_product("node3", &GpuProduct::TESLA_T4)?;
    let started = namespace.wait("large", "starts by itself", |status| status.attempt == 1);
    let finished = started.and_then(|_| namespace.wait_phase("large", Phase::Succeeded));
    context.set_gpu_product("node3", &GpuProduct::H200)?;
    let nodes = finished?.placement.context("placement is told")?.nodes;
    ensure!(nodes.len() == 4, "nodes: {nodes:?}");
    Ok(())
}

pub(crate) fn two_jobs_never_share_a_gpu(context: &Context) -> Result<()> {
    let namespace = context.namespace("race")?;
    // Two nodes with both GPUs each: of three such nodes only one job at a time can have them.
    let spec = || json!({"workers": {"nodes": 2, "gpusPerNode": 2}, "training": {"epochs": 3, "microBatchSize": 16}});
    namespace.create("first", spec())?;
    namespace.create("second", spec())?;
    let mut most: BTreeMap<String, i64> = BTreeMap::new();
    for job in ["first", "second"] {
        namespace.wait(job, "succeeds without sharing", |status| {
            for (node, gpus) in gpus_in_use(&namespace.pods().unwrap_or_default()) {
                let seen = most.entry(node).or_default();
                *seen = gpus.max(*seen);
            }
            status.phase == Some(Phase::Succeeded)
        })?;
    }
    ensure!(
        most.values().all(|gpus| *gpus <= 2),
        "GPUs in use at once, by node: {most:?}"
    );
    ensure!(most.values().sum::<i64>() >= 4, "pods were seen: {most:?}");
    Ok(())
}

/// GPUs that unfinished pods hold, by the node they are on.
fn gpus_in_use(pods: &[Pod]) -> BTreeMap<String, i64> {
    let mut used = BTreeMap::new();
    for pod in pods {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        if matches!(phase, Some("Succeeded" | "Failed")) {
            continue;
        }
        let Some(spec) = &pod.spec else { continue };
        let Some(node) = &spec.node_name else { continue };
        let limits = spec
            .containers
            .iter()
            .filter_map(|container| container.resources.as_ref()?.limits.as_ref());
        let gpus = limits.filter_map(|limits| limits.get("nvidia.com/gpu")?.0.parse::<i64>().ok());
        *used.entry(node.clone()).or_default() += gpus.sum::<i64>();
    }
    used
}
