//! The operator's requests from a job's creation to its deletion, with the chart's rights. There
//! are no kubelets: the test writes the pods' status.

use anyhow::{Result, ensure};
use contract::RunConfig;
use contract::environment::RUN_CONFIG_PATH;
use crds::conditions::reasons;
use serde_json::{Value, json};
use tokio::runtime::Handle;
use vit_tests::operator::{self, OPERATOR};
use vit_tests::{Cluster, GpuProduct, kwok};

use super::{NODES, VALID, kubectl, kubectl_input};

/// The operator's namespace for jobs.
const NAMESPACE: &str = "operated";
const PODS: [&str; 2] = ["pod/digits-1-0", "pod/digits-1-1"];

/// Installs the chart, and starts the operator before the API server serves Kueue's kinds.
pub(crate) fn start(cluster: &Cluster) -> Result<()> {
    kubectl(cluster, ["create", "namespace", NAMESPACE])?;
    let namespace = format!("namespace={NAMESPACE}");
    operator::install(cluster, &["replicaCount=0".to_owned(), namespace.clone()])?;
    let program = vit_tests::root().join("target/debug/vit-operator");
    operator::start(cluster, &program, &[format!("--{namespace}")])
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
