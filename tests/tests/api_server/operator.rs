//! The operator's requests from a job's creation to its deletion, with the chart's rights. There
//! are no kubelets: the test writes the pods' status.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use contract::RunConfig;
use contract::environment::RUN_CONFIG_PATH;
use crds::conditions::reasons;
use serde_json::{Value, json};
use tokio::runtime::Handle;
use vit_tests::command::tail_of_file;
use vit_tests::operator::{self, OPERATOR};
use vit_tests::progress::say;
use vit_tests::{Cluster, GpuProduct, kwok};

use super::proxy::Proxy;
use super::{NODES, VALID, kubectl, kubectl_input, until};

/// The operator's namespace for jobs.
const NAMESPACE: &str = "operated";
const PODS: [&str; 2] = ["pod/digits-1-0", "pod/digits-1-1"];

/// Between the operator and the API server.
static PROXY: OnceLock<Proxy> = OnceLock::new();

/// Installs the chart, and starts the operator before the API server serves Kueue's kinds.
pub(crate) fn start(cluster: &Cluster) -> Result<()> {
    kubectl(cluster, ["create", "namespace", NAMESPACE])?;
    let namespace = format!("namespace={NAMESPACE}");
    operator::install(cluster, &["replicaCount=0".to_owned(), namespace.clone()])?;
    let program = vit_tests::root().join("target/debug/vit-operator");
    let (server, host) = (cluster.state().addresses().api(), cluster.host_address());
    let proxy = Proxy::before((server, 6443).into(), (host, 0).into());
    let proxy = Handle::current().block_on(proxy)?;
    let proxy = PROXY.get_or_init(|| proxy);
    operator::start(
        cluster,
        &program,
        Some(proxy.address),
        &[format!("--{namespace}")],
    )
}

/// Runs `kubectl` in [`NAMESPACE`].
struct Operated<'a>(&'a Cluster);

impl Operated<'_> {
    fn run(&self, arguments: &[&str]) -> Result<String> {
        self.0
            .kubectl_output(&[&["--namespace", NAMESPACE], arguments].concat())
    }

    fn wait(&self, what: &str, objects: &[&str]) -> Result<()> {
        objects.iter().try_for_each(|object| {
            self.run(&["wait", object, &format!("--for={what}"), "--timeout=60s"])
                .with_context(|| {
                    self.run(&["get", "vtj", "--output=jsonpath={.items[*].status}"])
                        .unwrap_or_default()
                })
                .map(drop)
        })
    }

    /// Writes the status of pods whose containers are in this state.
    fn play(&self, pods: &[&str], phase: &str, state: &Value) -> Result<()> {
        let is_ready = if phase == "Running" { "True" } else { "False" };
        let patch = json!({"status": {
            "phase": phase,
            "conditions": [{"type": "Ready", "status": is_ready}],
            "containerStatuses": [{"name": "trainer", "image": "a", "imageID": "", "ready": true, "restartCount": 0, "state": state}],
        }});
        let patch = patch.to_string();
        let patch = ["patch", "--subresource=status", "--type=merge", "--patch", &patch];
        self.run(&[&patch[..], pods].concat()).map(drop)
    }
}

fn ended(exit_code: u8) -> Value {
    json!({"terminated": {"exitCode": exit_code, "startedAt": null, "finishedAt": null}})
}

