//! Footprint of a job on each rank, by calculation: memory by kind, bytes sent per step, and
//! parallelism strategies.
//!
//! ```text
//! RunConfig --memory--> Footprint
//!           --traffic-> Sent
//!           --step----> Step, by measured speeds
//!           --strategies-> parallelism strategies, in the order to try them
//! ```
//!
//! The trainer's `plan` prints it, and the operator uses it for `parallelism.strategy: Auto`.

#[cfg(test)]
mod fixtures;
mod memory;
mod shape;
mod step;
mod strategies;
mod traffic;

pub use memory::{Footprint, footprint};
pub use shape::parameters;
pub use step::{Speeds, Step};
pub use strategies::{Settings, Strategy, strategies};
pub use traffic::{Sent, sent};
