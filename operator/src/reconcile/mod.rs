//! Reconciles one job, in rounds ([`round`]):
//!
//! 1. [`observe`]: the job's state as an [`observation`], from the caches and its [`agents`];
//! 2. validate ([`crds::validate()`]);
//! 3. [`decide`]: the [`step`] to take, with its writes and the [`next`] status;
//! 4. [`apply`]: its writes; and [`poll`] the agents;
//! 5. one write of the [`status`] if anything changed, and its [`events`].
//!
//! Steps 2 and 3 are pure, except that the planner finds and promises GPUs. [`pace`] has the times
//! between rounds, and [`memory`] keeps agents' answers and what else the caches lack. Jobs that this
//! version cannot read are [left alone](crate::stored).

mod agents;
mod apply;
mod context;
mod decide;
mod dry_run;
mod events;
mod memory;
mod next;
mod observation;
mod observe;
mod pace;
mod poll;
mod round;
mod status;
mod step;
mod warnings;

pub(crate) use context::{CALL_TIMEOUT, Context, Settings};
pub(crate) use events::event;
pub(crate) use memory::Memory;
#[cfg(test)]
pub(crate) use observation::{Isolation, Observation};
pub(crate) use pace::error_policy;
pub(crate) use round::reconcile;

#[cfg(test)]
mod tests;
