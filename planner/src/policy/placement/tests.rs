use crds::spec::Homogeneity;
use k8s_openapi::api::core::v1::{Node, Taint, Toleration};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::*;
use crate::facts::inventory::Inventory;
use crate::facts::resources::{HOST_PORTS, Holder, PODS, Requests};
use crate::fixtures;
use crate::policy::node_fit::{Refusal, Verdict, verdict};
use crate::policy::request::Shape;

fn request(nodes: usize, gpus_per_node: i64) -> GangRequest {
    let shape = Shape {
        gpus_per_node,
        gpu_resource: "nvidia.com/gpu".into(),
        requests: Requests::from([("nvidia.com/gpu".into(), gpus_per_node), (PODS.into(), 1)]),
        ..Shape::default()
    };
    GangRequest {
        nodes,
        larger: vec![],
        shape: Arc::new(shape),
    }
}

fn shape(request: &mut GangRequest) -> &mut Shape {
    Arc::make_mut(&mut request.shape)
}

/// The group of a placement on like GPUs.
fn group(placement: &Placement) -> GpuGroup {
    match &placement.gpus {
        Gpus::Like(group) => group.clone(),
        Gpus::Mixed(groups) => panic!("not alike: {groups:?}"),
    }
}

fn inventory(nodes: impl IntoIterator<Item = Node>) -> Inventory {
    let nodes: Vec<Node> = nodes.into_iter().collect();
    Inventory::new(&nodes, [], &std::collections::HashMap::new())
}

fn labelled(mut node: Node, key: &str, value: &str) -> Node {
    node.metadata
        .labels
        .get_or_insert_default()
        .insert(key.into(), value.into());
    node
}

fn names(nodes: &[&str], product: &str, gpus: i64) -> Vec<Node> {
    nodes
        .iter()
        .map(|name| fixtures::node(name, product, gpus))
        .collect()
}

#[test]
fn a_gang_gets_like_gpus_and_is_told_why_not_others() {
    let mut nodes = names(&["t1", "t2", "t3"], "Tesla-T4", 2);
    nodes.extend(names(&["h1"], "NVIDIA-H200", 2));
    let placement = place(&request(3, 2), &inventory(nodes)).expect("placed");
    assert_eq!(group(&placement).product, "Tesla-T4");
    assert_eq!(placement.nodes, ["t1", "t2", "t3"]);
    assert_eq!(
        placement.rejected,
        [RejectedGroup {
            group: "NVIDIA-H200".into(),
            reason: "only 1 node with 2 free".into(),
            nodes: 1
        }]
    );
}

#[test]
fn the_smallest_group_that_fits_is_taken() {
    let mut nodes = names(&["t1", "t2", "t3", "t4"], "Tesla-T4", 1);
    nodes.extend(names(&["h1", "h2", "h3"], "NVIDIA-H200", 1));
    let placement = place(&request(2, 1), &inventory(nodes)).expect("placed");
    assert_eq!(group(&placement).product, "NVIDIA-H200");
    assert_eq!(
        placement.rejected[0].reason,
        "fits too, with 2 GPUs of its nodes left over against 1"
    );
}

#[test]
fn whole_nodes_of_many_gpus_are_left_to_gangs_that_need_them() {
    let mut nodes = names(&["t1", "t2", "t3", "t4"], "Tesla-T4", 1);
    nodes.extend(names(&["h1", "h2", "h3"], "NVIDIA-H200", 8));
    let placement = place(&request(2, 1), &inventory(nodes)).expect("placed");
    assert_eq!(group(&placement).product, "Tesla-T4");
    assert_eq!(
        placement.rejected[0].reason,
        "fits too, with 22 GPUs of its nodes left over against 2"
    );
}

#[test]
fn nodes_that_are_partly_used_are_filled_before_whole_ones() {
    let mut inventory = inventory(names(&["a", "b", "c"], "NVIDIA-H200", 8));
    inventory.hold("c", &Requests::from([("nvidia.com/gpu".into(), 4)]));
    let placement = place(&request(2, 4), &inventory).expect("placed");
    assert_eq!(placement.nodes, ["a", "c"]);
}

