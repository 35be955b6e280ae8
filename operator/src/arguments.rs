//! The command line.

use std::net::SocketAddr;

use crate::telemetry::log_filter;

/// Trains Vision Transformers on Kubernetes: reconciles ViTTrainingJobs into gangs of pods on like GPUs.
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
    /// Run the operator, in a cluster or, with a kubeconfig, beside it.
    Run(RunArguments),
    /// Stand beside another trainer in its pod, and serve what its log says (external of a job). Not for people.
    #[command(hide = true)]
    Agent(agent::beside::Arguments),
}

/// How to run.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct RunArguments {
    /// Namespace whose jobs are reconciled; those of all namespaces if not given.
    #[arg(long, env = "VIT_OPERATOR_NAMESPACE")]
    pub namespace: Option<String>,
    /// Namespace of the Lease by which replicas choose a leader; the operator's own if not given.
    #[arg(long, env = "POD_NAMESPACE")]
    pub leader_election_namespace: Option<String>,
    /// Name of that Lease: one for each set of replicas of which one leads.
    #[arg(long, env = "VIT_OPERATOR_LEASE_NAME", default_value = "vit-operator")]
    pub lease_name: String,
    /// Name of this replica in the Lease and in Events; the host name if not given.
    #[arg(long, env = "POD_NAME")]
    pub replica: Option<String>,
    /// Whether each job gets a NetworkPolicy that lets only its own ranks reach one another; its agents' metrics stay
    /// open to everyone.
    #[arg(long, env = "VIT_OPERATOR_NETWORK_POLICIES", default_value_t = true, action = clap::ArgAction::Set)]
    pub network_policies: bool,
    /// Whether each gang gets a PodGroup, where the API server serves them (scheduling.k8s.io/v1beta1, v1alpha3 or v1alpha2) when
    /// this replica begins to lead: kube-scheduler then binds all pods of a gang or none.
    #[arg(long, env = "VIT_OPERATOR_POD_GROUPS", default_value_t = true, action = clap::ArgAction::Set)]
    pub pod_groups: bool,
    /// Whether jobs may wait in queues of Kueue (scheduling.queueName): Workloads and ResourceFlavors of
    /// kueue.x-k8s.io/v1beta2 are then watched, once the API server serves them.
    #[arg(long, env = "VIT_OPERATOR_KUEUE", default_value_t = true, action = clap::ArgAction::Set)]
    pub kueue: bool,
    /// Image of this program, which stands beside another trainer in its pods; without it jobs with external are refused.
    #[arg(long, env = "VIT_OPERATOR_AGENT_IMAGE")]
    pub agent_image: Option<String>,
    /// Address of /metrics, /healthz and /readyz.
    #[arg(long, env = "VIT_OPERATOR_METRICS_ADDRESS", default_value = "0.0.0.0:8080")]
    pub metrics_address: SocketAddr,
    /// What is logged, such as `info` or `vit_operator=debug,info`.
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
