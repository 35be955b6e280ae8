//! Commands about several jobs, about studies, Events and versions.

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use vit_tests::Cluster;
use vit_tests::plugin::{command, ended};

use super::super::{kubectl, kubectl_input};
use super::{condition, create, meanwhile, namespace, running, vit, with, write_status};

const STUDY: &str = include_str!("../../../../examples/studies/digits-cluster.yaml");

pub(super) fn jobs(cluster: &Cluster, _: usize) -> Result<()> {
    let place = "vit-several";
    namespace(cluster, place)?;
    for name in ["one", "two", "three", "over"] {
        create(cluster, place, name)?;
        write_status(cluster, place, name, running())?;
    }
    let over = condition("Complete", "True", "AllEpochsDone", "every pod ended well");
    write_status(cluster, place, "over", with(running(), "Succeeded", over))?;
    kubectl(
        cluster,
        ["-n", place, "label", "vtj", "one", "two", "over", "team=vision"],
    )?;
    let suspended = || -> Result<String> {
        let path = "jsonpath={range .items[?(@.spec.suspend==true)]}{.metadata.name} {end}";
        kubectl(cluster, ["-n", place, "get", "vtj", "-o", path])
    };

    // A job that is over is left out, unless it is named.
    let output = vit(cluster, &["suspend", "-n", place, "-l", "team=vision"])?.check(
        0,
        &[
            "one is suspending: its pods save a checkpoint",
            "two is suspending",
        ],
    )?;
    ensure!(!output.stdout.contains("over"), "{}", output.stdout);
    ensure!(
        suspended()?.split_whitespace().eq(["one", "two"]),
        "{}",
        suspended()?
    );
    vit(cluster, &["suspend", "-n", place, "--all"])?
        .check(0, &["one is already suspending", "three is suspending"])?;
    vit(cluster, &["resume", "one", "nobody", "three", "-n", place])?.check(
        3,
        &["one is resuming", "job nobody not found", "three is resuming"],
    )?;
    vit(cluster, &["suspend", "over", "nobody", "-n", place])?
        .check(2, &["there is nothing left to suspend", "job nobody not found"])?;
    ensure!(suspended()?.trim() == "two", "{}", suspended()?);
    vit(cluster, &["suspend", "-n", place, "-l", "team=speech"])?
        .check(0, &["No unfinished jobs found in namespace vit-several."])?;
    vit(cluster, &["suspend", "-n", place])?.check(2, &["required"])?;
    vit(cluster, &["suspend", "one", "--all", "-n", place])?.check(2, &["cannot be used with"])?;

    let parked = || {
        let suspended = condition("Suspended", "True", "Suspended", "spec.suspend is set");
        with(running(), "Suspended", suspended)
    };
    let suspending = [
        "suspend",
        "one",
        "three",
        "-n",
        place,
        "--wait",
        "--timeout",
        "1m",
    ];
    meanwhile(cluster, &suspending, "step 700 of 2700", || {
        write_status(cluster, place, "three", parked())?;
        write_status(cluster, place, "one", parked())
    })?
    .check(0, &["one is suspended, saved at step 675", "three is suspended"])?;
    vit(
        cluster,
        &["resume", "one", "-n", place, "--wait", "--timeout", "1s"],
    )?
    .check(
        5,
        &[
            "one is resuming",
            "timed out after 1s waiting for phase Running: one: Suspended",
        ],
    )?;
    vit(cluster, &["delete", "nobody", "one", "-n", place])?
        .check(3, &["job nobody not found", "\"one\" deleted"])?;
    Ok(())
}

pub(super) fn studies(cluster: &Cluster, _: usize) -> Result<()> {
    let place = "vit-studies";
    namespace(cluster, place)?;
    vit(cluster, &["study", "list", "-n", place])?
        .check(0, &["No studies found in namespace vit-studies."])?;
    kubectl_input(cluster, ["-n", place, "create", "-f", "-"], STUDY)?;
    let name = "digits-cluster";
    let write = |status: Value| {
        let patch = json!({"status": status}).to_string();
        let arguments = [
            "-n",
            place,
            "patch",
            "vits",
            name,
            "--subresource=status",
            "--type=merge",
            "-p",
            &patch,
        ];
        kubectl(cluster, arguments).map(drop)
    };
    vit(cluster, &["study", "list", "-n", place])?.check(0, &["digits-cluster", "New"])?;
    let runs = json!({"total": 20, "measured": 3, "failed": 0, "summary": "3/20"});
    let current = json!({"run": "strong-r2-b16", "repetition": 1, "job": "digits-cluster-0a-1"});
    write(json!({"phase": "Running", "observedGeneration": 1, "runs": runs, "current": current}))?;
    vit(cluster, &["study", "list", "-A"])?.check(
        0,
        &[
            "vit-studies",
            "Running",
            "3/20",
            "strong-r2-b16 #1",
            "digits-cluster-0a-1",
        ],
    )?;
    vit(cluster, &["study", "list", "-n", place, "-o", "name"])?
        .check(0, &["vitscalingstudy.vit-operator.dev/digits-cluster\n"])?;
    let suspend = || {
        kubectl(
            cluster,
            ["-n", place, "get", "vits", name, "-o", "jsonpath={.spec.suspend}"],
        )
    };
    vit(cluster, &["study", "suspend", "vits/digits-cluster", "-n", place])?
        .check(0, &["digits-cluster is suspending: its current run stops"])?;
    ensure!(suspend()? == "true", "not suspended");
    vit(cluster, &["study", "resume", "--all", "-n", place])?.check(0, &["digits-cluster is resuming"])?;
    ensure!(suspend()? == "false", "not resumed");
    vit(cluster, &["study", "suspend", "digits", "-n", place])?.check(
        3,
        &["study digits not found in namespace vit-studies, which has digits-cluster"],
    )?;
    vit(cluster, &["study", "watch", name, "-n", place, "--timeout", "2s"])?.check(
        5,
        &["timed out after 2s waiting for its end: digits-cluster: Running, 3/20 runs measured"],
    )?;
    meanwhile(cluster, &["study", "watch", name, "-n", place], "Running", || {
        write(json!({"phase": "Succeeded", "observedGeneration": 9, "current": null}))
    })?
    .check(0, &["digits-cluster: Succeeded, 3/20 runs measured"])?;
    Ok(())
}

