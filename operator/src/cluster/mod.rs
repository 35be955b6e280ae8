//! The cluster as the operator sees it: caches of Nodes and pods, and what follows from them.

pub(crate) mod caches;
pub(crate) mod fleet;
mod gangs;
pub(crate) mod gpu_counts;
pub(crate) mod inventory;
pub(crate) mod kueue;
pub(crate) mod pod_groups;
pub(crate) mod priority;
mod quantity;
mod unreadable;
