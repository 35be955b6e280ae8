//! What the operator asks of the API server from a job's creation to its deletion, with the rights of the chart. No kubelet
//! runs the pods: the test writes what becomes of them.

use anyhow::{Result, ensure};
use crds::conditions::reasons;
use serde_json::json;
use tokio::runtime::Handle;
use vit_tests::operator::{self, OPERATOR};
use vit_tests::{Cluster, GpuProduct, kwok};

use super::{NODES, VALID, kubectl, kubectl_input};

/// The only namespace whose jobs are run.
const NAMESPACE: &str = "operated";
const PODS: [&str; 2] = ["pod/digits-1-0", "pod/digits-1-1"];

/// Installs the chart, and starts the operator before the API server serves any kind of Kueue's.
pub(crate) fn start(cluster: &Cluster) -> Result<()> {
    kubectl(cluster, ["create", "namespace", NAMESPACE])?;
    let namespace = format!("namespace={NAMESPACE}");
    operator::install(cluster, &["replicaCount=0".to_owned(), namespace.clone()])?;
    let program = vit_tests::root().join("target/debug/vit-operator");
    operator::start(cluster, &program, &[format!("--{namespace}")])
}

pub(crate) fn runs_a_job(cluster: &Cluster, _: usize) -> Result<()> {
    let _nodes = NODES.lock();
    Handle::current().block_on(kwok::add_nodes(&cluster.client(), 2, &GpuProduct::TESLA_T4, 1))?;
    let run = |arguments: &[&str]| cluster.kubectl_output(&[&["--namespace", NAMESPACE], arguments].concat());
    let wait = |what: &str, objects: &[&str]| -> Result<()> {
        objects.iter().try_for_each(|object| {
            run(&["wait", object, &format!("--for={what}"), "--timeout=60s"]).map(drop)
        })
    };
    let play = |status: serde_json::Value| -> Result<()> {
        let patch = json!({"status": status}).to_string();
        let patch = ["patch", "--subresource=status", "--type=merge", "--patch", &patch];
        run(&[&patch[..], &PODS[..]].concat()).map(drop)
    };
    kubectl_input(cluster, ["--namespace", NAMESPACE, "create", "-f", "-"], VALID)?;
    wait("create", &PODS)?;
    let container = |state| json!([{"name": "trainer", "image": "a", "imageID": "", "ready": true, "restartCount": 0, "state": state}]);
    play(json!({
        "phase": "Running", "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": container(json!({"running": {}})),
    }))?;
    wait("jsonpath={.status.phase}=Running", &["vtj/digits"])?;
    let owned = ["service/digits", "configmap/digits-1", "networkpolicy/digits"];
    run(&[&["get"], &owned[..]].concat())?;
    let done = json!({"terminated": {"exitCode": 0, "startedAt": null, "finishedAt": null}});
    play(json!({"phase": "Succeeded", "containerStatuses": container(done)}))?;
    wait("jsonpath={.status.phase}=Succeeded", &["vtj/digits"])?;

    run(&["delete", "vtj/digits"])?;
    wait("delete", &[&PODS[..], &owned[..]].concat())?;
    let events = run(&["get", "events", "--output=jsonpath={.items[*].reason}"])?;
    for reason in [
        reasons::GANG_FITS,
        reasons::ALL_PODS_READY,
        reasons::ALL_EPOCHS_DONE,
    ] {
        ensure!(
            events.split(' ').any(|event| event == reason),
            "{reason} is none of {events}"
        );
    }
    let holder = "jsonpath={.spec.holderIdentity}";
    let holder = kubectl(cluster, ["get", "lease", OPERATOR, "-n", OPERATOR, "-o", holder])?;
    ensure!(!holder.is_empty(), "nobody holds the lease");
    kubectl(cluster, ["delete", "nodes", "--selector=nvidia.com/gpu.count=1"]).map(drop)
}
