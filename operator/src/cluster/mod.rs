//! The cluster as the operator sees it: caches of Nodes and pods, and what follows from them.

pub(crate) mod caches;
mod gangs;
pub(crate) mod gpu_counts;
pub(crate) mod kueue;
pub(crate) mod pod_groups;
mod unreadable;
