//! The CRDs on a real API server: validation messages, defaults, `kubectl` output, and the
//! operator's requests. Needs root (the server runs in its own network namespace), but no nodes.
//!
//! `VIT_KUBERNETES=1.30` tests the API server of that version.

mod chart;
mod operator;
mod plugin;
mod proxy;
mod rules;

use std::io::Write as _;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use crds::ViTScalingStudy;
use libtest_mimic::{Arguments, Trial};
use serde_json::{Value, json};
use tokio::runtime::Handle;
use vit_tests::documentation::{self, manifests};
use vit_tests::progress::say;
use vit_tests::{Cluster, ClusterConfig, binaries, cluster, command};

const VALID: &str = include_str!("../../../examples/digits.yaml");
const CRD: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../charts/vit-operator/files/vittrainingjobs.yaml"
);
const STUDY_CRD: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../charts/vit-operator/files/vitscalingstudies.yaml"
);

/// Snapshots of pods from the operator's tests.
const BUILT_PODS: [&str; 2] = [
    include_str!("../../../operator/src/build/snapshots/vit_operator__build__tests__a_pod_of_a_gang.snap"),
    include_str!(
        "../../../operator/src/build/snapshots/vit_operator__build__tests__a_pod_with_everything_that_can_be_set.snap"
    ),
];
/// Objects that these pods need.
const NAMED_BY_PODS: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: research}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: default, namespace: research}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: trainer, namespace: research}
---
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: batch}
value: 7
---
apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata: {name: nvidia}
handler: nvidia
";

/// Held by a test while its nodes exist.
static NODES: Mutex<()> = Mutex::new(());

/// Changes to the valid manifest, and what the error must contain.
const REFUSED: &[(&str, &str, &str, &[&str])] = &[
    (
        "a count below its bound",
        "epochs: 40",
        "epochs: 0",
        &["spec.training.epochs", "greater than or equal to 1"],
    ),
    (
        "a negative count",
        "epochs: 40",
        "epochs: -1",
        &["spec.training.epochs", "-1", "greater than or equal to 1"],
    ),
    (
        "a count above its bound",
        "nodes: 2",
        "nodes: 5000",
        &["spec.workers.nodes", "less than or equal to 4096"],
    ),
    (
        "a word for a number",
        "epochs: 40",
        "epochs: many",
        &["spec.training.epochs", "integer"],
    ),
    (
        "an unknown choice",
        "format: cifar10",
        "format: cifar11",
        &["spec.data.format", "cifar11", "\"cifar10\""],
    ),
    (
        "an unknown field",
        "epochs: 40",
        "epochs: 40\n    epoch: 1",
        &["unknown field \"spec.training.epoch\""],
    ),
    (
        "a source of volumes that CSI has replaced",
        "gpusPerNode: 1",
        "gpusPerNode: 1\n    volumes: [{name: old, gitRepo: {repository: a}}]",
        &["unknown field \"spec.workers.volumes[0].gitRepo\""],
    ),
    (
        "a missing field",
        "  image: localhost/vit-trainer:dev\n",
        "",
        &["spec.image", "Required"],
    ),
];

fn main() -> Result<()> {
    let arguments = Arguments::from_args();
    if arguments.list {
        libtest_mimic::run(&arguments, trials(None)?).exit();
    }
    let runtime = tokio::runtime::Runtime::new()?;
    let name = "api".parse()?;
    cluster::down(&name)?;
    let config = ClusterConfig {
        api_server: std::env::var("VIT_KUBERNETES").ok(),
        ..ClusterConfig::control_plane(name)
    };
    let cluster = Arc::new(runtime.block_on(Cluster::up(config))?);
    let version = runtime.block_on(cluster.client().apiserver_version())?;
    say(format_args!("the API server is {}", version.git_version));
    let _entered = runtime.enter();
    plugin::try_without_resource(&cluster);
    operator::start(&cluster)?;
    documented(&cluster)?;
    // Examples and pages also have Kueue's objects, in teams' namespaces.
    let kueue = binaries::kueue_source()?.join("config/components/crd/bases");
    let kueue = kueue.display().to_string();
    kubectl(&cluster, ["apply", "--server-side", "-f", &kueue])?;
    // `kubectl wait` fails while a CRD has no conditions.
    until(|| {
        kubectl(
            &cluster,
            [
                "wait",
                "--for=condition=Established",
                "crd",
                "--all",
                "--timeout=30s",
            ],
        )
        .map(drop)
    })?;
    kubectl(&cluster, ["create", "namespace", "team-a"])?;
    let conclusion = libtest_mimic::run(&arguments, trials(Some(&cluster))?);
    cluster::down(cluster.name())?;
    let left = cluster::leftovers(cluster.name())?;
    ensure!(left.is_empty(), "the cluster left behind: {}", left.join(", "));
    conclusion.exit();
}

