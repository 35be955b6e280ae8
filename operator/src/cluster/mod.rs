//! The cluster as the operator sees it: caches of Nodes and pods, and what follows from them.

pub(crate) mod caches;
mod gangs;
pub(crate) mod inventory;
mod quantity;
