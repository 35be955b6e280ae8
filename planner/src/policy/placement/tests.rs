use crds::ViTTrainingJob;
use crds::spec::Homogeneity;
use crds::status::{Refusal, WaitStatus};
use crds::words;
use k8s_openapi::api::core::v1::{Node, NodeStatus, Taint};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::*;
use crate::facts::inventory::Inventory;
use crate::facts::resources::{HOST_PORTS, Holder, PODS};
use crate::fixtures;
use crate::policy::node_fit::{Verdict, verdict};
use crate::policy::request::{Avoidance, Shape};

const GPU: &str = "nvidia.com/gpu";

fn request(nodes: usize, gpus_per_node: u32, change: impl FnOnce(&mut Shape)) -> GangRequest {
    let mut shape = Shape::of_gpus(GPU, gpus_per_node);
    shape.requests.insert(PODS.into(), 1);
    change(&mut shape);
    GangRequest::fixed(nodes, &Arc::new(shape))
}

/// Nodes by name (after a colon, the GPUs that gangs use), number of GPUs, product and labels.
fn cluster(groups: &str) -> Inventory {
    let mut inventory = Inventory::default();
    for (names, gpus) in groups.split(';').filter_map(|group| group.split_once(" of ")) {
        let mut words = gpus.split(' ');
        let gpus = words.next().and_then(|gpus| gpus.parse().ok());
        let product = words.next().unwrap_or_default();
        for name in names.split_whitespace() {
            let (name, used) = name.split_once(':').unwrap_or((name, "0"));
            let mut node = fixtures::node(name, product, gpus.expect("a number"));
            for (key, value) in words.clone().filter_map(|label| label.split_once('=')) {
                set_label(&mut node, key, value);
            }
            inventory.nodes.extend(Inventory::of([node]).nodes);
            inventory.hold(name, &[(GPU.into(), used.parse().expect("a number"))].into());
        }
    }
    inventory
}

/// The nodes of a gang and why other groups were rejected, or why it does not fit.
fn outcome(request: &GangRequest, inventory: &Inventory) -> String {
    let (mut spec, shape) = (fixtures::job().spec, &request.shape);
    spec.workers.gpus_per_node = shape.gpus_per_node.try_into().expect("a few");
    spec.placement.homogeneity = shape.rules.homogeneity;
    spec.placement
        .topology
        .required
        .clone_from(&shape.rules.required_topology);
    let wait = WaitStatus {
        nodes: request.nodes.try_into().expect("a few"),
        ..WaitStatus::default()
    };
    let placement = match place(request, inventory) {
        Ok(placement) => placement,
        Err(rejected) => return words::waits(&spec, &wait, Some(&rejected)),
    };
    let mut words = placement.nodes.join(" ");
    match &placement.gpus {
        Gpus::Identical(group) => words += &format!(": {}", group.product),
        Gpus::Mixed(groups) => {
            for (group, nodes) in groups {
                words += &format!(": {nodes} {}", group.product);
            }
        }
    }
    for spread in &placement.topology {
        words += &format!(" in {} {}", spread.key, spread.domains.join(" "));
    }
    for rejected in &placement.rejected {
        words += &format!("; {} {}", rejected.group, words::rejects(&spec, rejected, true));
    }
    words
}

/// Checks the outcome for gangs of several sizes.
fn check(nodes: &str, change: fn(&mut Shape), gangs: &[(usize, u32, &str)]) {
    let inventory = cluster(nodes);
    for (nodes, gpus, expected) in gangs {
        assert_eq!(outcome(&request(*nodes, *gpus, change), &inventory), *expected);
    }
}

