//! The planner at 15,000 nodes: the time to place a large job, and to decide about 1,000 waiting
//! jobs again after one event. Writes the key `planner` of `target/bench/operator.json`.
#![allow(clippy::print_stdout, reason = "the table is what it is for")]

use std::path::Path;
use std::time::{Duration, Instant};
use std::{fs, io};

use crds::{ViTTrainingJob, labels};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt as _;
use kube::runtime::watcher::Event;
use planner::{Decision, Planner};
use serde_json::{Value, json};

#[path = "../src/fixtures/common.rs"]
#[allow(dead_code, reason = "shared with tests, which use more of it")]
mod fixtures;

const NODES: usize = 15_000;
/// Every fifth node has 4 GPUs, the others 8.
const GPUS: usize = NODES / 5 * (4 * 8 + 4);
const PRODUCTS: [&str; 5] = [
    "NVIDIA-H200",
    "NVIDIA-H100-80GB-HBM3",
    "NVIDIA-A100-SXM4-80GB",
    "NVIDIA-B200",
    "NVIDIA-L40S",
];
const WAITING: usize = 1_000;
const REPEATS: usize = 25;
const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/bench/operator.json");

fn main() -> anyhow::Result<()> {
    let now = Timestamp::now();
    let new = "a 1,024-GPU job, of a shape never seen before";
    let known = "the same, of the shape of an earlier job";
    let topology = "the same, never seen before, along two topology keys";
    let replanned = "1,000 waiting jobs, after one node came back";
    let rows = [
        ("one_job", new, Some(10.0), one_job(now, Shape::New)),
        ("one_job_of_known_shape", known, None, one_job(now, Shape::Known)),
        (
            "one_job_with_topology",
            topology,
            None,
            one_job(now, Shape::NewWithTopology),
        ),
        ("replan_1000", replanned, Some(100.0), replan(now)),
    ];
    let processors = std::thread::available_parallelism()?.get();
    println!("{NODES} nodes, {GPUS} GPUs, {processors} processors, median of {REPEATS} (least to most)\n");
    let mut planner = json!({"nodes": NODES, "gpus": GPUS, "repeats": REPEATS, "processors": processors});
    for (key, what, bar, times) in rows {
        let (least, median, most) = (times[0], times[times.len() / 2], times[times.len() - 1]);
        let verdict = bar.map_or(String::new(), |bar| {
            let verdict = if median <= bar { "met" } else { "MISSED" };
            format!("  bar {bar} ms: {verdict}")
        });
        println!("{what:<56}{median:>8.2} ms ({least:.2} to {most:.2}){verdict}");
        planner[format!("{key}_ms")] = json!(median);
        planner[format!("{key}_spread_ms")] = json!([least, most]);
    }
    save(Path::new(FILE), planner)
}

/// Keeps other keys of the file.
fn save(path: &Path, planner: Value) -> anyhow::Result<()> {
    let mut all: Value = match fs::read(path) {
        Ok(text) => serde_json::from_slice(&text)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => json!({}),
        Err(error) => return Err(error.into()),
    };
    all["planner"] = planner;
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    Ok(fs::write(path, serde_json::to_vec_pretty(&all)?)?)
}

fn milliseconds(mut times: Vec<Duration>) -> Vec<f64> {
    times.sort_unstable();
    times.iter().map(|time| time.as_secs_f64() * 1e3).collect()
}

/// The measured job's state in the planner.
#[derive(Clone, Copy, PartialEq)]
enum Shape {
    New,
    Known,
    NewWithTopology,
}

