//! Which objects an event adds, and which it removes.

use std::collections::HashSet;
use std::hash::Hash;

use kube::runtime::watcher::Event;

/// The keys of the objects of a list in progress.
#[derive(Debug, Default)]
pub(crate) struct Listing<K>(HashSet<K>);

impl<K: Clone + Eq + Hash> Listing<K> {
    /// The object that an event adds or replaces, and the keys of those that are gone. At the end of
    /// a list, these are the `known` ones that it lacked.
    pub(crate) fn follow<'event, 'key, T>(
        &mut self,
        event: &'event Event<T>,
        key: impl Fn(&T) -> K,
        known: impl Iterator<Item = &'key K>,
    ) -> (Option<&'event T>, Vec<K>)
    where
        K: 'key,
    {
        match event {
            Event::Init => self.0.clear(),
            Event::InitApply(object) => {
                self.0.insert(key(object));
                return (Some(object), vec![]);
            }
            Event::Apply(object) => return (Some(object), vec![]),
            Event::Delete(object) => return (None, vec![key(object)]),
            Event::InitDone => {
                let listed = std::mem::take(&mut self.0);
                return (None, known.filter(|key| !listed.contains(key)).cloned().collect());
            }
        }
        (None, vec![])
    }
}
