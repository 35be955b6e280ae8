//! What goes wrong: configuration, data, processes, the operator itself.

use anyhow::{Context as _, Result, ensure};
use crds::Phase;
use serde_json::json;

use crate::context::{Context, check_attempts};

pub(crate) fn unknown_preset_fails(context: &Context) -> Result<()> {
    let namespace = context.namespace("preset")?;
    namespace.create("mega", json!({"model": {"name": "vit_mega_patch16_224"}}))?;
    let status = namespace.wait_phase("mega", Phase::Failed)?;
    let failed = status
        .conditions
        .iter()
        .find(|condition| condition.type_ == "Failed")
        .context("has Failed")?;
    ensure!(failed.reason == "InvalidSpec", "{failed:?}");
    for part in ["spec.model.name is vit_mega_patch16_224", "vit_base_patch16_224"] {
        ensure!(
            failed.message.contains(part),
            "{part:?} is not in: {}",
            failed.message
        );
    }
    ensure!(namespace.pods()?.is_empty(), "nothing was started");
    Ok(())
}

pub(crate) fn missing_data_fails_once_and_expires(context: &Context) -> Result<()> {
    let empty = context.data_folder("empty")?;
    let namespace = context.namespace_with_data("missing", &empty)?;
    namespace.create("digits", json!({}))?;
    let status = namespace.wait_phase("digits", Phase::Failed)?;
    check_attempts(&status, 1, 0)?;
    let failure = status.last_failure.context("the failure is told")?;
    ensure!(
        failure.class == "BadData" && failure.exit_code == Some(3),
        "{failure:?}"
    );
    ensure!(failure.message.contains("/data/data_batch_1.bin"), "{failure:?}");
    ensure!(failure.rank.is_some() && failure.node.is_some(), "{failure:?}");
    namespace.wait_gone("service")?;
    ensure!(!namespace.pods()?.is_empty(), "failed pods stay for their logs");

    // A finished job goes when its time is over, and takes its pods along.
    namespace.patch("digits", json!({"ttlSecondsAfterFinished": 0}))?;
    namespace.wait_gone("vtj,pods,configmaps")
}

pub(crate) fn truncated_record_is_named(context: &Context) -> Result<()> {
    let data = context.data_folder("truncated")?;
    for entry in fs_err::read_dir(context.digits())? {
        let entry = entry?;
        fs_err::copy(entry.path(), data.join(entry.file_name()))?;
    }
    let file = fs_err::OpenOptions::new()
        .write(true)
        .open(data.join("data_batch_3.bin"))?;
    file.set_len(3073 * 7 + 100)?;
    let namespace = context.namespace_with_data("truncated", &data)?;
    namespace.create("digits", json!({}))?;
    let status = namespace.wait_phase("digits", Phase::Failed)?;
    check_attempts(&status, 1, 0)?;
    let failure = status.last_failure.context("the failure is told")?;
    ensure!(failure.class == "BadData", "{failure:?}");
    for part in ["data_batch_3.bin", &(3073 * 7).to_string()] {
        ensure!(
            failure.message.contains(part),
            "{part:?} is not in: {}",
            failure.message
        );
    }
    Ok(())
}

pub(crate) fn killed_rank_restarts_the_gang(context: &Context) -> Result<()> {
    let namespace = context.namespace("killed")?;
    namespace.create("digits", json!({"training": {"epochs": 60}}))?;
    let before = namespace
        .wait_checkpoint("digits")?
        .last_checkpoint
        .context("a checkpoint is told")?;
    namespace.kill_rank("digits", 1)?;
    namespace.wait("digits", "is on its second attempt", |status| status.attempt == 2)?;
    let status = namespace.wait_phase("digits", Phase::Succeeded)?;
    check_attempts(&status, 2, 1)?;
    let failure = status.last_failure.context("the failure is told")?;
    ensure!(
        failure.class == "Killed" && failure.exit_code == Some(137),
        "{failure:?}"
    );
    ensure!(
        failure.rank == Some(1),
        "the killed rank is blamed, not the one that lost its peer: {failure:?}"
    );
    let progress = status.progress.context("progress is told")?;
    ensure!(
        progress.step == progress.total_steps && before.step < progress.step,
        "{progress:?}"
    );
    namespace.check_steps("digits", progress.total_steps)
}

pub(crate) fn leader_goes_away(context: &Context) -> Result<()> {
    let operator = [
        "-n",
        "vit-operator",
        "rollout",
        "status",
        "deployment/vit-operator",
        "--timeout=60s",
    ];
    context.kubectl([
        "-n",
        "vit-operator",
        "scale",
        "deployment/vit-operator",
        "--replicas=2",
    ])?;
    context.kubectl(operator)?;
    let leader = || {
        context.kubectl([
            "-n",
            "vit-operator",
            "get",
            "lease",
            "vit-operator",
            "-o",
            "jsonpath={.spec.holderIdentity}",
        ])
    };
    let namespace = context.namespace("leader")?;
    namespace.create("digits", json!({"training": {"epochs": 60}}))?;
    namespace.wait_phase("digits", Phase::Running)?;

    let before = leader()?;
    let pod = before.split('_').next().unwrap_or_default();
    context.kubectl(["-n", "vit-operator", "delete", "pod", pod, "--wait=false"])?;
    let status = namespace.wait_phase("digits", Phase::Succeeded)?;
    check_attempts(&status, 1, 0)?;
    let after = leader()?;
    ensure!(before != after, "{before} still leads");
    namespace.check_steps("digits", status.progress.context("progress is told")?.total_steps)?;
    context.kubectl([
        "-n",
        "vit-operator",
        "scale",
        "deployment/vit-operator",
        "--replicas=1",
    ])?;
    context.kubectl(operator)?;
    Ok(())
}
