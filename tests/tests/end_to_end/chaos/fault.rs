//! Faults and their repairs.

use std::time::Duration;

use anyhow::Result;
use fastrand::Rng;
use kube::ResourceExt as _;
use rustix::process::Signal;

use crate::context::{Context, Namespace, RANK, kill};

/// How long etcd is paused.
const PAUSE: Duration = Duration::from_secs(10);

/// A fault.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) enum Fault {
    /// A rank's process is killed.
    RankKilled,
    /// A pod is evicted, as by `kubectl drain`.
    PodEvicted,
    /// A node is tainted `NoExecute`.
    NodeTainted,
    /// A node loses power.
    NodeKilled,
    /// The leading operator is killed.
    LeaderKilled,
    /// The API server is killed and restarted.
    ApiServerRestarted,
    /// etcd is paused for ten seconds.
    EtcdPaused,
}

/// The repair once jobs train again.
pub(crate) enum Repair {
    Nothing,
    StartNode(String),
    RemoveTaint(String),
}

impl Fault {
    const ALL: [Self; 7] = [
        Self::RankKilled,
        Self::PodEvicted,
        Self::NodeTainted,
        Self::NodeKilled,
        Self::LeaderKilled,
        Self::ApiServerRestarted,
        Self::EtcdPaused,
    ];

    pub(crate) fn choose(rng: &mut Rng) -> Self {
        Self::ALL[rng.usize(..Self::ALL.len())]
    }

    /// Whether a node is unusable until it is repaired.
    pub(crate) fn takes_a_node(self) -> bool {
        matches!(self, Self::NodeTainted | Self::NodeKilled)
    }

    /// Whether it hits one pod.
    pub(crate) fn takes_a_pod(self) -> bool {
        matches!(self, Self::RankKilled | Self::PodEvicted)
    }

    /// Injects the fault into the pod of a job's node rank, its node, or the cluster. `None` if the
    /// target does not exist.
    pub(crate) fn strike(
        self,
        context: &Context<'_>,
        namespace: &Namespace<'_>,
        job: &str,
        node_rank: usize,
        node: Option<String>,
    ) -> Result<Option<Repair>> {
        Ok(match (self, node) {
            (Self::RankKilled, _) => {
                let rank = u32::try_from(node_rank)?;
                let process = namespace.process_now(job, rank, RANK);
                let killed = process.and_then(|process| kill(process, Signal::KILL));
                killed.is_ok().then_some(Repair::Nothing)
            }
            (Self::PodEvicted, _) => {
                let name = namespace.pods()?.iter().find_map(|pod| {
                    let labels = pod.labels();
                    let is_it = labels
                        .get("vit-operator.dev/job-name")
                        .is_some_and(|name| name == job)
                        && labels.get("vit-operator.dev/node-rank") == Some(&node_rank.to_string())
                        && pod.metadata.deletion_timestamp.is_none();
                    is_it.then(|| pod.name_any())
                });
                let evicted = name.is_some_and(|name| namespace.evict(&name).is_ok());
                evicted.then_some(Repair::Nothing)
            }
            (Self::NodeTainted, Some(node)) => {
                context.kubectl(["taint", "node", &node, "chaos=now:NoExecute"])?;
                Some(Repair::RemoveTaint(node))
            }
            (Self::NodeKilled, Some(node)) => {
                context.cluster.kill_node(&node)?;
                Some(Repair::StartNode(node))
            }
            (Self::NodeTainted | Self::NodeKilled, None) => None,
            (Self::LeaderKilled, _) => {
                context.kill_leader()?;
                Some(Repair::Nothing)
            }
            (Self::ApiServerRestarted, _) => {
                context.block_on(context.cluster.restart_control_plane("kube-apiserver"))?;
                Some(Repair::Nothing)
            }
            (Self::EtcdPaused, _) => {
                let _paused = context.cluster.pause("etcd")?;
                std::thread::sleep(PAUSE);
                Some(Repair::Nothing)
            }
        })
    }
}

impl Repair {
    pub(crate) fn done(self, context: &Context<'_>) -> Result<()> {
        match self {
            Self::Nothing => Ok(()),
            Self::StartNode(node) => context.block_on(context.cluster.start_node(&node)),
            Self::RemoveTaint(node) => context.kubectl(["taint", "node", &node, "chaos-"]).map(drop),
        }
    }
}