/// From a new job to its placement, in a cluster that is half in use.
fn one_job(now: Timestamp, shape: Shape) -> Vec<f64> {
    let mut planner = cluster(|index| index.is_multiple_of(2));
    let mut never = job(usize::MAX, 1, 8, now);
    never.spec.placement.gpu.products = vec!["none".into()];
    apply(&mut planner, never.clone());
    let measure = |repeat: usize| {
        let mut job = job(repeat, 128, 8, now);
        let cpu = if shape == Shape::Known { 8 } else { 8 + repeat };
        job.spec.workers.resources =
            serde_json::from_value(json!({"requests": {"cpu": cpu.to_string()}})).expect("resources");
        if shape == Shape::NewWithTopology {
            job.spec.placement.topology.preferred = vec!["topology/block".into(), "topology/rack".into()];
        }
        let started = Instant::now();
        apply(&mut planner, job.clone());
        let nodes = place(&mut planner, &job, now);
        let time = started.elapsed();
        assert_eq!(nodes, Some(128));
        planner.follow_jobs(&Event::Delete(job.into()));
        // Do not time the removal of a job.
        place(&mut planner, &never, now);
        time
    };
    // The first is a warm-up.
    milliseconds((0..=REPEATS).map(measure).skip(1).collect())
}

/// From the return of a node to decisions about all waiting jobs, in a full cluster. A tenth of
/// them have waited so long that nodes are reserved for them.
fn replan(now: Timestamp) -> Vec<f64> {
    let mut planner = cluster(|index| index > REPEATS);
    for index in 0..=REPEATS {
        planner.follow_nodes(&Event::Apply(node(index, false)));
    }
    let mut jobs: Vec<ViTTrainingJob> = (0..WAITING).map(|index| waiting(index, now)).collect();
    for job in &jobs {
        apply(&mut planner, job.clone());
    }
    let measure = |repeat: usize| {
        let decide = |planner: &mut Planner, jobs: &[ViTTrainingJob]| -> Vec<usize> {
            let placed = |(index, job): (usize, &ViTTrainingJob)| place(planner, job, now).map(|_| index);
            jobs.iter().enumerate().filter_map(placed).collect()
        };
        decide(&mut planner, &jobs);
        let started = Instant::now();
        planner.follow_nodes(&Event::Apply(node(repeat, true)));
        let placed = decide(&mut planner, &jobs);
        let time = started.elapsed();
        // Another job waits in place of each that was placed.
        for index in placed {
            jobs[index] = waiting(WAITING * (repeat + 1) + index, now);
            apply(&mut planner, jobs[index].clone());
        }
        time
    };
    milliseconds((0..=REPEATS).map(measure).skip(1).collect())
}

fn apply(planner: &mut Planner, job: ViTTrainingJob) {
    planner.follow_jobs(&Event::Apply(job.into()));
}

/// How many nodes are promised to a job, with the reasons as in a reconcile; `None` if it waits.
fn place(planner: &mut Planner, job: &ViTTrainingJob, now: Timestamp) -> Option<usize> {
    let version = job.resource_version();
    match planner.place(&job.uid().unwrap_or_default(), version.as_deref(), 1, now)? {
        Decision::Placed(placement) => Some(placement.nodes.len()),
        Decision::Waits(_) => None,
    }
}

/// Jobs of 12 shapes and many sizes.
fn waiting(index: usize, now: Timestamp) -> ViTTrainingJob {
    let nodes = [1, 2, 4, 8, 16, 32, 64, 128][index % 8];
    let gpus = [8, 4, 1][index % 3];
    let minutes = if index.is_multiple_of(10) { 90 } else { 5 };
    let mut job = job(index, nodes, gpus, now - SignedDuration::from_mins(minutes));
    if !index.is_multiple_of(4) {
        job.spec.placement.gpu.products = vec![PRODUCTS[index % 4].into()];
    }
    job
}

fn job(index: usize, nodes: i32, gpus: i32, created: Timestamp) -> ViTTrainingJob {
    let mut job = fixtures::job();
    job.metadata.name = Some(format!("job-{index}"));
    job.metadata.uid = Some(format!("uid-{index}"));
    job.metadata.creation_timestamp = Some(Time(created));
    job.spec.workers.nodes = nodes;
    job.spec.workers.gpus_per_node = gpus;
    job
}

