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
pub(super) struct Unready(Arc<Mutex<Nodes>>);

#[derive(Debug, Default)]
struct Nodes {
    unready: HashMap<String, Instant>,
    /// Unready nodes that the list in progress has not shown yet.
    unlisted: HashMap<String, Instant>,
}

impl Unready {
    fn lock(&self) -> MutexGuard<'_, Nodes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn follow(&self, event: &Event<Node>) {
        let nodes = &mut *self.lock();
        match event {
            Event::Apply(node) | Event::InitApply(node) => {
                let name = node.name_any();
                let known = nodes.unlisted.remove(&name).or(nodes.unready.remove(&name));
                if health(node) == NodeHealth::NotReady {
                    nodes.unready.insert(name, known.unwrap_or_else(Instant::now));
                }
            }
            Event::Delete(node) => drop(nodes.unready.remove(&node.name_any())),
            Event::Init => {
                let unready = std::mem::take(&mut nodes.unready);
                nodes.unlisted.extend(unready);
            }
            // The rest was deleted while the watch was interrupted.
            Event::InitDone => nodes.unlisted.clear(),
        }
    }

    /// For how long; `None` if it is ready or does not exist.
    pub(super) fn lasts(&self, node: &str) -> Option<Duration> {
        let nodes = self.lock();
        let since = nodes.unready.get(node).or(nodes.unlisted.get(node));
        since.map(Instant::elapsed)
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
        let lasts = |name: &str| nodes.lasts(name).map(|lasted| lasted.as_secs());
        for name in ["a", "b", "c"] {
            nodes.follow(&Event::Apply(node(name, "False")));
        }
        tokio::time::advance(Duration::from_secs(9)).await;
        nodes.follow(&Event::Init);
        nodes.follow(&Event::InitApply(node("a", "Unknown")));
        nodes.follow(&Event::InitApply(node("b", "True")));
        assert_eq!(["a", "b", "c"].map(lasts), [Some(9), None, Some(9)]);
        nodes.follow(&Event::InitDone);
        assert_eq!(["a", "b", "c"].map(lasts), [Some(9), None, None]);
        nodes.follow(&Event::Apply(node("c", "False")));
        assert_eq!(lasts("c"), Some(0), "it is new");
    }
}
