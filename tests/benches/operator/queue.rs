//! A full cluster with 1,000 waiting jobs, where a pod of others ends each second and is replaced: the
//! status writes of the waiting jobs, and the restart of a gang, compared with an idle cluster.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result};
use crds::{ViTTrainingJob, labels};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams};
use serde_json::json;
use vit_tests::progress::say;
use vit_tests::rights::Request;

use crate::gang_restart;
use crate::report::Report;
use crate::testbed::{GPUS_PER_NODE, RAISED, Testbed, on_testbed};
use crate::usage::{self, hundredths};
use crate::workload::{self, GPUS, NAMESPACE};

/// A few more than pods of the gang.
const NODES: usize = 210;
const PODS: usize = 200;
const FAILS: usize = 100;
const WAITING: usize = 1_000;
/// The gangs on the idle cluster. The first only warms caches.
const IDLE: [usize; 2] = [0, 1];
/// The gang on the full cluster.
const BESIDE: usize = 2;
/// The first waiting job.
const FIRST: usize = 3;
/// Longer than 1,000 waiting jobs take for a write of their counts each.
const SPAN: Duration = Duration::from_secs(540);
/// How long the GPUs of a pod that ended are free.
const GAP: Duration = Duration::from_millis(500);

pub(crate) async fn measure() -> Result<Report> {
    on_testbed(NODES, RAISED, measure_on).await
}

async fn measure_on(testbed: &Testbed) -> Result<Report> {
    testbed.start_operator().await?;
    let jobs: Api<ViTTrainingJob> = Api::namespaced(testbed.client.clone(), NAMESPACE);
    let mut alone = Vec::new();
    for index in IDLE {
        workload::post(&jobs, vec![workload::job(index, PODS)?]).await?;
        testbed.until_jobs("Running", 1).await?;
        let restart = gang_restart::ours(testbed, index, FAILS, PODS).await?;
        say(format_args!(
            "alone: {:.1} s, {}",
            restart.seconds(),
            restart.phases()
        ));
        alone.push(restart);
        let deleted = DeleteParams::foreground();
        jobs.delete(&format!("job-{index}"), &deleted).await?;
        testbed.until_jobs("Running", 0).await?;
    }
    let idle = alone.pop().context("there are two")?;
    workload::post(&jobs, vec![workload::job(BESIDE, PODS)?]).await?;
    testbed.until_jobs("Running", 1).await?;
    let foreign = fill(testbed).await?;
    let queue = (FIRST..FIRST + WAITING).map(|index| workload::job(index, 2));
    workload::post(&jobs, queue.collect::<Result<_>>()?).await?;
    testbed.until_jobs("Pending", WAITING).await?;
    // Those without a status count as Pending.
    testbed.at_rest().await?;
    say(format_args!("{WAITING} jobs wait"));

    let measured = async {
        let (calls_before, cpu_before) = (testbed.operator_calls()?.len(), testbed.cpu_seconds()?);
        tokio::time::sleep(SPAN).await;
        let calls = testbed.operator_calls()?.split_off(calls_before);
        let cpu_seconds = usage::since(testbed.cpu_seconds()?, &cpu_before);
        let beside = gang_restart::ours(testbed, BESIDE, FAILS, PODS).await?;
        say(format_args!(
            "beside: {:.1} s, {}",
            beside.seconds(),
            beside.phases()
        ));
        anyhow::Ok((calls, cpu_seconds, beside))
    };
    let (calls, cpu_seconds, beside) = tokio::select! {
        measured = measured => measured?,
        failed = replace(testbed, &foreign) => match failed? {},
    };

    let mut report = Report::new(format!(
        "queue: {WAITING} jobs wait on {NODES} full nodes, and a pod of others ends each second"
    ));
    let mut by_second: BTreeMap<i64, usize> = BTreeMap::new();
    for call in calls.iter().filter(|call| is_write(call)) {
        *by_second.entry(call.time.as_second()).or_default() += 1;
    }
    let writes = by_second.values().sum::<usize>() as f64 / SPAN.as_secs_f64();
    report
        .add(
            "status_writes_per_second",
            "status writes of waiting jobs",
            writes,
            "/s",
        )
        .at_most(2.0);
    report.add(
        "restart_idle_seconds",
        format!("a gang of {PODS} restarts alone"),
        idle.seconds(),
        "s",
    );
    report.add(
        "restart_seconds",
        "the same beside the waiting jobs",
        beside.seconds(),
        "s",
    );
    report
        .add(
            "ratio_to_idle",
            "beside / alone",
            beside.seconds() / idle.seconds(),
            "",
        )
        .at_most(1.2);
    report.detail("nodes", NODES);
    report.detail("waiting_jobs", WAITING);
    report.detail(
        "most_status_writes_in_a_second",
        by_second.values().max().copied(),
    );
    report.detail(
        "calls_per_second",
        hundredths(calls.len() as f64 / SPAN.as_secs_f64()),
    );
    report.detail(
        "seconds",
        json!({"idle": idle.phases(), "beside": beside.phases()}),
    );
    report.detail("cpu_seconds_by_program", json!(cpu_seconds));
    Ok(report)
}

/// Whether the call writes the status of a waiting job.
fn is_write(call: &Request) -> bool {
    let is_of_gang = || call.uri.contains(&format!("/job-{BESIDE}/"));
    call.right
        .as_ref()
        .is_some_and(|right| right.verb == "patch" && right.resource == "vittrainingjobs/status")
        && !is_of_gang()
}

/// Fills all GPUs that the gang leaves with a pod of others on each node. Returns them.
async fn fill(testbed: &Testbed) -> Result<Vec<Pod>> {
    let pods: Api<Pod> = Api::namespaced(testbed.client.clone(), NAMESPACE);
    let of_gang = ListParams::default().labels(&format!("{}=job-{BESIDE}", labels::JOB_NAME));
    let gang = pods.list(&of_gang).await?;
    let used: Vec<&str> = gang
        .iter()
        .filter_map(|pod| pod.spec.as_ref()?.node_name.as_deref())
        .collect();
    let foreign = (0..NODES).map(|index| {
        let node = format!("fake-{index:05}");
        let left = GPUS_PER_NODE - if used.contains(&&*node) { GPUS } else { 0 };
        workload::foreign_pod(&format!("foreign-{index}"), &node, left)
    });
    let foreign: Vec<Pod> = foreign.collect::<Result<_>>()?;
    workload::post(&pods, foreign.clone()).await?;
    Ok(foreign)
}

/// Each second one of these pods ends, and is soon replaced. Never ends.
async fn replace(testbed: &Testbed, foreign: &[Pod]) -> Result<std::convert::Infallible> {
    let pods: Api<Pod> = Api::namespaced(testbed.client.clone(), NAMESPACE);
    let mut ticks = tokio::time::interval(Duration::from_secs(1));
    let mut turns = foreign.iter().cycle();
    loop {
        ticks.tick().await;
        let pod = turns.next().context("there are pods")?;
        let name = pod.metadata.name.as_deref().context("it has a name")?;
        pods.delete(name, &DeleteParams::default().grace_period(0))
            .await?;
        tokio::time::sleep(GAP).await;
        pods.create(&PostParams::default(), pod).await?;
    }
}
