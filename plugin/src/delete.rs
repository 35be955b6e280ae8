//! `kubectl vit delete`.

use crds::{Stored, ViTTrainingJob};
use kube::api::{DeleteParams, Preconditions};
use kube::runtime::wait::{await_condition, conditions::is_deleted};

use crate::cluster::Cluster;
use crate::error::{Error, Exit};
use crate::kind::JobName;
use crate::outcomes::Outcomes;
use crate::output::{print, report};
use crate::summary::held;
use crate::wait::Timeout;

/// Delete jobs, with their pods; checkpoints stay on their volumes
///
/// A later job of the same name continues from them, unless its checkpoint.resume is Never.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: kubectl vit delete digits --wait")]
pub(crate) struct Arguments {
    /// The jobs
    #[arg(value_name = "JOB", required = true, add = crate::completion::jobs())]
    jobs: Vec<JobName>,
    /// Wait until the jobs and their pods are gone
    #[arg(long)]
    wait: bool,
    /// Ignore jobs that do not exist
    #[arg(long)]
    ignore_not_found: bool,
    #[command(flatten)]
    timeout: Timeout,
}

pub(crate) async fn run(cluster: &Cluster, arguments: &Arguments) -> Result<Exit, Error> {
    let mut outcomes = Outcomes::new();
    for name in &arguments.jobs {
        match Box::pin(delete(cluster, name, arguments, &report)).await {
            Err(Error::NoObject { .. }) if arguments.ignore_not_found => {}
            outcome => drop(outcomes.keep(outcome)?),
        }
    }
    Ok(outcomes.exit())
}

/// Deletes a job; remarks go to `say`.
async fn delete(
    cluster: &Cluster,
    name: &JobName,
    arguments: &Arguments,
    say: &dyn Fn(&str),
) -> Result<(), Error> {
    let job = cluster.get(name).await?;
    let uid = job.metadata.uid.clone().unwrap_or_default();
    // With --wait, pods are deleted first; otherwise the job would be gone while they save and stop.
    let params = if arguments.wait {
        DeleteParams::foreground()
    } else {
        DeleteParams::background()
    };
    // A new job may have the same name by now; it must not be deleted.
    let params = params.preconditions(Preconditions {
        uid: Some(uid.clone()),
        resource_version: None,
    });
    let deleted = cluster
        .api::<ViTTrainingJob>()
        .delete(name.as_str(), &params)
        .await;
    let deleted = cluster.about("delete", name, deleted).await?;
    print(&format!("vittrainingjob.vit-operator.dev \"{name}\" deleted\n"))?;
    if let Some(checkpoint) = job.status.unwrap_or_default().last_checkpoint {
        say(&format!(
            "its checkpoint of step {} stays in {}",
            checkpoint.step, checkpoint.path
        ));
    }
    if !arguments.wait {
        let kept = deleted.left().and_then(|Stored(kept)| kept.ok());
        if let Some(words) = kept.as_ref().and_then(held) {
            say(&words);
        }
        return Ok(());
    }
    let gone = Box::pin(async {
        let gone = await_condition(cluster.api::<ViTTrainingJob>(), name.as_str(), is_deleted(&uid)).await;
        let doing = format!("wait until job {name} is gone");
        gone.map(drop).map_err(|error| Error::refused(&doing, &error))
    });
    let state = || {
        let pods = format!("get pods -l vit-operator.dev/job-name={name}");
        format!(
            "its pods are still terminating; {} shows them",
            cluster.place().kubectl(&pods)
        )
    };
    let what = format!("the end of job {name}");
    arguments.timeout.limit(&what, gone, state).await
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use serde_json::json;

    use super::*;
    use crate::fixtures;
    use crate::mock::{Answer, server};

    #[tokio::test]
    async fn a_deletion_that_waits_for_finalizers_is_reported() {
        let mut job = fixtures::job(json!({}));
        job.metadata.uid = Some("1".into());
        let cluster = server(move |request| {
            let mut job = job.clone();
            if request.method == "DELETE" {
                job.metadata.finalizers = Some(vec!["trial.io/hold".into()]);
            }
            Answer::json(&job)
        });
        let arguments = Arguments {
            jobs: vec![],
            wait: false,
            ignore_not_found: false,
            timeout: Timeout::NEVER,
        };
        let shown = RefCell::new(vec![]);
        let say = |words: &str| shown.borrow_mut().push(words.to_owned());
        let name = "digits".parse().expect("a name");
        delete(&cluster, &name, &arguments, &say)
            .await
            .expect("is deleted");
        let words = "it waits for its finalizers: trial.io/hold; its pods are being stopped";
        assert_eq!(shown.into_inner(), [words]);
    }
}
