//! Objects that a watch brings and that cannot be read. They are logged once and counted, do not stop the watch, and are
//! not taken for gone: what was last read of them stands.

use std::collections::HashSet;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::DeserializeGuard;
use kube::runtime::watcher::{self, Event};
use kube::{Resource, ResourceExt as _};
use tracing::{info, warn};

use crate::metrics::Metrics;

/// An event of a watch, as far as its object can be read.
#[derive(Debug)]
pub(crate) enum Decoded<K> {
    /// What happened to objects that can be read, or that one is gone.
    Event(Event<K>),
    /// This object is there, but only its metadata can be read.
    Unreadable(K),
}

/// Those of one watch's objects that cannot be read.
#[derive(Debug)]
pub(crate) struct Unreadable {
    /// By namespace and name.
    keys: HashSet<String>,
    /// What a list that is under way has brought of them so far.
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

    /// Reads an event of a watch; `None` where it was interrupted.
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
                    object.0.unwrap_or_else(|invalid| of_metadata(invalid.metadata)),
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
                    info!(object = key, %kind, "an object can be read again");
                }
                Decoded::Event(event(object))
            }
            Err(invalid) => {
                if self.keys.insert(key.clone()) {
                    let error = invalid.error;
                    warn!(object = key, %kind, error, "an object cannot be read: what was last read of it stands");
                }
                self.listed.insert(key);
                Decoded::Unreadable(of_metadata(invalid.metadata))
            }
        }
    }
}

fn of_metadata<K: Resource<DynamicType = ()> + Default>(metadata: ObjectMeta) -> K {
    let mut object = K::default();
    *object.meta_mut() = metadata;
    object
}

fn key(object: &impl Resource) -> String {
    format!("{}/{}", object.namespace().unwrap_or_default(), object.name_any())
}
