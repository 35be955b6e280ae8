//! 1,000 jobs of 16 pods on 5,000 nodes: time until all run, and the operator's use of resources.

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::{Context as _, Result};
use crds::ViTTrainingJob;
use kube::Api;
use serde_json::json;
use vit_tests::progress::say;

use crate::report::Report;
use crate::testbed::{RAISED, Testbed, on_testbed};
use crate::usage::{self, hundredths};
use crate::workload::{self, NAMESPACE};

const NODES: usize = 5_000;
const JOBS: usize = 1_000;
const PODS_PER_JOB: usize = 16;
const PODS: usize = JOBS * PODS_PER_JOB;
const MEBIBYTE: f64 = 1024.0 * 1024.0;

pub(crate) async fn measure() -> Result<Report> {
    on_testbed(NODES, RAISED, measure_on).await
}

async fn measure_on(testbed: &Testbed) -> Result<Report> {
    testbed.start_operator().await?;
    let jobs = (0..JOBS)
        .map(|index| workload::job(index, PODS_PER_JOB))
        .collect::<Result<_>>()?;
    let api: Api<ViTTrainingJob> = Api::namespaced(testbed.client.clone(), NAMESPACE);
    let rounds = || {
        Ok::<_, anyhow::Error>(
            testbed
                .operator_metrics()?
                .histogram("vit_operator_reconcile_seconds"),
        )
    };
    let (calls_before, rounds_before, cpu_before) =
        (testbed.operator_calls()?.len(), rounds()?, testbed.cpu_seconds()?);
    let started = Instant::now();
    workload::post(&api, jobs).await?;
    say(format_args!("{JOBS} jobs created"));
    testbed.until_jobs("Running", JOBS).await?;
    let seconds = started.elapsed().as_secs_f64();
    let calls = testbed.operator_calls()?.split_off(calls_before);
    let rounds = rounds()?.since(&rounds_before);
    let cpu_seconds = usage::since(testbed.cpu_seconds()?, &cpu_before);
    let pid = testbed.operator_pid()?;

    let mut report = Report::new(format!(
        "scale: {JOBS} jobs of {PODS_PER_JOB} pods on {NODES} nodes"
    ));
    report.add(
        "seconds_to_all_running",
        "from the first created job until all run",
        seconds,
        "s",
    );
    for (key, share) in [("reconcile_p50_ms", 0.5), ("reconcile_p99_ms", 0.99)] {
        let what = format!(
            "{:.0} % of {} reconciles last at most",
            share * 100.0,
            rounds.count()
        );
        let time = rounds.quantile(share).context("there was no reconcile")?;
        report.add(key, what, time * 1e3, "ms");
    }
    // By verb and resource, such as `update vittrainingjobs/status`.
    let mut by_kind: BTreeMap<String, u64> = BTreeMap::new();
    for call in &calls {
        let kind = call.right.as_ref().map_or("other".into(), |right| {
            format!("{} {}", right.verb, right.resource)
        });
        *by_kind.entry(kind).or_default() += 1;
    }
    let per_pod = calls.len() as f64 / PODS as f64;
    let what = "calls of the operator to the API server, per pod";
    report.add("api_calls_per_pod", what, per_pod, "").at_most(3.0);
    let peak = usage::peak_rss_bytes(pid)?;
    let what = format!("peak memory of the operator ({:.0} MiB)", peak / MEBIBYTE);
    report
        .add("peak_rss_bytes", what, peak, "B")
        .at_most(150.0 * MEBIBYTE);
    report.add(
        "cpu_seconds",
        "CPU time of the operator, including its start",
        usage::cpu_seconds(pid)?,
        "s",
    );
    report.detail("nodes", NODES);
    report.detail("jobs", JOBS);
    report.detail("pods_per_job", PODS_PER_JOB);
    report.detail("pods_per_second", hundredths(PODS as f64 / seconds));
    report.detail("calls", json!(by_kind));
    report.detail("cpu_seconds_by_program", json!(cpu_seconds));
    Ok(report)
}
