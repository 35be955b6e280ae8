//! `kubectl vit` on a real API server, run through kubectl, on objects with a realistic status.

mod several;

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use anyhow::{Context as _, Result, anyhow, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;
use vit_tests::Cluster;
use vit_tests::plugin::{Outcome, binaries, command, ended};

use super::{NODES, VALID, kubectl, kubectl_input, until};

type Test = fn(&Cluster, usize) -> Result<()>;

/// The tests, by name.
pub(crate) const TESTS: &[(&str, Test)] = &[
    ("plugin: a cluster without the resource", without_resource),
    (
        "plugin: jobs of two namespaces and two contexts",
        namespaces_and_contexts,
    ),
    ("plugin: status and why of a job in every state", status_and_why),
    ("plugin: GPUs by group, and nodes refused", nodes),
    ("plugin: suspend, resume, scale, delete", changes),
    ("plugin: suspend and resume several jobs", several::jobs),
    (
        "plugin: studies are listed, watched, suspended, resumed",
        several::studies,
    ),
    ("plugin: Events of a job and its pods", several::events),
    ("plugin: versions", several::version),
    ("plugin: waiting for the operator", waits),
    ("plugin: run creates jobs that the server accepts", run),
    ("plugin: missing rights", forbidden),
    (
        "plugin: servers, files and contexts that do not exist",
        unreachable,
    ),
    ("plugin: pipes and colors", pipes),
    ("plugin: completion of job names", completion),
];

fn vit(cluster: &Cluster, arguments: &[&str]) -> Result<Outcome> {
    ended(&mut command(cluster, arguments)?)
}

/// Creates a namespace for one test.
fn namespace(cluster: &Cluster, name: &str) -> Result<()> {
    kubectl(cluster, ["create", "namespace", name]).map(drop)
}

/// Creates the example job under this name.
fn create(cluster: &Cluster, namespace: &str, name: &str) -> Result<()> {
    let manifest = VALID.replacen("name: digits\n", &format!("name: {name}\n"), 1);
    kubectl_input(cluster, ["-n", namespace, "create", "-f", "-"], &manifest).map(drop)
}

/// Writes a status like the operator, for the current generation.
fn write_status(cluster: &Cluster, namespace: &str, name: &str, mut status: Value) -> Result<()> {
    let generation = kubectl(
        cluster,
        [
            "-n",
            namespace,
            "get",
            "vtj",
            name,
            "-o",
            "jsonpath={.metadata.generation}",
        ],
    )?;
    for field in ["attempt", "restarts", "restartsSinceCheckpoint"] {
        if status[field].is_null() {
            status[field] = 0.into();
        }
    }
    status["observedGeneration"] = generation.trim().parse::<i64>()?.into();
    let patch = json!({"status": status}).to_string();
    kubectl(
        cluster,
        [
            "-n",
            namespace,
            "patch",
            "vtj",
            name,
            "--subresource=status",
            "--type=merge",
            "-p",
            &patch,
        ],
    )
    .map(drop)
}

fn condition(type_: &str, status: &str, reason: &str, message: &str) -> Value {
    json!([{"type": type_, "status": status, "reason": reason, "message": message,
        "lastTransitionTime": "2026-01-01T00:00:00Z"}])
}

fn running() -> Value {
    json!({
        "phase": "Running", "attempt": 1, "conditions": condition("Running", "True", "AllPodsReady", "every pod runs"),
        "placement": {"nodes": ["node1", "node2"], "group": {
            "product": "Tesla-T4", "productLabel": "nvidia.com/gpu.product", "gpusPerNode": 1}},
        "workers": {"desired": 2, "ready": 2, "failed": 0},
        "progress": {"epoch": 15, "totalEpochs": 60, "step": 700, "totalSteps": 2700, "percent": 25, "loss": 0.75,
            "imagesPerSecond": 600.0, "syncShare": 0.17},
        "lastCheckpoint": {"step": 675, "path": "/checkpoints/digits/step-675", "time": "2026-01-01T00:00:00Z"},
        "stragglers": [{"rank": 1, "node": "node2", "slowdown": 1.5}],
    })
}

fn with(mut status: Value, phase: &str, conditions: Value) -> Value {
    status["phase"] = phase.into();
    status["conditions"] = conditions;
    status
}

fn failed() -> Value {
    let mut status = with(
        running(),
        "Failed",
        condition(
            "Failed",
            "True",
            "NotRetryable",
            "attempt 1: OutOfMemory: no memory",
        ),
    );
    status["lastFailure"] = json!({"attempt": 1, "rank": 0, "node": "node1", "exitCode": 77, "class": "OutOfMemory",
        "message": "no memory"});
    status
}

/// The output before the CRD was installed.
static WITHOUT_RESOURCE: OnceLock<Result<Outcome, String>> = OnceLock::new();

/// Must run before the CRD is installed.
pub(crate) fn try_without_resource(cluster: &Cluster) {
    let told = vit(cluster, &["list"]).map_err(|error| format!("{error:#}"));
    let _ = WITHOUT_RESOURCE.set(told);
}

fn without_resource(_: &Cluster, _: usize) -> Result<()> {
    let told = WITHOUT_RESOURCE.get().context("it did not run")?;
    let told = told.as_ref().map_err(|error| anyhow!("{error}"))?;
    ensure!(
        told.code == 3
            && told
                .stderr
                .contains("does not know ViTTrainingJobs: install the operator"),
        "{told:#?}"
    );
    Ok(())
}

fn namespaces_and_contexts(cluster: &Cluster, _: usize) -> Result<()> {
    for name in ["vit-list-a", "vit-list-b"] {
        namespace(cluster, name)?;
    }
    create(cluster, "vit-list-a", "one")?;
    create(cluster, "vit-list-b", "two")?;
    write_status(cluster, "vit-list-a", "one", running())?;
    let list = vit(cluster, &["list", "-n", "vit-list-a"])?.check(
        0,
        &[
            "NAME",
            "one",
            "Running",
            "25%",
            "15/60",
            "0.7500",
            "600.0",
            "17%",
            "2/2",
            "Tesla-T4",
            "rank 1 is slow",
        ],
    )?;
    ensure!(!list.stdout.contains("two"), "{}", list.stdout);
    let all = vit(cluster, &["list", "-A"])?.check(0, &["NAMESPACE", "vit-list-a", "vit-list-b", "New"])?;
    ensure!(all.stdout.contains("two"), "{}", all.stdout);
    let only = vit(cluster, &["list", "-A", "--phase", "running"])?.check(0, &["one"])?;
    ensure!(!only.stdout.contains("two"), "{}", only.stdout);
    vit(cluster, &["list", "-n", "vit-list-b", "-o", "name"])?
        .check(0, &["vittrainingjob.vit-operator.dev/two\n"])?;
    let json = vit(cluster, &["list", "-A", "-o", "json"])?.check(0, &[])?;
    let list: Value = serde_json::from_str(&json.stdout)?;
    let items = list["items"].as_array().context("no items")?;
    ensure!(
        items
            .iter()
            .any(|job| job["metadata"]["name"] == "one" && job["kind"] == "ViTTrainingJob"),
        "{list:#}"
    );
    vit(cluster, &["list", "-n", "nowhere"])?.check(0, &["No jobs found in namespace nowhere."])?;

    // A second context with the other namespace.
    let folder = TempDir::new()?;
    let file = folder.path().join("config");
    fs_err::copy(cluster.kubeconfig(), &file)?;
    let file = file.to_str().context("the path is not UTF-8")?;
    let read = |path: &str| kubectl(cluster, ["--kubeconfig", file, "config", "view", "-o", path]);
    let name = read("jsonpath={.clusters[0].name}")?;
    let user = read("jsonpath={.users[0].name}")?;
    let (name, user) = (format!("--cluster={name}"), format!("--user={user}"));
    kubectl(
        cluster,
        [
            "--kubeconfig",
            file,
            "config",
            "set-context",
            "second",
            &name,
            &user,
            "--namespace=vit-list-b",
        ],
    )?;
    let second = vit(cluster, &["--kubeconfig", file, "--context", "second", "list"])?.check(0, &["two"])?;
    ensure!(!second.stdout.contains("one"), "{}", second.stdout);
    vit(
        cluster,
        &[
            "list",
            "--kubeconfig",
            file,
            "--context",
            "second",
            "-n",
            "vit-list-a",
        ],
    )?
    .check(0, &["one"])?;
    vit(
        cluster,
        &["why", "two", "--kubeconfig", file, "--context", "second"],
    )?
    .check(0, &["vit-list-b/two", "New"])?;
    Ok(())
}

fn status_and_why(cluster: &Cluster, _: usize) -> Result<()> {
    let place = "vit-status";
    namespace(cluster, place)?;
    create(cluster, place, "digits")?;
    let told = |command: &str, words: &[&str]| {
        vit(cluster, &[command, "digits", "-n", place])?
            .check(0, words)
            .map(drop)
    };
    write_status(cluster, place, "digits", running())?;
    told(
        "status",
        &[
            "vit-status/digits",
            "Running",
            "25%",
            "epoch 15/60",
            "step 700/2700",
            "rank 1 on node2 takes 1.50x",
            "2 nodes x 1 GPU of Tesla-T4",
            "node1",
            "step 675",
        ],
    )?;
    told(
        "why",
        &[
            "It trains",
            "rank 1 on node2 computes 1.50 times",
            "kubectl describe node node2",
        ],
    )?;
    let object = vit(cluster, &["status", "digits", "-n", place, "-o", "yaml"])?.check(0, &[])?;
    let job: crds::ViTTrainingJob = serde_saphyr::from_str(&object.stdout)?;
    ensure!(job.metadata.managed_fields.is_none(), "managedFields are shown");
    vit(cluster, &["status", "digits", "-n", place, "--exit-code"])?.check(5, &["Running"])?;

    let placed = condition(
        "Placed",
        "False",
        "NoFittingGroup",
        "a sentence that nobody parses",
    );
    let mut waits = with(running(), "Pending", placed);
    waits["placement"] = json!({"nodes": null, "group": null, "rejectedGroups": [
        {"group": "Tesla-T4", "nodes": 1, "fittingNodes": 0, "reasons": [{"code": "Cordoned", "nodes": 1, "names": ["node5"]}]}],
        "wait": {"nodes": 2, "position": 2, "waiting": 3, "reservedNodes": 0}});
    waits["workers"] = json!({"desired": 0, "ready": 0, "failed": 0});
    write_status(cluster, place, "digits", waits)?;
    told(
        "status",
        &[
            "Pending",
            "waits for GPUs",
            "position 2 of 3",
            "refused",
            "1 node cordoned (node5)",
            "kubectl vit nodes --job digits -n vit-status",
        ],
    )?;
    told(
        "why",
        &[
            "NoFittingGroup",
            "Tesla-T4 (1 node): 1 node cordoned (node5)",
            "kubectl uncordon node5",
        ],
    )?;
    let why = vit(cluster, &["why", "digits", "-n", place, "-o", "json"])?.check(0, &[])?;
    let why: Value = serde_json::from_str(&why.stdout)?;
    ensure!(
        why["reason"] == "NoFittingGroup" && why["next"][0]["command"].is_string(),
        "{why:#}"
    );

    write_status(cluster, place, "digits", failed())?;
    told(
        "status",
        &[
            "Failed",
            "OutOfMemory in attempt 1, rank 0 on node1 (exit code 77)",
            "no memory",
        ],
    )?;
    told(
        "why",
        &[
            "so it is not tried again",
            "training.microBatchSize",
            "saved up to step 675",
        ],
    )?;
    vit(cluster, &["status", "digits", "-n", place, "--exit-code"])?.check(4, &["Failed"])?;
    let done = with(
        running(),
        "Succeeded",
        condition("Complete", "True", "AllEpochsDone", "every pod succeeded"),
    );
    write_status(cluster, place, "digits", done)?;
    vit(cluster, &["status", "digits", "-n", place, "--exit-code"])?.check(0, &["Succeeded"])?;

    vit(cluster, &["status", "digts", "-n", place])?.check(
        3,
        &["job digts not found in namespace vit-status, which has digits"],
    )?;
    let gone = "the pods of attempt 1 of job digits are gone, and their logs with them";
    vit(cluster, &["logs", "digits", "-n", place])?.check(3, &[gone])?;
    vit(cluster, &["logs", "digits", "-n", place, "--all-ranks"])?.check(3, &[gone])?;
    vit(cluster, &["logs", "digits", "-n", place, "--previous"])?
        .check(3, &["job digits has no previous attempt: it has had 1"])?;
    vit(cluster, &["top", "digits", "-n", place])?.check(3, &["job digits has no running pods"])?;
    vit(cluster, &["top", "-n", place])?.check(0, &["No jobs with running pods found"])?;
    Ok(())
}

fn nodes(cluster: &Cluster, _: usize) -> Result<()> {
    let _nodes = NODES.lock();
    let node = |name: &str, product: &str, gpus: u32, cordoned: bool| -> Result<()> {
        let manifest = json!({"apiVersion": "v1", "kind": "Node", "spec": {"unschedulable": cordoned},
            "metadata": {"name": name, "labels": {"nvidia.com/gpu.product": product, "nvidia.com/gpu.memory": "15360"}}});
        kubectl_input(cluster, ["create", "-f", "-"], &manifest.to_string())?;
        let amounts = json!({"nvidia.com/gpu": gpus.to_string()});
        let patch = json!({"status": {"capacity": amounts, "allocatable": amounts,
            "conditions": [{"type": "Ready", "status": "True"}]}});
        kubectl(
            cluster,
            [
                "patch",
                "node",
                name,
                "--subresource=status",
                "--type=merge",
                "-p",
                &patch.to_string(),
            ],
        )?;
        Ok(())
    };
    for (name, product, gpus, cordoned) in [
        ("plugin-a", "NVIDIA-H200", 8, false),
        ("plugin-b", "NVIDIA-H200", 8, true),
        ("plugin-c", "Tesla-T4", 1, false),
    ] {
        node(name, product, gpus, cordoned)?;
    }
    let told = vit(cluster, &["nodes", "-o", "json"])?.check(0, &[])?;
    let report: Value = serde_json::from_str(&told.stdout)?;
    let groups = report["groups"].as_array().context("no groups")?;
    let of = |product: &str| groups.iter().find(|group| group["gpus"]["product"] == product);
    let h200 = of("NVIDIA-H200").context("the group is missing")?;
    ensure!(
        h200["capacity"] == 16 && h200["nodes"][1]["refused"] == "Cordoned",
        "{h200:#}"
    );
    vit(cluster, &["nodes"])?.check(0, &["NVIDIA-H200", "Tesla-T4", "15 GiB", "cordoned", "plugin-b"])?;
    namespace(cluster, "vit-nodes")?;
    create(cluster, "vit-nodes", "digits")?;
    let placement = r#"{"spec":{"workers":{"nodes":3}}}"#;
    kubectl(
        cluster,
        [
            "-n",
            "vit-nodes",
            "patch",
            "vtj",
            "digits",
            "--type=merge",
            "-p",
            placement,
        ],
    )?;
    vit(cluster, &["nodes", "-n", "vit-nodes", "--job", "digits"])?
        .check(0, &["For vit-nodes/digits, which requests", "cordoned"])?;
    vit(cluster, &["nodes", "--gpu-resource", "amd.com/gpu"])?.check(
        0,
        &["No node has amd.com/gpu.", "there are nodes with nvidia.com/gpu"],
    )?;
    vit(cluster, &["nodes", "--gpus-per-node", "2"])?
        .check(0, &["with fewer GPUs than workers.gpusPerNode"])?;
    for name in ["plugin-a", "plugin-b", "plugin-c"] {
        kubectl(cluster, ["delete", "node", name])?;
    }
    Ok(())
}

fn changes(cluster: &Cluster, _: usize) -> Result<()> {
    let place = "vit-changes";
    namespace(cluster, place)?;
    create(cluster, place, "digits")?;
    let spec = |path: &str| kubectl(cluster, ["-n", place, "get", "vtj", "digits", "-o", path]);
    vit(cluster, &["suspend", "vtj/digits", "-n", place])?.check(0, &["digits is suspending"])?;
    ensure!(spec("jsonpath={.spec.suspend}")? == "true", "not suspended");
    vit(cluster, &["suspend", "digits", "-n", place])?.check(0, &["digits is already suspending"])?;
    vit(cluster, &["resume", "digits", "-n", place])?.check(0, &["digits is resuming"])?;
    ensure!(spec("jsonpath={.spec.suspend}")? == "false", "not resumed");
    vit(cluster, &["scale", "digits", "-n", place, "--nodes", "3"])?.check(
        0,
        &[
            "digits is scaled to 3 nodes",
            "a step now uses 48 images instead of 32",
        ],
    )?;
    ensure!(spec("jsonpath={.spec.workers.nodes}")? == "3", "not scaled");
    let managers = "jsonpath={range .metadata.managedFields[*]}{.manager} {end}";
    let managers = [
        "-n",
        place,
        "get",
        "vtj",
        "digits",
        "--show-managed-fields",
        "-o",
        managers,
    ];
    let managers = kubectl(cluster, managers)?;
    ensure!(managers.contains("kubectl-vit "), "{managers}");
    vit(cluster, &["scale", "digits", "-n", place, "--nodes", "0"])?
        .check(2, &["kubectl vit suspend digits"])?;
    vit(cluster, &["scale", "digits", "-n", place, "--max-nodes", "4"])?
        .check(2, &["is not elastic: give --nodes"])?;
    vit(cluster, &["scale", "digits", "-n", place])?.check(2, &["--nodes"])?;
    vit(
        cluster,
        &["delete", "digits", "-n", place, "--wait", "--timeout", "60"],
    )?
    .check(0, &["\"digits\" deleted"])?;
    vit(cluster, &["delete", "digits", "-n", place])?.check(3, &["job digits not found", "has no jobs"])?;
    vit(cluster, &["delete", "digits", "-n", place, "--ignore-not-found"])?.check(0, &[])?;
    Ok(())
}

/// Starts a command, acts once it has printed `begun`, and returns its result with all output.
fn meanwhile(
    cluster: &Cluster,
    arguments: &[&str],
    begun: &str,
    act: impl FnOnce() -> Result<()>,
) -> Result<Outcome> {
    let vit = command(cluster, arguments)?;
    let mut shell = Command::new("bash");
    shell
        .args(["-c", "exec \"$@\" 2>&1", "--"])
        .arg(vit.get_program())
        .args(vit.get_args());
    for (name, value) in vit.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    let mut child = shell.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let mut reader = BufReader::new(child.stdout.take().context("standard output is not piped")?);
    let mut stdout = String::new();
    while !stdout.contains(begun) {
        ensure!(
            reader.read_line(&mut stdout)? > 0,
            "{begun:?} was not printed: {stdout}"
        );
    }
    act()?;
    reader.read_to_string(&mut stdout)?;
    Ok(Outcome {
        code: child.wait()?.code().context("a signal ended the command")?,
        stdout,
        stderr: String::new(),
    })
}

fn waits(cluster: &Cluster, _: usize) -> Result<()> {
    let place = "vit-waits";
    namespace(cluster, place)?;
    for name in ["parked", "fails", "done", "stays", "gone"] {
        create(cluster, place, name)?;
        write_status(cluster, place, name, running())?;
    }
    let begun = "step 700 of 2700";
    let parked = with(
        running(),
        "Suspended",
        condition("Suspended", "True", "Suspended", "spec.suspend is set"),
    );
    let suspending = ["suspend", "parked", "-n", place, "--wait", "--timeout", "60"];
    meanwhile(cluster, &suspending, begun, || {
        write_status(cluster, place, "parked", parked)
    })?
    .check(
        0,
        &["parked is suspended, saved at step 675 in /checkpoints/digits/step-675"],
    )?;
    let watching = |name| ["watch", name, "-n", place, "--timeout", "60"];
    meanwhile(cluster, &watching("fails"), begun, || {
        write_status(cluster, place, "fails", failed())
    })?
    .check(4, &["fails: Failed", "job fails failed: attempt 1: OutOfMemory"])?;
    let done = with(
        running(),
        "Succeeded",
        condition("Complete", "True", "AllEpochsDone", "every pod succeeded"),
    );
    meanwhile(cluster, &watching("done"), begun, || {
        write_status(cluster, place, "done", done)
    })?
    .check(0, &["done: Succeeded"])?;
    meanwhile(cluster, &watching("gone"), begun, || {
        kubectl(cluster, ["-n", place, "delete", "vtj", "gone"]).map(drop)
    })?
    .check(3, &["job gone was deleted"])?;
    vit(cluster, &["watch", "stays", "-n", place, "--timeout", "3"])?
        .check(5, &["timed out after 3s waiting for its end: stays: Running"])?;
    vit(cluster, &["watch", "nobody", "-n", place])?.check(3, &["job nobody not found"])?;
    Ok(())
}

fn run(cluster: &Cluster, _: usize) -> Result<()> {
    let place = "vit-run";
    namespace(cluster, place)?;
    let words = |more: &'static [&'static str]| -> Vec<&'static str> {
        let least = [
            "run",
            "cifar10",
            "-n",
            "vit-run",
            "--image",
            "vit-trainer:dev",
            "--model",
            "vit_tiny_patch16_224",
            "--format",
            "cifar10",
            "--data",
            "pvc:cifar10",
            "--epochs",
            "5",
            "--micro-batch-size",
            "64",
            "--checkpoints",
            "pvc:checkpoints",
        ];
        least.iter().chain(more).copied().collect()
    };
    let printed = vit(cluster, &words(&["--dry-run=client", "--nodes", "4"]))?.check(
        0,
        &["# Defaults that apply", "# training.optimizer.weightDecay: 0.05"],
    )?;
    let made = kubectl_input(
        cluster,
        ["create", "--dry-run=server", "-o", "name", "-f", "-"],
        &printed.stdout,
    )?;
    ensure!(made.contains("cifar10"), "{made}");
    let stored = vit(cluster, &words(&["--dry-run=server", "-o", "json"]))?.check(0, &[])?;
    let stored: Value = serde_json::from_str(&stored.stdout)?;
    ensure!(stored["spec"]["failurePolicy"]["maxRestarts"] == 5, "{stored:#}");
    vit(cluster, &["list", "-n", place])?.check(0, &["No jobs found"])?;
    vit(cluster, &words(&["--set", "training.schedule.warmupEpochs=1"]))?.check(
        0,
        &[
            "vittrainingjob.vit-operator.dev/cifar10 created",
            "64 images a step",
            "kubectl vit watch cifar10 -n vit-run",
        ],
    )?;
    let warmup = "jsonpath={.spec.training.schedule.warmupEpochs}";
    ensure!(
        kubectl(cluster, ["-n", place, "get", "vtj", "cifar10", "-o", warmup])? == "1",
        "warmupEpochs was not set"
    );
    vit(cluster, &words(&[]))?.check(1, &["there is one of that name in namespace vit-run, and is New"])?;
    vit(cluster, &words(&["--set", "training.epochs=0"]))?.check(2, &["spec.training.epochs is 0"])?;
    vit(cluster, &words(&["--set", "training.epoch=1"]))?
        .check(2, &["spec.training.epoch: unknown field `epoch`"])?;
    // Only the server knows that the namespace is missing.
    let mut nowhere = words(&[]);
    nowhere[3] = "nowhere";
    vit(cluster, &nowhere)?.check(3, &["namespaces \"nowhere\" not found"])?;
    // A client-side dry run needs no server.
    ended(command(cluster, &words(&["--dry-run=client"]))?.env("KUBECONFIG", "/dev/null"))?
        .check(0, &["kind: ViTTrainingJob"])?;
    Ok(())
}

