//! A cache of one kind: the objects by the watch, and by the answers to this process's writes.

use std::fmt::Debug;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::NamespaceResourceScope;
use kube::runtime::reflector::{self, Store, store::Writer};
use kube::runtime::watcher::Event;
use kube::{Api, Client, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use tokio::time::Instant;
use tracing::warn;

use super::newest::Newest;

/// Time between checks for answers that no watch has delivered.
const INTERVAL: Duration = Duration::from_secs(10);
/// Time after which such an answer is read again. It may be lost, by a restore of etcd, or its object
/// deleted while the watch was interrupted.
const UNCONFIRMED: Duration = Duration::from_secs(30);

/// A cache of one kind.
#[derive(Clone)]
pub(crate) struct Cache<K: Resource<DynamicType = ()> + Clone + 'static> {
    store: Store<K>,
    shared: Arc<Mutex<Shared<K>>>,
    follow: Follow<K>,
}

type Follow<K> = Arc<dyn Fn(&Event<K>) + Send + Sync>;

struct Shared<K: Resource<DynamicType = ()> + Clone + 'static> {
    newest: Newest<K>,
    writer: Writer<K>,
}

impl<K: Resource<DynamicType = ()> + Clone + 'static> Cache<K> {
    /// An empty cache. `follow` is called with each event before it is stored.
    pub(crate) fn new(follow: impl Fn(&Event<K>) + Send + Sync + 'static) -> Self {
        let (store, writer) = reflector::store();
        let newest = Newest::default();
        Self {
            store,
            shared: Arc::new(Mutex::new(Shared { newest, writer })),
            follow: Arc::new(follow),
        }
    }

    pub(crate) fn store(&self) -> &Store<K> {
        &self.store
    }

    /// An event of the watch; returns what it is to the cache.
    pub(crate) fn watched(&self, event: Event<K>) -> Vec<Event<K>> {
        self.see(|newest| newest.watched(event.modify(strip)))
    }

    /// The answer to a write.
    pub(crate) fn answered(&self, mut object: K) {
        strip(&mut object);
        self.see(|newest| newest.answered(object, Instant::now()));
    }

    fn see(&self, events: impl FnOnce(&mut Newest<K>) -> Vec<Event<K>>) -> Vec<Event<K>> {
        let mut shared = self.lock();
        let events = events(&mut shared.newest);
        for event in &events {
            (self.follow)(event);
            if let Event::InitApply(object) = event {
                // The writer alone would hold it back until the list is complete, and answers that the
                // list includes are not stored.
                shared.writer.apply_watcher_event(&Event::Apply(object.clone()));
            }
            shared.writer.apply_watcher_event(event);
        }
        events
    }

    fn lock(&self) -> MutexGuard<'_, Shared<K>> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K> Cache<K>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
{
    /// Reads an object that was changed and that the watch has not delivered.
    pub(crate) async fn read_again(&self, client: &Client, object: &K) {
        let api: Api<K> = Api::namespaced(client.clone(), &object.namespace().unwrap_or_default());
        match api.get_opt(&object.name_any()).await {
            Ok(stored) => stored.into_iter().for_each(|stored| self.answered(stored)),
            Err(error) => warn!(%error, "failed to read what the watch has not delivered"),
        }
    }

    /// Reads answers that no watch delivers. Never ends.
    pub(crate) fn confirm(&self, client: Client) -> impl Future<Output = ()> + use<K> {
        let (asked, told) = (self.clone(), self.clone());
        confirm(
            client,
            move |before| asked.lock().newest.unconfirmed(before),
            move |answer: &K, mut stored| {
                stored.iter_mut().for_each(strip);
                told.see(|newest| newest.confirmed(answer, stored, Instant::now()));
            },
        )
    }
}

impl<K: Resource<DynamicType = ()> + Clone + Debug + 'static> Debug for Cache<K> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_tuple("Cache").field(&self.store).finish()
    }
}

/// As large as the rest of an object, and the operator neither reads it nor writes it back.
fn strip(object: &mut impl Resource) {
    object.meta_mut().managed_fields = None;
}

/// Reads the objects of a kind that are [unconfirmed](Newest::unconfirmed). Never ends.
pub(super) async fn confirm<K>(
    client: Client,
    unconfirmed: impl Fn(Instant) -> Vec<K>,
    confirmed: impl Fn(&K, Option<K>),
) where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
{
    loop {
        tokio::time::sleep(INTERVAL).await;
        let Some(before) = Instant::now().checked_sub(UNCONFIRMED) else {
            continue;
        };
        for answer in unconfirmed(before) {
            let namespace = answer.namespace().unwrap_or_default();
            let api: Api<K> = Api::namespaced(client.clone(), &namespace);
            match api.get_opt(&answer.name_any()).await {
                Ok(stored) => confirmed(&answer, stored),
                Err(error) => warn!(%error, "failed to read what the watch has not delivered"),
            }
        }
    }
}

#[cfg(test)]
mod tests;
