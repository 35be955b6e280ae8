//! `kubectl vit suspend` and `kubectl vit resume`.

use crds::{Phase, ViTTrainingJob};
use serde_json::json;

use crate::cluster::{Cluster, JobName};
use crate::error::{Error, Exit};
use crate::output::print;
use crate::wait::{Patience, Seen, wait};

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
    patience: Patience,
}

/// What is asked for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Wish {
    Suspend,
    Resume,
}

pub(crate) async fn run(cluster: &Cluster, arguments: &Arguments, wish: Wish) -> Result<Exit, Error> {
    let name = &arguments.job;
    let job = cluster.job(name).await?;
    let suspend = wish == Wish::Suspend;
    check(&job, wish)?;
    if job.spec.suspend == suspend {
        print(&format!("{}\n", already(&job, name, wish)))?;
    } else {
        cluster
            .change(name, &json!({"spec": {"suspend": suspend}}))
            .await?;
        print(&format!("{}\n", done(name, wish)))?;
    }
    if arguments.wait {
        let words = wait(cluster, name, "what was asked for", arguments.patience, |seen| {
            outcome(name, wish, &seen)
        })
        .await?;
        print(&format!("{words}\n"))?;
    }
    Ok(Exit::Done)
}

/// A job that is over cannot be suspended or resumed any more.
fn check(job: &ViTTrainingJob, wish: Wish) -> Result<(), Error> {
    let phase = job.status.as_ref().and_then(|status| status.phase);
    match phase.filter(|phase| phase.is_terminal() && job.spec.suspend != (wish == Wish::Suspend)) {
        Some(phase) => Err(Error::Usage(format!(
            "job {} is {}: there is nothing left to {}",
            job.metadata.name.as_deref().unwrap_or_default(),
            phase.as_str(),
            if wish == Wish::Suspend {
                "suspend"
            } else {
                "resume"
            }
        ))),
        None => Ok(()),
    }
}

fn done(name: &JobName, wish: Wish) -> String {
    match wish {
        Wish::Suspend => {
            format!("{name} is told to suspend: its pods save a checkpoint, stop, and give their GPUs back")
        }
        Wish::Resume => {
            format!("{name} is told to go on: it waits for GPUs, and continues from its last checkpoint")
        }
    }
}

fn already(job: &ViTTrainingJob, name: &JobName, wish: Wish) -> String {
    let phase = job.status.as_ref().and_then(|status| status.phase);
    match (wish, phase) {
        (Wish::Suspend, Some(Phase::Suspended)) => format!("{name} is suspended already{}", saved(job)),
        (Wish::Suspend, _) => format!("{name} was told to suspend already, and is {}", word(phase)),
        (Wish::Resume, _) => format!("{name} is not suspended: it is {}", word(phase)),
    }
}

fn word(phase: Option<Phase>) -> &'static str {
    phase.map_or("new", Phase::as_str)
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
fn outcome(name: &JobName, wish: Wish, seen: &Seen) -> Option<Result<String, Error>> {
    let Seen::Job(job) = seen else {
        return Some(Err(Error::NotFound(format!("job {name} was deleted"))));
    };
    let status = job.status.as_ref()?;
    if status.observed_generation < job.metadata.generation {
        return None;
    }
    match (wish, status.phase?) {
        (Wish::Suspend, Phase::Suspended) => Some(Ok(format!("{name} is suspended{}", saved(job)))),
        (Wish::Resume, Phase::Running) => {
            Some(Ok(format!("{name} trains again, attempt {}", status.attempt)))
        }
        (_, Phase::Succeeded) => Some(Ok(format!("{name} was done before"))),
        (_, Phase::Failed) => crate::wait::end(name, seen).and_then(Result::err).map(Err),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::tests::job;

    fn name() -> JobName {
        "digits".parse().expect("a name")
    }

    fn outcome_of(wish: Wish, status: serde_json::Value) -> Option<String> {
        let outcome = outcome(&name(), wish, &Seen::Job(Box::new(job(status))));
        outcome.map(|outcome| outcome.unwrap_or_else(|error| format!("error: {error}")))
    }

    #[test]
    fn suspending_ends_with_the_step_that_was_saved() {
        let told = |phase: &str| {
            let saved = json!({"step": 450, "path": "/checkpoints/digits/step-450"});
            let status =
                json!({"phase": phase, "attempt": 1, "observedGeneration": 1, "lastCheckpoint": saved});
            outcome_of(Wish::Suspend, status)
        };
        assert_eq!(told("Suspending"), None);
        assert_eq!(
            told("Suspended").as_deref(),
            Some("digits is suspended, saved at step 450 in /checkpoints/digits/step-450")
        );
        assert_eq!(told("Succeeded").as_deref(), Some("digits was done before"));
    }

    #[test]
    fn a_status_of_before_the_change_is_no_answer() {
        let status = json!({"phase": "Suspended", "attempt": 1, "observedGeneration": 0});
        assert_eq!(outcome_of(Wish::Suspend, status), None);
    }

    #[test]
    fn a_job_that_is_over_is_neither_suspended_nor_resumed() {
        let over = job(json!({"phase": "Succeeded", "attempt": 1}));
        let error = check(&over, Wish::Suspend).expect_err("refused");
        assert_eq!(error.exit(), Exit::Usage);
        assert_eq!(
            error.to_string(),
            "job digits is Succeeded: there is nothing left to suspend"
        );
        check(&over, Wish::Resume).expect("it is not suspended, which is told as such");
    }
}
