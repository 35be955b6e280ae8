//! Fake nodes: Node objects with kubelets simulated by KWOK, so that thousands fit on one machine.
//!
//! A pod bound to one is Running and Ready at once and keeps running; a deleted one disappears at
//! once. Packets to its address are lost, as with a dead node. The nodes send no heartbeats, so the
//! controller manager must not expect any.

use anyhow::{Result, ensure};
use fs_err as fs;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::Node;
use kube::api::PostParams;
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::binaries::Binaries;
use crate::cluster::Cluster;
use crate::config::GpuProduct;
use crate::process;

/// The name under which its process and log are recorded.
pub const COMPONENT: &str = "kwok";

/// A network interface that drops packets to fake pods.
const NOWHERE: &str = "nowhere";
/// Node objects created concurrently.
const POSTED_AT_ONCE: usize = 32;

/// The Go template of a running fake pod's status.
const RUNNING: &str = r#"
{{ $now := Now }}
phase: Running
startTime: {{ $now | Quote }}
conditions:
{{ range $type := list "Initialized" "ContainersReady" "Ready" }}
- {type: {{ $type }}, status: "True", lastTransitionTime: {{ $now | Quote }}}
{{ end }}
containerStatuses:
{{ range .spec.containers }}
- name: {{ .name | Quote }}
  image: {{ .image | Quote }}
  imageID: ""
  ready: true
  started: true
  restartCount: 0
  state: {running: {startedAt: {{ $now | Quote }}}}
{{ end }}
{{ with PodIPsWith .spec.nodeName false .metadata.uid .metadata.name .metadata.namespace }}
podIP: {{ index . 0 | Quote }}
podIPs: [{ip: {{ index . 0 | Quote }}}]
{{ end }}
"#;

/// Starts KWOK in the cluster's network.
pub fn start(cluster: &Cluster) -> Result<()> {
    let programs = Binaries::build_kwok()?;
    let state = cluster.state();
    let pods = state.addresses().pods();
    let namespace = state.namespace();
    for words in [
        &["tuntap", "add", "mode", "tun", "name", NOWHERE][..],
        &["link", "set", NOWHERE, "up"],
        &["route", "add", &pods, "dev", NOWHERE],
    ] {
        namespace.run("ip", words)?;
    }
    let config = state.directory().join("kwok.yaml");
    let documents = configuration(&pods).map(|document| document.to_string());
    fs::write(&config, documents.join("\n---\n"))?;
    let words = [
        programs.path(COMPONENT).display().to_string(),
        format!("--kubeconfig={}", state.kubeconfig().display()),
        format!("--config={}", config.display()),
    ];
    process::start(state, COMPONENT, None, &words, &programs.search_path())?;
    Ok(())
}

/// Creates `count` nodes, each with `gpus` GPUs of a product.
pub async fn add_nodes(client: &Client, count: usize, product: &GpuProduct, gpus: u32) -> Result<()> {
    ensure!(count > 0, "a cluster without nodes runs no pods");
    let nodes: Api<Node> = Api::all(client.clone());
    let parameters = PostParams::default();
    stream::iter(0..count)
        .map(|index| {
            let node = node(index, product, gpus);
            let (nodes, parameters) = (&nodes, &parameters);
            async move { nodes.create(parameters, &node).await }
        })
        .buffer_unordered(POSTED_AT_ONCE)
        .try_for_each(|_| async { Ok(()) })
        .await?;
    Ok(())
}

/// A node that is ready from the start.
fn node(index: usize, product: &GpuProduct, gpus: u32) -> Node {
    let name = format!("fake-{index:05}");
    let mut labels = product.labels(gpus);
    for (key, value) in [
        ("kubernetes.io/hostname", name.as_str()),
        ("kubernetes.io/os", "linux"),
        ("kubernetes.io/arch", "amd64"),
    ] {
        labels.insert(key.into(), value.into());
    }
    let amounts = json!({
        "cpu": "192", "memory": "2000Gi", "ephemeral-storage": "800Gi", "pods": "110", "nvidia.com/gpu": gpus.to_string(),
    });
    serde_json::from_value(json!({
        "metadata": {"name": name, "labels": labels},
        "status": {
            "capacity": amounts, "allocatable": amounts,
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
        },
    }))
    .expect("a node")
}

/// KWOK's options and stages, one per document.
fn configuration(pods: &str) -> [Value; 4] {
    let stage = |name: &str, kind: &str, selector: Value, next: Value| {
        json!({
            "apiVersion": "kwok.x-k8s.io/v1alpha1", "kind": "Stage", "metadata": {"name": name},
            "spec": {
                "resourceRef": {"apiGroup": "v1", "kind": kind},
                "selector": {"matchExpressions": selector},
                "next": next,
            },
        })
    };
    let deleted = |operator: &str| json!({"key": ".metadata.deletionTimestamp", "operator": operator});
    [
        json!({
            "apiVersion": "config.kwok.x-k8s.io/v1alpha1", "kind": "KwokConfiguration",
            // These numbers have no defaults here. More pods in parallel than KWOK's usual four, so
            // that the simulated kubelets are not the bottleneck.
            "options": {
                "cidr": pods, "manageAllNodes": true, "podPlayStageParallelism": 32,
                "nodePlayStageParallelism": 4, "podsOnNodeSyncParallelism": 4,
            },
        }),
        // KWOK ignores nodes unless there is a stage for them; this one never applies.
        stage(
            "node-unused",
            "Node",
            json!([{"key": ".metadata.name", "operator": "DoesNotExist"}]),
            json!({"statusTemplate": "{}"}),
        ),
        stage(
            "pod-running",
            "Pod",
            json!([deleted("DoesNotExist"), {"key": ".status.phase", "operator": "In", "values": ["Pending"]}]),
            json!({"statusTemplate": RUNNING}),
        ),
        stage(
            "pod-gone",
            "Pod",
            json!([deleted("Exists")]),
            json!({"delete": true}),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::node;
    use crate::config::GpuProduct;

    #[test]
    fn a_fake_node_is_ready_and_shows_its_gpus_as_a_real_one_does() {
        let node = node(7, &GpuProduct::H200, 8);
        let labels = node.metadata.labels.expect("labels");
        assert_eq!(labels["nvidia.com/gpu.product"], "NVIDIA-H200");
        assert_eq!(labels["nvidia.com/gpu.count"], "8");
        assert_eq!(labels["kubernetes.io/hostname"], "fake-00007");
        let status = node.status.expect("a status");
        assert_eq!(status.allocatable.expect("amounts")["nvidia.com/gpu"].0, "8");
        assert_eq!(status.conditions.expect("conditions")[0].status, "True");
    }
}
