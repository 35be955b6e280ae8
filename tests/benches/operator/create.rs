//! Pods Running per second: 200 jobs of 8 pods on 500 nodes, for each contender on a new cluster.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Instant;

use anyhow::Result;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::ListParams;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use vit_tests::progress::say;

use crate::report::Report;
use crate::requests::Requests;
use crate::testbed::{RAISED, SHIPPED, Testbed, on_testbed};
use crate::workload::{self, NAMESPACE};
use crate::{peers, pods, usage};

const NODES: usize = 500;
const JOBS: usize = 200;
const PODS_PER_JOB: usize = 8;
const PODS: usize = JOBS * PODS_PER_JOB;
/// Rounds of the two main contenders; the others need minutes and run once.
const ROUNDS: usize = 3;

/// One contender's run.
struct Run {
    pods_per_second: f64,
    cpu_seconds: BTreeMap<String, f64>,
    /// Requests of all clients: contender, scheduler, controllers, fake kubelets.
    requests: Requests,
}

pub(crate) async fn measure() -> Result<Report> {
    let (mut ours, mut raw) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let (run, made) = on_testbed(NODES, RAISED, ours_on).await?;
        ours.push(run.printed("ours"));
        let run = on_testbed(NODES, RAISED, async |testbed| {
            until_running(testbed, &Api::namespaced(testbed.client.clone(), NAMESPACE), made).await
        })
        .await?;
        raw.push(run.printed("raw_create"));
    }
    let rates = |runs: &[Run]| runs.iter().map(|run| run.pods_per_second).collect::<Vec<_>>();
    let (own, limit) = (rates(&ours), rates(&raw));
    let ratios = own.iter().zip(&limit).map(|(own, limit)| own / limit).collect();
    let training_operator = on_testbed(NODES, RAISED, training_operator_on)
        .await?
        .printed("training_operator");
    let times = median(own.clone()) / training_operator.pods_per_second;
    let indexed_job = on_testbed(NODES, SHIPPED, indexed_jobs_on)
        .await?
        .printed("indexed_job");
    let raised = on_testbed(NODES, RAISED, indexed_jobs_on)
        .await?
        .printed("indexed_job_raised_rate");

    let mut report = Report::new(format!(
        "create: pods Running per second, {JOBS} jobs of {PODS_PER_JOB} pods on {NODES} nodes"
    ));
    let plain = "the same pods created by a plain client";
    let (mut cpu_seconds, mut requests) = (json!({}), json!({}));
    for (key, what, runs) in [
        ("ours", format!("ours, median of {ROUNDS}"), ours),
        ("raw_create", format!("{plain}, median of {ROUNDS}"), raw),
        (
            "training_operator",
            "training-operator 1.8.1, PyTorchJob".into(),
            vec![training_operator],
        ),
        (
            "indexed_job",
            "Indexed Job, controller manager as shipped (20 calls/s)".into(),
            vec![indexed_job],
        ),
        (
            "indexed_job_raised_rate",
            "Indexed Job, controller manager with 500 calls/s".into(),
            vec![raised],
        ),
    ] {
        report.add(key, what, median(rates(&runs)), "pods/s");
        for run in runs {
            cpu_seconds[key] = json!(run.cpu_seconds);
            requests[key] = run.requests.to_json();
        }
    }
    report
        .add("ratio_to_raw_create", "ours / plain client", median(ratios), "")
        .at_least(0.9);
    report
        .add(
            "ratio_to_training_operator",
            "ours / training-operator",
            times,
            "",
        )
        .at_least(10.0);
    report.detail("nodes", NODES);
    report.detail("jobs", JOBS);
    report.detail("pods_per_job", PODS_PER_JOB);
    report.detail("rounds", json!({"ours": own, "raw_create": limit}));
    report.detail("cpu_seconds", cpu_seconds);
    report.detail("requests", requests);
    Ok(report)
}

/// Our run and its pods, for the plain client.
async fn ours_on(testbed: &Testbed) -> Result<(Run, Vec<Pod>)> {
    testbed.start_operator().await?;
    let jobs = (0..JOBS)
        .map(|index| workload::job(index, PODS_PER_JOB))
        .collect::<Result<_>>()?;
    let run = until_running(testbed, &Api::namespaced(testbed.client.clone(), NAMESPACE), jobs).await?;
    let made: Api<Pod> = Api::namespaced(testbed.client.clone(), NAMESPACE);
    let made = made.list(&ListParams::default()).await?;
    Ok((run, made.items.into_iter().map(workload::as_posted).collect()))
}

async fn training_operator_on(testbed: &Testbed) -> Result<Run> {
    peers::start_training_operator(testbed).await?;
    let jobs = (0..JOBS)
        .map(|index| workload::pytorch_job(index, PODS_PER_JOB))
        .collect::<Result<_>>()?;
    let api = Api::namespaced_with(testbed.client.clone(), NAMESPACE, &workload::pytorch_jobs());
    until_running(testbed, &api, jobs).await
}

async fn indexed_jobs_on(testbed: &Testbed) -> Result<Run> {
    let jobs = (0..JOBS)
        .map(|index| workload::indexed_job(index, PODS_PER_JOB))
        .collect::<Result<_>>()?;
    until_running(testbed, &Api::namespaced(testbed.client.clone(), NAMESPACE), jobs).await
}

/// Measures from the first created object until all pods run.
async fn until_running<K>(testbed: &Testbed, api: &Api<K>, objects: Vec<K>) -> Result<Run>
where
    K: Clone + Debug + Serialize + DeserializeOwned,
{
    let (cpu, requests) = (testbed.cpu_seconds()?, testbed.requests().await?);
    let started = Instant::now();
    let running = pods::appear(&testbed.client, pods::running(), PODS);
    let ((_, last), ()) = tokio::try_join!(running, workload::post(api, objects))?;
    Ok(Run {
        pods_per_second: PODS as f64 / (last - started).as_secs_f64(),
        cpu_seconds: usage::since(testbed.cpu_seconds()?, &cpu),
        requests: testbed.requests().await?.since(&requests),
    })
}

impl Run {
    fn printed(self, contender: &str) -> Self {
        say(format_args!(
            "{contender}: {:.1} pods Running per second; CPU seconds {:?}; requests\n{}",
            self.pods_per_second, self.cpu_seconds, self.requests
        ));
        self
    }
}

/// The middle value.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
