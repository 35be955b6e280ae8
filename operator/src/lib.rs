//! The operator: reconciles `ViTTrainingJob`s into gangs of pods on identical GPUs.
//!
//! ```text
//!  Nodes, pods ---> watch::caches ------------------+--> planner (a separate crate)
//!  ViTTrainingJob -> kube Controller -> reconcile   |       |
//!                                        1 observe <+       |   and the agents' answers
//!                                        2 validate         |   (crds)
//!                                        3 plan <-----------+   policy::{gang, failure, restart, ...}
//!                                        4 build        build::{pod, service, network_policy, config_map, pod_group}
//!                                        5 apply    --> pods, Service, NetworkPolicy, ConfigMap, PodGroup
//!                                        6 status   --> status, then Events
//! ```
//!
//! Only `apply` and `status` do I/O, and a new leader's first look at a gang. `lease` elects one of
//! several replicas as leader; `http` serves metrics and probes.
//!
//! The chart's `templates/rbac.yaml` grants its permissions. The end-to-end tests compare them with
//! the API server's audit log.
#![forbid(unsafe_code)]

mod api;
mod api_calls;
mod arguments;
mod build;
mod clock;
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
mod stored;
mod studies;
mod telemetry;
mod watch;

use arguments::{Arguments, Command};
use clap::Parser as _;

/// Runs the command line.
///
/// Not `async`, so that the future is compiled in this crate and not in the binary.
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
