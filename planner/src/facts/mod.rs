//! What is known of the cluster: values read from its objects, kept current from their events.

pub mod fleet;
pub mod gpu_labels;
pub mod inventory;
pub mod pods;
pub mod priority;
mod quantity;
pub mod resources;
