//! The state of the cluster, read from its objects and updated by their events.

pub mod fleet;
pub mod gpu_labels;
pub mod inventory;
pub(crate) mod listing;
pub mod pods;
pub mod priority;
pub mod quantity;
pub mod resources;
