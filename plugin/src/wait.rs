//! Waiting for a job to become something, by a watch.

use std::time::Duration;

use crds::{Phase, ViTTrainingJob};
use futures::StreamExt as _;
use kube::runtime::{WatchStreamExt as _, watcher};

use crate::cluster::{Cluster, JobName};
use crate::error::{Error, chain};
use crate::list;
use crate::output;
use crate::paint::Paint;

/// How long is waited.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Patience {
    /// How many seconds to wait at most; without it, for as long as it takes
    #[arg(long, value_name = "SECONDS")]
    pub(crate) timeout: Option<u64>,
}

/// What a job that is waited for is.
pub(crate) enum Seen {
    /// There.
    Job(Box<ViTTrainingJob>),
    /// Gone.
    Gone,
}

/// Waits until `wanted` gives an answer about the job, each time it changes. Tells on standard error what the job does
/// meanwhile.
pub(crate) async fn wait<T>(
    cluster: &Cluster,
    name: &JobName,
    what: &str,
    patience: Patience,
    wanted: impl FnMut(Seen) -> Option<Result<T, Error>>,
) -> Result<T, Error> {
    let tell = |words: &str| {
        output::tell(&format!("{name}: {words}"));
        Ok(())
    };
    wait_telling(cluster, name, what, patience, tell, wanted).await
}

/// The same; what the job does is told to `told`, each time that changes.
pub(crate) async fn wait_telling<T>(
    cluster: &Cluster,
    name: &JobName,
    what: &str,
    patience: Patience,
    told: impl Fn(&str) -> Result<(), Error>,
    mut wanted: impl FnMut(Seen) -> Option<Result<T, Error>>,
) -> Result<T, Error> {
    let mut state = String::from("it was not seen");
    let watching = async {
        // Errors of a watch are tried again by it, later and later; the first one that says that it may not is told.
        let mut changes = watcher::watch_object(cluster.jobs(), name.as_str())
            .default_backoff()
            .boxed();
        while let Some(change) = changes.next().await {
            let seen = match change {
                Ok(Some(job)) => {
                    let now = describe(&job);
                    if now != state {
                        told(&now)?;
                        state = now;
                    }
                    Seen::Job(Box::new(job))
                }
                Ok(None) => Seen::Gone,
                Err(watcher::Error::InitialListFailed(error) | watcher::Error::WatchStartFailed(error))
                    if is_final(&error) =>
                {
                    return Err(cluster.error(&format!("watch job {name}"), error));
                }
                Err(error) => {
                    output::tell(&format!("warning: {}; trying again", chain(&error)));
                    continue;
                }
            };
            if let Some(answer) = wanted(seen) {
                return answer;
            }
        }
        Err(Error::NotFound(format!("the watch of job {name} ended")))
    };
    let Some(seconds) = patience.timeout else {
        return watching.await;
    };
    let outcome = tokio::time::timeout(Duration::from_secs(seconds), watching).await;
    outcome.unwrap_or_else(|_| {
        Err(Error::TimedOut {
            what: what.into(),
            seconds,
            state: format!("{name}: {state}"),
        })
    })
}

/// Whether asking again would get the same answer.
pub(crate) fn is_final(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if matches!(status.code, 401 | 403 | 404))
        || matches!(error, kube::Error::SerdeError(_))
}

/// A job in a few words: what `list` has in its columns.
pub(crate) fn describe(job: &ViTTrainingJob) -> String {
    let status = job.status.clone().unwrap_or_default();
    let mut words = status.phase.map_or("New", Phase::as_str).to_owned();
    if let Some(progress) = status.progress.filter(|progress| progress.total_steps > 0) {
        words += &format!(", step {} of {}", progress.step, progress.total_steps);
    }
    let plain = Paint {
        has_colours: false,
        width: usize::MAX,
    };
    let note = list::note(job, plain);
    if !note.is_empty() {
        words += &format!(", {note}");
    }
    words
}

/// The answer for a job that is waited for until it is over: how it ended.
pub(crate) fn end(name: &JobName, seen: &Seen) -> Option<Result<(), Error>> {
    let Seen::Job(job) = seen else {
        return Some(Err(Error::NotFound(format!("job {name} was deleted"))));
    };
    let status = job.status.as_ref()?;
    match status.phase? {
        Phase::Succeeded => Some(Ok(())),
        // An operator that has not seen a change of the spec may give a refused job a second chance.
        Phase::Failed if status.observed_generation >= job.metadata.generation => {
            let why = crate::why::telling(status).map_or("", |condition| condition.message.as_str());
            Some(Err(Error::JobFailed(format!("job {name} failed: {why}"))))
        }
        _ => None,
    }
}