#[test]
fn a_gang_gets_like_gpus_and_leaves_large_groups_and_large_nodes_to_others() {
    let expected = "t1 t2 t3: Tesla-T4; NVIDIA-H200 only 1 node with 2 free";
    let few = "t1 t2 t3 of 2 Tesla-T4; h1 of 2 NVIDIA-H200";
    check(few, |_| (), &[(3, 2, expected)]);
    for (others, left_over) in [("o1 o2 o3 o4 o5 of 1", 3), ("o1 o2 o3 of 8", 22)] {
        let nodes = format!("t1 t2 t3 t4 of 1 Tesla-T4; {others} NVIDIA-H200");
        let why = format!("fits too, but leaves over {left_over} GPUs of its nodes instead of 2");
        let expected = format!("t1 t2: Tesla-T4; NVIDIA-H200 {why}");
        check(&nodes, |_| (), &[(2, 1, &expected)]);
    }
    // Partly used nodes are filled before whole ones.
    let gangs = [(2, 4, "a c: NVIDIA-H200")];
    check("a b c:4 of 8 NVIDIA-H200", |_| (), &gangs);
}

#[test]
fn what_does_not_fit_is_told_with_counts_and_names() {
    let none = "needs 1 x 1 identical nvidia.com/gpu: no node has nvidia.com/gpu";
    check("a of 0", |_| (), &[(1, 1, none)]);
    let nodes = "t1 t2:1 t3:2 t4:1 t5:2 t6 of 2 Tesla-T4; h1 h2:1 of 2 NVIDIA-H200";
    let few = "needs 4 x 2 identical nvidia.com/gpu: \
         NVIDIA-H200 has 1 node with 2 free, 1 node with too few free GPUs (h2); \
         Tesla-T4 has 2 nodes with 2 free, 4 nodes with too few free GPUs (t2, t3, t4, ...)";
    check(nodes, |_| (), &[(4, 2, few)]);
}

fn set_label(node: &mut Node, key: &str, value: &str) {
    let labels = node.metadata.labels.get_or_insert_default();
    labels.insert(key.into(), value.into());
}

fn status(node: &mut Node) -> &mut NodeStatus {
    node.status.as_mut().expect("a status")
}

fn set_amount(node: &mut Node, resource: &str, amount: &str) {
    let status = status(node);
    for amounts in [&mut status.capacity, &mut status.allocatable] {
        let amounts = amounts.as_mut().expect("amounts");
        amounts.insert(resource.into(), Quantity(amount.into()));
    }
}