pub(crate) fn runs_a_job(cluster: &Cluster, _: usize) -> Result<()> {
    let _nodes = NODES.lock();
    Handle::current().block_on(kwok::add_nodes(&cluster.client(), 2, &GpuProduct::TESLA_T4, 1))?;
    let operated = Operated(cluster);
    kubectl_input(cluster, ["--namespace", NAMESPACE, "create", "-f", "-"], VALID)?;
    operated.wait("create", &PODS)?;
    operated.play(&PODS, "Running", &json!({"running": {}}))?;
    operated.wait("jsonpath={.status.phase}=Running", &["vtj/digits"])?;
    let owned = ["service/digits", "configmap/digits-1", "networkpolicy/digits"];
    operated.run(&[&["get"], &owned[..]].concat())?;
    operated.play(&PODS, "Succeeded", &ended(0))?;
    operated.wait("jsonpath={.status.phase}=Succeeded", &["vtj/digits"])?;

    operated.run(&["delete", "vtj/digits"])?;
    operated.wait("delete", &[&PODS[..], &owned[..]].concat())?;
    let events = operated.run(&["get", "events", "--output=jsonpath={.items[*].reason}"])?;
    for reason in [
        reasons::GANG_FITS,
        reasons::ALL_PODS_READY,
        reasons::ALL_EPOCHS_DONE,
    ] {
        ensure!(
            events.split(' ').any(|event| event == reason),
            "{reason} is not in {events}"
        );
    }
    let holder = "jsonpath={.spec.holderIdentity}";
    let holder = kubectl(cluster, ["get", "lease", OPERATOR, "-n", OPERATOR, "-o", holder])?;
    ensure!(!holder.is_empty(), "nobody holds the lease");
    kubectl(cluster, ["delete", "nodes", "--selector=nvidia.com/gpu.count=1"]).map(drop)
}

pub(crate) fn divides_more_after_a_rank_ran_out_of_memory(cluster: &Cluster, _: usize) -> Result<()> {
    let _nodes = NODES.lock();
    Handle::current().block_on(kwok::add_nodes(&cluster.client(), 2, &GpuProduct::TESLA_T4, 1))?;
    let operated = Operated(cluster);
    let job = VALID.replace("\nspec:\n", "\nspec:\n  parallelism: {strategy: Auto}\n");
    kubectl_input(cluster, ["--namespace", NAMESPACE, "create", "-f", "-"], &job)?;
    let status = || -> Result<Value> {
        let job = operated.run(&["get", "vtj/digits", "--output=json"])?;
        Ok(serde_json::from_str::<Value>(&job)?["status"].take())
    };
    operated.wait("create", &PODS)?;
    operated.play(&PODS, "Running", &json!({"running": {}}))?;
    operated.wait("jsonpath={.status.phase}=Running", &["vtj/digits"])?;
    let first = status()?["placement"]["strategy"].take();
    let mut out_of_memory = ended(77);
    let failure = json!({"rank": 1, "exitCode": 77, "class": "OutOfMemory", "memory": "GPU", "message": "CUDA out of memory"});
    out_of_memory["terminated"]["message"] = json!(json!({"failure": failure}).to_string());
    operated.play(&PODS[1..], "Failed", &out_of_memory)?;
    let next = ["pod/digits-2-0", "pod/digits-2-1"];
    operated.wait("create", &next)?;
    let status = status()?;
    let second = &status["placement"]["strategy"];
    ensure!(status["outOfMemory"] == first, "{status}");
    let mebibytes = |strategy: &Value| strategy["memoryMebibytes"].as_i64();
    ensure!(
        mebibytes(second) < mebibytes(&first) && mebibytes(second).is_some(),
        "{second} after {first}"
    );
    let config = operated.run(&["get", "configmap/digits-2", "--output=json"])?;
    let config: Value = serde_json::from_str(&config)?;
    let (_, key) = RUN_CONFIG_PATH.rsplit_once('/').unwrap_or_default();
    let config = config["data"][key].as_str().unwrap_or_default();
    let config: RunConfig = serde_json::from_str(config)?;
    ensure!(second["zeroStage"] == config.parallelism.zero_stage, "{config:?}");

    operated.run(&["delete", "vtj/digits"])?;
    operated.wait("delete", &next)?;
    kubectl(cluster, ["delete", "nodes", "--selector=nvidia.com/gpu.count=1"]).map(drop)
}

