//! Names by which a pod's environment reaches the agent, and the fixed places and ports in a pod.

/// Path of the [`RunConfig`](crate::RunConfig) as JSON.
pub const RUN_CONFIG: &str = "VIT_RUN_CONFIG";
/// File to which another trainer's rank 0 writes its log.
pub const LOG: &str = "VIT_LOG";
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

/// What torchrun tells each of its ranks (`torch/distributed/run.py`).
pub mod torchrun {
    /// Global rank.
    pub const RANK: &str = "RANK";
    /// Number of ranks.
    pub const WORLD_SIZE: &str = "WORLD_SIZE";
    /// Rank among those of the node.
    pub const LOCAL_RANK: &str = "LOCAL_RANK";
    /// Number of ranks of the node.
    pub const LOCAL_WORLD_SIZE: &str = "LOCAL_WORLD_SIZE";
    /// Number of the node.
    pub const GROUP_RANK: &str = "GROUP_RANK";
    /// Host where ranks meet.
    pub const MASTER_ADDR: &str = "MASTER_ADDR";
    /// Port there.
    pub const MASTER_PORT: &str = "MASTER_PORT";
}

/// Where the operator mounts the run configuration.
pub const RUN_CONFIG_PATH: &str = "/etc/vit/run.json";
/// Where the log of another trainer is in a pod.
pub const LOG_PATH: &str = "/tmp/vit-log.jsonl";
/// Where kubelets expect the termination message.
pub const TERMINATION_LOG_PATH: &str = "/dev/termination-log";
/// Port of the rendezvous store in a pod, as `torchrun` has it.
pub const DEFAULT_COORDINATOR_PORT: u16 = 29500;
/// Port of the agent's HTTP endpoints in a pod.
pub const DEFAULT_AGENT_PORT: u16 = 9402;
