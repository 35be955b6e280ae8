//! `kubectl vit` with a running job.

use anyhow::{Context as _, Result, ensure};
use crds::Phase;
use serde_json::{Value, json};
use vit_tests::plugin::{Outcome, command, ended};

use crate::context::Context;
use crate::steps::{saved_step, until};

pub(crate) fn plugin_shows_a_job_that_trains_and_steers_it(context: &Context<'_>) -> Result<()> {
    let namespace = context.namespace("plugin")?;
    let place = namespace.name.clone();
    let vit = |arguments: &[&str]| -> Result<Outcome> {
        let mut arguments = arguments.to_vec();
        arguments.extend(["-n", place.as_str()]);
        ended(&mut command(&context.cluster, &arguments)?)
    };
    namespace.create("digits", json!({"training": {"epochs": 500}}))?;
    namespace.wait_checkpoint("digits")?;
    // The history needs two lines of the agent's log, which are five seconds apart.
    until(|| vit(&["status", "digits"])?.check(0, &["(steps "]).map(drop))?;

    let screen = vit(&["status", "digits"])?.check(
        0,
        &[
            "Running",
            "epoch",
            "step time",
            "ms: data",
            "for the network",
            "for slower ranks",
            "mean of 2 ranks",
            "images/s over 2 ranks",
            "2 nodes x 1 GPU of Tesla-T4",
            "ready  digits-1-0",
            "ready  digits-1-1",
            "refused      NVIDIA-H200",
            "(steps ",
        ],
    )?;
    ensure!(!screen.stdout.contains("not shown"), "{}", screen.stdout);

    for rank in ["0", "1"] {
        let log = vit(&["logs", "digits", "--rank", rank])?.check(0, &[])?;
        let has_progress = log.stdout.contains("epoch 0/500 step ");
        ensure!(has_progress == (rank == "0"), "rank {rank}: {}", log.stdout);
    }
    vit(&["logs", "digits", "--rank", "0", "--tail", "1", "--timestamps"])?.check(0, &["Z epoch "])?;
    vit(&["logs", "digits", "--all-ranks", "--tail", "1"])?.check(0, &["[rank 0] epoch "])?;
    vit(&["top"])?.check(0, &["digits 2 2"])?;
    vit(&["top", "digits"])?.check(0, &["RANK", " ms "])?;
    vit(&["events", "digits"])?.check(0, &["vittrainingjob/digits", "pod/digits-1-0"])?;
    vit(&["logs", "digits", "--rank", "2"])?.check(3, &["has no rank 2"])?;

    let nodes = vit(&["nodes", "-o", "json"])?.check(0, &[])?;
    let report: Value = serde_json::from_str(&nodes.stdout)?;
    let groups = report["groups"].as_array().context("no groups")?;
    let group = groups.iter().find(|group| group["gpus"]["product"] == "Tesla-T4");
    let group = group.context("the group is missing")?;
    let held: Vec<&Value> = group["nodes"]
        .as_array()
        .context("no nodes")?
        .iter()
        .flat_map(|node| node["holders"].as_array().into_iter().flatten())
        .filter(|holder| {
            let pod = holder["pod"].as_str();
            pod.is_some_and(|pod| pod.starts_with(&format!("{place}/digits-1-")))
        })
        .collect();
    ensure!(held.len() == 2, "{report:#}");

    let parked = vit(&["suspend", "digits", "--wait", "--timeout", "120"])?
        .check(0, &["digits is suspended, saved at step"])?;
    let status = namespace.status("digits")?;
    let saved = saved_step(&status)?;
    ensure!(
        status.phase == Some(Phase::Suspended)
            && parked.stdout.contains(&format!("saved at step {saved} in")),
        "{parked:#?}"
    );
    namespace.wait_gone("pods")?;
    vit(&["logs", "digits"])?.check(3, &["are gone, and their logs with them"])?;
    vit(&["scale", "digits", "--nodes", "1"])?.check(0, &["a step now uses 16 images"])?;
    vit(&["resume", "digits", "--wait", "--timeout", "120"])?
        .check(0, &["digits is running again, attempt 2"])?;
    vit(&["status", "digits"])?.check(0, &["1 node x 1 GPU", "attempt 2"])?;
    vit(&["delete", "digits", "--wait", "--timeout", "120"])?.check(0, &["\"digits\" deleted"])?;
    namespace.wait_gone("pods,services,configmaps,networkpolicies")
}
