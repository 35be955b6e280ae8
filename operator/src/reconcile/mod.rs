//! Reconciles one job, in rounds of six steps ([`round`]):
//!
//! 1. [`observe`]: the job's state as an [`observation`], from the caches and its [`agents`];
//! 2. validate ([`crds::validate()`]);
//! 3. [`plan`]: the next action, such as placing the gang or ending the attempt;
//! 4. [`changes`]: the objects to create and delete;
//! 5. [`apply`]: applies the changes, and [`poll`]s the agents;
//! 6. [`status`]: one write if anything changed, and its [`events`].
//!
//! Steps 2 to 4 are pure, except that the plan calls the planner to find and promise GPUs. [`pace`]
//! schedules the next round, [`memory`] holds this process's changes until the caches show them,
//! and [`unreadable`] handles jobs that cannot be decoded.

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
