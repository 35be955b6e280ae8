//! The cluster as the operator sees it: watches, what is kept of them in memory, and which jobs a change concerns.

pub(crate) mod caches;
mod gangs;
mod kueue;
pub(crate) mod pod_groups;
pub(crate) mod stores;
pub(crate) mod trigger;
mod unreadable;
