//! The release: its notes, `helm test`, and installation, upgrade and removal while a job trains.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use jiff::Timestamp;
use serde_json::{Value, json};
use vit_tests::operator::{self, ELSEWHERE, OPERATOR};
use vit_tests::{chart, command, volumes};

use crate::context::{Context, Namespace};
use crate::steps::{check_attempts, until};

/// `StorageClass` of the claim that `helm test` creates.
const STORAGE_CLASS: &str = "for-helm-test";
/// A field that the older CRD lacks.
const NEWER_FIELD: &str = "elastic";

/// Runs the three commands in the release notes; the second is `helm test`.
pub(crate) fn commands_that_are_told_after_an_installation_work(context: &Context<'_>) -> Result<()> {
    let folder = context.data_folder("helm-test")?.join("volume");
    context.block_on(volumes::offer_folder(
        &context.client,
        "helm-test",
        STORAGE_CLASS,
        &folder,
    ))?;
    let told = operator::install(
        &context.cluster,
        &[format!("test.checkpoints.storageClassName={STORAGE_CLASS}")],
    )?;
    let commands: Vec<&str> = told
        .lines()
        .filter_map(|line| line.strip_prefix("   "))
        .filter(|line| line.starts_with("kubectl ") || line.starts_with("helm "))
        .collect();
    ensure!(commands.len() == 3, "not three commands: {told}");
    let mut outputs = Vec::new();
    for line in commands {
        // `--watch` never ends.
        outputs.push(shell(context, line.trim_end_matches(" --watch"))?);
    }
    let test = &outputs[1];
    ensure!(
        test.contains("test-vit-operator: Succeeded, step 32 of 32"),
        "{test}"
    );
    let left = context.kubectl([
        "get",
        "vittrainingjobs,pods,persistentvolumeclaims,configmaps,roles,rolebindings,serviceaccounts",
        "--namespace",
        OPERATOR,
        "--selector=app.kubernetes.io/name=vit-operator-test",
        "--output=name",
    ])?;
    ensure!(left.is_empty(), "the test left {left}");
    let jobs = context.kubectl(["get", "vittrainingjobs", "--namespace", OPERATOR, "--output=name"])?;
    ensure!(jobs.is_empty(), "the test left {jobs}");
    Ok(())
}

/// Runs a line in a shell, as a reader would.
fn shell(context: &Context<'_>, line: &str) -> Result<String> {
    let mut shell = command::command("sh", ["-c", &format!("{line} 2>&1")]);
    shell
        .env("KUBECONFIG", context.cluster.kubeconfig())
        .env("PATH", context.cluster.binaries().search_path());
    command::run(&mut shell)
}

pub(crate) fn release_goes_and_another_takes_over_while_a_job_trains(context: &Context<'_>) -> Result<()> {
    let namespace = context.namespace("release")?;
    namespace.create("digits", json!({"training": {"epochs": 500}}))?;
    namespace.wait_checkpoint("digits")?;
    let outcome = goes(context)
        .and_then(|()| comes_older(context, &namespace))
        .and_then(|()| is_upgraded(context, &namespace))
        .and_then(|()| test_tells_what_is_missing(context, &namespace));
    let restored = restore(context);
    outcome.and(restored)
}

/// Uninstalls the operator; only its CRDs must remain.
fn goes(context: &Context<'_>) -> Result<()> {
    let release =
        command::run(
            context
                .cluster
                .helm()
                .args(["get", "manifest", OPERATOR, "--namespace", OPERATOR]),
        )?;
    let manifests = context.data_folder("release")?.join("manifests.yaml");
    fs_err::write(&manifests, &release)?;
    let began = Timestamp::now();
    context.cluster.helm_uninstall(OPERATOR, OPERATOR)?;
    let path = manifests.display().to_string();
    let left = context.kubectl(["get", "-f", &path, "--ignore-not-found", "--output=name"])?;
    let mut left: Vec<&str> = left.lines().collect();
    left.sort_unstable();
    let kept = ["vitscalingstudies", "vittrainingjobs"]
        .map(|name| format!("customresourcedefinition.apiextensions.k8s.io/{name}.vit-operator.dev"));
    ensure!(left == kept, "the release left {left:?}");
    context.kubectl([
        "wait",
        "--namespace",
        OPERATOR,
        "--for=delete",
        "pod",
        "--selector=app.kubernetes.io/name=vit-operator",
        "--timeout=60s",
    ])?;
    context.rights_were_unsettled(began);
    Ok(())
}

/// Installs an older chart for one namespace: its CRD lacks a field, and no replica runs.
fn comes_older(context: &Context<'_>, namespace: &Namespace<'_>) -> Result<()> {
    let older = older_chart(&context.data_folder("release")?)?;
    let values = [
        format!("namespace={}", namespace.name),
        "replicaCount=0".to_owned(),
    ];
    install(context, &older, &values)?;
    wait_field(context, NEWER_FIELD, false)?;
    let kept = namespace.kubectl(["get", "vittrainingjobs", "--output=name"])?;
    ensure!(
        kept.trim() == "vittrainingjob.vit-operator.dev/digits",
        "kept: {kept}"
    );
    Ok(())
}

