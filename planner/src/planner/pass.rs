//! One pass over the jobs that wait.

use std::collections::HashMap;
use std::sync::Arc;

use crds::spec::Homogeneity;
use jiff::Timestamp;

use super::board::Board;
use crate::policy::placement::{Choice, Claim, Gpus, Reasons};
use crate::policy::queue::{Order, PATIENCE, Standing, Waiter};
use crate::policy::request::Shape;

/// What becomes of a job that waits.
#[derive(Clone, Debug)]
pub(crate) enum Outcome {
    /// It goes there. The reasons are those for which it does not go elsewhere.
    Fits { choice: Choice, reasons: Arc<Reasons> },
    /// It goes on waiting.
    Waits(Wait),
}

/// How a job goes on waiting.
#[derive(Clone, Debug)]
pub(crate) struct Wait {
    pub(crate) reasons: Arc<Reasons>,
    /// Nodes that are kept for it.
    keeps: usize,
    /// The job for which a node is kept that would do for this one.
    kept_from_it_for: Option<Arc<str>>,
}

/// One pass over the jobs that wait, in their order. It holds on the board what jobs get, and can be continued with jobs
/// that come after the last one.
#[derive(Debug, Default)]
pub(crate) struct Pass {
    last: Option<Order>,
    outcomes: HashMap<Order, Outcome>,
    /// What the pass holds, by whom.
    holds: HashMap<Order, (Arc<Shape>, Vec<Arc<str>>)>,
    /// Which nodes are kept, and for whom.
    kept: HashMap<Arc<str>, Order>,
    /// The same of the pass before.
    kept_before: HashMap<Arc<str>, Order>,
    /// Those that do not fit, in their order.
    waiting: Vec<Order>,
    /// When the patience of the first of them ends that still lets others go ahead.
    patient_until: Option<Timestamp>,
}

impl Pass {
    /// The last job that was planned.
    pub(crate) fn last(&self) -> Option<&Order> {
        self.last.as_ref()
    }

    pub(crate) fn outcome(&self, job: &Order) -> Option<&Outcome> {
        self.outcomes.get(job)
    }

    /// Whether a job's patience has ended since.
    pub(crate) fn is_over(&self, now: Timestamp) -> bool {
        self.patient_until.is_some_and(|until| until <= now)
    }

    pub(crate) fn standing(&self, job: &Order, wait: &Wait) -> Standing {
        Standing {
            position: self.waiting.partition_point(|other| other < job) + 1,
            waiting: self.waiting.len(),
            keeps: wait.keeps,
            kept_from_it_for: wait.kept_from_it_for.as_deref().map(Into::into),
        }
    }

    /// A job takes what it got: a promise holds it on the board already.
    pub(crate) fn hand_over(&mut self, job: &Order, board: &mut Board) {
        self.outcomes.remove(job);
        if let Some((shape, nodes)) = self.holds.remove(job) {
            for node in &nodes {
                board.fleet_mut().hand_over(node, &shape.requests);
            }
        }
    }

    /// Lets go of everything, and begins anew.
    pub(crate) fn again(self, board: &mut Board) -> Self {
        for (shape, nodes) in self.holds.into_values() {
            for node in &nodes {
                board.hold(node, &shape, -1);
            }
        }
        for node in self.kept.keys() {
            board.keep(node, None);
        }
        Self {
            kept_before: self.kept,
            ..Self::default()
        }
    }

    /// Plans the next job.
    pub(crate) fn plan(&mut self, job: &Waiter, board: &mut Board, now: Timestamp) {
        let request = &job.request;
        self.last = Some(job.order.clone());
        let fits = choose(job, board);
        // What is in its way, or in that of more nodes for it, may be its own pods that are still stopping.
        let had = || job.had.iter().map(|node| node.as_str().into());
        if let Some((choice, reasons)) = fits {
            let mut held = choice.nodes.clone();
            if held.len() < job.had.len() {
                let others: Vec<Arc<str>> = had().filter(|node| !held.contains(node)).collect();
                held.extend(others);
            }
            self.hold(job, held, board);
            let outcome = Outcome::Fits { choice, reasons };
            self.outcomes.insert(job.order.clone(), outcome);
            return;
        }
        let view = board.view(&request.shape);
        let reasons = view.reasons();
        let kept = view.first_refused_as_kept();
        let kept_from_it_for = kept.and_then(|node| Some(Arc::clone(&self.kept.get(node)?.job)));
        if !job.had.is_empty() {
            self.hold(job, had().collect(), board);
        }
        self.waiting.push(job.order.clone());
        let wait = Wait {
            reasons,
            keeps: 0,
            kept_from_it_for,
        };
        self.outcomes.insert(job.order.clone(), Outcome::Waits(wait));
        if let Some(since) = job.since {
            let until = since.checked_add(PATIENCE).unwrap_or(Timestamp::MAX);
            if until <= now {
                self.keep(job, board);
            } else {
                self.patient_until = Some(self.patient_until.map_or(until, |first| first.min(until)));
            }
        }
    }

    fn hold(&mut self, job: &Waiter, nodes: Vec<Arc<str>>, board: &mut Board) {
        for node in &nodes {
            board.hold(node, &job.request.shape, 1);
        }
        let held = (Arc::clone(&job.request.shape), nodes);
        self.holds.insert(job.order.clone(), held);
    }

    /// Keeps nodes for a job that has let others go ahead for long enough; also some that were kept for later ones.
    fn keep(&mut self, job: &Waiter, board: &mut Board) {
        let is_taken = |node: &str| self.kept.get(node).is_some_and(|other| *other < job.order);
        let claim = |node: &str| {
            if is_taken(node) {
                Claim::Other
            } else if self.kept_before.get(node) == Some(&job.order) {
                Claim::Kept
            } else {
                Claim::Nobody
            }
        };
        let view = board.view(&job.request.shape);
        let mut nodes = view.nodes_to_keep(job.request.nodes, claim);
        nodes.retain(|node| !is_taken(node));
        self.count_kept(&job.order, nodes.len() as isize);
        for node in nodes {
            board.keep(&node, Some(Arc::clone(&job.order.job)));
            if let Some(later) = self.kept.insert(node, job.order.clone()) {
                self.count_kept(&later, -1);
            }
        }
    }

    fn count_kept(&mut self, job: &Order, nodes: isize) {
        if let Some(Outcome::Waits(wait)) = self.outcomes.get_mut(job) {
            wait.keeps = wait.keeps.saturating_add_signed(nodes);
        }
    }
}

/// What a job gets: the first of its shapes decides in which it fits. But rather than mixed GPUs it gets as many like ones with
/// nodes that it would avoid.
fn choose(job: &Waiter, board: &mut Board) -> Option<(Choice, Arc<Reasons>)> {
    let request = &job.request;
    let is_mixed = |choice: &Choice| matches!(choice.gpus, Gpus::Mixed(_));
    let mut fits = job.stricter.iter().chain([&request.shape]).filter_map(|shape| {
        let view = board.view(shape);
        let reasons = view.reasons();
        Some((view.choose(request)?, reasons))
    });
    let first = fits.next()?;
    if !is_mixed(&first.0) || request.shape.rules.homogeneity != Homogeneity::Preferred {
        return Some(first);
    }
    let like = fits.find(|(other, _)| !is_mixed(other) && other.nodes.len() >= first.0.nodes.len());
    Some(like.unwrap_or(first))
}

#[cfg(test)]
mod properties;
