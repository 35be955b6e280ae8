use serde_json::json;

use super::*;
use crate::fixtures::{job, training};
use crate::mock::{Answer, server};

/// An agent's metrics of a rank after 10 steps of 0.5 s.
fn exposition(rank: u32, is_gpu: bool) -> String {
    let mut text = String::new();
    for (phase, seconds) in [
        ("data", 0.5),
        ("backward", 3.5),
        ("sync_exposed", 0.6),
        ("sync_straggler", 0.4),
    ] {
        let labels = format!("{{phase=\"{phase}\",rank=\"{rank}\"}}");
        text += &format!("vit_step_seconds_sum{labels} {seconds}\nvit_step_seconds_count{labels} 10\n");
    }
    text += &format!("vit_images_total{{rank=\"{rank}\"}} 3200\n");
    if is_gpu {
        let load = 0.9 - f64::from(rank) * 0.2;
        text += &format!(
            "vit_device_utilization_ratio{{rank=\"{rank}\"}} {load}\n\
             vit_device_memory_used_bytes{{rank=\"{rank}\"}} {}\n\
             vit_device_temperature_celsius{{rank=\"{rank}\"}} 61\n\
             vit_device_power_watts{{rank=\"{rank}\"}} 70.4\n\
             vit_device_throttled{{rank=\"{rank}\",reason=\"power_cap\"}} {rank}\n\
             vit_device_throttled{{rank=\"{rank}\",reason=\"thermal\"}} 0\n",
            (9_u64 + u64::from(rank)) << 30
        );
    }
    text
}

fn pod(job: &str, node_rank: u32, is_running: bool) -> serde_json::Value {
    let state = if is_running {
        json!({"running": {}})
    } else {
        json!({"waiting": {"reason": "ContainerCreating"}})
    };
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": format!("{job}-2-{node_rank}"), "namespace": "research", "labels": {
            "vit-operator.dev/job-name": job, "vit-operator.dev/attempt": "2",
            "vit-operator.dev/node-rank": node_rank.to_string()}},
        "status": {"phase": "Running", "containerStatuses": [{"name": "trainer", "image": "", "imageID": "",
            "restartCount": 0, "ready": is_running, "state": state}]}})
}

/// Jobs digits on two GPUs, large on one node of eight, and waiting, whose pods do not run yet.
fn cluster(is_gpu: bool) -> Cluster {
    server(move |request| {
        let named = |name: &str| {
            let mut job = job(training());
            job.metadata.name = Some(name.into());
            job.spec.workers.gpus_per_node = if name == "large" { 8 } else { 1 };
            job
        };
        let pods = [
            pod("digits", 1, true),
            pod("digits", 0, true),
            pod("large", 0, true),
            pod("waiting", 0, false),
        ];
        let of = |job: &str| {
            let pods = pods
                .iter()
                .filter(|pod| pod["metadata"]["labels"]["vit-operator.dev/job-name"] == job);
            Answer::list(&pods.collect::<Vec<_>>())
        };
        match request.path.rsplit('/').next().unwrap_or_default() {
            "metrics" if request.path.contains("/digits-2-0:") => Answer::text(&exposition(0, is_gpu)),
            "metrics" if request.path.contains("/digits-2-1:") => Answer::text(&exposition(1, is_gpu)),
            "metrics" => Answer::refusal(503, "no agent"),
            "pods" if request.query.contains("job-name=digits") => of("digits"),
            "pods" if request.query.contains("job-name=waiting") => of("waiting"),
            "pods" => Answer::list(&pods),
            "vittrainingjobs" => Answer::list(&["waiting", "digits", "large"].map(named)),
            name => Answer::json(&named(name)),
        }
    })
}

#[tokio::test]
async fn jobs_with_running_pods_are_sorted_by_gpus() {
    let jobs = jobs_load(&cluster(true), false, None).await.expect("are there");
    insta::assert_snapshot!(render::jobs(&jobs, false, Paint::plain(120)));
}

#[tokio::test]
async fn a_job_has_a_line_for_each_rank() {
    let name = "digits".parse().expect("a name");
    let ranks = job_load(&cluster(true), &name).await.expect("run");
    insta::assert_snapshot!(render::ranks(&ranks, Paint::plain(120)));
    let on_cpus = job_load(&cluster(false), &name).await.expect("run");
    let object = serde_json::to_value(&on_cpus[0]).expect("JSON");
    assert_eq!(
        object,
        json!({"rank": 0, "node": "node1", "pod": "digits-2-0", "imagesPerSecond": 640.0, "stepSeconds": 0.5,
            "syncShare": 0.2})
    );
}

#[tokio::test]
async fn a_job_without_running_pods_is_an_error() {
    let name = "waiting".parse().expect("a name");
    let error = job_load(&cluster(true), &name).await.expect_err("none run");
    assert_eq!(error.exit(), Exit::NotFound);
    assert_eq!(
        error.to_string(),
        "job waiting has no running pods, its phase is Running: kubectl vit why waiting -n research shows why"
    );
}
