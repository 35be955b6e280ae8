//! Faults of configuration, data, processes, nodes, and the operator itself.

use anyhow::{Context as _, Result, ensure};
use crds::{Phase, ViTTrainingJobStatus, labels};
use kube::ResourceExt as _;
use rustix::process::Signal;
use serde_json::json;
use vit_tests::cgroup;

use crate::context::Context;
use crate::steps::{check_attempts, check_contains, copy_files, nodes_of, saved_step, until};

pub(crate) fn unknown_preset_fails_with_one_that_is_known(context: &Context<'_>) -> Result<()> {
    let namespace = context.namespace("preset")?;
    namespace.create("mega", json!({"model": {"name": "vit_mega_patch16_224"}}))?;
    let status = namespace.wait_phase("mega", Phase::Failed)?;
    let failed = status.condition("Failed").context("no condition Failed")?;
    ensure!(failed.reason == "InvalidSpec", "{failed:?}");
    check_contains(
        &failed.message,
        &[
            "spec.model.name is vit_mega_patch16_224",
            "name of a supported model, such as vit_",
        ],
    )?;
    ensure!(namespace.pods()?.is_empty(), "pods were started");
    Ok(())
}

pub(crate) fn missing_data_fails_once_and_expires(context: &Context<'_>) -> Result<()> {
    let empty = context.data_folder("empty")?;
    let namespace = context.namespace_with_data("missing", &empty)?;
    namespace.create("digits", json!({}))?;
    let status = namespace.wait_phase("digits", Phase::Failed)?;
    check_attempts(&status, 1, 0)?;
    let failure = status.last_failure.context("no lastFailure")?;
    ensure!(
        failure.class == "BadData" && failure.exit_code == Some(3),
        "{failure:?}"
    );
    ensure!(failure.message.contains("/data/data_batch_1.bin"), "{failure:?}");
    ensure!(failure.rank.is_some() && failure.node.is_some(), "{failure:?}");
    namespace.wait_gone("service")?;
    until(|| {
        let pods = namespace.pods()?;
        let phases = pods.iter().map(|pod| {
            let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
            (pod.metadata.deletion_timestamp.is_some(), phase)
        });
        let phases: Vec<_> = phases.collect();
        ensure!(
            phases.contains(&(false, Some("Failed"))),
            "failed pods do not stay for their logs: {phases:?}"
        );
        Ok(())
    })?;

    // A finished job is deleted after its time to live, with its pods.
    namespace.patch("digits", json!({"ttlSecondsAfterFinished": 0}))?;
    namespace.wait_gone("vtj,pods,configmaps")
}

pub(crate) fn truncated_record_is_named_by_file_and_offset(context: &Context<'_>) -> Result<()> {
    let data = context.data_folder("truncated")?;
    copy_files(context.digits(), &data)?;
    let file = fs_err::OpenOptions::new()
        .write(true)
        .open(data.join("data_batch_3.bin"))?;
    file.set_len(3073 * 7 + 100)?;
    let namespace = context.namespace_with_data("truncated", &data)?;
    namespace.create("digits", json!({}))?;
    let status = namespace.wait_phase("digits", Phase::Failed)?;
    check_attempts(&status, 1, 0)?;
    let failure = status.last_failure.context("no lastFailure")?;
    ensure!(failure.class == "BadData", "{failure:?}");
    check_contains(&failure.message, &["data_batch_3.bin", &(3073 * 7).to_string()])?;
    Ok(())
}

/// Asserts that every second since the first placement is accounted for, some as lost to failures.
fn check_time(status: &ViTTrainingJobStatus) -> Result<()> {
    let spent = status.time_spent.as_ref().context("no timeSpent")?;
    let [start, end] = [&status.start_time, &status.completion_time];
    let (start, end) = (
        start.as_ref().context("no startTime")?,
        end.as_ref().context("no completionTime")?,
    );
    let all = spent.total();
    // Both times are whole seconds, and the last report of rank 0 was slightly old.
    let passed = end.0.duration_since(start.0).as_secs_f64();
    ensure!(
        (all - passed).abs() <= 3.0,
        "{all} s of {passed} s are accounted for: {spent:?}"
    );
    ensure!(
        spent.useful_seconds > 0.0 && spent.restart_seconds > 0.0 && spent.start_seconds > 0.0,
        "{spent:?}"
    );
    // The next gang repeats the steps after the checkpoint.
    ensure!(
        spent.repeated_seconds >= 0.0 && spent.repeated_seconds < spent.useful_seconds,
        "{spent:?}"
    );
    ensure!(
        (spent.effective_ratio - spent.useful_seconds / all).abs() < 0.001,
        "{spent:?}"
    );
    Ok(())
}

