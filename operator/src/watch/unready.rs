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

    pub(super) fn follow(&self, event: &Event<Node>) {
        match event {
            Event::Apply(node) | Event::InitApply(node) if health(node) == NodeHealth::NotReady => {
                self.lock().entry(node.name_any()).or_insert_with(Instant::now);
            }
            Event::Apply(node) | Event::InitApply(node) | Event::Delete(node) => {
                self.lock().remove(&node.name_any());
            }
            Event::Init | Event::InitDone => {}
        }
    }

    /// For how long; `None` if it is ready or does not exist.
    pub(super) fn lasts(&self, node: &str) -> Option<Duration> {
        self.lock().get(node).map(Instant::elapsed)
    }
}
