use crds::spec::Homogeneity;
use k8s_openapi::api::core::v1::{Node, Taint};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::*;
use crate::facts::inventory::Inventory;
use crate::facts::resources::{HOST_PORTS, Holder, PODS, Requests};
use crate::fixtures;
use crate::policy::node_fit::{Refusal, Verdict, verdict};
use crate::policy::request::Shape;

fn request(nodes: usize, gpus_per_node: u32) -> GangRequest {
    let mut shape = Shape::of_gpus("nvidia.com/gpu", gpus_per_node);
    shape.requests.insert(PODS.into(), 1);
    GangRequest {
        nodes,
        larger: vec![],
        shape: Arc::new(shape),
    }
}

fn shape(request: &mut GangRequest) -> &mut Shape {
    Arc::make_mut(&mut request.shape)
}

/// The group of a placement on identical GPUs.
fn group(placement: &Placement) -> GpuGroup {
    match &placement.gpus {
        Gpus::Identical(group) => group.clone(),
        Gpus::Mixed(groups) => panic!("not identical: {groups:?}"),
    }
}

fn inventory(nodes: impl IntoIterator<Item = Node>) -> Inventory {
    let nodes: Vec<Node> = nodes.into_iter().collect();
    Inventory::new(&nodes, [], &std::collections::HashMap::new())
}

/// A node with additional labels.
fn labelled(name: &str, product: &str, gpus: i64, labels: &[(&str, &str)]) -> Node {
    let mut node = fixtures::node(name, product, gpus);
    for (key, value) in labels {
        set_label(&mut node, key, value);
    }
    node
}

