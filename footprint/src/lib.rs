//! What a job takes of each rank, by calculation: bytes of memory by kind, and bytes sent in a step; and which strategies there are
//! to take less.
//!
//! ```text
//! RunConfig --memory--> Footprint
//!           --traffic-> Sent
//!           --step----> Step, by speeds that were measured
//!           --strategies-> the ways to divide the job, in the order in which to try them
//! ```
//!
//! The trainer's `plan` prints it, and the operator chooses by it where a job asks for `parallelism.strategy: Auto`.

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
