//! The built trainer, run as processes on this machine over the loopback interface.
#![allow(missing_docs, reason = "tests say what they show by their names")]

mod agent;
mod common;
mod faults;
mod training;
