//! Decides which gang gets which GPUs. The operator acts on it; `kubectl vit` only queries it.
//!
//! ```text
//!   nodes, pods, PriorityClasses --> facts    the cluster's resources, and their use
//!                                      |
//!   jobs --> policy::request           v
//!              `-----------------> policy     the nodes that fit, a gang's choice of them, the order of gangs
//!                                      |
//!                                      v
//!                                    planner  one pass over the waiting jobs; promises
//!                                    survey   the same facts and policies for queries
//! ```
//!
//! Does no I/O: events come in, decisions go out.
#![forbid(unsafe_code)]

pub mod facts;
mod planner;
pub mod policy;
mod survey;

#[cfg(test)]
mod fixtures;

pub use planner::{Decision, Planner, SharedPlanner, Waiting};
pub use survey::{Survey, SurveyedGroup, SurveyedNode};