fn forbidden(cluster: &Cluster, _: usize) -> Result<()> {
    let place = "vit-rights";
    namespace(cluster, place)?;
    create(cluster, place, "digits")?;
    write_status(cluster, place, "digits", running())?;
    vit(cluster, &["list", "-n", place, "--as", "stranger"])?
        .check(1, &["cannot list jobs", "User \"stranger\" cannot list resource"])?;
    vit(cluster, &["nodes", "--as", "stranger"])?.check(1, &["cannot list nodes"])?;
    kubectl(
        cluster,
        [
            "-n",
            place,
            "create",
            "role",
            "reader",
            "--verb=get,list,watch",
            "--resource=vittrainingjobs.vit-operator.dev",
        ],
    )?;
    kubectl(
        cluster,
        [
            "-n",
            place,
            "create",
            "rolebinding",
            "reader",
            "--role=reader",
            "--user=reader",
        ],
    )?;
    // The server needs a moment to apply a new role.
    until(|| {
        vit(cluster, &["status", "digits", "-n", place, "--as", "reader"])?
            .check(0, &["25%", "not shown", "cannot list resource \"pods\""])
            .map(drop)
    })?;
    vit(cluster, &["suspend", "digits", "-n", place, "--as", "reader"])?
        .check(1, &["cannot change job digits", "cannot patch resource"])?;
    vit(cluster, &["logs", "digits", "-n", place, "--as", "reader"])?
        .check(1, &["cannot list the job's pods"])?;
    vit(cluster, &["list", "-n", place, "--as-group", "a"])?.check(2, &["--as"])?;
    Ok(())
}