/// The cluster, with two daemon pods on every node, and a gang's pod on those in use.
fn cluster(is_in_use: impl Fn(usize) -> bool) -> Planner {
    let mut planner = Planner::default();
    for index in 0..NODES {
        planner.follow_nodes(&Event::Apply(node(index, true)));
        for daemon in 0..2 {
            let requests = json!({"cpu": "200m", "memory": "256Mi"});
            planner.follow_pods(&Event::Apply(pod(index, daemon, requests)));
        }
        if is_in_use(index) {
            let gpus = gpus_of(index).to_string();
            let requests = json!({"cpu": "16", "memory": "64Gi", "nvidia.com/gpu": gpus});
            let mut pod = pod(index, 2, requests);
            pod.metadata = serde_json::from_value(json!({
                "name": pod.metadata.name, "namespace": "any",
                "ownerReferences": [{
                    "apiVersion": "vit-operator.dev/v1alpha1", "kind": "ViTTrainingJob", "controller": true,
                    "name": "running", "uid": format!("running-{index}"),
                }],
                "labels": {labels::ATTEMPT: "1", labels::NODE_RANK: "0", labels::GANG_SIZE: "1"},
            }))
            .expect("metadata");
            planner.follow_pods(&Event::Apply(pod));
        }
    }
    planner
}

fn gpus_of(index: usize) -> usize {
    if index % 5 == 4 { 4 } else { 8 }
}

/// A node with a cloud's and NVIDIA's discovery's labels. Nodes of one product are consecutive.
fn node(index: usize, is_ready: bool) -> Node {
    let gpus = gpus_of(index);
    let amounts = json!({
        "nvidia.com/gpu": gpus.to_string(), "cpu": "192", "memory": "2000Gi", "pods": "110",
        "ephemeral-storage": "800Gi", "hugepages-1Gi": "0",
    });
    let labels = json!({
        "kubernetes.io/hostname": format!("node-{index:05}"),
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        "node.kubernetes.io/instance-type": "gpu-8x",
        "topology.kubernetes.io/region": "region-1",
        "topology.kubernetes.io/zone": format!("zone-{}", index / 5_000),
        "topology/block": format!("block-{:03}", index / 500),
        "topology/rack": format!("rack-{:04}", index / 16),
        "nvidia.com/gpu.present": "true",
        "nvidia.com/gpu.product": PRODUCTS[index / (NODES / PRODUCTS.len())],
        "nvidia.com/gpu.memory": "143771",
        "nvidia.com/gpu.count": gpus.to_string(),
        "nvidia.com/gpu.replicas": "1",
        "nvidia.com/gpu.sharing-strategy": "none",
        "nvidia.com/gpu.family": "hopper",
        "nvidia.com/gpu.compute.major": "9",
        "nvidia.com/mig.capable": "true",
        "nvidia.com/cuda.driver-version.major": "570",
        "nvidia.com/cuda.driver-version.minor": "86",
        "nvidia.com/cuda.runtime-version.major": "12",
        "feature.node.kubernetes.io/cpu-model.vendor_id": "Intel",
        "feature.node.kubernetes.io/pci-10de.present": "true",
    });
    serde_json::from_value(json!({
        "metadata": {"name": format!("node-{index:05}"), "labels": labels},
        "status": {
            "capacity": amounts, "allocatable": amounts,
            "conditions": [{"type": "Ready", "status": if is_ready { "True" } else { "Unknown" }}],
        },
    }))
    .expect("a node")
}

fn pod(node: usize, index: usize, requests: Value) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": format!("pod-{node}-{index}"), "namespace": "any"},
        "spec": {
            "nodeName": format!("node-{node:05}"),
            "containers": [{"name": "it", "resources": {"requests": requests}}],
        },
        "status": {"phase": "Running"},
    }))
    .expect("a pod")
}
