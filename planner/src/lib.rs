//! Who gets which GPUs. The operator decides by it; `kubectl vit` asks it what a gang could have.
//!
//! ```text
//!   nodes, pods, PriorityClasses --> facts    what the cluster has, and what of it is in use
//!                                      |
//!   jobs --> policy::request           v
//!              `-----------------> policy     which nodes fit, which of them a gang gets, in which order gangs are served
//!                                      |
//!                                      v
//!                                    planner  one pass over the jobs that wait; promises
//!                                    survey   the same facts and policies for a program that only asks
//! ```
//!
//! No input or output: events come in, decisions go out.
#![forbid(unsafe_code)]

pub mod facts;
mod planner;
pub mod policy;
mod survey;

#[cfg(test)]
mod fixtures;

pub use planner::{Decision, GuardedJob, Planner, SharedPlanner, Waiting};
pub use survey::{GpuPod, Survey, SurveyedGroup, SurveyedNode};