fn unreachable(cluster: &Cluster, _: usize) -> Result<()> {
    let folder = TempDir::new()?;
    let file = folder.path().join("config");
    let config = json!({"apiVersion": "v1", "kind": "Config", "current-context": "nobody",
        "clusters": [{"name": "nobody", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [{"name": "nobody", "user": {}}],
        "contexts": [{"name": "nobody", "context": {"cluster": "nobody", "user": "nobody"}}]});
    fs_err::write(&file, config.to_string())?;
    let file = file.to_str().context("the path is not UTF-8")?;
    vit(cluster, &["list", "--kubeconfig", file])?.check(
        1,
        &["cannot reach the API server at http://127.0.0.1:1", "refused"],
    )?;
    vit(cluster, &["list", "--kubeconfig", file, "--context", "other"])?
        .check(1, &["kubeconfig", "other"])?;
    vit(cluster, &["list", "--kubeconfig", "/nowhere/config"])?
        .check(1, &["kubeconfig", "/nowhere/config"])?;
    vit(cluster, &["lists"])?.check(2, &["list"])?;
    Ok(())
}

fn pipes(cluster: &Cluster, _: usize) -> Result<()> {
    let place = "vit-pipes";
    namespace(cluster, place)?;
    create(cluster, place, "digits")?;
    write_status(cluster, place, "digits", running())?;
    // More output than a pipe can buffer, to a reader that stops.
    let kubectl = cluster.binaries().path("kubectl");
    let script = format!(
        "set -o pipefail; for i in $(seq 20); do '{}' vit status digits -n {place} -o yaml || echo \"failed: $?\" >&2; done | head -1",
        kubectl.display()
    );
    let path = std::env::var("PATH").unwrap_or_default();
    let mut shell = Command::new("bash");
    shell
        .args(["-c", &script])
        .env("KUBECONFIG", cluster.kubeconfig())
        .env("PATH", format!("{}:{path}", binaries()?.display()));
    let piped = ended(&mut shell)?;
    ensure!(piped.stderr.is_empty(), "{piped:#?}");
    let plain = vit(cluster, &["status", "digits", "-n", place])?.check(0, &[])?;
    ensure!(!plain.stdout.contains('\u{1b}'), "colored: {}", plain.stdout);
    let forced = ended(command(cluster, &["status", "digits", "-n", place])?.env("CLICOLOR_FORCE", "1"))?
        .check(0, &[])?;
    ensure!(forced.stdout.contains('\u{1b}'), "not colored: {}", forced.stdout);
    Ok(())
}

fn completion(cluster: &Cluster, _: usize) -> Result<()> {
    let place = "vit-complete";
    namespace(cluster, place)?;
    for name in ["digits", "cifar10"] {
        create(cluster, place, name)?;
    }
    let folder = TempDir::new()?;
    let built = binaries()?.join("kubectl-vit");
    std::os::unix::fs::symlink(&built, folder.path().join("kubectl_complete-vit"))?;
    std::os::unix::fs::symlink(&built, folder.path().join("kubectl-vit"))?;
    let proposed = |words: &[&str]| -> Result<Outcome> {
        let path = std::env::var("PATH").unwrap_or_default();
        let mut kubectl = cluster.kubectl();
        kubectl
            .env("PATH", format!("{}:{path}", folder.path().display()))
            .args(["__complete", "vit"])
            .args(words);
        ended(&mut kubectl)
    };
    proposed(&["status", "-n", place, ""])?.check(0, &["digits\tNew", "cifar10\tNew", ":4"])?;
    let one = proposed(&["logs", "-n", place, "di"])?.check(0, &["digits"])?;
    ensure!(!one.stdout.contains("cifar10"), "{}", one.stdout);
    proposed(&["sus"])?.check(0, &["suspend\tCheckpoint and stop jobs"])?;
    proposed(&["status", "-n", "nowhere", ""])?.check(0, &[":4"])?;
    Ok(())
}
