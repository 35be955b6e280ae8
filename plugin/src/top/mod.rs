//! `kubectl vit top`: resource usage, one line per job with running pods, or per rank of one job.

mod load;
mod render;

use std::collections::BTreeMap;

use crds::{Phase, ViTTrainingJob, labels};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, ResourceExt as _};
use serde::Serialize;

use crate::cluster::Cluster;
use crate::error::{Error, Exit};
use crate::gang::{AGENTS_ASKED, AT_ONCE, Found, Member, expositions};
use crate::kind::{JobName, Kind as _};
use crate::output::{self, Format, report};
use crate::paint::Paint;
use load::{RankLoad, loads};

/// Show the resource usage of jobs: nodes, GPUs, images/s, sync share, GPU load and memory
///
/// For one job, each rank has a line: images/s, step time and sync share since the attempt began, GPU readings of the last
/// second. For all jobs, each job with running pods has a line, most GPUs first: images/s and sync share as in list, the
/// mean GPU load, and the highest GPU memory use. GPU readings cover up to 64 pods.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  kubectl vit top -A\n  kubectl vit top digits")]
pub(crate) struct Arguments {
    /// The job; without it, all jobs with running pods
    #[arg(value_name = "JOB", add = crate::completion::jobs())]
    job: Option<JobName>,
    /// Jobs of all namespaces; --namespace is ignored
    #[arg(short = 'A', long, conflicts_with = "job")]
    all_namespaces: bool,
    /// Only jobs with these labels
    #[arg(short = 'l', long, value_name = "LABELS", conflicts_with = "job")]
    selector: Option<String>,
    /// Output format
    #[arg(short, long, value_enum)]
    output: Option<Format>,
}

/// The resource usage of a job.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct JobLoad {
    namespace: String,
    name: String,
    /// Nodes with a running pod.
    nodes: i64,
    gpus: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    images_per_second: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sync_share: Option<f64>,
    /// Mean over the ranks that report it.
    #[serde(skip_serializing_if = "Option::is_none")]
    gpu_load: Option<f64>,
    /// Maximum over the ranks.
    #[serde(skip_serializing_if = "Option::is_none")]
    gpu_memory_bytes: Option<f64>,
}

impl JobLoad {
    fn new(job: &ViTTrainingJob, running: &[Member], ranks: &[RankLoad]) -> Self {
        let progress = job.status.as_ref().and_then(|status| status.progress.as_ref());
        // In other phases, it is from an earlier attempt.
        let progress = progress.filter(|_| job.phase() == Some(Phase::Running));
        let loads: Vec<f64> = ranks.iter().filter_map(|rank| rank.gpu_load).collect();
        let nodes = running.len() as i64;
        Self {
            namespace: job.namespace().unwrap_or_default(),
            name: job.name_any(),
            nodes,
            gpus: nodes * i64::from(job.spec.workers.gpus_per_node),
            images_per_second: progress.and_then(|progress| progress.images_per_second),
            sync_share: progress.and_then(|progress| progress.sync_share),
            gpu_load: (!loads.is_empty()).then(|| loads.iter().sum::<f64>() / loads.len() as f64),
            gpu_memory_bytes: ranks
                .iter()
                .filter_map(|rank| rank.gpu_memory_bytes)
                .reduce(f64::max),
        }
    }
}

pub(crate) async fn run(cluster: &Cluster, arguments: &Arguments) -> Result<Exit, Error> {
    let format = arguments.output.filter(|format| format.is_object());
    let paint = Paint::of_stdout();
    if let Some(name) = &arguments.job {
        let ranks = job_load(cluster, name).await?;
        match format {
            Some(format) => output::object(&ranks, &[name.qualified()], format)?,
            None => output::print(&render::ranks(&ranks, paint))?,
        }
        return Ok(Exit::Done);
    }
    let all = arguments.all_namespaces;
    let jobs = jobs_load(cluster, all, arguments.selector.as_deref()).await?;
    let name = |job: &JobLoad| format!("{}/{}", ViTTrainingJob::prefix(), job.name);
    match format {
        Some(format) => output::object(&jobs, &jobs.iter().map(name).collect::<Vec<_>>(), format)?,
        None if jobs.is_empty() => cluster.report_none("jobs with running pods", all),
        None => output::print(&render::jobs(&jobs, all, paint))?,
    }
    Ok(Exit::Done)
}

