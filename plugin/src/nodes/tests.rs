use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde_json::json;

use super::*;
use crate::fixtures::assert_contains;

fn node(name: &str, product: &str, gpus: u32, change: serde_json::Value) -> Node {
    let memory = if product == "Tesla-T4" { "15360" } else { "143771" };
    let mut node = json!({
        "metadata": {"name": name, "labels": {
            "nvidia.com/gpu.product": product, "nvidia.com/gpu.memory": memory,
            "nvidia.com/cuda.driver-version.major": "580"}},
        "spec": {},
        "status": {
            "capacity": {"nvidia.com/gpu": gpus.to_string()},
            "allocatable": {"nvidia.com/gpu": gpus.to_string()},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    });
    if change.is_object() {
        node["spec"] = change;
    }
    serde_json::from_value(node).expect("a node")
}

fn pod(name: &str, node: &str, gpus: u32) -> Pod {
    let resources = json!({"limits": {"nvidia.com/gpu": gpus.to_string()}});
    serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "research"},
        "spec": {"nodeName": node, "containers": [{"name": "a", "resources": resources}]},
        "status": {"phase": "Running"},
    }))
    .expect("a pod")
}

fn report(nodes: Vec<Node>, pods: Vec<Pod>) -> Report {
    Report::new(nodes, pods, &Shape::of_gpus("nvidia.com/gpu", 1))
}

fn cluster() -> Report {
    let taint = json!({"taints": [{"key": "maintenance", "effect": "NoSchedule"}]});
    let mut amd = node("cpu0", "", 0, json!(null));
    let capacity = amd.status.as_mut().and_then(|status| status.capacity.as_mut());
    capacity
        .expect("has some")
        .insert("amd.com/gpu".into(), Quantity("8".into()));
    report(
        vec![
            node("node0", "NVIDIA-H200", 8, json!(null)),
            node("node1", "NVIDIA-H200", 8, json!(null)),
            node("node2", "NVIDIA-H200", 8, json!({"unschedulable": true})),
            node("node3", "NVIDIA-H200", 8, taint),
            node("node4", "Tesla-T4", 1, json!(null)),
            amd,
        ],
        vec![
            pod("vit-b16-3-0", "node0", 8),
            pod("notebook", "node1", 1),
            pod("digits-1-12", "node1", 2),
        ],
    )
}

#[test]
fn groups_and_nodes_with_their_reasons() {
    insta::assert_snapshot!(render(&cluster(), false, Paint::plain(120)));
}

#[test]
fn the_same_for_programs() {
    insta::assert_yaml_snapshot!(cluster());
}

#[test]
fn nodes_of_a_large_group_are_counted_by_what_is_said_of_them() {
    let nodes = (0..40).map(|index| {
        let spec = json!({"unschedulable": index < 3});
        node(&format!("node{index:02}"), "NVIDIA-H200", 8, spec)
    });
    let report = report(nodes.collect(), vec![]);
    let text = render(&report, false, Paint::plain(120));
    assert_contains(&text, "NVIDIA-H200: 37 nodes that fit, 3 nodes cordoned");
    assert!(!text.contains("node07"), "{text}");
    assert!(render(&report, true, Paint::plain(120)).contains("node07"));
}

#[test]
fn what_is_not_known_is_not_guessed() {
    let mut report = cluster();
    report.use_unknown = Some("cannot list the pods of all namespaces: forbidden".into());
    let text = render(&report, false, Paint::plain(120));
    assert_contains(&text, "?/8");
    assert_contains(&text, "usage is unknown");
}

#[test]
fn a_cluster_without_gpus_says_so() {
    let text = render(&report(vec![], vec![]), false, Paint::plain(120));
    assert_eq!(text, "No node has nvidia.com/gpu.\n");
}