/// Time limit for the server to serve a kind or apply a right.
const DEADLINE: Duration = Duration::from_secs(30);

/// Retries until there is no error.
fn until(mut outcome: impl FnMut() -> Result<()>) -> Result<()> {
    let began = Instant::now();
    loop {
        match outcome() {
            Ok(()) => return Ok(()),
            Err(error) if began.elapsed() > DEADLINE => return Err(error),
            Err(_) => std::thread::sleep(Duration::from_millis(200)),
        }
    }
}

/// Waits until the server serves and documents the resources.
fn documented(cluster: &Cluster) -> Result<()> {
    let crds = [
        "crd/vittrainingjobs.vit-operator.dev",
        "crd/vitscalingstudies.vit-operator.dev",
    ];
    until(|| {
        // `kubectl wait` fails while a CRD has no conditions.
        kubectl(
            cluster,
            [
                "wait",
                "--for=condition=Established",
                crds[0],
                crds[1],
                "--timeout=30s",
            ],
        )?;
        kubectl(cluster, ["api-resources", "--cached=false"])?;
        kubectl(cluster, ["explain", "vtj"])?;
        kubectl(cluster, ["explain", "vits"]).map(drop)
    })
    .context("the resource is not documented")
}

fn trials(cluster: Option<&Arc<Cluster>>) -> Result<Vec<Trial>> {
    // Trials run in separate threads.
    let runtime = Handle::try_current().ok();
    let trial = |name: String, test: fn(&Cluster, usize) -> Result<()>, index: usize| {
        let (cluster, runtime) = (cluster.cloned(), runtime.clone());
        Trial::test(name, move || {
            let _entered = runtime.as_ref().map(Handle::enter);
            let cluster = cluster.ok_or("the cluster exists only while tests run")?;
            test(&cluster, index).map_err(|error| format!("{error:#}").into())
        })
    };
    let mut trials = vec![
        trial(
            "valid_manifest_is_accepted_and_defaults_are_filled_in".into(),
            defaults,
            0,
        ),
        trial("explain_reads_like_documentation".into(), explain, 0),
        trial("every_rule_has_a_case".into(), rules::every_rule_has_a_case, 0),
        trial("built_pods_are_valid".into(), built_pods, 0),
        trial("scale_changes_the_number_of_nodes".into(), scale, 0),
        trial(
            "suspend_bounds_and_time_to_live_can_be_changed".into(),
            mutable,
            0,
        ),
        trial(
            "a_status_that_changes_nothing_keeps_its_version".into(),
            versions,
            0,
        ),
        trial("operator_runs_a_job".into(), operator::runs_a_job, 0),
        trial(
            "operator_waits_without_pods_for_a_quota".into(),
            operator::waits_without_pods_for_a_quota,
            0,
        ),
        trial(
            "operator_counts_what_admission_adds".into(),
            operator::counts_what_admission_adds,
            0,
        ),
        trial(
            "operator_divides_more_after_a_rank_ran_out_of_memory".into(),
            operator::divides_more_after_a_rank_ran_out_of_memory,
            0,
        ),
        trial(
            "operator_notices_that_its_connections_are_dead".into(),
            operator::notices_that_its_connections_are_dead,
            0,
        ),
        trial(
            "operator_keeps_what_a_later_version_wrote".into(),
            operator::keeps_what_a_later_version_wrote,
            0,
        ),
        trial(
            "manifests_of_the_chart_are_valid".into(),
            chart::manifests_are_valid,
            0,
        ),
        trial(
            "notes_of_the_chart_fit_its_values".into(),
            chart::notes_fit_the_values,
            0,
        ),
        trial(
            "owned_objects_take_the_right_to_finalizers".into(),
            chart::owned_objects_take_the_right_to_finalizers,
            0,
        ),
    ];
    for (name, test) in plugin::TESTS {
        trials.push(trial((*name).into(), *test, 0));
    }
    for (index, (what, ..)) in REFUSED.iter().enumerate() {
        trials.push(trial(format!("refused: {what}"), refused, index));
    }
    for (index, case) in rules::cases()?.iter().enumerate() {
        trials.push(trial(format!("rule: {case}"), rules::is_refused, index));
    }
    let examples = documentation::examples()?;
    for (index, path) in examples.iter().enumerate() {
        let name = path.file_name().unwrap_or_default().display();
        trials.push(trial(format!("applied: examples/{name}"), example, index));
    }
    for (index, path) in documentation::studies()?.iter().enumerate() {
        let name = path.file_name().unwrap_or_default().display();
        trials.push(trial(format!("applied: examples/studies/{name}"), study, index));
    }
    for (index, page) in documentation::pages()?.iter().enumerate() {
        if page.blocks.iter().any(|block| block.language() == "yaml") {
            trials.push(trial(
                format!("accepted: {}", page.path.display()),
                page_of,
                index,
            ));
        }
    }
    Ok(trials)
}

