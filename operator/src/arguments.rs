//! The command line.

use std::net::SocketAddr;

use crate::telemetry::log_filter;

/// Trains Vision Transformers on Kubernetes: reconciles ViTTrainingJobs into gangs of pods on
/// identical GPUs.
#[derive(Debug, clap::Parser)]
#[command(version, propagate_version = true)]
pub(crate) struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Run the operator, in a cluster or, with a kubeconfig, outside it.
    Run(RunArguments),
    /// Run as the sidecar of another trainer and serve the progress in its log. Internal.
    #[command(hide = true)]
    Agent(agent::beside::Arguments),
}

/// How to run.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct RunArguments {
    /// Namespace whose jobs are reconciled; all namespaces if not given.
    #[arg(long, env = "VIT_OPERATOR_NAMESPACE")]
    pub namespace: Option<String>,
    /// Namespace of the leader election Lease; the operator's own if not given.
    #[arg(long, env = "POD_NAMESPACE")]
    pub leader_election_namespace: Option<String>,
    /// Name of the leader election Lease; replicas that share it elect one leader.
    #[arg(long, env = "VIT_OPERATOR_LEASE_NAME", default_value = "vit-operator")]
    pub lease_name: String,
    /// Name of this replica in the Lease and in Events; the host name if not given.
    #[arg(long, env = "POD_NAME")]
    pub replica: Option<String>,
    /// Whether each job gets a NetworkPolicy that lets only its ranks connect to one another;
    /// everyone can read its agents' metrics.
    #[arg(long, env = "VIT_OPERATOR_NETWORK_POLICIES", default_value_t = true, action = clap::ArgAction::Set)]
    pub network_policies: bool,
    /// Whether each gang gets a PodGroup, if the API server serves them (scheduling.k8s.io/v1beta1
    /// or v1alpha2) when this replica becomes the leader: kube-scheduler then binds all pods of a
    /// gang or none.
    #[arg(long, env = "VIT_OPERATOR_POD_GROUPS", default_value_t = true, action = clap::ArgAction::Set)]
    pub pod_groups: bool,
    /// Whether jobs may wait in Kueue's queues (scheduling.queueName): the operator then watches
    /// Workloads and ResourceFlavors of kueue.x-k8s.io/v1beta2, once the API server serves them.
    #[arg(long, env = "VIT_OPERATOR_KUEUE", default_value_t = true, action = clap::ArgAction::Set)]
    pub kueue: bool,
    /// Image of this program, the sidecar of other trainers; jobs with spec.external need it.
    #[arg(long, env = "VIT_OPERATOR_AGENT_IMAGE")]
    pub agent_image: Option<String>,
    /// Address of /metrics, /healthz and /readyz.
    #[arg(long, env = "VIT_OPERATOR_METRICS_ADDRESS", default_value = "[::]:8080")]
    pub metrics_address: SocketAddr,
    /// Log filter, such as `info` or `vit_operator=debug,info`.
    #[arg(long, env = "RUST_LOG", default_value = "info", value_parser = log_filter)]
    pub log_filter: String,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_well_formed() {
        super::Arguments::command().debug_assert();
    }
}
