//! `kubectl vit save`: a checkpoint now.

use crds::{Phase, ViTTrainingJob, labels};
use serde_json::json;

use crate::cluster::Cluster;
use crate::error::{Error, Exit};
use crate::kind::{JobName, end};
use crate::output::print;
use crate::summary::phase;
use crate::wait::{Timeout, wait};

/// Have a running job save a checkpoint now
///
/// Training continues during the write. The request is an annotation of the job: a restarted gang fulfils it, too.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: kubectl vit save digits --wait")]
pub(crate) struct Arguments {
    /// The job
    #[arg(value_name = "JOB", add = crate::completion::jobs())]
    job: JobName,
    /// Wait until the checkpoint is written
    #[arg(long)]
    wait: bool,
    #[command(flatten)]
    timeout: Timeout,
}

pub(crate) async fn run(cluster: &Cluster, arguments: &Arguments) -> Result<Exit, Error> {
    let name = &arguments.job;
    let job = cluster.get(name).await?;
    let step = step(&job, name)?;
    let patch = json!({"metadata": {"annotations": {labels::SAVE_AFTER_STEP: step.to_string()}}});
    cluster.patch(name, &patch).await?;
    print(&format!("{name} saves a checkpoint after step {step}\n"))?;
    if arguments.wait {
        let outcome = |job: Option<&ViTTrainingJob>| outcome(name, step, job);
        let words = wait(cluster, name, "a new checkpoint", arguments.timeout, outcome).await?;
        print(&format!("{words}\n"))?;
    }
    Ok(Exit::Done)
}

/// The step of a job that can save.
fn step(job: &ViTTrainingJob, name: &JobName) -> Result<i64, Error> {
    let phase = phase(job);
    if job.spec.external.is_some() {
        let words = "another trainer (spec.external) saves only by itself, and when it is stopped";
        return Err(Error::Usage(format!(
            "job {name} cannot be asked to save: {words}"
        )));
    }
    if phase != Some(Phase::Running) {
        let phase = phase.map_or("New", Phase::as_str);
        return Err(Error::Usage(format!(
            "job {name} is {phase}: only a running job can save"
        )));
    }
    let status = job.status.as_ref();
    Ok(status
        .and_then(|status| status.progress.as_ref())
        .map_or(0, |progress| progress.step))
}

/// The result of the wait; `None` while it continues.
fn outcome(name: &JobName, step: i64, job: Option<&ViTTrainingJob>) -> Option<Result<String, Error>> {
    let status = job.and_then(|job| job.status.as_ref());
    let saved = status.and_then(|status| status.last_checkpoint.as_ref());
    match saved.filter(|checkpoint| checkpoint.step > step) {
        Some(checkpoint) => Some(Ok(format!(
            "{name} is saved at step {} in {}",
            checkpoint.step, checkpoint.path
        ))),
        None => end(name, job).map(|end| end.map(|()| format!("{name} had already finished"))),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::fixtures;
    use crate::mock::{Answer, server};

    async fn saved(job: &ViTTrainingJob) -> (Result<Exit, String>, Vec<String>) {
        let job = json!(job);
        let patches = Arc::new(Mutex::new(vec![]));
        let seen = patches.clone();
        let cluster = server(move |request| {
            if request.method == "PATCH" {
                seen.lock().expect("patches").push(request.body.clone());
            }
            Answer::json(&job)
        });
        let arguments = Arguments {
            job: "digits".parse().expect("a name"),
            wait: false,
            timeout: Timeout::NEVER,
        };
        let result = Box::pin(run(&cluster, &arguments))
            .await
            .map_err(|error| error.to_string());
        let patches = patches.lock().expect("patches").clone();
        (result, patches)
    }

    #[tokio::test]
    async fn a_running_job_is_asked_for_a_checkpoint_of_a_later_step() {
        let (result, patches) = saved(&fixtures::job(fixtures::training())).await;
        assert_eq!(result, Ok(Exit::Done));
        let expected = r#"{"metadata":{"annotations":{"vit-operator.dev/save-after-step":"1845"}}}"#;
        assert_eq!(patches, [expected]);
        let (result, patches) = saved(&fixtures::job(fixtures::suspended())).await;
        let words = "job digits is Suspended: only a running job can save";
        assert_eq!((result, patches.len()), (Err(words.into()), 0));
        let mut other = fixtures::job(fixtures::training());
        other.spec.external = serde_json::from_value(json!({"command": ["torchrun"]})).ok();
        let (result, patches) = saved(&other).await;
        assert_eq!((result.is_err(), patches.len()), (true, 0));
    }

    #[test]
    fn only_a_later_checkpoint_ends_the_wait() {
        let name: JobName = "digits".parse().expect("a name");
        let after = |step, phase: &str| {
            let saved = json!({"step": step, "path": "/checkpoints/digits/step"});
            let job = fixtures::job(json!({"phase": phase, "attempt": 1, "lastCheckpoint": saved}));
            outcome(&name, 1845, Some(&job)).map(|outcome| outcome.expect("no error"))
        };
        assert_eq!(after(1845, "Running"), None);
        let words = "digits is saved at step 1846 in /checkpoints/digits/step";
        assert_eq!(after(1846, "Running").as_deref(), Some(words));
        assert_eq!(
            after(1845, "Succeeded").as_deref(),
            Some("digits had already finished")
        );
    }
}
