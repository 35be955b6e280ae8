use std::collections::{BTreeMap, BTreeSet};

use crds::{Phase, ViTTrainingJob};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::runtime::reflector::ObjectRef;
use proptest::prelude::*;

use super::*;
use crate::fixtures;

#[test]
fn a_round_after_a_write_sees_it_whatever_the_watch_says() {
    let jobs: Cache<ViTTrainingJob> = Cache::new(|_| ());
    let in_phase = |phase, version: &str| {
        let mut job = fixtures::job_in(phase, 1);
        job.metadata.resource_version = Some(version.into());
        job
    };
    let watched = |job| jobs.watched(Event::Apply(job)).len();
    let known = || {
        let job = jobs.store().get(&ObjectRef::new("digits").within("research"));
        job.expect("known")
            .status
            .as_ref()
            .and_then(|status| status.phase)
    };
    assert_eq!(watched(in_phase(Phase::Starting, "100")), 1);
    jobs.answered(in_phase(Phase::Running, "102"));
    assert_eq!(known(), Some(Phase::Running));
    assert_eq!(watched(in_phase(Phase::Starting, "101")), 0);
    assert_eq!(known(), Some(Phase::Running));
    assert_eq!(watched(in_phase(Phase::Failed, "103")), 1);
    assert_eq!(known(), Some(Phase::Failed));
}

fn object(name: usize, uid: u64, version: u64) -> ConfigMap {
    let mut object = ConfigMap::default();
    object.metadata.name = Some(name.to_string());
    object.metadata.uid = Some(uid.to_string());
    object.metadata.resource_version = Some(version.to_string());
    object
}

fn version_of(object: &ConfigMap) -> Option<u64> {
    object.resource_version()?.parse().ok()
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
    /// The watch delivers its next event, or the next part of its list.
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

/// Uids and versions by name.
type Known = BTreeMap<String, (Option<String>, Option<u64>)>;

/// An API server, its watch, and the cache behind the filter.
struct World {
    stored: BTreeMap<usize, ConfigMap>,
    version: u64,
    events: Vec<Event<ConfigMap>>,
    delivered: usize,
    /// The rest of a list in progress.
    lists: Option<Vec<ConfigMap>>,
    late: Vec<ConfigMap>,
    cache: Cache<ConfigMap>,
    /// An index that shows the objects of a list at once, like that of pods.
    index: BTreeMap<String, ConfigMap>,
    /// The names received so far of a list in progress.
    listed: BTreeSet<String>,
    /// Versions that the cache must have, by uid.
    answered: BTreeMap<String, u64>,
}

impl World {
    fn new() -> Self {
        Self {
            stored: BTreeMap::new(),
            version: 10,
            events: vec![],
            delivered: 0,
            lists: None,
            late: vec![],
            cache: Cache::new(|_| ()),
            index: BTreeMap::new(),
            listed: BTreeSet::new(),
            answered: BTreeMap::new(),
        }
    }

    fn see(&mut self, events: impl IntoIterator<Item = Event<ConfigMap>>) {
        for event in events {
            match event {
                Event::Init => self.listed.clear(),
                Event::InitApply(object) => {
                    self.listed.insert(object.name_any());
                    self.index.insert(object.name_any(), object);
                }
                Event::InitDone => self.index.retain(|name, _| self.listed.contains(name)),
                Event::Apply(object) => drop(self.index.insert(object.name_any(), object)),
                Event::Delete(object) => drop(self.index.remove(&object.name_any())),
            }
        }
    }

    fn watched(&mut self, event: Event<ConfigMap>) {
        let events = self.cache.watched(event);
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
        let (uid, version) = (
            object.uid().expect("a uid"),
            version_of(&object).expect("a version"),
        );
        let known = self.answered.entry(uid).or_default();
        *known = version.max(*known);
        let events = self.cache.see(|newest| newest.answered(object, Instant::now()));
        self.see(events);
    }

    fn list(&mut self) {
        self.watched(Event::Init);
        self.lists = Some(self.stored.values().cloned().collect());
        self.delivered = self.events.len();
    }

    /// Whether the watch has something to deliver, which it does.
    fn watch(&mut self) -> bool {
        match self.lists.as_mut().map(Vec::pop) {
            Some(Some(object)) => self.watched(Event::InitApply(object)),
            Some(None) => {
                self.lists = None;
                self.watched(Event::InitDone);
            }
            None => {
                let Some(event) = self.events.get(self.delivered).cloned() else {
                    return false;
                };
                self.delivered += 1;
                self.watched(event);
            }
        }
        true
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
            Happens::Watch => drop(self.watch()),
            Happens::List => self.list(),
        }
    }

    /// Names, uids and versions of the cache, and of the index.
    fn cached(&self) -> [Known; 2] {
        let known = |object: &ConfigMap| (object.name_any(), (object.uid(), version_of(object)));
        [
            self.cache
                .store()
                .state()
                .iter()
                .map(|object| known(object))
                .collect(),
            self.index.values().map(known).collect(),
        ]
    }
}

proptest! {
    // Some faults need several late answers during a list.
    #![proptest_config(ProptestConfig::with_cases(4000))]

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
            for cached in world.cached() {
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
        }
        while !world.late.is_empty() {
            world.take(&Happens::Answer);
        }
        while world.watch() {}
        let unconfirmed = world.cache.lock().newest.unconfirmed(Instant::now());
        for ahead in unconfirmed {
            let mut stored = world.stored.values();
            let stored = stored.find(|stored| stored.name_any() == ahead.name_any()).cloned();
            let confirmed = |newest: &mut Newest<_>| newest.confirmed(&ahead, stored, Instant::now());
            let events = world.cache.see(confirmed);
            world.see(events);
        }
        let stored: BTreeMap<_, _> = world
            .stored
            .iter()
            .map(|(name, object)| (name.to_string(), (object.uid(), version_of(object))))
            .collect();
        prop_assert_eq!(world.cached(), [stored.clone(), stored]);
    }
}
