//! Watches of the cluster, their caches, and the jobs that a change concerns.

pub(crate) mod caches;
pub(crate) mod confirm;
mod gangs;
pub(crate) mod jobs;
mod kueue;
mod newest;
pub(crate) mod pod_groups;
pub(crate) mod stores;
pub(crate) mod trigger;
mod unreadable;