pub(crate) fn killed_rank_restarts_the_gang_from_its_checkpoint(context: &Context<'_>) -> Result<()> {
    let namespace = context.namespace("killed")?;
    // A lost rank loses its shard of weights and optimizer state, so checkpoints need all shards,
    // and here each rank writes its own. Pods have 48 MiB for tensors; only ZeRO stage 3 needs
    // less.
    let sharded = json!({
        "model": {"hiddenSize": 192, "depth": 8},
        "training": {"epochs": 8},
        "parallelism": {"strategy": "Auto"},
        "checkpoint": {"writers": "EveryRank"},
        "workers": {"device": "cpu", "resources": {"limits": {"memory": "560Mi"}}},
    });
    namespace.create("digits", sharded)?;
    let first = namespace.wait_checkpoint("digits")?;
    let placement = first.placement.as_ref().context("no placement")?;
    let strategy = placement.strategy.as_ref().context("no placement.strategy")?;
    ensure!(
        (strategy.zero_stage, strategy.available_mebibytes) == (3, Some(48)),
        "{strategy:?}"
    );
    let saved = saved_step(&first)?;
    let node = nodes_of(&first)?[1].clone();
    // Like the kernel's OOM killer.
    namespace.signal_rank("digits", 1, Signal::KILL)?;
    // Resumed from the first attempt's last checkpoint, which may be later than `saved`.
    let resumed = saved_step(&namespace.wait_attempt("digits", 2)?)?;
    let second = namespace.wait_checkpoint_after("digits", resumed)?;
    let failure = second.last_failure.as_ref().context("no lastFailure")?;
    ensure!(
        failure.class == "Killed" && failure.exit_code == Some(137),
        "{failure:?}"
    );
    ensure!(
        failure.rank == Some(1) && failure.node.as_ref() == Some(&node),
        "not the killed rank is blamed: {failure:?}"
    );

    // A second failure on the same node: the next attempt avoids it.
    let nodes = nodes_of(&second)?;
    let rank = nodes.iter().position(|other| *other == node);
    let rank = rank.with_context(|| format!("{node} is not used again after one failure: {nodes:?}"))?;
    namespace.signal_rank("digits", u32::try_from(rank)?, Signal::KILL)?;
    namespace.wait("digits", "is on its third attempt", |status| status.attempt == 3)?;
    let status = namespace.wait_phase("digits", Phase::Succeeded)?;
    check_time(&status)?;
    check_attempts(&status, 3, 2)?;
    let nodes = nodes_of(&status)?;
    ensure!(
        !nodes.contains(&node),
        "{node} failed twice, but is used: {nodes:?}"
    );
    let failed = &status.failed_nodes[..];
    ensure!(
        matches!(failed, [only] if only.node == node && only.failures == 2 && only.avoided_until.is_some()),
        "{failed:?}"
    );
    let progress = status.progress.context("no progress")?;
    ensure!(
        progress.step == progress.total_steps && saved < progress.step,
        "{progress:?}"
    );
    namespace.check_steps("digits")?;
    Ok(())
}

/// Two ranks per node share the tokens of an image, and all four shard the training state, with the
/// optimizer in host memory.
pub(crate) fn killed_rank_of_a_model_that_ranks_compute_together_is_replaced(
    context: &Context<'_>,
) -> Result<()> {
    let namespace = context.namespace("together")?;
    let spec = json!({
        "training": {"epochs": 16},
        "parallelism": {"sequence": 2, "zeroStage": 1, "offload": {"optimizer": "CPU"}},
        "workers": {"nodes": 2, "gpusPerNode": 2},
    });
    namespace.create("digits", spec)?;
    let saved = saved_step(&namespace.wait_checkpoint("digits")?)?;
    namespace.signal_rank("digits", 1, Signal::KILL)?;
    let status = namespace.wait_phase("digits", Phase::Succeeded)?;
    check_attempts(&status, 2, 1)?;
    let failure = status.last_failure.context("no lastFailure")?;
    ensure!(
        failure.class == "Killed" && matches!(failure.rank, Some(2 | 3)),
        "{failure:?}"
    );
    let progress = status.progress.context("no progress")?;
    ensure!(
        progress.step == progress.total_steps && saved < progress.step,
        "{progress:?}"
    );
    // Half as many images per step as with four data-parallel ranks.
    ensure!(progress.total_steps == 16 * (1442 / 32), "{progress:?}");
    namespace.check_steps("digits")?;
    Ok(())
}

