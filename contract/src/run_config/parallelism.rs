//! Devices, and sharding over them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ModelConfig;
use super::rules::Rules;
use crate::schema::cel;

/// Parallelism sets the sharding over the ranks and the reduction of gradients.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[schemars(transform = cel(RULES))]
pub struct Parallelism {
    /// strategy says who chooses zeroStage, reshardAfterForward, shardWithinNode, sequence and
    /// tensor. Manual uses the values given here. Auto uses the recommendation of vit-trainer plan
    /// for the GPUs' memory, each time the gang is placed, with more activationCheckpointing if
    /// nothing fits otherwise. The global batch stays the same; status.placement.strategy shows the
    /// choice.
    pub strategy: Strategy,
    /// zeroStage sets the sharding over the ranks, as in DeepSpeed: 0 nothing, 1 optimizer state
    /// and fp32 master weights, 2 gradients too, 3 weights too (PyTorch's FSDP). Each stage needs
    /// less memory than the previous one and trains the same model. Checkpoints are the same at any
    /// stage.
    #[schemars(range(min = 0, max = 3))]
    pub zero_stage: u8,
    /// reshardAfterForward says whether zeroStage 3 frees a block's weights after its forward pass
    /// and gathers them again for backward: less memory, more communication.
    pub reshard_after_forward: bool,
    /// shardWithinNode shards training state only within each node, from zeroStage 1 on (hybrid
    /// sharding: HSDP in PyTorch, MiCS in DeepSpeed). Weights are gathered within nodes, and only
    /// sums of gradient shards travel between nodes; it needs more memory.
    pub shard_within_node: bool,
    /// sequence is the number of ranks that split the tokens of each image, and the heads in
    /// attention (DeepSpeed-Ulysses, arXiv 2309.14509): for images with so many patches that
    /// activations do not fit on one GPU. These ranks share microBatchSize. It divides the model's
    /// heads.
    #[schemars(range(min = 1, max = 64))]
    pub sequence: u32,
    /// tensor is the number of ranks that split the heads and MLP of each block, with most weights
    /// (Megatron-LM's tensor parallelism, arXiv 1909.08053). These ranks share microBatchSize.
    /// sequence x tensor divides the model's heads.
    #[schemars(range(min = 1, max = 64))]
    pub tensor: u32,
    /// acrossNodes allows the ranks of a model replica (sequence x tensor) to be on several nodes.
    /// Otherwise sequence x tensor divides workers.gpusPerNode, because they exchange activations
    /// several times per block. With placement.topology, their nodes are in one domain if possible.
    pub across_nodes: bool,
    /// offload moves state and its computation from the GPU to the pod's memory and CPUs.
    pub offload: Offload,
    /// bucketMegabytes is the maximum size of a gradient bucket at zeroStage 0 in MiB
    /// (bucket_cap_mb of PyTorch's DDP). Buckets are reduced during backward: smaller ones start
    /// earlier, larger ones use the network better. If there were fewer than 16 buckets, each is a
    /// sixteenth of the gradients instead, at least 1 MiB. At other stages a bucket is a block of
    /// the model.
    #[schemars(range(min = 1, max = 1024))]
    pub bucket_megabytes: u32,
    /// compressGradients is the format of gradients on the network: none (uncompressed), or bf16,
    /// which halves fp32 gradients and rounds them to 8 bits of mantissa. Weights and moments keep
    /// their precision.
    pub compress_gradients: GradientCompression,
}

/// Strategy says who chooses the sharding.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize, Deserialize, JsonSchema)]
pub enum Strategy {
    /// The manifest.
    #[default]
    Manual,
    /// The operator, by the memory of the GPUs.
    Auto,
}

impl Default for Parallelism {
    fn default() -> Self {
        Self {
            strategy: Strategy::default(),
            zero_stage: 0,
            reshard_after_forward: true,
            shard_within_node: false,
            sequence: 1,
            tensor: 1,
            across_nodes: false,
            offload: Offload::default(),
            bucket_megabytes: 25,
            compress_gradients: GradientCompression::default(),
        }
    }
}

/// Offload moves state from the GPU's to the pod's memory.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Offload {
    /// optimizer says where the optimizer runs and keeps its state: moments, fp32 weights and their
    /// average (ema). None is the GPU. CPU is the pod's CPUs and memory, as DeepSpeed's
    /// offload_optimizer. Then the GPU holds only weights, gradients and activations, and each step
    /// waits for copies and CPUs. The trained model is the same. Request the memory in
    /// workers.resources. With workers.device cpu it only needs more memory.
    pub optimizer: OffloadTo,
    /// parameters says where each rank's shard of the weights is at zeroStage 3. None is the GPU.
    /// CPU is the pod's memory, as DeepSpeed's offload_param: shards are copied to the GPUs to
    /// gather a block. It needs optimizer CPU and more than one rank.
    pub parameters: OffloadTo,
}

/// Target of offloading.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize, Deserialize, JsonSchema)]
pub enum OffloadTo {
    /// None: it stays on the device.
    #[default]
    None,
    /// Memory and processors of the pod.
    #[serde(rename = "CPU")]
    Cpu,
}