/// Upgrades to the shipped chart. Its operator takes over the job, which is not interrupted.
fn is_upgraded(context: &Context<'_>, namespace: &Namespace<'_>) -> Result<()> {
    let values = [
        format!("namespace={}", namespace.name),
        "test.gpuResource=example.com/not-there".to_owned(),
        "test.deadlineSeconds=15".to_owned(),
    ];
    let alone = namespace.steps("digits")?.saved;
    install(context, &chart::folder(), &values)?;
    wait_field(context, NEWER_FIELD, true)?;
    let status = namespace.wait_checkpoint_after("digits", alone)?;
    check_attempts(&status, 1, 0)?;
    let again = namespace.steps("digits")?.again;
    ensure!(again == 0, "{again} steps were repeated");
    Ok(())
}

/// `helm test` fails on a cluster that cannot run jobs, reports why, and leaves nothing behind.
fn test_tells_what_is_missing(context: &Context<'_>, namespace: &Namespace<'_>) -> Result<()> {
    let outcome = command::run(
        context
            .cluster
            .helm()
            .args(["test", OPERATOR, "--namespace", ELSEWHERE]),
    );
    let Err(error) = outcome else {
        anyhow::bail!("helm test passed without a GPU")
    };
    let log = context.kubectl(["logs", "--namespace", ELSEWHERE, "pod/vit-operator-test"])?;
    let reason = "needs 1 x 1 identical example.com/not-there";
    ensure!(
        log.contains(reason),
        "{reason:?} is not in the log:\n{log}\n{error:#}"
    );
    let jobs = namespace.kubectl(["get", "vittrainingjobs", "--output=name"])?;
    ensure!(
        jobs.trim() == "vittrainingjob.vit-operator.dev/digits",
        "jobs: {jobs}"
    );
    Ok(())
}

/// Restores the original release.
fn restore(context: &Context<'_>) -> Result<()> {
    let release = context
        .cluster
        .helm()
        .args(["status", OPERATOR, "--namespace", ELSEWHERE])
        .output()?;
    if release.status.success() {
        let began = Timestamp::now();
        context.cluster.helm_uninstall(OPERATOR, ELSEWHERE)?;
        context.kubectl(["delete", "namespace", ELSEWHERE, "--timeout=90s"])?;
        context.rights_were_unsettled(began);
    }
    operator::install(&context.cluster, &[])?;
    Ok(())
}

fn install(context: &Context<'_>, chart: &Path, values: &[String]) -> Result<()> {
    operator::install_from(&context.cluster, chart, ELSEWHERE, values)?;
    Ok(())
}

/// Waits until the server's schema has a field of `spec`, or lacks it.
pub(crate) fn wait_field(context: &Context<'_>, field: &str, wanted: bool) -> Result<()> {
    let field = format!("vittrainingjobs.spec.{field}");
    until(|| {
        let is_there = context.kubectl(["explain", &field]).is_ok();
        ensure!(is_there == wanted, "{field} exists: {is_there}");
        Ok(())
    })
}

/// A copy of the chart with an older version and an older CRD.
fn older_chart(folder: &Path) -> Result<PathBuf> {
    let target = folder.join("vit-operator");
    command::run(&mut command::command(
        "cp",
        ["-r".as_ref(), chart::folder().as_os_str(), target.as_os_str()],
    ))?;
    let edit = |path: &str, change: &dyn Fn(&mut Value) -> Result<()>| -> Result<()> {
        let path = target.join(path);
        let mut value: Value = serde_saphyr::from_str(&fs_err::read_to_string(&path)?)?;
        change(&mut value)?;
        // JSON is also YAML.
        Ok(fs_err::write(&path, value.to_string())?)
    };
    edit("Chart.yaml", &|chart| {
        chart["version"] = json!("0.0.1");
        Ok(())
    })?;
    edit("files/vittrainingjobs.yaml", &|definition| {
        let spec = "/spec/versions/0/schema/openAPIV3Schema/properties/spec";
        let spec = definition.pointer_mut(spec).context("a schema")?;
        let removed = spec["properties"]
            .as_object_mut()
            .context("fields")?
            .remove(NEWER_FIELD);
        ensure!(removed.is_some(), "there is no field {NEWER_FIELD}");
        // Rules must not refer to missing fields.
        let rules = spec["x-kubernetes-validations"].as_array_mut().context("rules")?;
        rules.retain(|rule| !rule["rule"].as_str().unwrap_or_default().contains(NEWER_FIELD));
        Ok(())
    })?;
    Ok(target)
}
