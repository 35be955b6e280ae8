//! Watched objects that cannot be decoded. They are logged once, counted, and do not stop the
//! watch; their last valid version stays in use.

use std::collections::HashSet;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::DeserializeGuard;
use kube::runtime::watcher::{self, Event};
use kube::{Resource, ResourceExt as _};
use tracing::{info, warn};

use crate::metrics::Metrics;

/// A decoded event of a watch.
#[derive(Debug)]
pub(crate) enum Decoded<K> {
    /// An event of an object that can be decoded, or a deletion.
    Event(Event<K>),
    /// This object exists, but only its metadata can be decoded.
    Unreadable(K),
}

/// The objects of one watch that cannot be decoded.
#[derive(Debug)]
pub(crate) struct Unreadable {
    /// By namespace and name.
    keys: HashSet<String>,
    /// Those received so far of a list in progress.
    listed: HashSet<String>,
    metrics: Arc<Metrics>,
}

impl Unreadable {
    pub(crate) fn new(metrics: Arc<Metrics>) -> Self {
        Self {
            keys: HashSet::new(),
            listed: HashSet::new(),
            metrics,
        }
    }

    /// Decodes an event of a watch; `None` if the watch was interrupted.
    pub(crate) fn read<K>(&mut self, event: watcher::Result<Event<DeserializeGuard<K>>>) -> Option<Decoded<K>>
    where
        K: Resource<DynamicType = ()> + Default,
    {
        let decoded = match event {
            Ok(Event::Init) => {
                self.listed.clear();
                Decoded::Event(Event::Init)
            }
            Ok(Event::InitApply(object)) => self.object(object, Event::InitApply),
            Ok(Event::InitDone) => {
                self.keys = std::mem::take(&mut self.listed);
                Decoded::Event(Event::InitDone)
            }
            Ok(Event::Apply(object)) => self.object(object, Event::Apply),
            Ok(Event::Delete(object)) => {
                self.keys.remove(&key(&object));
                Decoded::Event(Event::Delete(
                    object.0.unwrap_or_else(|invalid| from_metadata(invalid.metadata)),
                ))
            }
            Err(error) => {
                warn!(%error, "a watch was interrupted and starts again");
                return None;
            }
        };
        self.metrics.unreadable(&K::kind(&()), self.keys.len());
        Some(decoded)
    }

    fn object<K>(&mut self, object: DeserializeGuard<K>, event: fn(K) -> Event<K>) -> Decoded<K>
    where
        K: Resource<DynamicType = ()> + Default,
    {
        let key = key(&object);
        let kind = K::kind(&());
        match object.0 {
            Ok(object) => {
                if self.keys.remove(&key) {
                    info!(object = key, %kind, "an object can be decoded again");
                }
                Decoded::Event(event(object))
            }
            Err(invalid) => {
                if self.keys.insert(key.clone()) {
                    let error = invalid.error;
                    warn!(object = key, %kind, error, "an object cannot be decoded: its last valid version stays in use");
                }
                self.listed.insert(key);
                Decoded::Unreadable(from_metadata(invalid.metadata))
            }
        }
    }
}

fn from_metadata<K: Resource<DynamicType = ()> + Default>(metadata: ObjectMeta) -> K {
    let mut object = K::default();
    *object.meta_mut() = metadata;
    object
}

fn key(object: &impl Resource) -> String {
    format!("{}/{}", object.namespace().unwrap_or_default(), object.name_any())
}