#[test]
fn what_does_not_fit_is_told_with_counts_and_names() {
    let mut nodes = names(&["t1", "t2", "t3"], "Tesla-T4", 2);
    nodes.extend(names(&["h1", "h2"], "NVIDIA-H200", 2));
    nodes[3].spec = Some(k8s_openapi::api::core::v1::NodeSpec {
        unschedulable: Some(true),
        ..Default::default()
    });
    let mut inventory = inventory(nodes);
    inventory.hold("t2", &Requests::from([("nvidia.com/gpu".into(), 1)]));
    let unplaceable = place(&request(4, 2), &inventory).expect_err("does not fit");
    assert_eq!(
        unplaceable.message,
        "needs 4 x 2 like nvidia.com/gpu: NVIDIA-H200 has 1 node with 2 free, 1 node cordoned (h1); \
         Tesla-T4 has 2 nodes with 2 free, 1 node with too few free GPUs (t2)"
    );
}

#[test]
fn a_cluster_without_gpus_is_told_as_such() {
    let node = fixtures::node("a", "", 0);
    assert_eq!(
        place(&request(1, 1), &inventory([node]))
            .expect_err("does not fit")
            .message,
        "needs 1 x 1 like nvidia.com/gpu: no node has nvidia.com/gpu"
    );
}

/// The reason for which the only node is refused.
fn refusal_of(change: impl FnOnce(&mut Node, &mut GangRequest)) -> String {
    let mut node = fixtures::node("a", "Tesla-T4", 2);
    let mut request = request(1, 1);
    change(&mut node, &mut request);
    let unplaceable = place(&request, &inventory([node])).expect_err("refused");
    assert_eq!(unplaceable.rejected.len(), 1, "{unplaceable:?}");
    unplaceable.rejected[0].reason.clone()
}

fn set_label(node: &mut Node, key: &str, value: &str) {
    *node = labelled(node.clone(), key, value);
}

fn set_amount(node: &mut Node, resource: &str, amount: &str) {
    let status = node.status.as_mut().expect("a status");
    for amounts in [&mut status.capacity, &mut status.allocatable] {
        let amounts = amounts.as_mut().expect("amounts");
        amounts.insert(resource.into(), Quantity(amount.into()));
    }
}

#[test]
fn a_gang_goes_where_its_network_devices_are() {
    let mut nodes = names(&["a", "b", "c", "d"], "Tesla-T4", 1);
    for node in &mut nodes[2..] {
        set_amount(node, "rdma/hca", "1");
    }
    let mut wanted = request(2, 1);
    shape(&mut wanted).requests.extend([("rdma/hca".into(), 1)]);
    let placement = place(&wanted, &inventory(nodes)).expect("placed");
    assert_eq!(placement.nodes, ["c", "d"]);
}

