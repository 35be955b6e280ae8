//! Decisions about places, one file a policy: pure functions over facts.

pub mod avoidance;
pub mod node_fit;
pub mod placement;
pub mod queue;
pub mod request;
pub mod slow_nodes;
pub mod topology;
