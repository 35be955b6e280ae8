//! Placement decisions as pure functions of facts, one file per policy.

pub mod avoidance;
pub mod node_fit;
pub mod placement;
pub mod queue;
pub mod request;
pub mod slow_nodes;
pub mod topology;
