//! `kubectl vit delete`.

use kube::Api;
use kube::api::{DeleteParams, Preconditions};
use kube::runtime::wait::{await_condition, conditions::is_deleted};

use crate::cluster::{Cluster, JobName};
use crate::error::{Error, Exit};
use crate::output::{print, tell};
use crate::wait::Patience;

/// Delete jobs, with their pods; checkpoints stay on their volumes
///
/// A job of the same name that is created later continues from them, unless its checkpoint.resume is Never.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: kubectl vit delete digits --wait")]
pub(crate) struct Arguments {
    /// The jobs
    #[arg(value_name = "JOB", required = true, add = crate::completion::jobs())]
    jobs: Vec<JobName>,
    /// Wait until the jobs and their pods are gone
    #[arg(long)]
    wait: bool,
    /// A job that is not there is no error
    #[arg(long)]
    ignore_not_found: bool,
    #[command(flatten)]
    patience: Patience,
}

pub(crate) async fn run(cluster: &Cluster, arguments: &Arguments) -> Result<Exit, Error> {
    for name in &arguments.jobs {
        let job = match cluster.job(name).await {
            Ok(job) => job,
            Err(Error::NoJob { .. }) if arguments.ignore_not_found => continue,
            Err(error) => return Err(error),
        };
        let uid = job.metadata.uid.clone().unwrap_or_default();
        // Pods go first where that is waited for: else the job is gone while they save and stop.
        let params = if arguments.wait {
            DeleteParams::foreground()
        } else {
            DeleteParams::background()
        };
        // Of this name there may be another job by now, which nobody asked to delete.
        let params = params.preconditions(Preconditions {
            uid: Some(uid.clone()),
            resource_version: None,
        });
        if let Err(error) = cluster.jobs().delete(name.as_str(), &params).await {
            return Err(cluster
                .job_error(&format!("delete job {name}"), name, error)
                .await);
        }
        print(&format!("vittrainingjob.vit-operator.dev \"{name}\" deleted\n"))?;
        let status = job.status.unwrap_or_default();
        if let Some(checkpoint) = status.last_checkpoint {
            tell(&format!(
                "its checkpoint of step {} stays in {}",
                checkpoint.step, checkpoint.path
            ));
        }
        if arguments.wait {
            gone(cluster, cluster.jobs(), name, &uid, arguments.patience).await?;
        }
    }
    Ok(Exit::Done)
}

async fn gone(
    cluster: &Cluster,
    jobs: Api<crds::ViTTrainingJob>,
    name: &JobName,
    uid: &str,
    patience: Patience,
) -> Result<(), Error> {
    let waiting = await_condition(jobs, name.as_str(), is_deleted(uid));
    let failed = |error: kube::runtime::wait::Error| Error::Refused {
        doing: format!("wait until job {name} is gone"),
        message: crate::error::chain(&error),
    };
    let Some(seconds) = patience.timeout else {
        return waiting.await.map(drop).map_err(failed);
    };
    match tokio::time::timeout(std::time::Duration::from_secs(seconds), waiting).await {
        Ok(result) => result.map(drop).map_err(failed),
        Err(_) => Err(Error::TimedOut {
            what: format!("the end of job {name}"),
            seconds,
            state: format!(
                "its pods are still ending; {} shows them",
                cluster
                    .place()
                    .kubectl(&format!("get pods -l vit-operator.dev/job-name={name}"))
            ),
        }),
    }
}