#[test]
fn every_reason_refuses_a_node_and_is_named() {
    let taint = |effect: &str| Taint {
        key: "dedicated".into(),
        value: Some("x".into()),
        effect: effect.into(),
        time_added: None,
    };
    let cases: Vec<(&str, String)> = vec![
        (
            "excluded",
            refusal_of(|_, request| shape(request).rules.exclude_nodes = ["a".to_owned()].into()),
        ),
        (
            "without the labels of workers.nodeSelector",
            refusal_of(|_, request| shape(request).node_selector = [("zone".into(), "x".into())].into()),
        ),
        (
            "without a label that tells the GPU product",
            refusal_of(|node, _| node.metadata.labels = None),
        ),
        (
            "not in placement.gpu.products",
            refusal_of(|_, request| shape(request).rules.products = ["NVIDIA-H200".to_owned()].into()),
        ),
        (
            "without a label that tells GPU memory",
            refusal_of(|_, request| shape(request).rules.min_memory_mebibytes = Some(1)),
        ),
        (
            "with less GPU memory",
            refusal_of(|node, request| {
                set_label(node, "nvidia.com/gpu.memory", "15360");
                shape(request).rules.min_memory_mebibytes = Some(16_000);
            }),
        ),
        (
            "shared GPUs",
            refusal_of(|node, _| set_label(node, "nvidia.com/gpu.product", "Tesla-T4-SHARED")),
        ),
        (
            "shared GPUs",
            refusal_of(|node, _| set_label(node, "nvidia.com/gpu.product", "NVIDIA-A100-MIG-1g.5gb")),
        ),
        (
            "shared GPUs",
            refusal_of(|node, _| set_label(node, "nvidia.com/gpu.sharing-strategy", "time-slicing")),
        ),
        (
            "shared GPUs",
            refusal_of(|node, _| set_label(node, "nvidia.com/gpu.replicas", "4")),
        ),
        (
            "several models",
            refusal_of(|node, _| set_label(node, "nvidia.com/gpu.count", "1")),
        ),
        (
            "fewer GPUs than workers.gpusPerNode",
            refusal_of(|_, request| shape(request).gpus_per_node = 4),
        ),
        (
            "not ready",
            refusal_of(|node, _| node.status.as_mut().expect("a status").conditions = None),
        ),
        (
            "taint",
            refusal_of(|node, _| {
                node.spec.get_or_insert_default().taints = Some(vec![taint("NoSchedule")]);
            }),
        ),
        (
            "taint",
            refusal_of(|node, _| {
                node.spec.get_or_insert_default().taints = Some(vec![taint("NoExecute")]);
            }),
        ),
        (
            "unhealthy GPUs",
            refusal_of(|node, _| {
                let status = node.status.as_mut().expect("a status");
                let allocatable = status.allocatable.as_mut().expect("amounts");
                allocatable.insert("nvidia.com/gpu".into(), Quantity("1".into()));
            }),
        ),
        (
            "too little free cpu",
            refusal_of(|_, request| shape(request).requests.extend([("cpu".into(), 8001)])),
        ),
        (
            "too little free memory",
            refusal_of(|_, request| shape(request).requests.extend([("memory".into(), 33 << 30)])),
        ),
        (
            "too little free ephemeral-storage",
            refusal_of(|node, request| {
                set_amount(node, "ephemeral-storage", "10Gi");
                shape(request)
                    .requests
                    .extend([("ephemeral-storage".into(), 11 << 30)]);
            }),
        ),
        (
            "too little of another resource that a pod asks for",
            refusal_of(|_, request| shape(request).requests.extend([("rdma/hca".into(), 1)])),
        ),
        (
            "too little of another resource that a pod asks for",
            refusal_of(|node, request| {
                set_amount(node, "hugepages-2Mi", "1Gi");
                shape(request)
                    .requests
                    .extend([("hugepages-2Mi".into(), 2 << 30)]);
            }),
        ),
    ];
    for (expected, reason) in cases {
        assert!(
            reason.starts_with("1 node ") && reason.contains(expected),
            "{expected}: {reason}"
        );
    }
}

#[test]
fn a_node_takes_one_gang_on_its_network_and_others_beside_it() {
    let mut inventory = inventory([fixtures::node("a", "Tesla-T4", 3)]);
    let mut on_host = request(1, 1);
    shape(&mut on_host).requests.insert(HOST_PORTS.into(), 1);
    place(&on_host, &inventory).expect("placed");
    inventory.hold("a", &on_host.shape.requests);

    let refused = place(&on_host, &inventory).expect_err("refused").message;
    let reason = "1 node where another pod uses ports that workers.hostNetwork needs (a)";
    assert!(refused.contains(reason), "{refused}");
    place(&request(1, 1), &inventory).expect("a gang on the network of pods fits beside it");

    let verdict = |inventory: &Inventory| verdict("a", &inventory.nodes["a"], &on_host.shape);
    let refusal = Refusal::HostPortsInUse;
    assert_eq!(
        verdict(&inventory),
        Verdict::Busy { refusal, free: 2 },
        "until that gang ends"
    );
    inventory.hold_for("a", &on_host.shape.requests, Holder::Other);
    assert_eq!(
        verdict(&inventory),
        Verdict::Refused(refusal),
        "others do not end by themselves"
    );
}

