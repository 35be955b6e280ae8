//! The cluster as it is planned on.

use std::sync::Arc;

use crate::facts::fleet::Fleet;
use crate::policy::node_fit::{Verdict, verdict};
use crate::policy::placement::{Choice, View};
use crate::policy::request::{GangRequest, Shape};

/// Views held at once, at most. At 15,000 nodes one takes about 2 MB, and some milliseconds to make.
const VIEWS: usize = 32;

/// The cluster as it is planned on, and as the shapes of gangs see it.
#[derive(Debug, Default)]
pub(crate) struct Board {
    fleet: Fleet,
    /// The one that was used last is the last.
    views: Vec<View>,
    #[cfg(test)]
    views_made: usize,
}

impl Board {
    pub(crate) fn fleet(&self) -> &Fleet {
        &self.fleet
    }

    pub(crate) fn fleet_mut(&mut self) -> &mut Fleet {
        &mut self.fleet
    }

    /// Brings what has changed of the fleet into all views; whether anything has.
    pub(crate) fn catch_up(&mut self) -> bool {
        let changed = self.fleet.take_changes();
        for node in &changed {
            self.show(node);
        }
        !changed.is_empty()
    }

    /// The fleet as gangs of a shape see it. Shapes that differ only in the nodes that they avoid share a view.
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
        view.turn_to(shape, inventory);
        view
    }

    /// Whether a node will do for a pod of a gang of a shape, now or once gangs that hold it have ended. For a look at a few nodes
    /// this needs no view.
    pub(crate) fn can_use(&self, shape: &Shape, node: &str) -> bool {
        let verdict = self.fleet.node(node).map(|facts| verdict(node, facts, shape));
        matches!(verdict, Some(Verdict::Fits { .. } | Verdict::Busy { .. }))
    }

    fn show(&mut self, node: &Arc<str>) {
        let facts = self.fleet.node(node);
        for view in &mut self.views {
            view.update(node, facts);
        }
    }

    /// Holds something for the pass, or (`times` -1) lets go of it.
    pub(crate) fn hold(&mut self, node: &Arc<str>, shape: &Shape, times: i64) {
        self.fleet.hold_for_pass(node, &shape.requests, times);
        self.show(node);
    }

    /// The nodes of the largest gang that fits if what a smaller one holds on its nodes is counted as free.
    pub(crate) fn choose_instead_of(&mut self, own: &[Arc<str>], request: &GangRequest) -> Option<Choice> {
        for node in own {
            self.hold(node, &request.shape, -1);
        }
        let choice = self.view(&request.shape).choose(request);
        for node in own {
            self.hold(node, &request.shape, 1);
        }
        choice
    }

    /// Keeps a node for a job, or for nobody any more.
    pub(crate) fn keep(&mut self, node: &Arc<str>, job: Option<Arc<str>>) {
        self.fleet.keep_for(node, job);
        self.show(node);
    }
}

#[cfg(test)]
impl Board {
    pub(crate) fn of(fleet: Fleet) -> Self {
        Self {
            fleet,
            ..Self::default()
        }
    }

    /// How many views have been made.
    pub(crate) fn views_made(&self) -> usize {
        self.views_made
    }

    /// Whether every view equals one made anew.
    pub(crate) fn is_current(&mut self) -> bool {
        let inventory = self.fleet.inventory();
        self.views.iter_mut().all(|view| view.is_current(inventory))
    }
}
