//! The built trainer, run as processes on this machine over the loopback interface.
#![allow(missing_docs, reason = "tests say what they show by their names")]

mod agent;
mod balance;
mod bench;
mod common;
mod data;
mod device;
mod eval;
mod export;
mod faults;
mod fetch;
mod frozen;
mod gpus;
mod machine;
mod model_parallel;
mod optimization;
mod preflight;
mod pretrained;
mod rank;
mod several_classes;

mod sharding;
mod storage;
mod streaming;
mod study;
mod torch;
mod training;