pub(super) fn events(cluster: &Cluster, _: usize) -> Result<()> {
    let place = "vit-events";
    namespace(cluster, place)?;
    create(cluster, place, "digits")?;
    vit(cluster, &["events", "digits", "-n", place])?.check(0, &["No Events found of job digits"])?;
    let event = |kind: &str, api: &str, name: &str, type_: &str, message: &str, minute: u32| {
        let time = format!("2026-01-01T00:{minute:02}:00Z");
        let manifest = json!({"apiVersion": "v1", "kind": "Event", "type": type_, "reason": "Tested", "message": message,
            "metadata": {"name": format!("{name}.{minute}"), "namespace": place}, "count": 1,
            "involvedObject": {"apiVersion": api, "kind": kind, "name": name, "namespace": place},
            "firstTimestamp": time, "lastTimestamp": time});
        kubectl_input(cluster, ["create", "-f", "-"], &manifest.to_string()).map(drop)
    };
    event(
        "ViTTrainingJob",
        "vit-operator.dev/v1alpha1",
        "digits",
        "Warning",
        "second",
        2,
    )?;
    event("Pod", "v1", "digits-1-0", "Normal", "first", 1)?;
    event("Pod", "v1", "digits-large-1-0", "Normal", "of another job", 3)?;
    let output = vit(cluster, &["events", "vtj/digits", "-n", place])?.check(
        0,
        &[
            "LAST SEEN",
            "pod/digits-1-0",
            "vittrainingjob/digits",
            "Warning",
            "Tested",
        ],
    )?;
    let at = |word: &str| {
        output
            .stdout
            .find(word)
            .with_context(|| format!("{word} is missing: {}", output.stdout))
    };
    ensure!(at("first")? < at("second")?, "{}", output.stdout);
    ensure!(!output.stdout.contains("another job"), "{}", output.stdout);
    vit(cluster, &["events", "nobody", "-n", place])?.check(3, &["job nobody not found"])?;
    // Events outlive the job.
    kubectl(cluster, ["-n", place, "delete", "vtj", "digits"])?;
    vit(cluster, &["events", "digits", "-n", place, "-o", "name"])?.check(0, &["event/digits.2"])?;
    Ok(())
}

pub(super) fn version(cluster: &Cluster, _: usize) -> Result<()> {
    let place = "vit-version";
    namespace(cluster, place)?;
    let own = env!("CARGO_PKG_VERSION");
    let plugin = format!("kubectl-vit   {own}");
    ended(command(cluster, &["version", "--client"])?.env("KUBECONFIG", "/dev/null"))?
        .check(0, &[&plugin])?;
    let labels = json!({"app.kubernetes.io/name": "vit-operator", "app.kubernetes.io/version": own});
    let manifest = json!({"apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "tested", "namespace": place, "labels": labels},
        "spec": {"replicas": 0, "selector": {"matchLabels": labels}, "template": {
            "metadata": {"labels": labels}, "spec": {"containers": [{"name": "operator", "image": "vit-operator:dev"}]}}}});
    kubectl_input(cluster, ["create", "-f", "-"], &manifest.to_string())?;
    let output = vit(cluster, &["version"])?.check(0, &[&plugin, "operator", "vit-version/tested"])?;
    ensure!(
        !output.stderr.contains("vit-version are more"),
        "{}",
        output.stderr
    );
    let version = "app.kubernetes.io/version=99.0.0";
    kubectl(
        cluster,
        [
            "-n",
            place,
            "label",
            "--overwrite",
            "deployment",
            "tested",
            version,
        ],
    )?;
    vit(cluster, &["version"])?.check(
        0,
        &["operator 99.0.0 in namespace vit-version are more than one minor version apart"],
    )?;
    let object = vit(cluster, &["version", "-o", "json"])?.check(0, &[])?;
    let versions: Value = serde_json::from_str(&object.stdout)?;
    ensure!(versions["plugin"] == own, "{versions:#}");
    vit(cluster, &["version", "--as", "stranger"])?
        .check(1, &[&plugin, "cannot list the operator's Deployments"])?;
    kubectl(cluster, ["delete", "namespace", place, "--wait=false"])?;
    kubectl(
        cluster,
        [
            "-n",
            place,
            "delete",
            "deployment",
            "tested",
            "--ignore-not-found",
        ],
    )?;
    Ok(())
}
