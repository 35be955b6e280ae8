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
    /// The same of a list in progress.
    listed: u64,
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
            listed: 0,
        }
    }
}

impl<K: Resource + Clone> Newest<K> {
    /// An event of the watch, as the cache is to see it.
    pub(crate) fn watched(&mut self, event: Event<K>) -> Vec<Event<K>> {
        match event {
            Event::Init => {
                self.listed = 0;
                vec![Event::Init]
            }
            Event::InitApply(object) => {
                self.listed = self.listed.max(version(&object).unwrap_or(0));
                let newer = self.newer_than(&object).map(|ahead| ahead.object.clone());
                vec![Event::InitApply(newer.unwrap_or(object))]
            }
            Event::InitDone => {
                // Smaller than before if etcd was restored from a backup.
                self.reached = self.listed;
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
        if version <= self.reached
            || self
                .ahead
                .get(&name(&object))
                .is_some_and(|ahead| version <= ahead.version)
        {
            return vec![];
        }
        let ahead = Ahead {
            object: object.clone(),
            version,
            since: now,
        };
        let last = self.ahead.insert(name(&object), ahead);
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::runtime::reflector::{self, Store, store::Writer};
    use proptest::prelude::*;

    use super::*;

    fn object(name: usize, uid: u64, version: u64) -> ConfigMap {
        let mut object = ConfigMap::default();
        object.metadata.name = Some(name.to_string());
        object.metadata.uid = Some(uid.to_string());
        object.metadata.resource_version = Some(version.to_string());
        object
    }

    /// What happens to the objects of three names.
    #[derive(Clone, Debug)]
    enum Happens {
        /// This process creates or updates it; the answer comes later if it `lags`.
        Write {
            name: usize,
            lags: bool,
        },
        /// Someone else does.
        Change(usize),
        Delete(usize),
        /// The oldest late answer comes.
        Answer,
        /// The watch delivers its next event, or the end of its list.
        Watch,
        /// The watch is interrupted, and begins to list.
        List,
    }

    fn happens() -> impl Strategy<Value = Happens> {
        let name = || 0..3_usize;
        prop_oneof![
            (name(), any::<bool>()).prop_map(|(name, lags)| Happens::Write { name, lags }),
            name().prop_map(Happens::Change),
            name().prop_map(Happens::Delete),
            Just(Happens::Answer),
            Just(Happens::Watch),
            Just(Happens::Watch),
            Just(Happens::List),
        ]
    }

    /// An API server, its watch, and the cache behind the filter.
    struct World {
        stored: BTreeMap<usize, ConfigMap>,
        version: u64,
        events: Vec<Event<ConfigMap>>,
        delivered: usize,
        /// Whether a list is in progress.
        lists: bool,
        late: Vec<ConfigMap>,
        newest: Newest<ConfigMap>,
        cache: Store<ConfigMap>,
        writer: Writer<ConfigMap>,
        /// Versions that the cache must have, by uid.
        answered: BTreeMap<String, u64>,
    }

    impl World {
        fn new() -> Self {
            let (cache, writer) = reflector::store();
            Self {
                stored: BTreeMap::new(),
                version: 10,
                events: vec![],
                delivered: 0,
                lists: false,
                late: vec![],
                newest: Newest::default(),
                cache,
                writer,
                answered: BTreeMap::new(),
            }
        }

        fn see(&mut self, events: impl IntoIterator<Item = Event<ConfigMap>>) {
            for event in events {
                self.writer.apply_watcher_event(&event);
            }
        }

        fn watched(&mut self, event: Event<ConfigMap>) {
            let events = self.newest.watched(event);
            self.see(events);
        }

        fn write(&mut self, name: usize) -> ConfigMap {
            self.version += 1;
            let uid = self.stored.get(&name).and_then(|known| known.uid()?.parse().ok());
            let object = object(name, uid.unwrap_or(self.version), self.version);
            self.stored.insert(name, object.clone());
            self.events.push(Event::Apply(object.clone()));
            object
        }

        fn answer(&mut self, object: ConfigMap) {
            let (uid, version) = (object.uid().expect("a uid"), version(&object).expect("a version"));
            let known = self.answered.entry(uid).or_default();
            *known = version.max(*known);
            let event = self.newest.answered(object, Instant::now());
            self.see(event);
        }

        fn list(&mut self) {
            self.watched(Event::Init);
            for object in self.stored.clone().into_values() {
                self.watched(Event::InitApply(object));
            }
            self.delivered = self.events.len();
            self.lists = true;
        }

        fn watch(&mut self) {
            if std::mem::take(&mut self.lists) {
                self.watched(Event::InitDone);
            } else if let Some(event) = self.events.get(self.delivered).cloned() {
                self.delivered += 1;
                self.watched(event);
            }
        }

        fn take(&mut self, happens: &Happens) {
            match happens {
                Happens::Write { name, lags: true } => {
                    let object = self.write(*name);
                    self.late.push(object);
                }
                Happens::Write { name, lags: false } => {
                    let object = self.write(*name);
                    self.answer(object);
                }
                Happens::Change(name) => drop(self.write(*name)),
                Happens::Delete(name) => {
                    if let Some(mut object) = self.stored.remove(name) {
                        self.version += 1;
                        object.metadata.resource_version = Some(self.version.to_string());
                        self.events.push(Event::Delete(object));
                    }
                }
                Happens::Answer => {
                    if !self.late.is_empty() {
                        let object = self.late.remove(0);
                        self.answer(object);
                    }
                }
                Happens::Watch => self.watch(),
                Happens::List => self.list(),
            }
        }

        /// Names, uids and versions of the cache.
        fn cached(&self) -> BTreeMap<String, (Option<String>, Option<u64>)> {
            let objects = self.cache.state();
            let objects = objects.iter();
            objects
                .map(|object| (object.name_any(), (object.uid(), version(&**object))))
                .collect()
        }
    }

    proptest! {
        /// Invariant G4.
        #[test]
        fn a_cache_is_as_new_as_every_answer_and_as_the_server_in_the_end(
            story in proptest::collection::vec(happens(), 1..40),
        ) {
            let mut world = World::new();
            world.list();
            world.watch();
            for happens in &story {
                world.take(happens);
                let cached = world.cached();
                for (name, stored) in &world.stored {
                    let uid = stored.uid().expect("a uid");
                    let Some(answered) = world.answered.get(&uid) else { continue };
                    let known = cached.get(&name.to_string());
                    prop_assert!(
                        known.is_some_and(|(known, version)| {
                            known.as_ref() == Some(&uid) && *version >= Some(*answered)
                        }),
                        "{name} is {known:?}, but version {answered} of {uid} was answered"
                    );
                }
            }
            while !world.late.is_empty() {
                world.take(&Happens::Answer);
            }
            while world.lists || world.delivered < world.events.len() {
                world.watch();
            }
            for ahead in world.newest.unconfirmed(Instant::now()) {
                let mut stored = world.stored.values();
                let stored = stored.find(|stored| stored.name_any() == ahead.name_any()).cloned();
                let events = world.newest.confirmed(&ahead, stored, Instant::now());
                world.see(events);
            }
            let stored: BTreeMap<_, _> = world
                .stored
                .iter()
                .map(|(name, object)| (name.to_string(), (object.uid(), version(object))))
                .collect();
            prop_assert_eq!(world.cached(), stored);
        }
    }
}
