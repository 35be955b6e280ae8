//! In which order jobs get GPUs, and how long one that does not fit lets others go ahead.
//!
//! Jobs are planned by priority, then first come, first served. One that does not fit lets later ones go ahead that do
//! (backfilling), for [`PATIENCE`]. From then on nodes are kept for it: as many as it needs, of the group in which it will
//! fit first, those first that are free or nearest to it. Later jobs do not get them, so it starts once the gangs on them
//! have ended. A job that no group could ever hold keeps nothing.

use std::cmp::Reverse;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::request::{GangRequest, Shape};

/// How long later jobs may take nodes that a waiting job could use.
pub(crate) const PATIENCE: SignedDuration = SignedDuration::from_mins(15);

/// The place of a job in the order in which jobs get GPUs: the least is the first.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(crate) struct Order {
    pub(crate) priority: Reverse<i32>,
    pub(crate) created: Option<Timestamp>,
    /// `namespace/name`.
    pub(crate) job: Arc<str>,
}

/// A job that waits for GPUs.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Waiter {
    pub(crate) order: Order,
    pub(crate) request: GangRequest,
    /// Shapes without nodes that it avoids, in which a place is looked for first.
    pub(crate) stricter: Vec<Arc<Shape>>,
    /// Since when it has been waiting; `None` for a job that restarts or resumes and has not been found not to fit.
    pub(crate) since: Option<Timestamp>,
    /// Where its gang was that is being replaced: it keeps at least that.
    pub(crate) had: Vec<String>,
}

/// Where a job stands among those that wait.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Standing {
    /// From 1.
    pub position: usize,
    /// Jobs that do not fit now.
    pub waiting: usize,
    /// Nodes that are kept for it.
    pub keeps: usize,
    /// The job for which a node is kept that would do for this one.
    pub kept_from_it_for: Option<String>,
}

impl Standing {
    /// What is added to why the job does not fit.
    pub fn added_to(&self, why: &str) -> String {
        let mut words = why.to_owned();
        if self.keeps > 0 {
            words += &format!("; {} nodes are kept for it", self.keeps);
        }
        if let Some(job) = &self.kept_from_it_for {
            words += &format!("; held back for {job}");
        }
        if self.waiting > 1 {
            words += &format!(
                "{POSITION}{} of {} waiting)",
                ordinal(self.position),
                self.waiting
            );
        }
        words
    }
}

const POSITION: &str = " (";

/// Whether two messages differ in more than the position, of which alone no news is made.
pub fn is_news(last: &str, next: &str) -> bool {
    let position = |message: &str| match message.rfind(POSITION) {
        Some(start) if message.ends_with(" waiting)") => start,
        _ => message.len(),
    };
    last[..position(last)] != next[..position(next)]
}

fn ordinal(number: usize) -> String {
    let suffix = match (number % 10, number % 100) {
        (_, 11..=13) => "th",
        (1, _) => "st",
        (2, _) => "nd",
        (3, _) => "rd",
        _ => "th",
    };
    format!("{number}{suffix}")
}

#[cfg(test)]
mod tests;