#[test]
fn every_reason_refuses_a_node() {
    type Change = fn(&mut Node, &mut Shape);
    fn one<T: From<[String; 1]>>(name: &str) -> T {
        [name.to_owned()].into()
    }
    fn ask(shape: &mut Shape, resource: &str, amount: i64) {
        shape.requests.insert(resource.into(), amount);
    }
    const STRATEGY: &str = "nvidia.com/gpu.sharing-strategy";
    fn taint(node: &mut Node) {
        node.spec.get_or_insert_default().taints = Some(vec![Taint {
            key: "dedicated".into(),
            effect: "NoExecute".into(),
            ..Taint::default()
        }]);
    }
    let cases: [(Refusal, Change); 24] = [
        (Refusal::NotNamed, |_, shape| shape.rules.nodes = one("b")),
        (Refusal::Excluded, |_, shape| shape.rules.exclude_nodes = one("a")),
        (Refusal::FailedBefore, |_, shape| {
            shape.avoided = [("a".into(), Avoidance::FailedBefore)].into();
        }),
        (Refusal::WasSlow, |_, shape| {
            shape.avoided = [("a".into(), Avoidance::WasSlow)].into();
        }),
        (Refusal::SelectorMismatch, |_, shape| {
            shape.node_selector = [("zone".into(), "x".into())].into();
        }),
        (Refusal::NoProductLabel, |node, _| node.metadata.labels = None),
        (Refusal::OtherProduct, |_, shape| {
            shape.rules.products = one("NVIDIA-H200");
        }),
        (Refusal::OtherGpus, |_, shape| {
            shape.required_group = Some(GpuGroup::default());
        }),
        (Refusal::MemoryUnknown, |_, shape| {
            shape.rules.min_memory_mebibytes = Some(1);
        }),
        (Refusal::TooLittleGpuMemory, |node, shape| {
            set_label(node, "nvidia.com/gpu.memory", "15360");
            shape.rules.min_memory_mebibytes = Some(16_000);
        }),
        (Refusal::Shared, |node, _| {
            set_label(node, "nvidia.com/gpu.product", "T4-SHARED");
        }),
        (Refusal::Shared, |node, _| {
            set_label(node, "nvidia.com/gpu.product", "A100-MIG-1g");
        }),
        (Refusal::Shared, |node, _| {
            set_label(node, STRATEGY, "time-slicing");
        }),
        (Refusal::Shared, |node, _| {
            set_label(node, "nvidia.com/gpu.replicas", "4");
        }),
        (Refusal::Mixed, |node, _| {
            set_label(node, "nvidia.com/gpu.count", "1");
        }),
        (Refusal::TooFewGpus, |_, shape| shape.gpus_per_node = 4),
        (Refusal::NotReady, |node, _| status(node).conditions = None),
        (Refusal::Cordoned, |node, _| {
            node.spec.get_or_insert_default().unschedulable = Some(true);
        }),
        (Refusal::Tainted, |node, _| taint(node)),
        (Refusal::Unhealthy, |node, _| {
            status(node).allocatable = Some([(GPU.into(), Quantity("1".into()))].into());
        }),
        (Refusal::NoCpu, |_, shape| ask(shape, "cpu", 8001)),
        (Refusal::NoMemory, |_, shape| ask(shape, "memory", 33 << 30)),
        (Refusal::NoStorage, |node, shape| {
            set_amount(node, "ephemeral-storage", "10Gi");
            ask(shape, "ephemeral-storage", 11 << 30);
        }),
        (Refusal::NoOtherResource, |node, shape| {
            set_amount(node, "hugepages-2Mi", "1Gi");
            ask(shape, "hugepages-2Mi", 2 << 30);
        }),
    ];
    for (expected, change) in cases {
        let mut node = fixtures::node("a", "Tesla-T4", 2);
        let request = request(1, 1, |shape| change(&mut node, shape));
        let rejected = place(&request, &Inventory::of([node])).expect_err("refused");
        let reasons = rejected.iter().flat_map(|group| &group.reasons);
        let codes: Vec<_> = reasons.map(|reason| (reason.code, reason.nodes)).collect();
        assert_eq!(codes, [(expected, 1)]);
    }
}

#[test]
fn a_taint_that_keeps_pods_without_gpus_away_is_tolerated() {
    let mut job = fixtures::job();
    let nodes = |key: &str, effect: &str| {
        Inventory::of(["a", "b"].map(|name| {
            let mut node = fixtures::node(name, "Tesla-T4", 1);
            node.spec.get_or_insert_default().taints = Some(vec![Taint {
                key: key.into(),
                value: Some("present".into()),
                effect: effect.into(),
                ..Taint::default()
            }]);
            node
        }))
    };
    let fits = |job: &ViTTrainingJob, key, effect| {
        let valid = crds::validate(job).expect("valid");
        place(&GangRequest::from(&valid), &nodes(key, effect)).is_ok()
    };
    assert!(fits(&job, GPU, "NoSchedule"));
    assert!(!fits(&job, GPU, "NoExecute") && !fits(&job, "dedicated", "NoSchedule"));
    job.spec.workers.gpu_resource = "amd.com/gpu".into();
    let own = crds::validate(&job).expect("valid").tolerations();
    job.spec.workers.tolerations.clone_from(&own);
    let both = crds::validate(&job).expect("valid").tolerations();
    assert_eq!((own.len(), own[0].key.as_deref()), (1, Some("amd.com/gpu")));
    assert_eq!(both, own, "it is not there twice");
}