/// Format in which gradients are reduced over the ranks.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum GradientCompression {
    /// Their own type.
    #[default]
    None,
    /// bf16: half the bytes of fp32. The mean is copied back to the gradients' type.
    Bf16,
}

/// Where tensors are.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Device {
    /// The machine's GPUs; an unusable one is
    /// [`ExitCode::DeviceFault`](crate::ExitCode::DeviceFault). Without GPUs the CPU, with a
    /// warning.
    #[default]
    Auto,
    /// A GPU, or [`ExitCode::DeviceFault`](crate::ExitCode::DeviceFault).
    Cuda,
    /// The CPU.
    Cpu,
}

/// The highest stage of ZeRO.
const LAST_ZERO_STAGE: u8 = 3;

impl Parallelism {
    /// Ranks per model replica, which have the same images.
    pub fn ranks_per_replica(&self) -> u32 {
        self.sequence * self.tensor
    }

    /// Number of shards of training state above stage 0; ranks of the same tensor group count once.
    pub fn shards(&self, nodes: u32, ranks_per_node: u32) -> u32 {
        let nodes = if self.shard_within_node { 1 } else { nodes };
        nodes * ranks_per_node / self.tensor.max(1)
    }
}

/// What the API server checks, and [`Parallelism::check`] elsewhere.
const RULES: &[(&str, &str)] = &[
    (
        "self.reshardAfterForward || self.zeroStage == 3 || self.strategy == 'Auto'",
        "parallelism.reshardAfterForward false needs parallelism.zeroStage 3: other stages never free weights",
    ),
    (
        "!self.shardWithinNode || self.zeroStage > 0 || self.strategy == 'Auto'",
        "parallelism.shardWithinNode needs parallelism.zeroStage 1, 2 or 3: stage 0 shards nothing",
    ),
    (
        "!self.shardWithinNode || !self.acrossNodes",
        "parallelism.shardWithinNode must be false with parallelism.acrossNodes",
    ),
    (
        "self.offload.parameters == 'None' || (self.offload.optimizer == 'CPU' && (self.zeroStage == 3 || self.strategy == 'Auto'))",
        "parallelism.offload.parameters CPU needs parallelism.zeroStage 3 and parallelism.offload.optimizer CPU",
    ),
    (
        "self.strategy == 'Manual' || (self.zeroStage == 0 && self.reshardAfterForward && !self.shardWithinNode && self.sequence == 1 && self.tensor == 1)",
        "parallelism.strategy Auto chooses zeroStage, reshardAfterForward, shardWithinNode, sequence and tensor: leave them out",
    ),
];

impl Parallelism {
    /// Rules of this section and its relations to the model and the ranks.
    pub(super) fn check(&self, model: &ModelConfig, (nodes, ranks_per_node): (u32, u32), rules: &mut Rules) {
        let is_auto = self.strategy == Strategy::Auto;
        rules.require(
            !is_auto
                || (self.zero_stage == 0
                    && self.reshard_after_forward
                    && !self.shard_within_node
                    && self.ranks_per_replica() == 1),
            "parallelism.strategy",
            "Auto",
            "must be Manual with zeroStage, reshardAfterForward, shardWithinNode, sequence or tensor: Auto chooses them; leave them out",
        );
        rules.require(
            self.reshard_after_forward || self.zero_stage == LAST_ZERO_STAGE || is_auto,
            "parallelism.reshardAfterForward",
            self.reshard_after_forward,
            "needs parallelism.zeroStage 3: other stages never free weights",
        );
        rules.require(
            !self.shard_within_node || self.zero_stage > 0 || is_auto,
            "parallelism.shardWithinNode",
            self.shard_within_node,
            "needs parallelism.zeroStage 1, 2 or 3: stage 0 shards nothing",
        );
        rules.require(
            !(self.shard_within_node && self.across_nodes),
            "parallelism.shardWithinNode",
            self.shard_within_node,
            "must be false with parallelism.acrossNodes: it keeps the ranks of a replica on one node",
        );
        rules.require(
            !self.shard_within_node || ranks_per_node > self.tensor,
            "workers.gpusPerNode",
            ranks_per_node,
            format!("must be above parallelism.tensor ({}) for parallelism.shardWithinNode: it shards training state over a node's ranks", self.tensor),
        );
        let parameters = self.offload.parameters;
        if parameters == OffloadTo::Cpu {
            rules.require(
                (self.zero_stage == LAST_ZERO_STAGE || is_auto) && self.offload.optimizer == OffloadTo::Cpu,
                "parallelism.offload.parameters",
                "CPU",
                "needs parallelism.zeroStage 3 and parallelism.offload.optimizer CPU: other stages keep all weights on each device",
            );
            rules.require(
                self.shards(nodes, ranks_per_node) > 1,
                "parallelism.offload.parameters",
                "CPU",
                "needs several ranks: a single one computes with all weights",
            );
        }
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
