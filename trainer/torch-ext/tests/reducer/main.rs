//! Synchronization of ranks that are threads of one process.
#![allow(missing_docs, reason = "tests say what they show by their names")]

mod averaging;
mod collectives;
mod lost_peer;
mod ranks;
mod sharding;
mod simulated;
mod sync_cost;
