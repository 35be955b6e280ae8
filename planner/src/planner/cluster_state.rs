//! The cluster state of a pass.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use crds::status::{Refusal, RejectedGroup};
use k8s_openapi::api::core::v1::Taint;

use crate::facts::fleet::Fleet;
use crate::policy::node_fit::{Verdict, repelling_taint, verdict};
use crate::policy::placement::{Placement, View};
use crate::policy::request::{GangRequest, Shape};

/// Most views to cache. At 15,000 nodes, one needs about 2 MB and some milliseconds to build.
const VIEWS: usize = 32;

/// The fleet, and its views for gangs' shapes.
#[derive(Debug, Default)]
pub(crate) struct ClusterState {
    /// After a change, the views must catch up.
    pub(crate) fleet: Fleet,
    /// In order of creation, with the pass that used each last.
    views: Vec<(View, u64)>,
    /// Passes released so far.
    passes: u64,
    /// Nodes held by the pass: decisions saw them without some of its holds, as no view does now.
    held: HashSet<Arc<str>>,
    /// Whether a view that the pass used was evicted.
    has_lost_view: bool,
    #[cfg(test)]
    pub(crate) views_made: usize,
}

impl ClusterState {
    /// Updates all views with the fleet's changes. Returns whether any may matter to the pass.
    pub(crate) fn catch_up(&mut self) -> bool {
        let mut matters = false;
        for node in self.fleet.take_changes() {
            matters |= self.update_views(&node) || self.held.contains(&node) || self.has_lost_view;
        }
        matters
    }

    /// Forgets what mattered to a pass that was released.
    pub(crate) fn forget_pass(&mut self) {
        self.passes += 1;
        self.held.clear();
        self.has_lost_view = false;
    }

    /// The view for a shape. Shapes that differ only in avoided nodes share one.
    pub(crate) fn view(&mut self, shape: &Arc<Shape>) -> &mut View {
        let inventory = self.fleet.inventory();
        let known = self.views.iter().position(|(view, _)| view.is_of(shape));
        let index = known.unwrap_or_else(|| {
            if self.views.len() == VIEWS {
                // Every pass uses the same shapes in the same order: without the newest, most are kept.
                let unused = self.views.iter().position(|(_, used)| used + 1 < self.passes);
                let (_, used) = self.views.remove(unused.unwrap_or(VIEWS - 1));
                self.has_lost_view |= used == self.passes;
            }
            #[cfg(test)]
            {
                self.views_made += 1;
            }
            self.views.push((View::new(Arc::clone(shape), inventory), 0));
            self.views.len() - 1
        });
        let (view, used) = &mut self.views[index];
        *used = self.passes;
        view.switch_to(shape, inventory);
        view
    }

    /// Whether a node fits a pod of a shape, now or after other gangs have ended. Needs no view.
    pub(crate) fn can_use(&self, shape: &Shape, node: &str) -> bool {
        let verdict = self.fleet.node(node).map(|facts| verdict(node, facts, shape));
        matches!(verdict, Some(Verdict::Fits { .. } | Verdict::Busy { .. }))
    }

    /// Adds the taints of the named nodes.
    pub(crate) fn with_taints(&self, mut rejected: Vec<RejectedGroup>, shape: &Shape) -> Vec<RejectedGroup> {
        let reasons = rejected.iter_mut().flat_map(|group| &mut group.reasons);
        for reason in reasons.filter(|reason| reason.code == Refusal::Tainted) {
            let nodes = reason.names.iter().filter_map(|name| self.fleet.node(name));
            let taints = nodes
                .filter_map(|node| repelling_taint(node, shape))
                .map(in_words);
            reason.taints = taints.collect::<BTreeSet<String>>().into_iter().collect();
        }
        rejected
    }

    /// Returns whether any view may have changed.
    fn update_views(&mut self, node: &Arc<str>) -> bool {
        let facts = self.fleet.node(node);
        let views = self.views.iter_mut();
        views.fold(false, |changed, (view, _)| view.update(node, facts) | changed)
    }

    /// Holds a pod's requests for the pass, or (`times` -1) releases them.
    pub(crate) fn hold(&mut self, node: &Arc<str>, shape: &Shape, times: i64) {
        if times > 0 {
            self.held.insert(Arc::clone(node));
        }
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

/// A taint as in `kubectl taint`.
fn in_words(
    Taint {
        key, value, effect, ..
    }: &Taint,
) -> String {
    match value.as_deref().unwrap_or_default() {
        "" => format!("{key}:{effect}"),
        value => format!("{key}={value}:{effect}"),
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
        self.views.iter_mut().all(|(view, _)| view.is_current(inventory))
    }
}