pub(crate) fn waits_without_pods_for_a_quota(cluster: &Cluster, _: usize) -> Result<()> {
    let _nodes = NODES.lock();
    Handle::current().block_on(kwok::add_nodes(&cluster.client(), 2, &GpuProduct::TESLA_T4, 1))?;
    let operated = Operated(cluster);
    operated.run(&["create", "quota", "gpus", "--hard=requests.nvidia.com/gpu=1"])?;
    // It has no effect until a controller has counted pods.
    operated.wait(
        r"jsonpath={.status.hard.requests\.nvidia\.com/gpu}=1",
        &["resourcequota/gpus"],
    )?;
    kubectl_input(cluster, ["--namespace", NAMESPACE, "create", "-f", "-"], VALID)?;
    let reason = r#"jsonpath={.status.conditions[?(@.type=="Placed")].reason}=QuotaExceeded"#;
    operated.wait(reason, &["vtj/digits"])?;
    operated.wait("delete", &PODS)?;
    let status = || -> Result<Value> {
        let job = operated.run(&["get", "vtj/digits", "--output=json"])?;
        Ok(serde_json::from_str::<Value>(&job)?["status"].take())
    };
    let waiting = status()?;
    ensure!(
        waiting["phase"] == "Pending" && waiting["restarts"] == 0,
        "{waiting}"
    );

    let raised = r#"{"spec": {"hard": {"requests.nvidia.com/gpu": "2"}}}"#;
    operated.run(&["patch", "resourcequota/gpus", "--type=merge", "--patch", raised])?;
    // One more try, at the latest after 90 seconds.
    let pods = ["pod/digits-2-0", "pod/digits-2-1"];
    for pod in pods {
        operated.run(&["wait", pod, "--for=create", "--timeout=120s"])?;
    }
    operated.run(&["delete", "resourcequota/gpus"])?;
    operated.run(&["delete", "vtj/digits"])?;
    operated.wait("delete", &pods)?;
    kubectl(cluster, ["delete", "nodes", "--selector=nvidia.com/gpu.count=1"]).map(drop)
}