pub(crate) fn rank_that_is_stopped_is_a_stall_and_the_gang_restarts(context: &Context<'_>) -> Result<()> {
    let namespace = context.namespace("stalled")?;
    namespace.create(
        "digits",
        json!({"training": {"epochs": 5000}, "failurePolicy": {"stallTimeoutSeconds": 10}}),
    )?;
    let nodes = nodes_of(&namespace.wait_checkpoint("digits")?)?;
    namespace.signal_rank("digits", 1, Signal::STOP)?;
    let status = namespace.wait_attempt("digits", 2)?;
    check_attempts(&status, 2, 1)?;
    let failure = status.last_failure.context("no lastFailure")?;
    ensure!(
        failure.class == "Stalled" && failure.rank == Some(1) && failure.node.as_ref() == nodes.last(),
        "{failure:?}"
    );
    check_contains(
        &failure.message,
        &["no rank has finished a ", "limit 10 s", "stopped by a signal"],
    )?;
    namespace.check_continues("digits")?;
    Ok(())
}

pub(crate) fn rank_that_is_slow_is_named_with_its_node_until_it_recovers(
    context: &Context<'_>,
) -> Result<()> {
    let namespace = context.namespace("straggler")?;
    namespace.create(
        "digits",
        json!({"training": {"epochs": 5000}, "failurePolicy": {"excludeStragglers": true}}),
    )?;
    let status = namespace.wait("digits", "trains", |status| {
        status.phase == Some(Phase::Running)
            && status.progress.as_ref().is_some_and(|progress| progress.step > 0)
    })?;
    let nodes = nodes_of(&status)?;
    let slow = nodes.last().context("no nodes")?;
    let process = namespace.rank_process("digits", 1)?;

    cgroup::limit_cpu(process, Some(0.25))?;
    let status = namespace.wait("digits", "names a straggler", |status| {
        !status.stragglers.is_empty()
    })?;
    let named = &status.stragglers[..];
    ensure!(
        matches!(named, [only] if only.rank == 1 && only.node.as_ref() == Some(slow) && only.slowdown > 1.2),
        "{named:?}"
    );
    let slowdown = status.progress.as_ref().and_then(|progress| progress.slowdown);
    ensure!(slowdown.is_some_and(|slowdown| slowdown > 1.2), "{slowdown:?}");
    let saved_without = |rank: u32| -> Result<f64> {
        let query = format!(
            r#"last_over_time(vit_rank_slowdown_seconds_total{{namespace="{}",rank="{rank}"}}[5m])"#,
            namespace.name
        );
        let samples = context.cluster.query(&query)?;
        samples.first().map(|sample| sample.value).context(query)
    };
    let (fast, slow_one) = (saved_without(0)?, saved_without(1)?);
    ensure!(
        slow_one > 3.0 * fast,
        "rank 1 costs only {slow_one} s, rank 0 {fast} s"
    );

    cgroup::limit_cpu(process, None)?;
    namespace.wait("digits", "names nobody", |status| status.stragglers.is_empty())?;
    // Events follow the status.
    until(|| {
        let reasons = r#"jsonpath={range .items[*]}{.reason}{"\n"}{end}"#;
        let reasons = namespace.kubectl(["get", "events", "-o", reasons])?;
        for reason in ["StragglerFound", "StragglerGone"] {
            let count = reasons.lines().filter(|line| *line == reason).count();
            ensure!(count == 1, "{count} Events {reason}:\n{reasons}");
        }
        Ok(())
    })?;
    let shown = format!(
        r#"last_over_time(vit_operator_straggler_slowdown_ratio{{namespace="{}",rank="1"}}[5m])"#,
        namespace.name
    );
    ensure!(
        !context.cluster.query(&shown)?.is_empty(),
        "Prometheus has no {shown}"
    );
    check_attempts(&status, 1, 0)?;

    // Slow again when another rank fails: the next gang avoids its node.
    cgroup::limit_cpu(process, Some(0.25))?;
    namespace.wait("digits", "names the straggler again", |status| {
        !status.stragglers.is_empty()
    })?;
    namespace.signal_rank("digits", 0, Signal::KILL)?;
    let status = namespace.wait_attempt("digits", 2)?;
    check_attempts(&status, 2, 1)?;
    let nodes = nodes_of(&status)?;
    ensure!(!nodes.contains(slow), "{slow} was slow, but is used: {nodes:?}");
    namespace.check_continues("digits")?;
    Ok(())
}

