//! `smoke-test`: follows one small job from its creation to its end, and removes it. This is what `helm test` runs.

use std::fmt::Write as _;
use std::future::Future;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crds::conditions::types;
use crds::{Phase, ViTTrainingJob, ViTTrainingJobStatus};
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::arguments::SmokeTestArguments;
use crate::run::stop_on_signal;

/// Between two looks at the job.
const POLL: Duration = Duration::from_secs(1);
/// How long an answer may take.
const CALL: Duration = Duration::from_secs(10);
/// How long the job's deletion may take: its pods have up to two minutes to save and end.
const DELETION: Duration = Duration::from_secs(150);

/// Why an installation did not pass.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SmokeTestError {
    /// The manifest cannot be opened.
    #[error("failed to read {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The manifest is none of a job.
    #[error("{path} is not a ViTTrainingJob")]
    Manifest {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: Box<serde_saphyr::Error>,
    },
    /// The manifest breaks a rule.
    #[error("{path} cannot be run: {source}")]
    Invalid {
        /// The file.
        path: PathBuf,
        /// The rules.
        source: crds::InvalidJob,
    },
    /// There is no cluster.
    #[error("failed to find a cluster: run in one, or set KUBECONFIG")]
    NoCluster(#[source] kube::Error),
    /// The process cannot be told to stop.
    #[error("failed to listen for SIGTERM")]
    Signal(#[source] std::io::Error),
    /// The job was not taken.
    #[error("failed to create the job in namespace {namespace}{hint}")]
    Create {
        /// Where.
        namespace: String,
        /// What may be missing.
        hint: &'static str,
        /// The server's answer.
        source: kube::Error,
    },
    /// The job failed.
    #[error("{job} failed: {reason}")]
    Failed {
        /// Its name.
        job: String,
        /// Its status's words.
        reason: String,
    },
    /// Someone deleted the job.
    #[error("{0} was deleted by someone else")]
    Gone(String),
    /// The job was not over in time.
    #[error("{job} is not over after {seconds} s: {last}")]
    Deadline {
        /// Its name.
        job: String,
        /// The deadline.
        seconds: u64,
        /// Its state then.
        last: String,
    },
    /// The test was told to end.
    #[error("stopped by a signal")]
    Stopped,
    /// The job is still there.
    #[error("failed to delete {job}: {reason}")]
    Delete {
        /// Its name.
        job: String,
        /// Why.
        reason: String,
    },
    /// Nobody can be told.
    #[error("failed to write what happens")]
    Output(#[from] std::io::Error),
}

/// Creates the job of a manifest, tells what becomes of it, and deletes it. An error if it does not succeed in time.
pub(crate) async fn smoke_test(
    arguments: SmokeTestArguments,
    output: &mut (impl Write + Send),
) -> Result<(), SmokeTestError> {
    let job = read(&arguments.filename)?;
    let client = Client::try_default().await.map_err(SmokeTestError::NoCluster)?;
    let stop = CancellationToken::new();
    tokio::spawn(stop_on_signal(stop.clone()).map_err(SmokeTestError::Signal)?);
    let deadline = Duration::from_secs(arguments.deadline_seconds.get());
    run(&client, &job, deadline, stop.cancelled(), output).await
}

fn read(path: &Path) -> Result<ViTTrainingJob, SmokeTestError> {
    let text = std::fs::read_to_string(path).map_err(|source| SmokeTestError::Read {
        path: path.into(),
        source,
    })?;
    let job = serde_saphyr::from_str(&text).map_err(|source| SmokeTestError::Manifest {
        path: path.into(),
        source: Box::new(source),
    })?;
    crds::validate(&job).map_err(|source| SmokeTestError::Invalid {
        path: path.into(),
        source,
    })?;
    Ok(job)
}

async fn run(
    client: &Client,
    job: &ViTTrainingJob,
    deadline: Duration,
    stopped: impl Future<Output = ()>,
    output: &mut (impl Write + Send),
) -> Result<(), SmokeTestError> {
    let namespace = job
        .namespace()
        .unwrap_or_else(|| client.default_namespace().to_owned());
    let jobs: Api<ViTTrainingJob> = Api::namespaced(client.clone(), &namespace);
    let created = jobs
        .create(&PostParams::default(), job)
        .await
        .map_err(|source| SmokeTestError::Create {
            namespace: namespace.clone(),
            hint: match &source {
                kube::Error::Api(status) if status.code == 404 => {
                    ": the namespace, or the CustomResourceDefinition vittrainingjobs.vit-operator.dev, is not there"
                }
                _ => "",
            },
            source,
        })?;
    let name = created.name_any();
    let outcome = async {
        writeln!(output, "created ViTTrainingJob {namespace}/{name}")?;
        tokio::select! {
            outcome = follow(&jobs, &name, deadline, output) => outcome,
            () = stopped => Err(SmokeTestError::Stopped),
        }
    }
    .await;
    // However it ended. The first error is the one that matters.
    let deleted = delete(&jobs, &name).await;
    if deleted.is_ok() {
        outcome?;
        writeln!(output, "deleted it")?;
        return Ok(());
    }
    outcome.and(deleted)
}

/// Tells of the job whenever its state changes, until it is over.
async fn follow(
    jobs: &Api<ViTTrainingJob>,
    name: &str,
    deadline: Duration,
    output: &mut (impl Write + Send),
) -> Result<(), SmokeTestError> {
    let began = Instant::now();
    let mut last = String::new();
    loop {
        let state = match tokio::time::timeout(CALL, jobs.get(name)).await {
            Ok(Ok(job)) => {
                let status = job.status.unwrap_or_default();
                let state = describe(&status);
                if status.phase == Some(Phase::Failed) {
                    return Err(SmokeTestError::Failed {
                        job: name.into(),
                        reason: state,
                    });
                }
                if status.phase == Some(Phase::Succeeded) {
                    writeln!(output, "{state}")?;
                    return Ok(());
                }
                state
            }
            Ok(Err(kube::Error::Api(status))) if status.is_not_found() => {
                return Err(SmokeTestError::Gone(name.into()));
            }
            // The API server may be restarting; the deadline bounds how long.
            Ok(Err(error)) => format!("unknown: {error}"),
            Err(_) => "unknown: the API server does not answer".into(),
        };
        if state != last {
            writeln!(output, "{state}")?;
            last = state;
        }
        if began.elapsed() >= deadline {
            return Err(SmokeTestError::Deadline {
                job: name.into(),
                seconds: deadline.as_secs(),
                last,
            });
        }
        tokio::time::sleep(POLL).await;
    }
}

/// A job's state in a line.
fn describe(status: &ViTTrainingJobStatus) -> String {
    let Some(phase) = status.phase else {
        return "not looked at yet: is the operator running, and for this namespace?".into();
    };
    let mut line = phase.as_str().to_owned();
    match phase {
        Phase::Pending => {
            if let Some(placed) = status.condition(types::PLACED) {
                let _ = write!(line, ": {}", placed.message);
            }
        }
        Phase::Failed => {
            line = status
                .condition(types::FAILED)
                .map_or_else(String::new, |failed| failed.message.clone());
            if let Some(failure) = &status.last_failure {
                let node = failure.node.as_deref().unwrap_or("an unknown node");
                let _ = write!(line, " ({} on {node}: {})", failure.class, failure.message);
            }
        }
        _ => {
            if let Some(progress) = &status.progress {
                let _ = write!(line, ": {} of {} steps", progress.step, progress.total_steps);
            }
            if let Some(placement) = status
                .placement
                .as_ref()
                .filter(|placement| !placement.nodes.is_empty())
            {
                let _ = write!(line, " on {}", placement.nodes.join(", "));
                if let Some(group) = &placement.group {
                    let _ = write!(line, " ({})", group.product);
                }
            }
        }
    }
    line
}

/// Deletes the job and waits until it is gone, with all that belongs to it.
async fn delete(jobs: &Api<ViTTrainingJob>, name: &str) -> Result<(), SmokeTestError> {
    let failed = |reason: String| SmokeTestError::Delete {
        job: name.into(),
        reason,
    };
    let began = Instant::now();
    let mut last;
    loop {
        // Asked again each time: the first request may not have arrived.
        match jobs.delete(name, &DeleteParams::foreground()).await {
            Err(kube::Error::Api(status)) if status.is_not_found() => return Ok(()),
            Err(kube::Error::Api(status)) if status.code == 403 => {
                return Err(failed(status.message.clone()));
            }
            Err(error) => last = error.to_string(),
            Ok(_) => last = "it is still there".into(),
        }
        if began.elapsed() > DELETION {
            return Err(failed(last));
        }
        tokio::time::sleep(POLL).await;
    }
}

#[cfg(test)]
mod tests;
