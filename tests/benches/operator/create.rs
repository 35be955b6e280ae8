//! Pods Running per second: 200 jobs of 8 pods on 500 nodes, by each contender on a new cluster.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Instant;

use anyhow::Result;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::ListParams;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use vit_tests::progress::say;

use crate::report::{Bar, Report};
use crate::requests::Requests;
use crate::testbed::{ControllerRate, Testbed, on_testbed};
use crate::workload::{self, NAMESPACE};
use crate::{peers, pods};

const NODES: usize = 500;
const JOBS: usize = 200;
const PODS_PER_JOB: usize = 8;
const PODS: usize = JOBS * PODS_PER_JOB;
/// Rounds of the two contenders that are compared closely; the others take minutes and are measured once.
const ROUNDS: usize = 3;

/// One contender's run.
struct Run {
    pods_per_second: f64,
    cpu_seconds: BTreeMap<String, f64>,
    /// By everyone: the contender, the scheduler, the controllers, the fake kubelets.
    requests: Requests,
}

pub(crate) async fn measure() -> Result<Report> {
    let (mut ours, mut raw) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let (run, made) = on_testbed(NODES, ControllerRate::Raised, ours_on).await?;
        ours.push(run.told("ours"));
        let run = on_testbed(NODES, ControllerRate::Raised, async |testbed| {
            until_running(testbed, &Api::namespaced(testbed.client.clone(), NAMESPACE), made).await
        })
        .await?;
        raw.push(run.told("raw_create"));
    }
    let training_operator = on_testbed(NODES, ControllerRate::Raised, training_operator_on)
        .await?
        .told("training_operator");
    let indexed_job = on_testbed(NODES, ControllerRate::Shipped, indexed_jobs_on)
        .await?
        .told("indexed_job");
    let raised = on_testbed(NODES, ControllerRate::Raised, indexed_jobs_on)
        .await?
        .told("indexed_job_raised_rate");

    let rates = |runs: &[Run]| runs.iter().map(|run| run.pods_per_second).collect::<Vec<_>>();
    let (own, limit) = (median(rates(&ours)), median(rates(&raw)));
    let ratio = median(
        rates(&ours)
            .iter()
            .zip(rates(&raw))
            .map(|(own, limit)| own / limit)
            .collect(),
    );
    let mut report = Report::new(format!(
        "create: pods Running per second, {JOBS} jobs of {PODS_PER_JOB} pods on {NODES} nodes"
    ));
    let unit = "pods/s";
    report.add("ours", format!("ours, median of {ROUNDS}"), own, unit);
    report.add(
        "raw_create",
        format!("the same pods posted by a plain client, median of {ROUNDS}"),
        limit,
        unit,
    );
    report.add(
        "training_operator",
        "training-operator 1.8.1, PyTorchJob",
        training_operator.pods_per_second,
        unit,
    );
    report.add(
        "indexed_job",
        "Indexed Job, controller manager as shipped (20 calls/s)",
        indexed_job.pods_per_second,
        unit,
    );
    report.add(
        "indexed_job_raised_rate",
        "Indexed Job, controller manager with 500 calls/s",
        raised.pods_per_second,
        unit,
    );
    report.add_with_bar(
        "ratio_to_raw_create",
        "ours / plain client",
        ratio,
        "",
        Bar::AtLeast(0.9),
    );
    let times = own / training_operator.pods_per_second;
    report.add_with_bar(
        "ratio_to_training_operator",
        "ours / training-operator",
        times,
        "",
        Bar::AtLeast(10.0),
    );
    report.detail("nodes", NODES);
    report.detail("jobs", JOBS);
    report.detail("pods_per_job", PODS_PER_JOB);
    report.detail("rounds", json!({"ours": rates(&ours), "raw_create": rates(&raw)}));
    let last = |runs: &[Run]| runs.last().map(|run| json!(run.cpu_seconds));
    let cpu_seconds: Value = json!({
        "ours": last(&ours), "raw_create": last(&raw), "training_operator": training_operator.cpu_seconds,
        "indexed_job": indexed_job.cpu_seconds, "indexed_job_raised_rate": raised.cpu_seconds,
    });
    report.detail("cpu_seconds", cpu_seconds);
    let last = |runs: &[Run]| runs.last().map(|run| run.requests.to_json());
    let requests: Value = json!({
        "ours": last(&ours), "raw_create": last(&raw), "training_operator": training_operator.requests.to_json(),
        "indexed_job": indexed_job.requests.to_json(), "indexed_job_raised_rate": raised.requests.to_json(),
    });
    report.detail("requests", requests);
    Ok(report)
}

/// Our run, and the pods that it made, for posting them by hand.
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

/// From the first object posted until all pods run.
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
        cpu_seconds: testbed.cpu_seconds()?.since(&cpu),
        requests: testbed.requests().await?.since(&requests),
    })
}

impl Run {
    fn told(self, contender: &str) -> Self {
        say(format_args!(
            "{contender}: {:.1} pods Running per second; CPU seconds {:?}; requests\n{}",
            self.pods_per_second, self.cpu_seconds, self.requests
        ));
        self
    }
}

/// The one in the middle.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
