//! Waits for a state of an object, by a watch.

use std::time::Duration;

use crds::Stored;
use futures::{Stream, StreamExt as _};
use jiff::SignedDuration;
use kube::runtime::{WatchStreamExt as _, watcher};

use crate::cluster::Cluster;
use crate::error::{Error, chain};
use crate::kind::{Kind, Name};
use crate::{output, span, text};

/// The maximum wait.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Timeout {
    /// Maximum wait, such as 90s, 5m or 1h30m; a plain number is in seconds; unlimited by default
    #[arg(long = "timeout", value_name = "DURATION", value_parser = span::parse)]
    limit: Option<Duration>,
}

impl Timeout {
    /// No limit.
    pub(crate) const NEVER: Self = Self { limit: None };

    /// A limit, for tests.
    #[cfg(test)]
    pub(crate) fn after(limit: Duration) -> Self {
        Self { limit: Some(limit) }
    }

    /// Waits for `future`; on a timeout, the error names `what` and `state`.
    pub(crate) async fn limit<T>(
        self,
        what: &str,
        future: impl Future<Output = Result<T, Error>>,
        state: impl FnOnce() -> String,
    ) -> Result<T, Error> {
        let Some(limit) = self.limit else {
            return future.await;
        };
        let outcome = tokio::time::timeout(limit, future).await;
        outcome.unwrap_or_else(|_| {
            Err(Error::TimedOut {
                what: what.into(),
                limit: text::duration(SignedDuration::try_from(limit).unwrap_or(SignedDuration::MAX)),
                state: state(),
            })
        })
    }
}

/// Waits until `answer` returns `Some` for a change of the object, or for `None` if it was deleted.
/// Meanwhile, its summary goes to standard error.
pub(crate) async fn wait<K: Kind, T>(
    cluster: &Cluster,
    name: &Name<K>,
    what: &str,
    timeout: Timeout,
    answer: impl FnMut(Option<&K>) -> Option<Result<T, Error>>,
) -> Result<T, Error> {
    let report = |summary: &str| {
        output::report(&format!("{name}: {summary}"));
        Ok(())
    };
    wait_reporting(cluster, name, what, timeout, report, answer).await
}

/// The same; the summary goes to `report`, each time it changes.
pub(crate) async fn wait_reporting<K: Kind, T>(
    cluster: &Cluster,
    name: &Name<K>,
    what: &str,
    timeout: Timeout,
    report: impl Fn(&str) -> Result<(), Error>,
    mut answer: impl FnMut(Option<&K>) -> Option<Result<T, Error>>,
) -> Result<T, Error> {
    let state = std::cell::RefCell::new(String::from("it was not seen"));
    let watching = async {
        let mut changes = changes(cluster, name);
        while let Some(change) = changes.next().await {
            let object = match change {
                Ok(stored) => stored.map(|stored| stored.0).transpose()?,
                Err(error) => {
                    warn_or_fail(cluster, name, error)?;
                    continue;
                }
            };
            let seen = object.as_ref().map(K::summary);
            if let Some(seen) = seen.filter(|seen| *seen != *state.borrow()) {
                report(&seen)?;
                *state.borrow_mut() = seen;
            }
            if let Some(answer) = answer(object.as_ref()) {
                return answer;
            }
        }
        Err(Error::NotFound(format!("the watch of {} {name} ended", K::NOUN)))
    };
    let state = || format!("{name}: {}", state.borrow());
    timeout.limit(what, watching, state).await
}

/// The object, each time it changes. After an error, the watch is retried with backoff.
pub(crate) fn changes<K: Kind>(
    cluster: &Cluster,
    name: &Name<K>,
) -> impl Stream<Item = watcher::Result<Option<Stored<K>>>> + Unpin + use<K> {
    let changes = watcher::watch_object(cluster.api::<K>(), name.as_str());
    changes.default_backoff().boxed()
}

/// Warns of an error of a watch, which retries; fails if a retry would get the same answer.
pub(crate) fn warn_or_fail<K: Kind>(
    cluster: &Cluster,
    name: &Name<K>,
    error: watcher::Error,
) -> Result<(), Error> {
    let words = chain(&error);
    if let Some(error) = permanent(error) {
        return Err(cluster.error(&format!("watch {} {name}", K::NOUN), error));
    }
    output::report(&format!("warning: {words}; trying again"));
    Ok(())
}

/// The error of a watch, if a retry would get it again.
pub(crate) fn permanent(error: watcher::Error) -> Option<kube::Error> {
    match error {
        watcher::Error::InitialListFailed(error) | watcher::Error::WatchStartFailed(error) => {
            is_permanent(&error).then_some(error)
        }
        _ => None,
    }
}

/// Whether a retry would get the same answer.
pub(crate) fn is_permanent(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => matches!(status.code, 400 | 401 | 403 | 404),
        kube::Error::SerdeError(_) => true,
        _ => false,
    }
}