#[test]
fn taints_that_are_tolerated_or_only_a_preference_do_not_matter() {
    let tainted = |effect: &str| {
        let mut node = fixtures::node("a", "Tesla-T4", 1);
        node.spec.get_or_insert_default().taints = Some(vec![Taint {
            key: "nvidia.com/gpu".into(),
            value: Some("present".into()),
            effect: effect.into(),
            time_added: None,
        }]);
        inventory([node])
    };
    assert!(place(&request(1, 1), &tainted("PreferNoSchedule")).is_ok());
    assert!(place(&request(1, 1), &tainted("NoSchedule")).is_err());
    let toleration = |operator: Option<&str>, value: Option<&str>, effect: Option<&str>| Toleration {
        key: Some("nvidia.com/gpu".into()),
        operator: operator.map(Into::into),
        value: value.map(Into::into),
        effect: effect.map(Into::into),
        toleration_seconds: None,
    };
    for (tolerations, fits) in [
        (vec![toleration(Some("Exists"), None, None)], true),
        (vec![toleration(Some("Exists"), None, Some("NoSchedule"))], true),
        (vec![toleration(Some("Exists"), None, Some("NoExecute"))], false),
        (vec![toleration(None, Some("present"), None)], true),
        (vec![toleration(None, Some("absent"), None)], false),
        (
            vec![Toleration {
                operator: Some("Exists".into()),
                ..Toleration::default()
            }],
            true,
        ),
    ] {
        let mut request = request(1, 1);
        shape(&mut request).tolerations.clone_from(&tolerations);
        assert_eq!(
            place(&request, &tainted("NoSchedule")).is_ok(),
            fits,
            "{tolerations:?}"
        );
    }
}

#[test]
fn drivers_memory_and_size_tell_groups_of_one_product_apart() {
    let driver = |name: &str, version: &str| {
        labelled(
            fixtures::node(name, "NVIDIA-H200", 8),
            "nvidia.com/cuda.driver-version.major",
            version,
        )
    };
    let nodes = [driver("a", "570"), driver("b", "580"), driver("c", "580")];
    let placement = place(&request(2, 8), &inventory(nodes)).expect("placed");
    assert_eq!(placement.nodes, ["b", "c"]);
    assert_eq!(group(&placement).driver_major.as_deref(), Some("580"));
    assert_eq!(placement.rejected[0].group, "NVIDIA-H200 (8 a node, driver 570)");
}

#[test]
fn labels_of_different_writers_are_never_compared() {
    let cloud = |name: &str| {
        let mut node = fixtures::node(name, "", 1);
        node.metadata.labels = None;
        labelled(node, "cloud.google.com/gke-accelerator", "Tesla-T4")
    };
    let nodes = [fixtures::node("a", "Tesla-T4", 1), cloud("b")];
    assert!(place(&request(2, 1), &inventory(nodes)).is_err());
    let placement = place(&request(2, 1), &inventory([cloud("a"), cloud("b")])).expect("placed");
    assert_eq!(
        group(&placement).product_label,
        "cloud.google.com/gke-accelerator"
    );
}

#[test]
fn the_first_writer_that_tells_a_product_is_believed() {
    let node = labelled(
        labelled(
            fixtures::node("a", "NVIDIA-L4", 1),
            "cloud.google.com/gke-accelerator",
            "nvidia-l4",
        ),
        "nvidia.com/gpu.memory",
        "23034",
    );
    let found = group(&place(&request(1, 1), &inventory([node])).expect("placed"));
    assert_eq!(
        (found.product.as_str(), found.memory_mebibytes),
        ("NVIDIA-L4", Some(23_034))
    );
    // An empty value tells nothing.
    let mut node = labelled(fixtures::node("a", "", 1), "gpu.nvidia.com/model", "");
    node = labelled(node, "amd.com/gpu.product-name", "Instinct_MI300X");
    node = labelled(node, "amd.com/gpu.vram", "192G");
    let found = group(&place(&request(1, 1), &inventory([node])).expect("placed"));
    assert_eq!(
        (found.product.as_str(), found.memory_mebibytes),
        ("Instinct_MI300X", Some(196_608))
    );
}