/// Why a gang does not fit.
fn why(request: &GangRequest, inventory: &Inventory) -> String {
    place(request, inventory).expect_err("does not fit").message
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
fn large_groups_and_large_nodes_are_left_to_gangs_that_need_them() {
    let others = ["o1", "o2", "o3", "o4", "o5"];
    for (other, gpus, left_over) in [(&others[..], 1, 3), (&others[..3], 8, 22)] {
        let mut nodes = names(&["t1", "t2", "t3", "t4"], "Tesla-T4", 1);
        nodes.extend(names(other, "NVIDIA-H200", gpus));
        let placement = place(&request(2, 1), &inventory(nodes)).expect("placed");
        assert_eq!(group(&placement).product, "Tesla-T4");
        let reason = format!("fits too, but leaves over {left_over} GPUs of its nodes instead of 2");
        assert_eq!(placement.rejected[0].reason, reason);
    }
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
    nodes[3].spec.get_or_insert_default().unschedulable = Some(true);
    let mut inventory = inventory(nodes);
    inventory.hold("t2", &Requests::from([("nvidia.com/gpu".into(), 1)]));
    assert_eq!(
        why(&request(4, 2), &inventory),
        "needs 4 x 2 identical nvidia.com/gpu: NVIDIA-H200 has 1 node with 2 free, 1 node cordoned (h1); \
         Tesla-T4 has 2 nodes with 2 free, 1 node with too few free GPUs (t2)"
    );
}

#[test]
fn a_cluster_without_gpus_is_told_as_such() {
    let node = fixtures::node("a", "", 0);
    assert_eq!(
        why(&request(1, 1), &inventory([node])),
        "needs 1 x 1 identical nvidia.com/gpu: no node has nvidia.com/gpu"
    );
}

fn set_label(node: &mut Node, key: &str, value: &str) {
    let labels = node.metadata.labels.get_or_insert_default();
    labels.insert(key.into(), value.into());
}

fn set_amount(node: &mut Node, resource: &str, amount: &str) {
    let status = node.status.as_mut().expect("a status");
    for amounts in [&mut status.capacity, &mut status.allocatable] {
        let amounts = amounts.as_mut().expect("amounts");
        amounts.insert(resource.into(), Quantity(amount.into()));
    }
}

#[test]
fn every_reason_refuses_a_node_and_is_named() {
    type Change = fn(&mut Node, &mut Shape);
    const OTHER: &str = "too little of another resource that a pod asks for";
    let cases: [(&str, Change); 21] = [
        ("not named", |_, shape| {
            shape.rules.nodes = ["b".to_owned()].into();
        }),
        ("excluded", |_, shape| {
            shape.rules.exclude_nodes = ["a".to_owned()].into();
        }),
        ("without the labels of workers.nodeSelector", |_, shape| {
            shape.node_selector = [("zone".into(), "x".into())].into();
        }),
        ("without a label that names the GPU product", |node, _| {
            node.metadata.labels = None;
        }),
        ("not in placement.gpu.products", |_, shape| {
            shape.rules.products = ["NVIDIA-H200".to_owned()].into();
        }),
        ("with other GPUs than the gang had", |_, shape| {
            shape.required_group = Some(GpuGroup::default());
        }),
        ("without a label with the GPU memory", |_, shape| {
            shape.rules.min_memory_mebibytes = Some(1);
        }),
        ("with less GPU memory", |node, shape| {
            set_label(node, "nvidia.com/gpu.memory", "15360");
            shape.rules.min_memory_mebibytes = Some(16_000);
        }),
        ("shared GPUs", |node, _| {
            set_label(node, "nvidia.com/gpu.product", "Tesla-T4-SHARED");
        }),
        ("shared GPUs", |node, _| {
            set_label(node, "nvidia.com/gpu.product", "NVIDIA-A100-MIG-1g.5gb");
        }),
        ("shared GPUs", |node, _| {
            set_label(node, "nvidia.com/gpu.sharing-strategy", "time-slicing");
        }),
        ("shared GPUs", |node, _| {
            set_label(node, "nvidia.com/gpu.replicas", "4");
        }),
        ("several models", |node, _| {
            set_label(node, "nvidia.com/gpu.count", "1");
        }),
        ("fewer GPUs than workers.gpusPerNode", |_, shape| {
            shape.gpus_per_node = 4;
        }),
        ("not ready", |node, _| {
            node.status.as_mut().expect("a status").conditions = None;
        }),
        ("taint", |node, _| {
            node.spec.get_or_insert_default().taints = Some(vec![Taint {
                key: "dedicated".into(),
                effect: "NoExecute".into(),
                ..Taint::default()
            }]);
        }),
        ("unhealthy GPUs", |node, _| {
            let allocatable = &mut node.status.as_mut().expect("a status").allocatable;
            allocatable
                .as_mut()
                .expect("amounts")
                .insert("nvidia.com/gpu".into(), Quantity("1".into()));
        }),
        ("too little free cpu", |_, shape| {
            shape.requests.extend([("cpu".into(), 8001)]);
        }),
        ("too little free memory", |_, shape| {
            shape.requests.extend([("memory".into(), 33 << 30)]);
        }),
        ("too little free ephemeral-storage", |node, shape| {
            set_amount(node, "ephemeral-storage", "10Gi");
            shape.requests.extend([("ephemeral-storage".into(), 11 << 30)]);
        }),
        (OTHER, |node, shape| {
            set_amount(node, "hugepages-2Mi", "1Gi");
            shape.requests.extend([("hugepages-2Mi".into(), 2 << 30)]);
        }),
    ];
    for (expected, change) in cases {
        let mut node = fixtures::node("a", "Tesla-T4", 2);
        let mut request = request(1, 1);
        change(&mut node, shape(&mut request));
        let rejected = place(&request, &inventory([node])).expect_err("refused").rejected;
        assert_eq!(rejected.len(), 1, "{rejected:?}");
        let reason = &rejected[0].reason;
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

    let refused = why(&on_host, &inventory);
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
fn drivers_memory_and_size_tell_groups_of_one_product_apart() {
    let label = "nvidia.com/cuda.driver-version.major";
    let driver = |name: &str, version: &str| labelled(name, "NVIDIA-H200", 8, &[(label, version)]);
    let nodes = [driver("a", "570"), driver("b", "580"), driver("c", "580")];
    let placement = place(&request(2, 8), &inventory(nodes)).expect("placed");
    assert_eq!(placement.nodes, ["b", "c"]);
    assert_eq!(group(&placement).driver_major.as_deref(), Some("580"));
    assert_eq!(placement.rejected[0].group, "NVIDIA-H200 (8 a node, driver 570)");
}

#[test]
fn the_first_writer_that_tells_a_product_is_believed() {
    let found = |product: &str, labels: &[(&str, &str)]| {
        let inventory = inventory([labelled("a", product, 1, labels)]);
        let found = group(&place(&request(1, 1), &inventory).expect("placed"));
        (found.product, found.memory_mebibytes)
    };
    let labels = [
        ("cloud.google.com/gke-accelerator", "nvidia-l4"),
        ("nvidia.com/gpu.memory", "23034"),
    ];
    assert_eq!(found("NVIDIA-L4", &labels), ("NVIDIA-L4".into(), Some(23_034)));
    // An empty value counts as missing.
    let labels = [
        ("gpu.nvidia.com/model", ""),
        ("amd.com/gpu.product-name", "Instinct_MI300X"),
        ("amd.com/gpu.vram", "192G"),
    ];
    assert_eq!(found("", &labels), ("Instinct_MI300X".into(), Some(196_608)));
}

#[test]
fn a_label_of_group_by_tells_groups_apart() {
    let machine = |name: &str, value: &str| labelled(name, "Tesla-T4", 1, &[("machine", value)]);
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
fn gpus_that_are_shared_by_more_pods_are_not_alike() {
    let node = |name, replicas, count| {
        let strategy = ("nvidia.com/gpu.sharing-strategy", "time-slicing");
        let labels = [
            strategy,
            ("nvidia.com/gpu.replicas", replicas),
            ("nvidia.com/gpu.count", count),
        ];
        labelled(name, "Tesla-T4-SHARED", 4, &labels)
    };
    let mixed = inventory([node("halves", "2", "2"), node("quarters", "4", "1")]);
    let mut request = request(2, 1);
    shape(&mut request).rules.allow_shared = true;
    let why = why(&request, &mixed);
    let expected = "Tesla-T4-SHARED (4 a node, 2 pods a GPU, time-slicing) has 1 node with 1 free";
    assert!(why.contains(expected), "{why}");
    request.nodes = 1;
    let placement = place(&request, &mixed).expect("placed");
    assert_eq!(group(&placement).replicas, Some(2));
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
    assert_eq!(counts, [("NVIDIA-H200", 2), ("Tesla-T4", 3)], "the fewest kinds");
    assert_eq!(
        placement.nodes,
        ["h1", "h2", "t1", "t2", "t3"],
        "ranks of one kind are neighbours"
    );
    assert_eq!(placement.rejected[0].group, "NVIDIA-L4");
    wanted.nodes = 3;
    let placement = place(&wanted, &inventory).expect("placed");
    assert_eq!(group(&placement).product, "Tesla-T4");
    wanted.nodes = 7;
    let message = why(&wanted, &inventory);
    assert!(message.starts_with("needs 7 x 1 nvidia.com/gpu: "), "{message}");
}

#[test]
fn a_required_topology_key_holds_the_gang_in_one_domain_or_says_why_not() {
    let of_block = |(name, block)| labelled(name, "Tesla-T4", 1, &[("block", block)]);
    let blocks = [("a", "x"), ("b", "x"), ("c", "y"), ("d", "y"), ("e", "y")].map(of_block);
    let nodes = inventory(blocks.into_iter().chain(names(&["f"], "Tesla-T4", 1)));
    let mut request = request(2, 1);
    shape(&mut request).rules.required_topology = Some("block".into());
    let placement = place(&request, &nodes).expect("placed");
    assert_eq!(placement.nodes, ["a", "b"], "the smaller block that fits");
    let [TopologySpread { key, domains }] = &placement.topology[..] else {
        panic!("{placement:?}")
    };
    assert_eq!((key.as_str(), &domains[..]), ("block", &["x".to_owned()][..]));
    request.nodes = 4;
    assert_eq!(
        why(&request, &nodes),
        "needs 4 x 1 identical nvidia.com/gpu: Tesla-T4 has 5 nodes with 1 free, but at most 3 with the same block, \
         1 node without the label of placement.topology.required (f)"
    );
}

#[test]
fn what_is_told_of_thousands_of_groups_is_short() {
    let key = "kubernetes.io/hostname";
    let nodes = (0..5_000).map(|index| {
        let name = format!("gpu-node-{index:05}.rack-17.example.com");
        labelled(&name, "Tesla-T4", 1, &[(key, &name)])
    });
    let inventory = inventory(nodes);
    let length = |rejected: &[RejectedGroup]| serde_json::to_string(rejected).expect("serializes").len();
    let mut request = request(2, 1);
    shape(&mut request).rules.group_by = vec![key.into()];
    let refused = place(&request, &inventory).expect_err("a group has one node");
    let message = refused.message;
    assert!(message.ends_with("; and 4988 more groups"), "{message}");
    assert!(message.len() < 4_096, "{message}");
    assert!(length(&refused.rejected) < 8_192, "{}", length(&refused.rejected));
    shape(&mut request).rules.homogeneity = Homogeneity::Off;
    request.nodes = 2_000;
    let placed = place(&request, &inventory).expect("placed");
    assert!(length(&placed.rejected) < 8_192, "{}", length(&placed.rejected));
}
