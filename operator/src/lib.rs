//! The operator: reconciles `ViTTrainingJob`s into gangs of pods on like GPUs.
//!
//! ```text
//!  Nodes, pods ---> cluster::caches ----------------+--> planner (a crate of its own)
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
//! # What it may do
//!
//! | resource | verbs | why |
//! | --- | --- | --- |
//! | vittrainingjobs.vit-operator.dev | list, watch, delete | reconcile; delete after `ttlSecondsAfterFinished` |
//! | vittrainingjobs.vit-operator.dev/status | update | status |
//! | nodes | list, watch | inventory |
//! | priorityclasses.scheduling.k8s.io | list, watch | order among jobs that wait |
//! | pods | get, list, watch, create, delete | GPUs in use, over all namespaces; gangs |
//! | services, configmaps | get, list, watch, create, delete | of each gang |
//! | networkpolicies.networking.k8s.io | get, list, watch, create, delete | of each gang; not with `--network-policies=false` |
//! | podgroups.scheduling.k8s.io | get, create, delete | of each gang, where they are served; not with `--pod-groups=false` |
//! | workloads.kueue.x-k8s.io, and their status | get, list, watch, create, delete; update | of each job in a queue; not with `--kueue=false` |
//! | resourceflavors.kueue.x-k8s.io | list, watch | nodes and tolerations of what Kueue has granted |
//! | events.events.k8s.io | create, patch | Events |
//! | leases.coordination.k8s.io, own namespace | get, create, update | leader election |
//!
//! With owner references that block deletion, clusters with the `OwnerReferencesPermissionEnforcement` admission plugin
//! also want `update` of vittrainingjobs/finalizers.
//!
//! The end-to-end tests compare what the chart grants with what the API server's audit log has seen used.
#![forbid(unsafe_code)]

mod api_calls;
mod arguments;
mod build;
mod cluster;
#[cfg(test)]
mod documentation;
mod error;
#[cfg(test)]
mod fixtures;
mod http;
mod lease;
mod metrics;
mod policy;
mod reconcile;
mod run;
mod telemetry;

use arguments::{Arguments, Command};
use clap::Parser as _;

/// Does what the command line says.
///
/// Not `async`: a future is compiled where it is run, and the program, which would run it, has only this crate's work in it.
#[tokio::main]
pub async fn main() -> anyhow::Result<()> {
    let Arguments { command } = Arguments::parse();
    let Command::Run(arguments) = command;
    telemetry::start(&arguments.log_filter)?;
    Ok(run::run(arguments).await?)
}
