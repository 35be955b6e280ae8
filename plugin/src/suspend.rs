//! `kubectl vit suspend` and `kubectl vit resume`.

use crds::{Phase, ViTTrainingJob};
use kube::ResourceExt as _;
use serde_json::json;

use crate::cluster::{Cluster, JobName};
use crate::error::{Error, Exit};
use crate::output::print;
use crate::summary::phase;
use crate::wait::{Timeout, end, wait};

/// Which job, and whether to wait.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The job
    #[arg(value_name = "JOB", add = crate::completion::jobs())]
    job: JobName,
    /// Wait until it holds no GPUs any more; of resume, until it trains
    #[arg(long)]
    wait: bool,
    #[command(flatten)]
    timeout: Timeout,
}

/// What is to become of the job.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Action {
    Suspend,
    Resume,
}

pub(crate) async fn run(cluster: &Cluster, arguments: &Arguments, action: Action) -> Result<Exit, Error> {
    let name = &arguments.job;
    let job = cluster.job(name).await?;
    let suspend = action == Action::Suspend;
    check(&job, action)?;
    if job.spec.suspend == suspend {
        print(&format!("{}\n", already(&job, name, action)))?;
    } else {
        let patch = json!({"spec": {"suspend": suspend}});
        cluster.patch(name, &patch).await?;
        print(&format!("{}\n", done(name, action)))?;
    }
    if arguments.wait {
        let what = "what was asked for";
        let outcome = |job: Option<&ViTTrainingJob>| outcome(name, action, job);
        let words = wait(cluster, name, what, arguments.timeout, outcome).await?;
        print(&format!("{words}\n"))?;
    }
    Ok(Exit::Done)
}

/// A job that is over cannot be suspended or resumed any more.
fn check(job: &ViTTrainingJob, action: Action) -> Result<(), Error> {
    let changes = job.spec.suspend != (action == Action::Suspend);
    match phase(job).filter(|phase| phase.is_terminal() && changes) {
        Some(phase) => Err(Error::Usage(format!(
            "job {} is {}: there is nothing left to {}",
            job.name_any(),
            phase.as_str(),
            if action == Action::Suspend {
                "suspend"
            } else {
                "resume"
            }
        ))),
        None => Ok(()),
    }
}

fn done(name: &JobName, action: Action) -> String {
    match action {
        Action::Suspend => {
            format!("{name} is told to suspend: its pods save a checkpoint, stop, and give their GPUs back")
        }
        Action::Resume => {
            format!("{name} is told to go on: it waits for GPUs, and continues from its last checkpoint")
        }
    }
}

fn already(job: &ViTTrainingJob, name: &JobName, action: Action) -> String {
    let phase = phase(job);
    let word = phase.map_or("new", Phase::as_str);
    match (action, phase) {
        (Action::Suspend, Some(Phase::Suspended)) => format!("{name} is suspended already{}", saved(job)),
        (Action::Suspend, _) => format!("{name} was told to suspend already, and is {word}"),
        (Action::Resume, _) => format!("{name} is not suspended: it is {word}"),
    }
}

/// At which step the job was saved.
fn saved(job: &ViTTrainingJob) -> String {
    let status = job.status.as_ref();
    match status.and_then(|status| status.last_checkpoint.as_ref()) {
        Some(checkpoint) => format!(", saved at step {} in {}", checkpoint.step, checkpoint.path),
        None => ", without a checkpoint: it had not trained yet".into(),
    }
}

/// What waiting came to; `None` while it goes on.
fn outcome(name: &JobName, action: Action, job: Option<&ViTTrainingJob>) -> Option<Result<String, Error>> {
    let Some(job) = job else {
        return end(name, None).and_then(Result::err).map(Err);
    };
    let status = job.status.as_ref()?;
    if status.observed_generation < job.metadata.generation {
        return None;
    }
    match (action, status.phase?) {
        (Action::Suspend, Phase::Suspended) => Some(Ok(format!("{name} is suspended{}", saved(job)))),
        (Action::Resume, Phase::Running) => {
            Some(Ok(format!("{name} trains again, attempt {}", status.attempt)))
        }
        (_, Phase::Succeeded) => Some(Ok(format!("{name} was done before"))),
        (_, Phase::Failed) => end(name, Some(job)).and_then(Result::err).map(Err),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::job;

    fn outcome_of(action: Action, status: serde_json::Value) -> Option<String> {
        let name = "digits".parse().expect("a name");
        let outcome = outcome(&name, action, Some(&job(status)));
        outcome.map(|outcome| outcome.unwrap_or_else(|error| format!("error: {error}")))
    }

    #[test]
    fn suspending_ends_with_the_step_that_was_saved() {
        let shown = |phase: &str| {
            let saved = json!({"step": 450, "path": "/checkpoints/digits/step-450"});
            let status =
                json!({"phase": phase, "attempt": 1, "observedGeneration": 1, "lastCheckpoint": saved});
            outcome_of(Action::Suspend, status)
        };
        assert_eq!(shown("Suspending"), None);
        assert_eq!(
            shown("Suspended").as_deref(),
            Some("digits is suspended, saved at step 450 in /checkpoints/digits/step-450")
        );
        assert_eq!(shown("Succeeded").as_deref(), Some("digits was done before"));
    }

    #[test]
    fn a_status_of_before_the_change_is_no_answer() {
        let status = json!({"phase": "Suspended", "attempt": 1, "observedGeneration": 0});
        assert_eq!(outcome_of(Action::Suspend, status), None);
    }

    #[test]
    fn a_job_that_is_over_is_neither_suspended_nor_resumed() {
        let over = job(json!({"phase": "Succeeded", "attempt": 1}));
        let error = check(&over, Action::Suspend).expect_err("refused");
        assert_eq!(error.exit(), Exit::Usage);
        assert_eq!(
            error.to_string(),
            "job digits is Succeeded: there is nothing left to suspend"
        );
        check(&over, Action::Resume).expect("it is not suspended, which is said");
    }
}
