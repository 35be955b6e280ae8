//! One pass over the waiting jobs.

use std::collections::HashMap;
use std::sync::Arc;

use crds::spec::Homogeneity;
use crds::status::WaitStatus;
use jiff::Timestamp;

use super::cluster_state::ClusterState;
use crate::policy::placement::{Claim, Gpus, Placement, Reasons};
use crate::policy::queue::{Order, PATIENCE, Waiter};
use crate::policy::request::{GangRequest, Shape};

/// A pass's decision about a job: its placement, with the reasons against other groups.
pub(crate) type Outcome = Result<(Placement, Arc<Reasons>), Wait>;

/// Why a job waits.
#[derive(Clone, Debug)]
pub(crate) struct Wait {
    pub(crate) reasons: Arc<Reasons>,
    reserved_nodes: usize,
    /// Another job with a reservation of a node that fits this one.
    held_back_for: Option<Arc<str>>,
}

impl Wait {
    /// Whether it differs at most in numbers and names.
    pub(super) fn is_like(&self, other: &Self, request: &GangRequest) -> bool {
        let kind = |wait: &Self| (wait.reserved_nodes > 0, wait.held_back_for.is_some());
        kind(self) == kind(other) && self.reasons.are_like(&other.reasons, request)
    }
}

/// One pass over the waiting jobs, in order. It holds each job's nodes, and can be continued with
/// jobs after the last one.
#[derive(Debug, Default)]
pub(crate) struct Pass {
    last: Option<Order>,
    outcomes: HashMap<Order, Outcome>,
    /// Nodes held by the pass, and each pod's request.
    holds: HashMap<Order, (Arc<Shape>, Vec<Arc<str>>)>,
    reserved: HashMap<Arc<str>, Order>,
    /// The reservations of the last pass.
    reserved_before: HashMap<Arc<str>, Order>,
    /// Jobs that do not fit, in order.
    waiting: Vec<Order>,
    /// When the next job's patience ends.
    patient_until: Option<Timestamp>,
}

impl Pass {
    pub(crate) fn last(&self) -> Option<&Order> {
        self.last.as_ref()
    }

    pub(crate) fn outcome(&self, job: &Order) -> Option<&Outcome> {
        self.outcomes.get(job)
    }

    /// Whether a job's patience has ended since the pass.
    pub(crate) fn has_expired(&self, now: Timestamp) -> bool {
        self.patient_until.is_some_and(|until| until <= now)
    }

    pub(crate) fn wait_status(&self, job: &Waiter, wait: &Wait) -> WaitStatus {
        let count = |number: usize| i32::try_from(number).unwrap_or(i32::MAX);
        WaitStatus {
            nodes: count(job.request.nodes),
            max_nodes: job.request.larger.first().copied().map(count),
            position: count(self.waiting.partition_point(|other| *other < job.order) + 1),
            waiting: count(self.waiting.len()),
            reserved_nodes: count(wait.reserved_nodes),
            held_back_for: wait.held_back_for.as_deref().map(Into::into),
            overdue_pods: vec![],
        }
    }

    /// Releases the pass's hold for a job, which a promise replaces.
    pub(crate) fn release_for_promise(&mut self, job: &Order, cluster: &mut ClusterState) {
        self.outcomes.remove(job);
        if let Some((shape, nodes)) = self.holds.remove(job) {
            for node in &nodes {
                cluster.fleet.release_for_promise(node, &shape.requests);
            }
        }
    }

    /// Releases everything, for a new pass.
    pub(crate) fn restart(self, cluster: &mut ClusterState) -> Self {
        for (shape, nodes) in self.holds.into_values() {
            for node in &nodes {
                cluster.hold(node, &shape, -1);
            }
        }
        for node in self.reserved.keys() {
            cluster.reserve(node, None);
        }
        cluster.forget_pass();
        Self {
            reserved_before: self.reserved,
            ..Self::default()
        }
    }