/// The ranks of a job's running pods; an error if none runs.
async fn job_load(cluster: &Cluster, name: &JobName) -> Result<Vec<RankLoad>, Error> {
    let job = cluster.get(name).await?;
    let running = running(crate::gang::members(cluster, &job).await?);
    if running.is_empty() {
        return Err(Error::NotFound(format!(
            "job {name} has no running pods, its phase is {}: {} shows why",
            job.phase_word(),
            cluster.place().vit(&format!("why {name}"))
        )));
    }
    if running.len() > AGENTS_ASKED {
        report(&format!(
            "readings of the first {AGENTS_ASKED} of {} pods:",
            running.len()
        ));
    }
    match expositions(cluster, &running, AGENTS_ASKED).await {
        Found::Yes(texts) => Ok(loads(&job, &running, &texts)),
        Found::None => Ok(loads(&job, &running, &[])),
        Found::No(reason) => {
            report(&format!("reports of ranks not shown: {reason}"));
            Ok(loads(&job, &running, &[]))
        }
    }
}

/// The jobs with running pods, most GPUs first.
async fn jobs_load(cluster: &Cluster, all: bool, selector: Option<&str>) -> Result<Vec<JobLoad>, Error> {
    let jobs: Vec<ViTTrainingJob> = cluster.list_readable(all, selector).await?;
    let api: Api<Pod> = if all {
        Api::all(cluster.client().clone())
    } else {
        cluster.pods()
    };
    let params = ListParams::default().labels(labels::JOB_NAME);
    let mut pods: BTreeMap<_, Vec<Member>> = BTreeMap::new();
    for pod in cluster.list(api, params, "list the jobs' pods").await? {
        let job = pod.labels().get(labels::JOB_NAME).cloned();
        pods.entry((pod.namespace(), job))
            .or_default()
            .extend(Member::of(&pod));
    }
    let gangs = jobs.into_iter().filter_map(|job| {
        let running = running(pods.remove(&(job.namespace(), Some(job.name_any())))?);
        (!running.is_empty()).then_some((job, running))
    });
    let gangs: Vec<_> = gangs.collect();
    let most = (AGENTS_ASKED / gangs.len().max(1)).max(1);
    let asked = gangs.iter().map(async |(job, running)| {
        let place = cluster.in_namespace(&job.namespace().unwrap_or_default());
        let found = expositions(&place, running, most).await;
        let ranks = found
            .yes()
            .map_or_else(Vec::new, |texts| loads(job, running, texts));
        (
            JobLoad::new(job, running, &ranks),
            found.no().map(ToOwned::to_owned),
        )
    });
    let mut asked: Vec<_> = futures::stream::iter(asked)
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;
    if let Some(reason) = asked.iter_mut().find_map(|(_, reason)| reason.take()) {
        report(&format!("reports of some ranks not shown: {reason}"));
    }
    let mut jobs: Vec<JobLoad> = asked.into_iter().map(|(job, _)| job).collect();
    jobs.sort_by(|one, other| {
        let key = |job: &JobLoad| (-job.gpus, job.namespace.clone(), job.name.clone());
        key(one).cmp(&key(other))
    });
    Ok(jobs)
}

fn running(mut members: Vec<Member>) -> Vec<Member> {
    members.retain(|member| member.is_running);
    members.sort_unstable_by_key(|member| member.node_rank);
    members
}

#[cfg(test)]
mod tests;
