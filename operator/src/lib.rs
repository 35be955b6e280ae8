//! The operator: reconciles `ViTTrainingJob`s into gangs of pods on like GPUs.
//!
//! ```text
//!  Nodes, pods ---> watch::caches ------------------+--> planner (a crate of its own)
//!  ViTTrainingJob -> kube Controller -> reconcile   |       |
//!                                        1 observe <+       |   and what agents have answered
//!                                        2 validate         |   (crds)
//!                                        3 plan <-----------+   policy::{gang, failure, restart, ...}
//!                                        4 build        build::{pod, service, network_policy, config_map, pod_group}
//!                                        5 apply    --> pods, Service, NetworkPolicy, ConfigMap, PodGroup
//!                                        6 status   --> status, then Events
//! ```
//!
//! Only `observe`, `apply` and `status` do input and output. `lease` lets one of several replicas work; `http` serves
//! metrics and probes.
//!
//! What it may do is in the chart's `templates/rbac.yaml`.
//! The end-to-end tests compare what the chart grants with what the API server's audit log has seen used.
#![forbid(unsafe_code)]

mod api;
mod api_calls;
mod arguments;
mod build;
#[cfg(test)]
mod documentation;
mod error;
#[cfg(test)]
mod fixtures;
mod http;
mod lease;
mod metrics;
mod numbers;
mod objects;
mod policy;
mod reconcile;
mod run;
mod studies;
mod telemetry;
mod watch;

use arguments::{Arguments, Command};
use clap::Parser as _;

/// Does what the command line says.
///
/// Not `async`: a future is compiled where it is run, and the program, which would run it, has only this crate's work in it.
#[tokio::main]
pub async fn main() -> anyhow::Result<()> {
    let Arguments { command } = Arguments::parse();
    match command {
        Command::Run(arguments) => {
            telemetry::start(&arguments.log_filter);
            run::run(arguments).await?;
        }
        Command::Agent(arguments) => {
            telemetry::start("info");
            agent::beside::main(arguments).await?;
        }
    }
    Ok(())
}
