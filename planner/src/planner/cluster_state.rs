//! The cluster state of a pass.

use std::sync::Arc;

use crate::facts::fleet::Fleet;
use crate::policy::node_fit::{Verdict, verdict};
use crate::policy::placement::{Placement, View};
use crate::policy::request::{GangRequest, Shape};

/// Most views to cache. At 15,000 nodes, one needs about 2 MB and some milliseconds to build.
const VIEWS: usize = 32;

/// The fleet, and its views for gangs' shapes.
#[derive(Debug, Default)]
pub(crate) struct ClusterState {
    /// After a change, the views must catch up.
    pub(crate) fleet: Fleet,
    /// The least recently used comes first.
    views: Vec<View>,
    #[cfg(test)]
    pub(crate) views_made: usize,
}

impl ClusterState {
    /// Updates all views with the fleet's changes. Returns whether there were any.
    pub(crate) fn catch_up(&mut self) -> bool {
        let changed = self.fleet.take_changes();
        for node in &changed {
            self.update_views(node);
        }
        !changed.is_empty()
    }

    /// The view for a shape. Shapes that differ only in avoided nodes share one.
    pub(crate) fn view(&mut self, shape: &Arc<Shape>) -> &mut View {
        let inventory = self.fleet.inventory();
        if let Some(index) = self.views.iter().position(|view| view.is_of(shape)) {
            self.views[index..].rotate_left(1);
        } else {
            if self.views.len() == VIEWS {
                self.views.remove(0);
            }
            #[cfg(test)]
            {
                self.views_made += 1;
            }
            self.views.push(View::new(Arc::clone(shape), inventory));
        }
        let last = self.views.len() - 1;
        let view = &mut self.views[last];
        view.switch_to(shape, inventory);
        view
    }

    /// Whether a node fits a pod of a shape, now or after other gangs have ended. Needs no view.
    pub(crate) fn can_use(&self, shape: &Shape, node: &str) -> bool {
        let verdict = self.fleet.node(node).map(|facts| verdict(node, facts, shape));
        matches!(verdict, Some(Verdict::Fits { .. } | Verdict::Busy { .. }))
    }

    fn update_views(&mut self, node: &Arc<str>) {
        let facts = self.fleet.node(node);
        for view in &mut self.views {
            view.update(node, facts);
        }
    }

    /// Holds a pod's requests for the pass, or (`times` -1) releases them.
    pub(crate) fn hold(&mut self, node: &Arc<str>, shape: &Shape, times: i64) {
        self.fleet.hold_for_pass(node, &shape.requests, times);
        self.update_views(node);
    }

    /// The nodes of the largest gang that fits if its predecessor's holds on `own` count as free.
    pub(crate) fn choose_instead_of(&mut self, own: &[Arc<str>], request: &GangRequest) -> Option<Placement> {
        for node in own {
            self.hold(node, &request.shape, -1);
        }
        let choice = self.view(&request.shape).choose(request);
        for node in own {
            self.hold(node, &request.shape, 1);
        }
        choice
    }

    pub(crate) fn reserve(&mut self, node: &Arc<str>, job: Option<Arc<str>>) {
        self.fleet.reserve(node, job);
        self.update_views(node);
    }
}

#[cfg(test)]
impl ClusterState {
    pub(crate) fn of(fleet: Fleet) -> Self {
        Self {
            fleet,
            ..Self::default()
        }
    }

    /// Whether every view equals a new one.
    pub(crate) fn is_current(&mut self) -> bool {
        let inventory = self.fleet.inventory();
        self.views.iter_mut().all(|view| view.is_current(inventory))
    }
}
