//! How long nodes have been unready as this process sees it, so that no two machines' clocks are
//! compared.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt as _;
use kube::runtime::watcher::Event;
use planner::facts::inventory::{NodeHealth, health};
use tokio::time::Instant;

/// Since when the watch has shown nodes as unready, by name.
#[derive(Clone, Debug, Default)]
pub(super) struct Unready(Arc<Mutex<HashMap<String, Instant>>>);

impl Unready {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `exists` is asked once a list is complete: nodes may be deleted while the watch is interrupted.
    pub(super) fn follow(&self, event: &Event<Node>, exists: impl Fn(&str) -> bool) {
        match event {
            Event::Apply(node) | Event::InitApply(node) if health(node) == NodeHealth::NotReady => {
                self.lock().entry(node.name_any()).or_insert_with(Instant::now);
            }
            Event::Apply(node) | Event::InitApply(node) | Event::Delete(node) => {
                self.lock().remove(&node.name_any());
            }
            Event::Init => {}
            Event::InitDone => self.lock().retain(|node, _| exists(node)),
        }
    }

    /// For how long; `None` if it is ready or does not exist.
    pub(super) fn lasts(&self, node: &str) -> Option<Duration> {
        self.lock().get(node).map(Instant::elapsed)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fixtures;

    #[tokio::test(start_paused = true)]
    async fn an_interrupted_watch_keeps_what_is_known_of_nodes_that_still_exist() {
        let node = |name: &str, ready: &str| {
            let mut node = fixtures::node(name, "Tesla-T4", 1);
            let conditions = json!([{"type": "Ready", "status": ready}]);
            node.status.get_or_insert_default().conditions =
                serde_json::from_value(conditions).expect("conditions");
            node
        };
        let nodes = Unready::default();
        let follow = |event| nodes.follow(&event, |name| name != "c");
        let lasts = |name: &str| nodes.lasts(name).map(|lasted| lasted.as_secs());
        for name in ["a", "b", "c"] {
            follow(Event::Apply(node(name, "False")));
        }
        tokio::time::advance(Duration::from_secs(9)).await;
        follow(Event::Init);
        follow(Event::InitApply(node("a", "Unknown")));
        follow(Event::InitApply(node("b", "True")));
        assert_eq!(["a", "b", "c"].map(lasts), [Some(9), None, Some(9)]);
        follow(Event::InitDone);
        assert_eq!(["a", "b", "c"].map(lasts), [Some(9), None, None]);
        follow(Event::Apply(node("c", "False")));
        assert_eq!(lasts("c"), Some(0), "it is new");
    }
}