#[test]
fn a_label_of_group_by_tells_groups_apart() {
    let machine = |name: &str, value: &str| labelled(fixtures::node(name, "Tesla-T4", 1), "machine", value);
    let nodes = || inventory([machine("a", "x"), machine("b", "y"), machine("c", "y")]);
    assert_eq!(
        place(&request(2, 1), &nodes()).expect("placed").nodes,
        ["a", "b"],
        "the label does not matter unless asked for"
    );
    let mut request = request(2, 1);
    shape(&mut request).rules.group_by = vec!["machine".into()];
    let placement = place(&request, &nodes()).expect("placed");
    assert_eq!(placement.nodes, ["b", "c"]);
    assert_eq!(group(&placement).labels["machine"], "y");
    assert_eq!(placement.rejected[0].group, "Tesla-T4 (1 a node, machine x)");
}

#[test]
fn shares_of_gpus_are_taken_only_where_the_job_allows_it() {
    let shared = || {
        let node = labelled(
            fixtures::node("a", "Tesla-T4-SHARED", 8),
            "nvidia.com/gpu.replicas",
            "4",
        );
        inventory([labelled(node, "nvidia.com/gpu.count", "2")])
    };
    assert!(place(&request(1, 8), &shared()).is_err());
    let mut request = request(1, 8);
    shape(&mut request).rules.allow_shared = true;
    assert_eq!(place(&request, &shared()).expect("placed").nodes, ["a"]);
}

#[test]
fn gpus_that_are_shared_by_more_pods_are_not_alike() {
    let node = |name, replicas, count| {
        let node = fixtures::node(name, "Tesla-T4-SHARED", 4);
        let node = labelled(node, "nvidia.com/gpu.sharing-strategy", "time-slicing");
        labelled(
            labelled(node, "nvidia.com/gpu.replicas", replicas),
            "nvidia.com/gpu.count",
            count,
        )
    };
    let mixed = || inventory([node("halves", "2", "2"), node("quarters", "4", "1")]);
    let mut request = request(2, 1);
    shape(&mut request).rules.allow_shared = true;
    let why = place(&request, &mixed()).expect_err("not alike").message;
    assert!(
        why.contains("Tesla-T4-SHARED (4 a node, 2 pods a GPU, time-slicing) has 1 node with 1 free"),
        "{why}"
    );
    request.nodes = 1;
    assert_eq!(
        group(&place(&request, &mixed()).expect("placed")).replicas,
        Some(2)
    );
}

#[test]
fn a_mix_is_taken_only_where_the_job_prefers_like_gpus_and_they_do_not_fit() {
    let mut nodes = names(&["t1", "t2", "t3"], "Tesla-T4", 1);
    nodes.extend(names(&["h1", "h2"], "NVIDIA-H200", 1));
    nodes.extend(names(&["l1"], "NVIDIA-L4", 1));
    let inventory = inventory(nodes);
    let mut wanted = request(5, 1);
    assert!(place(&wanted, &inventory).is_err());
    shape(&mut wanted).rules.homogeneity = Homogeneity::Preferred;
    let placement = place(&wanted, &inventory).expect("placed");
    let Gpus::Mixed(groups) = &placement.gpus else {
        panic!("{placement:?}")
    };
    let counts: Vec<(&str, usize)> = groups
        .iter()
        .map(|(group, nodes)| (group.product.as_str(), *nodes))
        .collect();
    assert_eq!(
        counts,
        [("NVIDIA-H200", 2), ("Tesla-T4", 3)],
        "the fewest kinds that hold the gang"
    );
    assert_eq!(
        placement.nodes,
        ["h1", "h2", "t1", "t2", "t3"],
        "ranks of one kind are neighbours"
    );
    assert_eq!(placement.rejected[0].group, "NVIDIA-L4");
    wanted.nodes = 3;
    assert_eq!(
        group(&place(&wanted, &inventory).expect("placed")).product,
        "Tesla-T4"
    );
    wanted.nodes = 7;
    let message = place(&wanted, &inventory).expect_err("too large").message;
    assert!(message.starts_with("needs 7 x 1 nvidia.com/gpu: "), "{message}");
}

