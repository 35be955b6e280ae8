//! Waiting for a job to become something, by a watch.

use std::time::Duration;

use crds::{Phase, ViTTrainingJob};
use futures::{Stream, StreamExt as _};
use kube::runtime::{WatchStreamExt as _, watcher};

use crate::cluster::{Cluster, JobName};
use crate::error::{Error, chain};
use crate::output;
use crate::summary::{main_condition, summary};

/// How long is waited.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Timeout {
    /// How many seconds to wait at most; without it, for as long as it takes
    #[arg(long = "timeout", value_name = "SECONDS")]
    seconds: Option<u64>,
}

impl Timeout {
    /// For as long as it takes.
    pub(crate) const NEVER: Self = Self { seconds: None };

    /// Waits for `future`; when time is over, the error says that `what` did not come, and what `state` tells.
    pub(crate) async fn limit<T>(
        self,
        what: &str,
        future: impl Future<Output = Result<T, Error>>,
        state: impl FnOnce() -> String,
    ) -> Result<T, Error> {
        let Some(seconds) = self.seconds else {
            return future.await;
        };
        let outcome = tokio::time::timeout(Duration::from_secs(seconds), future).await;
        outcome.unwrap_or_else(|_| {
            Err(Error::TimedOut {
                what: what.into(),
                seconds,
                state: state(),
            })
        })
    }
}

/// Waits until `answer` gives one for the job, each time it changes; `None` stands for a job that was deleted. Meanwhile,
/// its summary goes to standard error.
pub(crate) async fn wait<T>(
    cluster: &Cluster,
    name: &JobName,
    what: &str,
    timeout: Timeout,
    answer: impl FnMut(Option<&ViTTrainingJob>) -> Option<Result<T, Error>>,
) -> Result<T, Error> {
    let report = |summary: &str| {
        output::report(&format!("{name}: {summary}"));
        Ok(())
    };
    wait_reporting(cluster, name, what, timeout, report, answer).await
}

/// The same; the summary goes to `report`, each time it changes.
pub(crate) async fn wait_reporting<T>(
    cluster: &Cluster,
    name: &JobName,
    what: &str,
    timeout: Timeout,
    report: impl Fn(&str) -> Result<(), Error>,
    mut answer: impl FnMut(Option<&ViTTrainingJob>) -> Option<Result<T, Error>>,
) -> Result<T, Error> {
    let state = std::cell::RefCell::new(String::from("it was not seen"));
    let watching = async {
        let mut changes = changes(cluster, name);
        while let Some(change) = changes.next().await {
            let job = match change {
                Ok(job) => job,
                Err(error) => {
                    warn_or_fail(cluster, name, error)?;
                    continue;
                }
            };
            let seen = job.as_ref().map(summary);
            if let Some(seen) = seen.filter(|seen| *seen != *state.borrow()) {
                report(&seen)?;
                *state.borrow_mut() = seen;
            }
            if let Some(answer) = answer(job.as_ref()) {
                return answer;
            }
        }
        Err(Error::NotFound(format!("the watch of job {name} ended")))
    };
    let state = || format!("{name}: {}", state.borrow());
    timeout.limit(what, watching, state).await
}

/// The job, each time it changes. Errors are followed by another try, later and later.
pub(crate) fn changes(
    cluster: &Cluster,
    name: &JobName,
) -> impl Stream<Item = watcher::Result<Option<ViTTrainingJob>>> + Unpin + use<> {
    let changes = watcher::watch_object(cluster.jobs(), name.as_str());
    changes.default_backoff().boxed()
}

/// Warns of an error of a watch, which tries again; fails where that would get the same answer.
pub(crate) fn warn_or_fail(cluster: &Cluster, name: &JobName, error: watcher::Error) -> Result<(), Error> {
    use kube::Error::{Api, SerdeError};
    match error {
        watcher::Error::InitialListFailed(error) | watcher::Error::WatchStartFailed(error)
            if matches!(&error, Api(status) if matches!(status.code, 401 | 403 | 404))
                || matches!(error, SerdeError(_)) =>
        {
            Err(cluster.error(&format!("watch job {name}"), error))
        }
        error => {
            output::report(&format!("warning: {}; trying again", chain(&error)));
            Ok(())
        }
    }
}

/// How a job ended; `None` while it goes on.
pub(crate) fn end(name: &JobName, job: Option<&ViTTrainingJob>) -> Option<Result<(), Error>> {
    let Some(job) = job else {
        return Some(Err(Error::NotFound(format!("job {name} was deleted"))));
    };
    let status = job.status.as_ref()?;
    match status.phase? {
        Phase::Succeeded => Some(Ok(())),
        // An operator that has not seen a change of the spec may give a refused job a second chance.
        Phase::Failed if status.observed_generation >= job.metadata.generation => {
            let why = main_condition(status).map_or("", |condition| condition.message.as_str());
            Some(Err(Error::JobFailed(format!("job {name} failed: {why}"))))
        }
        _ => None,
    }
}