    /// Plans the next job.
    pub(crate) fn plan(&mut self, job: &Waiter, cluster: &mut ClusterState, now: Timestamp) {
        let request = &job.request;
        self.last = Some(job.order.clone());
        // Stopping pods of its previous gang may be all that prevents a (larger) gang.
        if let Some((placement, reasons)) = choose(job, cluster) {
            let mut held = placement.nodes.clone();
            if held.len() < job.previous_nodes.len() {
                let previous = job.previous_nodes.iter();
                held.extend(previous.filter(|node| !placement.nodes.contains(node)).cloned());
            }
            self.hold(job, held, cluster);
            self.outcomes.insert(job.order.clone(), Ok((placement, reasons)));
            return;
        }
        let view = cluster.view(&request.shape);
        let reasons = view.reasons();
        let reserved = view.first_reserved();
        let held_back_for = reserved.and_then(|node| Some(Arc::clone(&self.reserved.get(node)?.job)));
        if !job.previous_nodes.is_empty() {
            self.hold(job, job.previous_nodes.clone(), cluster);
        }
        self.waiting.push(job.order.clone());
        let wait = Wait {
            reasons,
            reserved_nodes: 0,
            held_back_for,
        };
        self.outcomes.insert(job.order.clone(), Err(wait));
        if let Some(since) = job.since {
            let until = since.checked_add(PATIENCE).unwrap_or(Timestamp::MAX);
            if until <= now {
                self.reserve(job, cluster);
            } else {
                self.patient_until = Some(self.patient_until.map_or(until, |first| first.min(until)));
            }
        }
    }

    fn hold(&mut self, job: &Waiter, nodes: Vec<Arc<str>>, cluster: &mut ClusterState) {
        for node in &nodes {
            cluster.hold(node, &job.request.shape, 1);
        }
        let held = (Arc::clone(&job.request.shape), nodes);
        self.holds.insert(job.order.clone(), held);
    }

    /// Reserves nodes for a job whose patience has ended, including nodes reserved for later jobs.
    fn reserve(&mut self, job: &Waiter, cluster: &mut ClusterState) {
        let is_taken = |node: &str| self.reserved.get(node).is_some_and(|other| *other < job.order);
        let claim = |node: &str| {
            if is_taken(node) {
                Claim::Other
            } else if self.reserved_before.get(node) == Some(&job.order) {
                Claim::Own
            } else {
                Claim::Free
            }
        };
        let view = cluster.view(&job.request.shape);
        let mut nodes = view.nodes_to_reserve(job.request.nodes, claim);
        nodes.retain(|node| !is_taken(node));
        self.count_reserved(&job.order, nodes.len() as isize);
        for node in nodes {
            cluster.reserve(&node, Some(Arc::clone(&job.order.job)));
            if let Some(later) = self.reserved.insert(node, job.order.clone()) {
                self.count_reserved(&later, -1);
            }
        }
    }

    fn count_reserved(&mut self, job: &Order, nodes: isize) {
        if let Some(Err(wait)) = self.outcomes.get_mut(job) {
            wait.reserved_nodes = wait.reserved_nodes.saturating_add_signed(nodes);
        }
    }
}

/// A job's nodes in the first shape that fits. If those have mixed GPUs although the job prefers
/// identical ones, a later shape with as many identical GPUs is better, even on avoided nodes.
fn choose(job: &Waiter, cluster: &mut ClusterState) -> Option<(Placement, Arc<Reasons>)> {
    let request = &job.request;
    let is_mixed = |placement: &Placement| matches!(placement.gpus, Gpus::Mixed(_));
    let mut fits = job
        .preferred_shapes
        .iter()
        .chain([&request.shape])
        .filter_map(|shape| {
            let view = cluster.view(shape);
            let reasons = view.reasons();
            Some((view.choose(request)?, reasons))
        });
    let first = fits.next()?;
    if !is_mixed(&first.0) || request.shape.rules.homogeneity != Homogeneity::Preferred {
        return Some(first);
    }
    let identical = fits.find(|(other, _)| !is_mixed(other) && other.nodes.len() >= first.0.nodes.len());
    Some(identical.unwrap_or(first))
}

#[cfg(test)]
mod properties;