/// The real API server adds a LimitRange's requests, also in a dry run.
pub(crate) fn counts_what_admission_adds(cluster: &Cluster, _: usize) -> Result<()> {
    let _nodes = NODES.lock();
    Handle::current().block_on(kwok::add_nodes(&cluster.client(), 2, &GpuProduct::TESLA_T4, 1))?;
    let operated = Operated(cluster);
    let defaults = json!({
        "apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "scratch"},
        "spec": {"limits": [{"type": "Container", "defaultRequest": {"ephemeral-storage": "100Ti"}}]},
    });
    kubectl_input(
        cluster,
        ["--namespace", NAMESPACE, "create", "-f", "-"],
        &defaults.to_string(),
    )?;
    // Jobs with the same manifest share a dry run for a minute.
    let job = VALID.replace("epochs: 40", "epochs: 41");
    kubectl_input(cluster, ["--namespace", NAMESPACE, "create", "-f", "-"], &job)?;
    operated.wait("jsonpath={.status.phase}=Pending", &["vtj/digits"])?;
    let status = operated.run(&["get", "vtj/digits", "--output=jsonpath={.status}"])?;
    let status: Value = serde_json::from_str(&status)?;
    let found = status["admittedPod"]["requests"].to_string();
    ensure!(found == r#"{"ephemeral-storage":"104857600Mi"}"#, "{status}");
    let message = status["conditions"].to_string();
    let words = "admission adds to each pod: 104857600Mi more ephemeral-storage";
    ensure!(message.contains(words), "{message}");
    ensure!(
        operated.run(&["get", "pods", "--output=name"])?.is_empty(),
        "a dry run creates no pod"
    );
    // It is asked again for a changed manifest.
    operated.run(&["delete", "limitrange/scratch"])?;
    let patch = |spec: Value| {
        let patch = json!({"spec": spec}).to_string();
        operated.run(&["patch", "vtj/digits", "--type=merge", "--patch", &patch])
    };
    patch(json!({"suspend": true}))?;
    operated.wait("jsonpath={.status.phase}=Suspended", &["vtj/digits"])?;
    patch(json!({"suspend": false, "training": {"seed": 1}}))?;
    operated.wait("create", &PODS)?;

    operated.run(&["delete", "vtj/digits"])?;
    operated.wait("delete", &PODS)?;
    kubectl(cluster, ["delete", "nodes", "--selector=nvidia.com/gpu.count=1"]).map(drop)
}

/// Time in which the operator notices that all its connections are dead.
const NOTICED: Duration = Duration::from_secs(60);
/// Most calls of an operator with one job in that time.
const CALLS: f64 = 200.0;
/// Pods of a gang that is created over several connections.
const GANG: usize = 8;

/// Two real servers and all watches, calls and the lease at once: their time limits act together, and the
/// operator must wait for the longest.
pub(crate) fn notices_that_its_connections_are_dead(cluster: &Cluster, _: usize) -> Result<()> {
    let _nodes = NODES.lock();
    Handle::current().block_on(kwok::add_nodes(&cluster.client(), GANG, &GpuProduct::TESLA_T4, 1))?;
    let operated = Operated(cluster);
    let second = cluster.start_second_api_server()?;
    let url = format!("--server=https://{second}");
    until(|| kubectl(cluster, [&url, "get", "--raw=/readyz"]).map(drop))?;
    let pods = |attempt: usize| (0..GANG).map(move |rank| format!("pod/digits-{attempt}-{rank}"));
    let [pods, next] = [1, 2].map(|attempt| pods(attempt).collect::<Vec<_>>());
    let pods: Vec<&str> = pods.iter().map(String::as_str).collect();
    let job = VALID.replace("nodes: 2", &format!("nodes: {GANG}"));
    kubectl_input(cluster, ["--namespace", NAMESPACE, "create", "-f", "-"], &job)?;
    operated.wait("create", &pods)?;
    operated.play(&pods, "Running", &json!({"running": {}}))?;
    operated.wait("jsonpath={.status.phase}=Running", &["vtj/digits"])?;
    let calls = || anyhow::Ok(operator::metrics(cluster)?.sum("vit_operator_api_requests_total"));
    let calls_before = calls()?;

    PROXY.get().context("started")?.fail_over(second);
    let began = Instant::now();
    operated.play(&pods[1..2], "Failed", &ended(137))?;
    for pod in &next {
        operated
            .run(&["wait", pod, "--for=create", "--timeout=120s"])
            .with_context(|| tail_of_file(&cluster.state().log_file(OPERATOR), 20))?;
    }
    let noticed = began.elapsed();
    let calls = calls()? - calls_before;
    say(format_args!("noticed after {noticed:.0?}, with {calls} calls"));
    ensure!(noticed <= NOTICED, "noticed after {noticed:?}");
    ensure!(calls <= CALLS, "{calls} calls");
    operated.run(&["delete", "vtj/digits"])?;
    let next: Vec<&str> = next.iter().map(String::as_str).collect();
    operated.wait("delete", &next)?;
    kubectl(cluster, ["delete", "nodes", "--selector=nvidia.com/gpu.count=1"]).map(drop)
}

/// The CRD, and the schema of a job's status in it.
const CRD: &str = "crd/vittrainingjobs.vit-operator.dev";
const STATUS_SCHEMA: &str = "/spec/versions/0/schema/openAPIV3Schema/properties/status";

/// With a later CRD, as while a release is upgraded: unknown fields of the status are stored, and it
/// has another phase.
pub(crate) fn keeps_what_a_later_version_wrote(cluster: &Cluster, _: usize) -> Result<()> {
    let _nodes = NODES.lock();
    let crd: Value = serde_json::from_str(&kubectl(cluster, ["get", CRD, "--output=json"])?)?;
    let shipped = crd.pointer(STATUS_SCHEMA).context("a schema of the status")?;
    let mut later = shipped.clone();
    later["x-kubernetes-preserve-unknown-fields"] = true.into();
    let phases = later
        .pointer_mut("/properties/phase/enum")
        .and_then(Value::as_array_mut);
    phases.context("phases")?.push("Later".into());
    let change_schema = |schema: &Value| {
        let patch = json!([{"op": "replace", "path": STATUS_SCHEMA, "value": schema}]).to_string();
        kubectl(cluster, ["patch", CRD, "--type=json", "--patch", &patch]).map(drop)
    };
    change_schema(&later)?;
    let kept = later_status_is_kept(cluster);
    change_schema(shipped)?;
    kept
}

fn later_status_is_kept(cluster: &Cluster) -> Result<()> {
    let operated = Operated(cluster);
    let job = || -> Result<Value> {
        Ok(serde_json::from_str(&operated.run(&[
            "get",
            "vtj/digits",
            "--output=json",
        ])?)?)
    };
    let patch = |type_: &str, patch: &Value| {
        let (type_, patch) = (format!("--type={type_}"), patch.to_string());
        operated.run(&[
            "patch",
            "vtj/digits",
            "--subresource=status",
            &type_,
            "--patch",
            &patch,
        ])
    };
    kubectl_input(cluster, ["--namespace", NAMESPACE, "create", "-f", "-"], VALID)?;
    operated.wait("jsonpath={.status.phase}=Pending", &["vtj/digits"])?;
    let condition = json!({"type": "Later", "status": "True", "reason": "A", "message": "b",
        "lastTransitionTime": "2026-11-28T00:00:00Z"});
    let add = |path: &str, value: &Value| json!({"op": "add", "path": path, "value": value});
    // The server may still use the earlier schema.
    until(|| {
        patch("json", &json!([add("/status/later", &json!({"a": 1}))]))?;
        ensure!(job()?["status"]["later"]["a"] == 1, "the field was dropped");
        Ok(())
    })?;
    patch("json", &json!([add("/status/conditions/-", &condition)]))?;

    // What a patch of a status relies on.
    let version = job()?["metadata"]["resourceVersion"].take();
    let nothing = json!({"metadata": {"resourceVersion": version}, "status": {}});
    patch("merge", &nothing)?;
    ensure!(
        job()?["metadata"]["resourceVersion"] == version,
        "a patch of nothing is a change"
    );
    let outdated = patch(
        "merge",
        &json!({"metadata": {"resourceVersion": "1"}, "status": {"attempt": 9}}),
    );
    let refusal = outdated.map_or_else(|error| format!("{error:#}"), |_| "nothing".into());
    ensure!(
        refusal.contains("Conflict") && refusal.contains("has been modified"),
        "{refusal}"
    );

    let is_kept = |job: &Value| {
        let conditions = job["status"]["conditions"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let status = &job["status"];
        ensure!(
            status["later"] == json!({"a": 1}) && conditions.contains(&condition),
            "{status}"
        );
        Ok(conditions.into_iter().find(|known| known["type"] == "Reconciled"))
    };
    Handle::current().block_on(kwok::add_nodes(&cluster.client(), 2, &GpuProduct::TESLA_T4, 1))?;
    operated.wait("create", &PODS)?;
    is_kept(&job()?)?;
    patch("merge", &json!({"status": {"phase": "Later"}}))?;
    operated.wait("condition=Reconciled=False", &["vtj/digits"])?;
    let told = is_kept(&job()?)?.context("condition Reconciled")?;
    let message = told["message"].as_str().unwrap_or_default();
    ensure!(
        message.contains("status.phase: unknown variant `Later`"),
        "{told}"
    );
    operated.run(&[&["get"], &PODS[..]].concat())?;
    patch("merge", &json!({"status": {"phase": "Starting"}}))?;
    operated.play(&PODS, "Running", &json!({"running": {}}))?;
    operated.wait("jsonpath={.status.phase}=Running", &["vtj/digits"])?;
    ensure!(is_kept(&job()?)?.is_none(), "it still counts as unreadable");

    operated.run(&["delete", "vtj/digits"])?;
    operated.wait("delete", &PODS)?;
    kubectl(cluster, ["delete", "nodes", "--selector=nvidia.com/gpu.count=1"]).map(drop)
}
