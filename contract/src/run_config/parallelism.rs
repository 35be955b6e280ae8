//! Devices, and what is divided among them.

use serde::{Deserialize, Serialize};

use super::ModelConfig;
use super::rules::Rules;

/// What is divided among the ranks, and how gradients are reduced over them.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Parallelism {
    /// Stage of ZeRO, 0 to 3 (`zero_optimization.stage` of DeepSpeed): what is divided among the ranks.
    #[serde(default)]
    pub zero_stage: u8,
    /// Whether a block's weights are given back between its forward and its backward pass; only at stage 3, which is the only
    /// one that gives them back at all.
    #[serde(default = "yes")]
    pub reshard_after_forward: bool,
    /// Whether training state is divided among the ranks of a node only, and each node has all of it (hybrid sharding, HSDP).
    #[serde(default)]
    pub shard_within_node: bool,
    /// Ranks that divide the tokens of each image among them (DeepSpeed-Ulysses, arXiv 2309.14509); 1 divides none.
    #[serde(default = "one")]
    pub sequence: u32,
    /// Ranks that divide the heads of each block, and the hidden values of its MLP, among them (the tensor parallelism of
    /// Megatron-LM, arXiv 1909.08053); 1 divides none.
    #[serde(default = "one")]
    pub tensor: u32,
    /// Whether ranks that compute a model together may be on several nodes.
    #[serde(default)]
    pub across_nodes: bool,
    /// What is in host memory and not on the device.
    #[serde(default, skip_serializing_if = "Offload::is_nothing")]
    pub offload: Offload,
    /// Largest size of a bucket of gradients at stage 0, at which it is reduced, in MiB (`bucket_cap_mb` of PyTorch's DDP).
    pub bucket_megabytes: u32,
    /// In what form gradients are sent.
    #[serde(default)]
    pub compress_gradients: GradientCompression,
}

/// What is in host memory and not on the device (`zero_optimization.offload_optimizer` and `offload_param` of DeepSpeed,
/// arXiv 2101.06840 and 2104.07857).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Offload {
    /// Where the optimizer is computed, and has its moments, the weights in 32 bits, and their average.
    #[serde(default)]
    pub optimizer: OffloadTo,
    /// Where ranks have their shards of the weights; only at stage 3, and with the optimizer.
    #[serde(default)]
    pub parameters: OffloadTo,
}

impl Offload {
    /// Whether all is on the device.
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}

/// Where something is offloaded to.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum OffloadTo {
    /// Nowhere: it is on the device.
    #[default]
    None,
    /// To the memory and the processors of the pod.
    #[serde(rename = "CPU")]
    Cpu,
}

/// In what form gradients are added up over the ranks.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum GradientCompression {
    /// In their own type.
    #[default]
    None,
    /// In bf16: half the bytes of fp32. The average is copied back into gradients of their own type.
    Bf16,
}

/// Where tensors live.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum Device {
    /// The GPUs of a machine that has some; one that cannot be used is
    /// [`ExitCode::DeviceFault`](crate::ExitCode::DeviceFault). The CPU, with a warning, where there are none.
    #[default]
    Auto,
    /// A GPU, or [`ExitCode::DeviceFault`](crate::ExitCode::DeviceFault).
    Cuda,
    /// The CPU.
    Cpu,
}

fn yes() -> bool {
    true
}

fn one() -> u32 {
    1
}

/// The highest stage of ZeRO.
const LAST_ZERO_STAGE: u8 = 3;

impl Parallelism {
    /// Ranks that have the same images: they compute one model together.
    pub fn ranks_per_replica(&self) -> u32 {
        self.sequence * self.tensor
    }

    /// Ranks among which training state is divided at a stage of ZeRO above 0, where ranks that divide heads count once.
    pub fn shards(&self, nodes: u32, ranks_per_node: u32) -> u32 {
        let nodes = if self.shard_within_node { 1 } else { nodes };
        nodes * ranks_per_node / self.tensor.max(1)
    }

    /// Rules of this section, and those that tie it to the model and to the ranks.
    pub(super) fn check(&self, model: &ModelConfig, (nodes, ranks_per_node): (u32, u32), rules: &mut Rules) {
        rules.positive("parallelism.bucketMegabytes", self.bucket_megabytes);
        rules.require(
            self.zero_stage <= LAST_ZERO_STAGE,
            "parallelism.zeroStage",
            self.zero_stage,
            "must be between 0 and 3",
        );
        rules.require(
            self.reshard_after_forward || self.zero_stage == LAST_ZERO_STAGE,
            "parallelism.reshardAfterForward",
            self.reshard_after_forward,
            "needs parallelism.zeroStage 3: at the other stages weights are never given back",
        );
        rules.require(
            !self.shard_within_node || self.zero_stage > 0,
            "parallelism.shardWithinNode",
            self.shard_within_node,
            "needs parallelism.zeroStage 1, 2 or 3: at stage 0 nothing is divided",
        );
        rules.require(
            !(self.shard_within_node && self.across_nodes),
            "parallelism.shardWithinNode",
            self.shard_within_node,
            "must be false with parallelism.acrossNodes: ranks that compute a model together are on one node then, too",
        );
        rules.require(
            !self.shard_within_node || ranks_per_node > self.tensor,
            "workers.gpusPerNode",
            ranks_per_node,
            format!("must be above parallelism.tensor ({}) for parallelism.shardWithinNode: a node's ranks divide training state among them", self.tensor),
        );
        let parameters = self.offload.parameters;
        if parameters == OffloadTo::Cpu {
            rules.require(
                self.zero_stage == LAST_ZERO_STAGE && self.offload.optimizer == OffloadTo::Cpu,
                "parallelism.offload.parameters",
                "CPU",
                "needs parallelism.zeroStage 3 and parallelism.offload.optimizer CPU: at the other stages each rank computes with all of them, and the optimizer changes them where it is",
            );
            rules.require(
                self.shards(nodes, ranks_per_node) > 1,
                "parallelism.offload.parameters",
                "CPU",
                "needs ranks that divide them: a single one computes with all of them",
            );
        }
        rules.positive("parallelism.sequence", self.sequence);
        rules.positive("parallelism.tensor", self.tensor);
        rules.divides("parallelism.tensor", self.tensor, "model.mlpSize", model.mlp_size);
        let replica = self.ranks_per_replica();
        let name = "parallelism.sequence x parallelism.tensor";
        rules.divides(name, replica, "model.heads", model.heads);
        if self.across_nodes {
            let ranks = nodes * ranks_per_node;
            rules.divides(name, replica, "workers.nodes x workers.gpusPerNode", ranks);
        } else {
            rules.require(
                replica == 0 || ranks_per_node.is_multiple_of(replica),
                "workers.gpusPerNode",
                ranks_per_node,
                format!("must be a multiple of {name} ({replica}) unless parallelism.acrossNodes is true"),
            );
        }
    }
}