fn kubectl<const N: usize>(cluster: &Cluster, arguments: [&str; N]) -> Result<String> {
    command::run(cluster.kubectl().args(arguments))
}

/// `kubectl` with a manifest on its standard input.
fn kubectl_input<const N: usize>(cluster: &Cluster, arguments: [&str; N], manifest: &str) -> Result<String> {
    let mut kubectl = cluster.kubectl();
    kubectl
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = kubectl.spawn()?;
    child
        .stdin
        .take()
        .context("standard input is piped")?
        .write_all(manifest.as_bytes())?;
    let output = child.wait_with_output()?;
    ensure!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn changed(from: &str, to: &str) -> Result<String> {
    ensure!(VALID.contains(from), "{from:?} is not in examples/digits.yaml");
    Ok(VALID.replacen(from, to, 1))
}

fn refused(cluster: &Cluster, index: usize) -> Result<()> {
    let (_, from, to, parts) = REFUSED[index];
    let manifest = changed(from, to)?;
    let outcome = kubectl_input(cluster, ["create", "--dry-run=server", "-f", "-"], &manifest);
    let Err(error) = outcome else {
        anyhow::bail!("the API server accepted\n{manifest}")
    };
    let message = format!("{error:#}");
    for part in parts {
        ensure!(
            message.contains(part),
            "{part:?} is not in the refusal:\n{message}"
        );
    }
    Ok(())
}

fn defaults(cluster: &Cluster, _: usize) -> Result<()> {
    let stored = kubectl_input(
        cluster,
        ["create", "--dry-run=server", "-o", "json", "-f", "-"],
        VALID,
    )?;
    let job: Value = serde_json::from_str(&stored)?;
    let spec = &job["spec"];
    ensure!(
        spec["failurePolicy"]["maxRestarts"] == 5,
        "maxRestarts: {}",
        spec["failurePolicy"]
    );
    ensure!(
        spec["training"]["optimizer"]["weightDecay"] == 0.05,
        "{}",
        spec["training"]
    );
    ensure!(
        spec["workers"]["gpuResource"] == "nvidia.com/gpu",
        "{}",
        spec["workers"]
    );
    ensure!(
        spec["checkpoint"]["path"] == "/checkpoints",
        "{}",
        spec["checkpoint"]
    );
    let job: crds::ViTTrainingJob = serde_json::from_value(job)?;
    crds::validate(&job)?;
    Ok(())
}

/// The API server accepts the pods of the operator's snapshots.
fn built_pods(cluster: &Cluster, _: usize) -> Result<()> {
    kubectl_input(cluster, ["apply", "--server-side", "-f", "-"], NAMED_BY_PODS)?;
    for snapshot in BUILT_PODS {
        let (_, pod) = snapshot
            .split_once("\n---\n")
            .context("the snapshot has no header")?;
        // The server needs a moment to know a new priority class.
        until(|| {
            let create = ["create", "--dry-run=server", "--validate=strict", "-f", "-"];
            kubectl_input(cluster, create, pod).map(drop)
        })?;
    }
    Ok(())
}

fn explain(cluster: &Cluster, _: usize) -> Result<()> {
    let text = kubectl(cluster, ["explain", "vtj.spec.training"])?;
    for part in [
        "epochs\t<integer> -required-",
        "epochs is the number of passes over the training images",
        "microBatchSize",
    ] {
        ensure!(text.contains(part), "{part:?} is not in:\n{text}");
    }
    for spec in ["vtj.spec", "vits.spec.template.spec"] {
        let all = kubectl(cluster, ["explain", spec, "--recursive"])?;
        ensure!(all.contains("persistentVolumeClaim"), "{all}");
    }
    Ok(())
}

fn scale(cluster: &Cluster, _: usize) -> Result<()> {
    kubectl_input(
        cluster,
        ["create", "-f", "-"],
        &VALID.replacen("name: digits\n", "name: scaled\n", 1),
    )?;
    kubectl(cluster, ["scale", "vtj/scaled", "--replicas=3"])?;
    let nodes = kubectl(
        cluster,
        ["get", "vtj/scaled", "-o", "jsonpath={.spec.workers.nodes}"],
    )?;
    ensure!(nodes == "3", "nodes: {nodes}");
    Ok(())
}

fn mutable(cluster: &Cluster, _: usize) -> Result<()> {
    kubectl_input(
        cluster,
        ["create", "-f", "-"],
        &VALID.replacen("name: digits\n", "name: mutable\n", 1),
    )?;
    let patch = r#"{"spec":{"suspend":true,"ttlSecondsAfterFinished":5,"elastic":{}}}"#;
    kubectl(cluster, ["patch", "vtj/mutable", "--type=merge", "-p", patch])?;
    let bounds = r#"{"spec":{"elastic":{"minNodes":2,"maxNodes":8}}}"#;
    kubectl(cluster, ["patch", "vtj/mutable", "--type=merge", "-p", bounds])?;
    let none = r#"{"spec":{"elastic":null}}"#;
    kubectl(cluster, ["patch", "vtj/mutable", "--type=merge", "-p", none])?;
    let more = r#"{"spec":{"failurePolicy":{"maxRestarts":9},"activeDeadlineSeconds":60}}"#;
    kubectl(cluster, ["patch", "vtj/mutable", "--type=merge", "-p", more])?;
    // What the next attempt reads can be changed while there is no gang.
    let edits = ["Suspended", "Failed", "Suspending", "Running"].map(|phase| {
        let status = json!({"phase": phase, "attempt": 1, "restarts": 0, "restartsSinceCheckpoint": 0});
        let status = json!({"status": status}).to_string();
        let of_status = [
            "patch",
            "vtj/mutable",
            "--subresource=status",
            "--type=merge",
            "-p",
            &status,
        ];
        kubectl(cluster, of_status)?;
        let edit = json!({"spec": {
            "image": format!("for-{}", phase.to_lowercase()), "training": {"epochs": phase.len()},
            "workers": {"resources": {"limits": {"memory": "1Gi"}}},
        }});
        let edit = edit.to_string();
        Ok(kubectl(cluster, ["patch", "vtj/mutable", "--type=merge", "-p", &edit]).is_ok())
    });
    let edits = edits.into_iter().collect::<Result<Vec<bool>>>()?;
    ensure!(edits == [true, true, false, false], "{edits:?}");
    let managed = r#"{"spec":{"managedBy":"example.com/other"}}"#;
    let patched = kubectl(cluster, ["patch", "vtj/mutable", "--type=merge", "-p", managed]);
    ensure!(patched.is_err(), "managedBy was changed");
    Ok(())
}

/// The rule that the operator relies on after a write without an answer: only a later version rules
/// out that it is stored after all, and a status that changes nothing does not make one.
fn versions(cluster: &Cluster, _: usize) -> Result<()> {
    let manifest = VALID.replacen("name: digits\n", "name: versions\n", 1);
    let created = kubectl_input(cluster, ["create", "-o", "json", "-f", "-"], &manifest)?;
    let created: Value = serde_json::from_str(&created)?;
    let write = |over: &Value, attempt: i32| -> Result<Value> {
        let mut job = over.clone();
        job["status"] =
            json!({"phase": "Pending", "attempt": attempt, "restarts": 0, "restartsSinceCheckpoint": 0});
        let replace = ["replace", "--subresource=status", "-o", "json", "-f", "-"];
        Ok(serde_json::from_str(&kubectl_input(
            cluster,
            replace,
            &job.to_string(),
        )?)?)
    };
    let version = |job: &Value| job["metadata"]["resourceVersion"].clone();
    let first = write(&created, 0)?;
    ensure!(version(&first) != version(&created), "{first}");
    let same = write(&first, 0)?;
    ensure!(version(&same) == version(&first), "{same} after {first}");
    write(&same, 1)?;
    let Err(refusal) = write(&first, 0) else {
        anyhow::bail!("the API server stored a status over a later version")
    };
    ensure!(
        format!("{refusal:#}").contains("has been modified"),
        "{refusal:#}"
    );
    Ok(())
}

/// An example is accepted unchanged, with strict validation.
fn example(cluster: &Cluster, index: usize) -> Result<()> {
    let examples = documentation::examples()?;
    let path = examples.get(index).context("no example")?.display().to_string();
    kubectl(cluster, ["create", "namespace", &format!("example-{index}")])?;
    let namespace = format!("--namespace=example-{index}");
    let applied = kubectl(cluster, ["apply", "--validate=strict", &namespace, "-f", &path])?;
    ensure!(
        applied.contains("vittrainingjob.vit-operator.dev/") && applied.contains(" created"),
        "{applied}"
    );
    Ok(())
}

/// A study is accepted unchanged, and the stored one, with its defaults, plans the same runs.
fn study(cluster: &Cluster, index: usize) -> Result<()> {
    let studies = documentation::studies()?;
    let path = studies.get(index).context("no study")?;
    kubectl(cluster, ["create", "namespace", &format!("study-{index}")])?;
    let namespace = format!("--namespace=study-{index}");
    let file = path.display().to_string();
    let stored = kubectl(
        cluster,
        [
            "apply",
            "--validate=strict",
            "-o",
            "json",
            &namespace,
            "-f",
            &file,
        ],
    )?;
    let stored: ViTScalingStudy = serde_json::from_str(&stored)?;
    let written: ViTScalingStudy = serde_saphyr::from_str(&fs_err::read_to_string(path)?)?;
    let (stored, written) = (study::plan(&stored.spec)?, study::plan(&written.spec)?);
    ensure!(
        stored == written,
        "the stored study plans {stored:?} instead of {written:?}"
    );
    Ok(())
}

/// The server accepts the objects of a page.
fn page_of(cluster: &Cluster, index: usize) -> Result<()> {
    let pages = documentation::pages()?;
    let page = pages.get(index).context("no page")?;
    for block in &page.blocks {
        for manifest in manifests::of_block(block)? {
            use manifests::Manifest::{Job, Other, Study};
            let (Job(object) | Study(object) | Other(object)) = manifest else {
                continue;
            };
            kubectl_input(
                cluster,
                // An example may have created it already.
                [
                    "apply",
                    "--server-side",
                    "--force-conflicts",
                    "--dry-run=server",
                    "--validate=strict",
                    "-f",
                    "-",
                ],
                &object.to_string(),
            )
            .with_context(|| format!("{}:{}", page.path.display(), block.line))?;
        }
    }
    Ok(())
}
