//! Stores of whole kinds, updated by a watch.

use std::fmt::Debug;
use std::time::Duration;

use crds::labels;
use futures::future::BoxFuture;
use futures::{FutureExt as _, StreamExt as _};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher as watch};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;
use tracing::{debug, warn};

use super::cache::Cache;
use super::trigger::Trigger;

/// Time between checks whether the API server serves a missing kind by now.
const ASKED_AGAIN: Duration = Duration::from_secs(30);

/// Time after which a watch starts again where it was. A few seconds later, a silent one is taken for
/// dead: a connection does not show that the server lost power.
const WATCHED_FOR: u32 = 40;

/// How every watch is made.
pub(crate) fn watching() -> watcher::Config {
    watcher::Config::default().timeout(WATCHED_FOR)
}

/// Selects the objects that the operator creates.
pub(super) fn own() -> watcher::Config {
    watching().labels(&format!("{}={}", labels::MANAGED_BY, labels::MANAGER))
}

/// The cache of a kind, and the task that updates it, which never ends; `on_event` is called with
/// each event after it is stored. If the cluster does not serve the kind, waits [`ASKED_AGAIN`]:
/// the watch alone would restart about once a second, because it counts every start as a success.
pub(crate) fn store<K>(
    api: Api<K>,
    which: watcher::Config,
    on_event: impl Fn(&Event<K>) + Send + 'static,
) -> (Cache<K>, BoxFuture<'static, ()>)
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    let cache = Cache::new(|_| ());
    let watched = cache.clone();
    let task = watch(api, which).default_backoff().for_each(move |event| {
        let mut is_served = true;
        match event {
            Ok(event) => watched.watched(event).iter().for_each(&on_event),
            Err(error) if is_missing(&error) => {
                debug!(kind = %K::kind(&()), "the API server does not serve this kind");
                is_served = false;
            }
            Err(error) => warn!(%error, "a watch was interrupted and starts again"),
        }
        async move {
            if !is_served {
                tokio::time::sleep(ASKED_AGAIN).await;
            }
        }
    });
    (cache, task.boxed())
}

/// Triggers the jobs that an event concerns.
pub(super) fn triggering<K>(
    triggers: mpsc::UnboundedSender<Trigger>,
    concerns: impl Fn(&Event<K>) -> Option<Trigger>,
) -> impl Fn(&Event<K>) {
    move |event| {
        if let Some(trigger) = concerns(event) {
            // The receiver lives as long as the process.
            let _ = triggers.send(trigger);
        }
    }
}

/// Whether the API server does not serve the kind.
fn is_missing(error: &watcher::Error) -> bool {
    let (watcher::Error::InitialListFailed(source) | watcher::Error::WatchStartFailed(source)) = error else {
        return false;
    };
    matches!(source, kube::Error::Api(status) if status.code == 404)
}
