//! The order in which jobs get GPUs, and how long a job that does not fit lets others pass.
//!
//! Jobs are planned by priority, then first come, first served. A job that does not fit lets later
//! ones pass (backfilling), for [`PATIENCE`]. Then nodes are reserved for it: as many as it needs,
//! in the group that lacks the fewest, free nodes and those closest to becoming free. Later jobs do
//! not get them, so it starts once their gangs have ended. A job that never fits reserves nothing.

use std::cmp::Reverse;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::request::{GangRequest, Shape};

/// How long later jobs may take nodes that a waiting job could use: long enough for short jobs.
pub(crate) const PATIENCE: SignedDuration = SignedDuration::from_mins(15);

/// The sort key of jobs: the smallest gets GPUs first.
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
    /// Shapes to try before that of the request, in order.
    pub(crate) preferred_shapes: Vec<Arc<Shape>>,
    /// When it began to wait; `None` before a restarting or resuming job was found not to fit.
    pub(crate) since: Option<Timestamp>,
    /// The nodes of the gang being replaced, which the pass holds for it.
    pub(crate) previous_nodes: Vec<Arc<str>>,
}

#[cfg(test)]
mod tests;