#[test]
fn a_node_takes_one_gang_on_its_network_and_others_beside_it() {
    let mut inventory = cluster("a of 3 Tesla-T4");
    let on_host = request(1, 1, |shape| _ = shape.requests.insert(HOST_PORTS.into(), 1));
    place(&on_host, &inventory).expect("placed");
    inventory.hold("a", &on_host.shape.requests);
    place(&request(1, 1, |_| ()), &inventory).expect("a gang on the network of pods fits beside it");

    let verdict = |inventory: &Inventory| verdict("a", &inventory.nodes["a"], &on_host.shape);
    let refusal = Refusal::HostPortsInUse;
    let until_it_ends = Verdict::Busy { refusal, free: 2 };
    assert_eq!(verdict(&inventory), until_it_ends);
    inventory.hold_for("a", &on_host.shape.requests, Holder::Other);
    // Others do not end by themselves.
    assert_eq!(verdict(&inventory), Verdict::Refused(refusal));
}

/// Invariant G13.
#[test]
fn the_first_writer_that_tells_a_product_is_believed() {
    // An empty value counts as missing.
    for (node, expected) in [
        (
            "a of 1 NVIDIA-L4 cloud.google.com/gke-accelerator=x nvidia.com/gpu.memory=23034",
            23_034,
        ),
        (
            "a of 1  gpu.nvidia.com/model= amd.com/gpu.product-name=MI300X amd.com/gpu.vram=192G",
            196_608,
        ),
    ] {
        let Ok(Gpus::Identical(group)) = place(&request(1, 1, |_| ()), &cluster(node)).map(|it| it.gpus)
        else {
            panic!("a single node");
        };
        let product = if expected == 23_034 { "NVIDIA-L4" } else { "MI300X" };
        assert_eq!(
            (&*group.product, group.memory_mebibytes),
            (product, Some(expected))
        );
    }
}

#[test]
fn a_node_without_the_label_of_its_driver_is_told_from_its_namesakes_by_it() {
    let nodes = "a b of 8 H200; c of 8 H200 nvidia.com/cuda.driver-version.major=580";
    let expected = "needs 3 x 8 identical nvidia.com/gpu: H200 (8 a node, driver unknown: no label \
         nvidia.com/cuda.driver-version.major) has 2 nodes with 8 free; \
         H200 (8 a node, driver 580) has 1 node with 8 free";
    check(nodes, |_| (), &[(3, 8, expected)]);
    // Of no node of the product is it known.
    let expected = "needs 4 x 8 identical nvidia.com/gpu: \
         H200 (4 a node) has 1 node with fewer GPUs than workers.gpusPerNode (c); \
         H200 (8 a node) has 2 nodes with 8 free";
    check("a b of 8 H200; c of 4 H200", |_| (), &[(4, 8, expected)]);
}

#[test]
fn drivers_sharing_and_labels_of_group_by_tell_groups_of_one_product_apart() {
    let nodes = "a of 8 H200 nvidia.com/cuda.driver-version.major=570; \
         b c of 8 H200 nvidia.com/cuda.driver-version.major=580";
    let expected = "b c: H200; H200 (8 a node, driver 570) only 1 node with 8 free";
    check(nodes, |_| (), &[(2, 8, expected)]);

    let nodes = "a of 1 T4 machine=x; b c of 1 T4 machine=y";
    check(nodes, |_| (), &[(2, 1, "a b: T4")]);
    let gangs = [(2, 1, "b c: T4; T4 (1 a node, machine x) only 1 node with 1 free")];
    check(
        nodes,
        |shape| shape.rules.group_by = vec!["machine".into()],
        &gangs,
    );

    let nodes = "halves of 4 T4-SHARED nvidia.com/gpu.sharing-strategy=time-slicing \
         nvidia.com/gpu.replicas=2 nvidia.com/gpu.count=2; \
         quarters of 4 T4-SHARED nvidia.com/gpu.sharing-strategy=time-slicing \
         nvidia.com/gpu.replicas=4 nvidia.com/gpu.count=1";
    let not_two = "needs 2 x 1 identical nvidia.com/gpu: \
         T4-SHARED (4 a node, 2 pods a GPU, time-slicing) has 1 node with 1 free; \
         T4-SHARED (4 a node, 4 pods a GPU, time-slicing) has 1 node with 1 free";
    let one = "halves: T4-SHARED; T4-SHARED (4 a node, 4 pods a GPU, time-slicing) \
         fits too, but leaves over 3 GPUs of its nodes instead of 3";
    let gangs = [(2, 1, not_two), (1, 1, one)];
    check(nodes, |shape| shape.rules.allow_shared = true, &gangs);
}

