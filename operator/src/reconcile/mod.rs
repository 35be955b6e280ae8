//! Reconciles one job, in rounds of six steps ([`round`]):
//!
//! 1. [`observe`]: what is known of the job, as an [`observation`], from the caches and what its [`agents`] have answered;
//! 2. validate ([`crds::validate()`]);
//! 3. [`plan`]: what to do next, such as placing the gang or ending the attempt;
//! 4. [`changes`]: the objects that this creates and deletes;
//! 5. [`apply`]: carries the changes out, and [`poll`]s the agents;
//! 6. [`status`]: one write if anything changed, and [`events`] about it.
//!
//! Steps 2 to 4 are pure, except that the plan has the planner find GPUs and promise them. [`pace`] says when the next round is,
//! [`memory`] holds what this process did until the caches show it, and a job that cannot be read has a round of its own
//! ([`unreadable`]).

mod agents;
mod apply;
mod changes;
mod context;
mod events;
mod memory;
mod observation;
mod observe;
mod pace;
mod plan;
mod poll;
mod round;
mod status;
mod unreadable;

pub(crate) use context::{Context, Settings};
pub(crate) use events::event;
#[cfg(test)]
pub(crate) use observation::{Isolation, Observation};
pub(crate) use pace::error_policy;
pub(crate) use round::reconcile;

#[cfg(test)]
mod tests;
