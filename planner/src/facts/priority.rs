//! The cluster's PriorityClasses.

use std::collections::HashMap;

use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::ResourceExt;
use kube::runtime::watcher::Event;

use super::listing::Listing;

/// PriorityClasses, by name.
#[derive(Debug, Default)]
pub(crate) struct PriorityClasses {
    /// The value of each, and whether it is the cluster's default.
    classes: HashMap<String, (i32, bool)>,
    listed: Listing<String>,
}

impl PriorityClasses {
    /// The priority of pods of this class; `None` if it does not exist. Pods without a class get
    /// the cluster's default (the smallest of several), or 0.
    pub(crate) fn priority(&self, name: Option<&str>) -> Option<i32> {
        let Some(name) = name else {
            let defaults = self.classes.values().filter(|(_, is_default)| *is_default);
            return Some(defaults.map(|(value, _)| *value).min().unwrap_or(0));
        };
        self.classes.get(name).map(|(value, _)| *value)
    }

    /// Handles an event. Returns whether any priority may have changed.
    pub(crate) fn follow(&mut self, event: &Event<PriorityClass>) -> bool {
        let (class, gone) = self
            .listed
            .follow(event, ResourceExt::name_any, self.classes.keys());
        let removed = gone.iter().filter_map(|name| self.classes.remove(name)).count();
        removed > 0 || class.is_some_and(|class| self.put(class))
    }

    fn put(&mut self, class: &PriorityClass) -> bool {
        let new = (
            class.value.unwrap_or_default(),
            class.global_default == Some(true),
        );
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
        for (name, value, is_default, default, high) in [
            ("low", -5, false, 0, None),
            ("high", 1000, false, 0, Some(1000)),
            ("usual", 50, true, 50, Some(1000)),
            ("odd", 70, true, 50, Some(1000)),
        ] {
            let event = Event::Apply(priority_class(name, value, is_default));
            assert!(classes.follow(&event));
            assert!(!classes.follow(&event), "no news");
            assert_eq!(classes.priority(None), Some(default));
            assert_eq!(classes.priority(Some("high")), high);
        }
        assert!(classes.follow(&Event::Delete(priority_class("high", 1000, false))));
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
            ["low", "high"].map(|name| classes.priority(Some(name))),
            [Some(-5), None]
        );
    }
}
