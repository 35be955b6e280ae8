//! A write-through filter in front of a cache: what the API server answered stands until the watch
//! has caught up.
//!
//! It relies on the order of resource versions, which are numbers (KEP-5504), and on a watch that
//! delivers events in that order. Like client-go's `MutationCache`, but answers pass the same way as
//! events, so that whatever follows the cache sees them, too.

use std::collections::HashMap;

use kube::runtime::watcher::Event;
use kube::{Resource, ResourceExt as _};
use tokio::time::Instant;

/// The answers of one kind that its watch has not reached.
#[derive(Debug)]
pub(crate) struct Newest<K> {
    ahead: HashMap<Name, Ahead<K>>,
    /// The greatest version that the watch has delivered.
    reached: u64,
    /// The versions received so far of a list in progress.
    listed: HashMap<Name, u64>,
}

/// Namespace and name: caches know objects by them.
type Name = (Option<String>, String);

#[derive(Debug)]
struct Ahead<K> {
    object: K,
    version: u64,
    /// When it was answered or read last.
    since: Instant,
}

impl<K> Default for Newest<K> {
    fn default() -> Self {
        Self {
            ahead: HashMap::new(),
            reached: 0,
            listed: HashMap::new(),
        }
    }
}

impl<K: Resource + Clone> Newest<K> {
    /// An event of the watch, as the cache is to see it.
    pub(crate) fn watched(&mut self, event: Event<K>) -> Vec<Event<K>> {
        match event {
            Event::Init => {
                self.listed.clear();
                vec![Event::Init]
            }
            Event::InitApply(object) => {
                self.listed.insert(name(&object), version(&object).unwrap_or(0));
                let newer = self.newer_than(&object).map(|ahead| ahead.object.clone());
                vec![Event::InitApply(newer.unwrap_or(object))]
            }
            Event::InitDone => {
                // Smaller than before if etcd was restored from a backup.
                self.reached = self.listed.drain().map(|(_, version)| version).max().unwrap_or(0);
                // The rest was in the list, or is gone.
                self.ahead.retain(|_, ahead| ahead.version > self.reached);
                let ahead = self.ahead.values();
                ahead
                    .map(|ahead| Event::InitApply(ahead.object.clone()))
                    .chain([Event::InitDone])
                    .collect()
            }
            Event::Apply(object) => {
                let is_outdated = self.newer_than(&object).is_some();
                let mut events = self.reach(&object);
                events.extend((!is_outdated).then_some(Event::Apply(object)));
                events
            }
            Event::Delete(object) => {
                let name = name(&object);
                let is_it = |ahead: &Ahead<K>| ahead.object.meta().uid == object.meta().uid;
                if self.ahead.get(&name).is_some_and(is_it) {
                    self.ahead.remove(&name);
                }
                let mut events = self.reach(&object);
                events.push(Event::Delete(object));
                // Another has its name by now.
                let other = self.ahead.get(&name);
                events.extend(other.map(|ahead| Event::Apply(ahead.object.clone())));
                events
            }
        }
    }

    /// An answer, as the cache is to see it: nothing if the watch is as far.
    pub(crate) fn answered(&mut self, object: K, now: Instant) -> Vec<Event<K>> {
        let Some(version) = version(&object) else {
            return vec![];
        };
        let name = name(&object);
        let listed = self.listed.get(&name).copied();
        let ahead = self.ahead.get(&name).map(|ahead| ahead.version);
        if Some(version) <= listed.max(ahead).max(Some(self.reached)) {
            return vec![];
        }
        let ahead = Ahead {
            object: object.clone(),
            version,
            since: now,
        };
        let last = self.ahead.insert(name, ahead);
        let other = last.filter(|last| last.object.meta().uid != object.meta().uid);
        let gone = other.map(|other| Event::Delete(other.object));
        gone.into_iter().chain([Event::Apply(object)]).collect()
    }

    /// Answers since before this time, which the watch may have missed.
    pub(crate) fn unconfirmed(&self, before: Instant) -> Vec<K> {
        let ahead = self.ahead.values().filter(|ahead| ahead.since <= before);
        ahead.map(|ahead| ahead.object.clone()).collect()
    }

    /// What the API server has now in place of an answer of [`Self::unconfirmed`], as the cache is to
    /// see it.
    pub(crate) fn confirmed(&mut self, answer: &K, stored: Option<K>, now: Instant) -> Vec<Event<K>> {
        let name = name(answer);
        let Some(ahead) = self.ahead.get_mut(&name) else {
            return vec![];
        };
        match stored {
            Some(stored) => {
                ahead.since = now;
                self.answered(stored, now)
            }
            None if ahead.object.meta().uid == answer.meta().uid => {
                let gone = self.ahead.remove(&name);
                gone.map(|gone| Event::Delete(gone.object)).into_iter().collect()
            }
            None => vec![],
        }
    }

    /// The answer of this name that is newer.
    fn newer_than(&self, object: &K) -> Option<&Ahead<K>> {
        let version = version(object).unwrap_or(0);
        let ahead = self.ahead.get(&name(object));
        ahead.filter(|ahead| ahead.version > version)
    }

    /// The watch is as far as this object. Answers before that it did not deliver are of objects that
    /// were deleted before the last list.
    fn reach(&mut self, object: &K) -> Vec<Event<K>> {
        self.reached = self.reached.max(version(object).unwrap_or(0));
        let reached = self.reached;
        let passed = self.ahead.extract_if(|_, ahead| ahead.version <= reached);
        let gone = passed.filter(|(_, ahead)| ahead.object.meta().uid != object.meta().uid);
        gone.map(|(_, ahead)| Event::Delete(ahead.object)).collect()
    }
}

fn name(object: &impl Resource) -> Name {
    (object.namespace(), object.name_any())
}

fn version(object: &impl Resource) -> Option<u64> {
    object.meta().resource_version.as_deref()?.parse().ok()
}