#[test]
fn a_mix_is_taken_only_where_the_job_prefers_like_gpus_and_they_do_not_fit() {
    let nodes = "t1 t2 t3 of 1 T4; h1 h2 of 1 H200; l1 of 1 L4";
    let all = "H200 has 2 nodes with 1 free; L4 has 1 node with 1 free; T4 has 3 nodes with 1 free";
    let not_five = format!("needs 5 x 1 identical nvidia.com/gpu: {all}");
    check(nodes, |_| (), &[(5, 1, &not_five)]);
    // The fewest kinds; ranks of one kind are neighbors.
    let five = "h1 h2 t1 t2 t3: 2 H200: 3 T4; L4 only 1 node with 1 free";
    let three = "t1 t2 t3: T4; H200 only 2 nodes with 1 free; L4 only 1 node with 1 free";
    let not_seven = format!("needs 7 x 1 nvidia.com/gpu: {all}");
    let prefers = |shape: &mut Shape| shape.rules.homogeneity = Homogeneity::Preferred;
    let gangs = [(5, 1, five), (3, 1, three), (7, 1, &not_seven)];
    check(nodes, prefers, &gangs);
}

#[test]
fn a_required_topology_key_holds_the_gang_in_one_domain_or_says_why_not() {
    let nodes = "a b of 1 T4 block=x; c d e of 1 T4 block=y; f of 1 T4";
    let not_four = "needs 4 x 1 identical nvidia.com/gpu: \
         T4 has 5 nodes with 1 free, but at most 3 with the same block, \
         1 node without the label of placement.topology.required (f)";
    let gangs = [(2, 1, "a b: T4 in block x"), (4, 1, not_four)];
    let required = |shape: &mut Shape| shape.rules.required_topology = Some("block".into());
    check(nodes, required, &gangs);
}

#[test]
fn what_is_told_of_thousands_of_groups_is_short() {
    const KEY: &str = "kubernetes.io/hostname";
    let nodes = (0..5_000).map(|index| {
        let name = format!("gpu-node-{index:05}.rack-17.example.com");
        let mut node = fixtures::node(&name, "Tesla-T4", 1);
        set_label(&mut node, KEY, &name);
        node
    });
    let inventory = Inventory::of(nodes);
    let length = |rejected: &[RejectedGroup]| serde_json::to_string(rejected).expect("serializes").len();
    let by_node = |shape: &mut Shape| shape.rules.group_by = vec![KEY.into()];
    let refused = place(&request(2, 1, by_node), &inventory).expect_err("a group has one node");
    let message = words::waits(&fixtures::job().spec, &WaitStatus::default(), Some(&refused));
    assert!(message.ends_with("; and more groups"), "{message}");
    assert!(message.len() < 4_096, "{message}");
    assert!(length(&refused) < 8_192, "{}", length(&refused));
    let any = request(2_000, 1, |shape| {
        by_node(shape);
        shape.rules.homogeneity = Homogeneity::Off;
    });
    let placed = place(&any, &inventory).expect("placed");
    assert!(length(&placed.rejected) < 8_192, "{}", length(&placed.rejected));
}
