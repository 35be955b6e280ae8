//! Decisions as pure functions, one file per policy.

pub(crate) mod admission;
pub(crate) mod admitted;
pub(crate) mod deadline;
pub(crate) mod elastic;
pub(crate) mod failed_nodes;
pub(crate) mod failure;
pub(crate) mod gang;
pub(crate) mod mixed_gpus;
pub(crate) mod restart;
pub(crate) mod stall;
pub(crate) mod start;
pub(crate) mod straggler;
pub(crate) mod strategy;
pub(crate) mod suspend;
pub(crate) mod time_spent;
pub(crate) mod ttl;
pub(crate) mod waiting;
