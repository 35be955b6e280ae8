//! Watches of the cluster, their caches, and the jobs that a change concerns.

pub(crate) mod cache;
pub(crate) mod caches;
mod gangs;
mod kueue;
mod newest;
pub(crate) mod pod_groups;
pub(crate) mod stores;
pub(crate) mod trigger;
mod unready;