pub(crate) fn leader_dies_between_two_pods_and_the_next_one_creates_the_rest(
    context: &Context<'_>,
) -> Result<()> {
    let namespace = context.namespace("between")?;
    // A webhook that nobody serves interrupts the creation.
    let webhook = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "between"},
        "webhooks": [{
            "name": "between.example.com", "failurePolicy": "Fail", "sideEffects": "None", "timeoutSeconds": 1,
            "admissionReviewVersions": ["v1"],
            "clientConfig": {"service": {"namespace": namespace.name, "name": "nobody"}},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace.name}},
            "objectSelector": {"matchLabels": {labels::NODE_RANK: "1"}},
        }],
    });
    namespace.apply_all(&[webhook])?;
    namespace.create("digits", json!({"training": {"epochs": 4}}))?;
    namespace.wait_message("digits", "failed calling webhook")?;
    ensure!(namespace.pods()?.len() == 1, "the webhook refuses one pod");
    let before = context.leader()?;
    context.kill_leader()?;
    namespace.kubectl(["delete", "validatingwebhookconfiguration", "between"])?;
    let status = namespace.wait_phase("digits", Phase::Succeeded)?;
    let after = context.leader()?;
    ensure!(before != after, "{before} still leads");
    check_attempts(&status, 1, 0)?;
    ensure!(
        status.condition("Reconciled").is_none(),
        "the condition remains after the webhook is deleted: {:?}",
        status.conditions
    );
    namespace.check_steps("digits")?;
    Ok(())
}

pub(crate) fn image_that_cannot_be_had_fails_in_the_kubelets_words(context: &Context<'_>) -> Result<()> {
    let namespace = context.namespace("image")?;
    let image = "localhost/no-such-trainer:1";
    namespace.create("never", json!({"image": image, "imagePullPolicy": "Never"}))?;
    namespace.create(
        "pulled",
        json!({"image": image, "imagePullPolicy": "Always", "failurePolicy": {"maxRestarts": 0}}),
    )?;
    for (job, class, words) in [
        ("never", "BadConfig", "ErrImageNeverPull"),
        ("pulled", "StartFailed", "ImagePullBackOff"),
    ] {
        let status = namespace.wait_phase(job, Phase::Failed)?;
        check_attempts(&status, 1, 0)?;
        let failure = status.last_failure.context("no lastFailure")?;
        ensure!(failure.class == class, "{job}: {failure:?}");
        ensure!(
            failure.message.contains(words) && failure.message.contains(image),
            "{job}: {failure:?}"
        );
        ensure!(
            failure.node.is_some() && failure.pod.is_some(),
            "{job}: {failure:?}"
        );
    }
    Ok(())
}

pub(crate) fn job_over_its_deadline_is_stopped(context: &Context<'_>) -> Result<()> {
    let namespace = context.namespace("deadline")?;
    namespace.create(
        "digits",
        json!({"training": {"epochs": 5000}, "activeDeadlineSeconds": 8}),
    )?;
    let status = namespace.wait_phase("digits", Phase::Failed)?;
    let failed = status.condition("Failed").context("no condition Failed")?;
    ensure!(
        failed.reason == "DeadlineExceeded" && failed.message.contains("8 s"),
        "{failed:?}"
    );
    namespace.wait("digits", "holds no GPUs", |status| {
        status.workers.is_some_and(|workers| workers.desired == 0)
    })?;
    namespace.wait_gone("service")
}

pub(crate) fn gang_of_a_dead_node_trains_on_elsewhere(context: &Context<'_>) -> Result<()> {
    let namespace = context.namespace("dead-node")?;
    namespace.create(
        "digits",
        json!({"training": {"epochs": 5000}, "failurePolicy": {"nodeLostSeconds": 5}}),
    )?;
    let status = namespace.wait_checkpoint("digits")?;
    let nodes = nodes_of(&status)?;
    let dead = nodes.last().context("no nodes")?.clone();
    // The worst node to lose: that of the leading operator.
    context.lead_from(&dead)?;
    context.cluster.kill_node(&dead)?;
    let again = namespace.wait_attempt("digits", 2);
    let left = namespace.pods();
    context.block_on(context.cluster.start_node(&dead))?;

    let status = again?;
    check_attempts(&status, 2, 1)?;
    let placement = status.placement.context("no placement")?;
    ensure!(
        !placement.nodes.contains(&dead),
        "{dead} is dead, but the gang was placed on {:?}",
        placement.nodes
    );
    let failure = status.last_failure.context("no lastFailure")?;
    ensure!(
        failure.class == "PodLost" && failure.node.as_ref() == Some(&dead),
        "{dead} is dead, but the failure is {failure:?}"
    );
    let of_first_attempt = left?
        .iter()
        .filter(|pod| pod.name_any().starts_with("digits-1-"))
        .count();
    ensure!(
        of_first_attempt == 0,
        "{of_first_attempt} pods of the first attempt remain on a node without a kubelet"
    );
    namespace.check_continues("digits")?;
    Ok(())
}
