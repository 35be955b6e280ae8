//! Names by which a pod's environment reaches the agent, and the fixed places and ports in a pod.

/// Path of the [`RunConfig`](crate::RunConfig) as JSON.
pub const RUN_CONFIG: &str = "VIT_RUN_CONFIG";
/// Index of this pod in the gang, `0..nodes`. Ranks are numbered `node_rank * ranks_per_node + local_rank`.
pub const NODE_RANK: &str = "VIT_NODE_RANK";
/// The job's attempt, from 1; the prefix of the rendezvous keys, so that two attempts can never meet.
pub const ATTEMPT: &str = "VIT_ATTEMPT";
/// Host name of the pod that holds rank 0 and the rendezvous store.
pub const COORDINATOR_HOST: &str = "VIT_COORDINATOR_HOST";
/// TCP port of the rendezvous store.
pub const COORDINATOR_PORT: &str = "VIT_COORDINATOR_PORT";
/// Address of this pod to which collectives bind.
pub const POD_ADDRESS: &str = "VIT_POD_ADDRESS";
/// Name of the node, for metrics; may be absent.
pub const NODE_NAME: &str = "VIT_NODE_NAME";
/// Port on which the agent serves `/metrics`, `/progress`, `/heartbeats` and `/healthz`; 0 picks a free one.
pub const AGENT_PORT: &str = "VIT_AGENT_PORT";
/// File that takes the [`TerminationRecord`](crate::TerminationRecord); Kubernetes calls it the termination log.
pub const TERMINATION_LOG: &str = "VIT_TERMINATION_LOG";

/// Where the operator mounts the run configuration.
pub const RUN_CONFIG_PATH: &str = "/etc/vit/run.json";
/// Where kubelets expect the termination message.
pub const TERMINATION_LOG_PATH: &str = "/dev/termination-log";
/// Port of the rendezvous store in a pod, as `torchrun` has it.
pub const DEFAULT_COORDINATOR_PORT: u16 = 29500;
/// Port of the agent's HTTP endpoints in a pod.
pub const DEFAULT_AGENT_PORT: u16 = 9402;
