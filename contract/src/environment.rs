//! Names of the agent's environment variables, and fixed paths and ports in a pod.

/// Path of the [`RunConfig`](crate::RunConfig) as JSON.
pub const RUN_CONFIG: &str = "VIT_RUN_CONFIG";
/// File to which another trainer's rank 0 writes its log.
pub const LOG: &str = "VIT_LOG";
/// Index of this pod in the gang, `0..nodes`. Ranks are numbered `node_rank * ranks_per_node + local_rank`.
pub const NODE_RANK: &str = "VIT_NODE_RANK";
/// The job's attempt, from 1; prefixes the rendezvous keys, so that attempts cannot meet.
pub const ATTEMPT: &str = "VIT_ATTEMPT";
/// Host name of the pod that holds rank 0 and the rendezvous store.
pub const COORDINATOR_HOST: &str = "VIT_COORDINATOR_HOST";
/// TCP port of the rendezvous store.
pub const COORDINATOR_PORT: &str = "VIT_COORDINATOR_PORT";
/// Address of this pod for collectives to bind to.
pub const POD_ADDRESS: &str = "VIT_POD_ADDRESS";
/// Name of the node, for metrics; may be absent.
pub const NODE_NAME: &str = "VIT_NODE_NAME";
/// Port of the agent's `/metrics`, `/progress`, `/heartbeats` and `/healthz`; 0 picks a free one.
pub const AGENT_PORT: &str = "VIT_AGENT_PORT";
/// File for the [`TerminationRecord`](crate::TerminationRecord), Kubernetes' termination log.
pub const TERMINATION_LOG: &str = "VIT_TERMINATION_LOG";

/// The variables that torchrun sets for each rank (`torch/distributed/run.py`) and reads as options
/// (`torch/distributed/argparse_util.py`).
pub mod torchrun {
    /// Global rank.
    pub const RANK: &str = "RANK";
    /// Number of ranks.
    pub const WORLD_SIZE: &str = "WORLD_SIZE";
    /// Rank on the node.
    pub const LOCAL_RANK: &str = "LOCAL_RANK";
    /// Number of ranks on the node.
    pub const LOCAL_WORLD_SIZE: &str = "LOCAL_WORLD_SIZE";
    /// Host of the rendezvous.
    pub const MASTER_ADDR: &str = "MASTER_ADDR";
    /// Port of the rendezvous.
    pub const MASTER_PORT: &str = "MASTER_PORT";

    /// A node that runs another trainer's command, and the rendezvous of its ranks.
    #[derive(Clone, Copy, Debug)]
    pub struct Node<'a> {
        /// Index of the node, from 0.
        pub rank: usize,
        /// Number of nodes.
        pub nodes: usize,
        /// Ranks per node.
        pub ranks_per_node: u32,
        /// Host of rank 0.
        pub host: &'a str,
        /// Port of the rendezvous.
        pub port: u16,
    }

    impl Node<'_> {
        /// The command's variables. With one rank per node they include the rank's, so no launcher
        /// is needed.
        pub fn environment(self) -> Vec<(&'static str, String)> {
            let (rank, nodes) = (self.rank.to_string(), self.nodes.to_string());
            let (host, port) = (self.host.to_owned(), self.port.to_string());
            let mut variables = vec![
                (MASTER_ADDR, host.clone()),
                (MASTER_PORT, port.clone()),
                ("PET_MASTER_ADDR", host),
                ("PET_MASTER_PORT", port),
                ("PET_NNODES", nodes.clone()),
                ("PET_NODE_RANK", rank.clone()),
                ("PET_NPROC_PER_NODE", self.ranks_per_node.to_string()),
            ];
            if self.ranks_per_node == 1 {
                variables.extend([
                    (RANK, rank.clone()),
                    (WORLD_SIZE, nodes),
                    (LOCAL_RANK, "0".into()),
                    (LOCAL_WORLD_SIZE, "1".into()),
                    ("GROUP_RANK", rank),
                ]);
            }
            variables
        }
    }
}

/// Mount path of the run configuration.
pub const RUN_CONFIG_PATH: &str = "/etc/vit/run.json";
/// Path of another trainer's log in a pod.
pub const LOG_PATH: &str = "/tmp/vit-log.jsonl";
/// Path where kubelets expect the termination message.
pub const TERMINATION_LOG_PATH: &str = "/dev/termination-log";
/// Port of the rendezvous store in a pod, as in `torchrun`.
pub const DEFAULT_COORDINATOR_PORT: u16 = 29500;
/// Port of the agent's HTTP endpoints in a pod.
pub const DEFAULT_AGENT_PORT: u16 = 9402;

#[cfg(test)]
mod tests {
    use super::torchrun::Node;

    #[test]
    fn a_node_of_several_ranks_is_for_a_launcher_and_one_of_one_rank_is_the_rank() {
        let of = |ranks_per_node: u32| {
            let node = Node {
                rank: 1,
                nodes: 3,
                ranks_per_node,
                host: "rank-0",
                port: 29500,
            };
            let variables = node.environment().into_iter();
            variables
                .map(|(name, value)| format!("{name}={value}"))
                .collect::<Vec<_>>()
        };
        let of_launcher = [
            "MASTER_ADDR=rank-0",
            "MASTER_PORT=29500",
            "PET_MASTER_ADDR=rank-0",
            "PET_MASTER_PORT=29500",
            "PET_NNODES=3",
            "PET_NODE_RANK=1",
            "PET_NPROC_PER_NODE=2",
        ];
        assert_eq!(of(2), of_launcher);
        let of_rank = [
            "RANK=1",
            "WORLD_SIZE=3",
            "LOCAL_RANK=0",
            "LOCAL_WORLD_SIZE=1",
            "GROUP_RANK=1",
        ];
        assert_eq!(of(1)[of_launcher.len()..], of_rank);
    }
}
