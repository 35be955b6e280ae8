//! The cluster's PriorityClasses.

use std::collections::{HashMap, HashSet};

use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::ResourceExt as _;
use kube::runtime::watcher::Event;

/// PriorityClasses by name.
#[derive(Debug, Default)]
pub(crate) struct PriorityClasses {
    classes: HashMap<String, Class>,
    /// The classes of a list in progress.
    listed: HashSet<String>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Class {
    value: i32,
    is_default: bool,
}

impl PriorityClasses {
    /// The priority of pods of this class; `None` if it does not exist. Pods without a class get
    /// the cluster's default (the smallest of several), or 0.
    pub(crate) fn priority(&self, name: Option<&str>) -> Option<i32> {
        let Some(name) = name else {
            let defaults = self.classes.values().filter(|class| class.is_default);
            return Some(defaults.map(|class| class.value).min().unwrap_or(0));
        };
        self.classes.get(name).map(|class| class.value)
    }

    /// Handles an event. Returns whether any priority may have changed.
    pub(crate) fn follow(&mut self, event: &Event<PriorityClass>) -> bool {
        match event {
            Event::Init => {
                self.listed.clear();
                false
            }
            Event::InitApply(class) => {
                self.retain(class);
                self.put(class)
            }
            Event::Apply(class) => self.put(class),
            Event::Delete(class) => self.classes.remove(&class.name_any()).is_some(),
            Event::InitDone => {
                let listed = std::mem::take(&mut self.listed);
                self.classes.retain(|name, _| listed.contains(name));
                true
            }
        }
    }

    /// A list in progress has this class.
    pub(crate) fn retain(&mut self, class: &PriorityClass) {
        self.listed.insert(class.name_any());
    }

    fn put(&mut self, class: &PriorityClass) -> bool {
        let new = Class {
            value: class.value.unwrap_or_default(),
            is_default: class.global_default == Some(true),
        };
        self.classes.insert(class.name_any(), new) != Some(new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::priority_class;

    #[test]
    fn a_class_gives_its_value_and_the_default_holds_where_none_is_named() {
        let mut classes = PriorityClasses::default();
        assert_eq!(
            (classes.priority(None), classes.priority(Some("high"))),
            (Some(0), None)
        );
        assert!(classes.follow(&Event::Apply(priority_class("high", 1000, false))));
        assert!(!classes.follow(&Event::Apply(priority_class("high", 1000, false))));
        assert_eq!(
            (classes.priority(None), classes.priority(Some("high"))),
            (Some(0), Some(1000))
        );
        classes.follow(&Event::Apply(priority_class("usual", 50, true)));
        classes.follow(&Event::Apply(priority_class("odd", 70, true)));
        assert_eq!(classes.priority(None), Some(50));
        classes.follow(&Event::Delete(priority_class("high", 1000, false)));
        assert_eq!(classes.priority(Some("high")), None);
    }

    #[test]
    fn a_class_that_went_while_the_watch_was_broken_is_gone() {
        let mut classes = PriorityClasses::default();
        classes.follow(&Event::Apply(priority_class("low", -5, false)));
        classes.follow(&Event::Apply(priority_class("high", 1000, false)));
        classes.follow(&Event::Init);
        classes.follow(&Event::InitApply(priority_class("low", -5, false)));
        assert!(classes.follow(&Event::InitDone));
        assert_eq!(
            (classes.priority(Some("low")), classes.priority(Some("high"))),
            (Some(-5), None)
        );
    }
}
