//! A gang of 1,000 pods, from a failed container until all pods are recreated, with the operator
//! and with a plain client.

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::{Context as _, Result};
use crds::{ViTTrainingJob, labels};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::runtime::watcher;
use serde_json::json;
use vit_tests::progress::say;

use crate::pods;
use crate::report::Report;
use crate::testbed::{RAISED, Testbed, on_testbed};
use crate::usage::{self, hundredths};
use crate::workload::{self, NAMESPACE, POSTED_AT_ONCE};

/// A few more than pods, so that the failed pod's node can be avoided.
const NODES: usize = 1_020;
const PODS: usize = 1_000;
/// The pod that fails, neither the first nor the last.
const FAILS: usize = 500;

/// A restart.
pub(crate) struct Restart {
    /// Seconds of its consecutive phases: until the first other pod is gone, until all old pods are
    /// gone, until the first new pod exists, and until all exist.
    phases: [(&'static str, f64); 4],
    cpu_seconds: BTreeMap<String, f64>,
}

impl Restart {
    pub(crate) fn seconds(&self) -> f64 {
        self.phases.iter().map(|(_, seconds)| seconds).sum()
    }

    pub(crate) fn phases(&self) -> serde_json::Value {
        let phases = self.phases.iter();
        phases
            .map(|(phase, seconds)| ((*phase).to_owned(), json!(hundredths(*seconds))))
            .collect()
    }
}

pub(crate) async fn measure() -> Result<Report> {
    let (ours, made) = on_testbed(NODES, RAISED, ours_on).await?;
    say(format_args!(
        "gang restart, ours: {:.1} s, {}",
        ours.seconds(),
        ours.phases()
    ));
    let (create_seconds, raw) =
        on_testbed(NODES, RAISED, async |testbed| plain_on(testbed, made).await).await?;
    say(format_args!(
        "plain client: created in {:.1} s; restart: {:.1} s, {}",
        create_seconds,
        raw.seconds(),
        raw.phases()
    ));

    let rate = |seconds: f64| PODS as f64 / seconds;
    let (own, limit) = (rate(ours.seconds()), rate(create_seconds));
    let raw_restart = rate(raw.seconds());
    let mut report = Report::new(format!(
        "gang_restart: a gang of {PODS} pods on {NODES} nodes, from a failed container until all pods are recreated"
    ));
    let unit = "pods/s";
    report.add("pods_per_second", "ours", own, unit);
    report.add(
        "raw_create",
        "the same pods created by a plain client, none deleted",
        limit,
        unit,
    );
    let again = "deleted and recreated by a plain client";
    report.add("raw_restart", again, raw_restart, unit);
    report
        .add("ratio_to_raw_create", "ours / created", own / limit, "")
        .at_least(0.9);
    report.add(
        "ratio_to_raw_restart",
        "ours / deleted and recreated",
        own / raw_restart,
        "",
    );
    report.detail("nodes", NODES);
    report.detail("pods", PODS);
    report.detail(
        "seconds",
        json!({"ours": ours.phases(), "raw_restart": raw.phases()}),
    );
    report.detail(
        "cpu_seconds",
        json!({"ours": ours.cpu_seconds, "raw_restart": raw.cpu_seconds}),
    );
    Ok(report)
}

/// Our restart and its new pods, for the plain client.
async fn ours_on(testbed: &Testbed) -> Result<(Restart, Vec<Pod>)> {
    testbed.start_operator().await?;
    let jobs: Api<ViTTrainingJob> = Api::namespaced(testbed.client.clone(), NAMESPACE);
    workload::post(&jobs, vec![workload::job(0, PODS)?]).await?;
    testbed.until_jobs("Running", 1).await?;
    let of_attempt = |attempt: u32| format!("{}={attempt}", labels::ATTEMPT);
    let restart = ours(testbed, 0, FAILS, PODS).await?;
    let pods: Api<Pod> = Api::namespaced(testbed.client.clone(), NAMESPACE);
    let made = pods.list(&ListParams::default().labels(&of_attempt(2))).await?;
    Ok((restart, made.items.into_iter().map(workload::as_posted).collect()))
}

/// The first restart of a job's gang of this many pods, after this one fails.
pub(crate) async fn ours(testbed: &Testbed, job: usize, fails: usize, pods: usize) -> Result<Restart> {
    let of_attempt = |attempt: u32| format!("{}=job-{job},{}={attempt}", labels::JOB_NAME, labels::ATTEMPT);
    let failing = fail_container(testbed, format!("job-{job}-1-{fails}"));
    timed(testbed, &of_attempt(1), (&of_attempt(2), pods), failing).await
}

/// Seconds in which a plain client creates the pods, and the restart by it.
async fn plain_on(testbed: &Testbed, made: Vec<Pod>) -> Result<(f64, Restart)> {
    let pods: Api<Pod> = Api::namespaced(testbed.client.clone(), NAMESPACE);
    let started = Instant::now();
    let running = pods::appear(&testbed.client, pods::running(), PODS);
    let posted = async {
        workload::post(&pods, made.clone()).await?;
        Ok(started.elapsed().as_secs_f64())
    };
    let (_, create_seconds) = tokio::try_join!(running, posted)?;
    // New pods have the names of the old ones, so a label distinguishes them.
    let again = made.into_iter().map(|mut pod| {
        let label = ("again".to_owned(), "true".to_owned());
        pod.metadata.labels.get_or_insert_default().extend([label]);
        pod
    });
    let again: Vec<Pod> = again.collect();
    let restart = timed(testbed, "!again", ("again", PODS), async {
        let (_, ()) = tokio::try_join!(
            pods::vanish(&testbed.client, watcher::Config::default().labels("!again")),
            delete_all(&pods, &again)
        )?;
        workload::post(&pods, again).await
    })
    .await?;
    Ok((create_seconds, restart))
}

/// Measures a restart that `begin` triggers: pods of `old` disappear, so many of `new`
/// appear.
async fn timed(
    testbed: &Testbed,
    old: &str,
    (new, count): (&str, usize),
    begin: impl Future<Output = Result<()>>,
) -> Result<Restart> {
    let labeled = |labels: &str| watcher::Config::default().labels(labels);
    let before = testbed.cpu_seconds()?;
    let started = Instant::now();
    let (gone, come, ()) = tokio::try_join!(
        pods::vanish(&testbed.client, labeled(old)),
        pods::appear(&testbed.client, labeled(new), count),
        begin
    )?;
    let seconds = |from: Instant, to: Instant| to.saturating_duration_since(from).as_secs_f64();
    Ok(Restart {
        phases: [
            ("to_first_deletion", seconds(started, gone.0)),
            ("deleting", seconds(gone.0, gone.1)),
            ("between", seconds(gone.1, come.0)),
            ("creating", seconds(come.0, come.1)),
        ],
        cpu_seconds: usage::since(testbed.cpu_seconds()?, &before),
    })
}

/// Writes the status that a pod's kubelet would write after a crash of the trainer.
async fn fail_container(testbed: &Testbed, name: String) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(testbed.client.clone(), NAMESPACE);
    let now = Timestamp::now().to_string();
    let ended = json!({"exitCode": 1, "reason": "Error", "startedAt": now, "finishedAt": now});
    let status = json!({"status": {
        "phase": "Failed",
        "containerStatuses": [{
            "name": "trainer", "image": "vit-trainer:latest", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"terminated": ended},
        }],
    }});
    pods.patch_status(&name, &PatchParams::default(), &Patch::Merge(status))
        .await
        .with_context(|| format!("cannot make pod {name} fail"))?;
    Ok(())
}

/// Deletes pods like the operator: gracefully and concurrently.
async fn delete_all(pods: &Api<Pod>, which: &[Pod]) -> Result<()> {
    let parameters = DeleteParams::default();
    stream::iter(which.iter().filter_map(|pod| pod.metadata.name.as_deref()))
        .map(|name| pods.delete(name, &parameters))
        .buffer_unordered(POSTED_AT_ONCE)
        .try_for_each(|_| async { Ok(()) })
        .await
        .context("cannot delete the pods")
}
