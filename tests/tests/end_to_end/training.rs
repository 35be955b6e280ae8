//! The main job, end to end.

use anyhow::{Context as _, Result, ensure};
use crds::Phase;
use serde_json::json;

use crate::context::Context;
use crate::steps::{check_attempts, check_contains, until};

pub(crate) fn one_manifest_trains_on_like_gpus(context: &Context<'_>) -> Result<()> {
    let namespace = context.namespace("training")?;
    namespace.create(
        "digits",
        json!({"model": {"hiddenSize": 128, "depth": 4}, "training": {"epochs": 8}}),
    )?;
    let status = namespace.wait_phase("digits", Phase::Succeeded)?;
    check_attempts(&status, 1, 0)?;

    let placement = status.placement.as_ref().context("no placement")?;
    let group = placement.group.as_ref().context("no placement.group")?;
    ensure!(group.product == "Tesla-T4", "placed on {group:?}");
    ensure!(placement.nodes.len() == 2, "nodes: {:?}", placement.nodes);
    let refused = placement
        .rejected_groups
        .iter()
        .find(|rejected| rejected.group.contains("NVIDIA-H200"));
    ensure!(
        refused.is_some_and(|refused| refused.nodes == 1),
        "refused: {:?}",
        placement.rejected_groups
    );

    for (condition, value) in [("Complete", "True"), ("Running", "False"), ("Placed", "False")] {
        let is_as_expected = status
            .condition(condition)
            .is_some_and(|found| found.status == value);
        ensure!(
            is_as_expected,
            "{condition} is not {value}: {:?}",
            status.conditions
        );
    }
    ensure!(
        status.completion_time.is_some() && status.start_time.is_some(),
        "startTime or completionTime is missing"
    );
    let progress = status.progress.context("no progress")?;
    let accuracy = progress.validation_accuracy.context("no accuracy")?;
    let share = progress.sync_share.context("no syncShare")?;
    ensure!(
        progress.step == progress.total_steps && progress.percent == 100 && progress.epoch == 8,
        "{progress:?}"
    );
    ensure!(accuracy > 0.8 && (0.0..1.0).contains(&share), "{progress:?}");
    namespace.check_steps("digits")?;

    // The Service is deleted; pods stay for their logs.
    namespace.wait_gone("service")?;
    ensure!(
        namespace.pods()?.len() == 2,
        "the pods do not stay for their logs"
    );
    let logs = namespace.kubectl(["logs", "-l", "vit-operator.dev/node-rank=0", "--tail=20"])?;
    ensure!(
        logs.contains("epoch 8/8") && logs.contains("validation 0."),
        "rank 0 does not log its result: {logs}"
    );

    let table = namespace.kubectl(["get", "vtj"])?;
    check_contains(
        &table,
        &[
            "PHASE",
            "PROGRESS",
            "EPOCH",
            "IMAGES/S",
            "SYNC",
            "NODES",
            "AGE",
            "Succeeded",
            "100",
        ],
    )?;
    Ok(())
}

pub(crate) fn prometheus_has_what_synchronisation_cost(context: &Context<'_>) -> Result<()> {
    let namespace = context.namespace("metrics")?;
    // Trains until its metrics are queried: Prometheus finds new pods within ten seconds.
    namespace.create("digits", json!({"training": {"epochs": 5000}}))?;
    namespace.wait_checkpoint("digits")?;
    // New series are not scraped yet.
    let query = |expression: &str| -> Result<f64> {
        until(|| {
            let samples = context.cluster.query(expression)?;
            let sample = samples
                .first()
                .with_context(|| format!("no samples of {expression}"))?;
            ensure!(sample.value > 0.0, "{expression}: {}", sample.value);
            Ok(sample.value)
        })
    };
    let selector = format!(r#"namespace="{}",job_name="digits""#, namespace.name);
    query(&format!(
        "count(count by (rank) (last_over_time(vit_images_total{{{selector}}}[5m]))) == 2"
    ))?;
    for kind in ["total", "exposed", "straggler"] {
        query(&format!(
            r#"sum(last_over_time(vit_sync_seconds_total{{{selector},kind="{kind}"}}[5m]))"#
        ))?;
    }
    query(&format!(
        "sum(last_over_time(vit_sync_bytes_total{{{selector}}}[5m])) > 1e6"
    ))?;
    for phase in contract::metrics::STEP_PHASES {
        query(&format!(
            r#"last_over_time(vit_step_seconds_count{{{selector},rank="0",phase="{phase}"}}[5m])"#
        ))?;
    }
    let leading = query("max(vit_operator_leader)")?;
    ensure!(
        (leading - 1.0).abs() < f64::EPSILON,
        "not exactly one operator leads: {leading}"
    );
    Ok(())
}

pub(crate) fn synthetic_example_runs_without_a_data_set(context: &Context<'_>) -> Result<()> {
    let namespace = context.namespace("synthetic")?;
    let manifest = vit_tests::root()
        .join("examples/synthetic.yaml")
        .display()
        .to_string();
    namespace.kubectl(["apply", "-f", &manifest])?;
    let progress = namespace
        .wait_phase("synthetic", Phase::Succeeded)?
        .progress
        .context("no progress")?;
    ensure!(progress.step == 16, "512 images in steps of 32: {progress:?}");
    Ok(())
}