#[test]
fn where_likeness_is_off_even_gpus_of_unknown_products_are_taken() {
    let inventory = inventory([
        fixtures::node("a", "Tesla-T4", 1),
        fixtures::node("b", "", 1),
        fixtures::node("c", "NVIDIA-L4", 1),
    ]);
    let mut wanted = request(3, 1);
    shape(&mut wanted).rules.homogeneity = Homogeneity::Preferred;
    assert!(place(&wanted, &inventory).is_err());
    shape(&mut wanted).rules.homogeneity = Homogeneity::Off;
    let placement = place(&wanted, &inventory).expect("placed");
    assert_eq!(placement.nodes, ["a", "b", "c"]);
    wanted.nodes = 1;
    let placement = place(&wanted, &inventory).expect("placed");
    assert_eq!(group(&placement).product, "Tesla-T4");
}

fn in_rack(name: &str, block: &str, rack: &str) -> Node {
    labelled(
        labelled(fixtures::node(name, "Tesla-T4", 1), "block", block),
        "rack",
        rack,
    )
}

#[test]
fn a_required_topology_key_holds_the_gang_in_one_domain_or_says_why_not() {
    let nodes = inventory([
        in_rack("a", "x", "1"),
        in_rack("b", "x", "1"),
        in_rack("c", "y", "2"),
        in_rack("d", "y", "2"),
        in_rack("e", "y", "2"),
        fixtures::node("f", "Tesla-T4", 1),
    ]);
    let mut request = request(2, 1);
    shape(&mut request).rules.required_topology = Some("block".into());
    let placement = place(&request, &nodes).expect("placed");
    assert_eq!(
        placement.nodes,
        ["a", "b"],
        "the smaller block that holds the gang"
    );
    assert_eq!(
        placement.topology,
        [TopologySpread {
            key: "block".into(),
            domains: vec!["x".into()]
        }]
    );
    request.nodes = 4;
    assert_eq!(
        place(&request, &nodes)
            .expect_err("no block is that large")
            .message,
        "needs 4 x 1 like nvidia.com/gpu: Tesla-T4 has 5 nodes with 1 free, but at most 3 with the same block, \
         1 node without the label of placement.topology.required (f)"
    );
}

#[test]
fn what_is_told_of_thousands_of_groups_is_short() {
    let key = "kubernetes.io/hostname";
    let nodes = (0..5_000).map(|index| {
        let name = format!("gpu-node-{index:05}.rack-17.example.com");
        labelled(fixtures::node(&name, "Tesla-T4", 1), key, &name)
    });
    let inventory = inventory(nodes);
    let length = |rejected: &[RejectedGroup]| serde_json::to_string(rejected).expect("serializes").len();
    let mut request = request(2, 1);
    shape(&mut request).rules.group_by = vec![key.into()];
    let refused = place(&request, &inventory).expect_err("a group has one node");
    assert!(
        refused.message.ends_with("; and 4988 more groups"),
        "{}",
        refused.message
    );
    assert!(refused.message.len() < 4_096, "{}", refused.message.len());
    assert!(length(&refused.rejected) < 8_192, "{}", length(&refused.rejected));
    shape(&mut request).rules.homogeneity = Homogeneity::Off;
    request.nodes = 2_000;
    let placed = place(&request, &inventory).expect("placed");
    assert!(length(&placed.rejected) < 8_192, "{}", length(&placed.rejected));
}
