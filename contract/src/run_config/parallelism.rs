//! Devices, and sharding over them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ModelConfig;
use super::rules::Rules;

/// Sharding over the ranks, and reduction of gradients.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Parallelism {
    /// Stage of ZeRO, 0 to 3 (`zero_optimization.stage` of DeepSpeed).
    #[serde(default)]
    pub zero_stage: u8,
    /// Whether a block's weights are freed between its forward and backward pass; only at stage 3,
    /// the only one that frees weights.
    #[serde(default = "yes")]
    pub reshard_after_forward: bool,
    /// Whether training state is sharded only within each node (hybrid sharding, HSDP).
    #[serde(default)]
    pub shard_within_node: bool,
    /// Ranks that share the tokens of each image (DeepSpeed-Ulysses, arXiv 2309.14509); 1 for none.
    #[serde(default = "one")]
    pub sequence: u32,
    /// Ranks that share the heads and the MLP of each block (Megatron-LM's tensor parallelism,
    /// arXiv 1909.08053); 1 for none.
    #[serde(default = "one")]
    pub tensor: u32,
    /// Whether the ranks of a replica may be on several nodes.
    #[serde(default)]
    pub across_nodes: bool,
    /// State in host memory instead of on the device.
    #[serde(default, skip_serializing_if = "Offload::is_nothing")]
    pub offload: Offload,
    /// Maximum size of a gradient bucket at stage 0, in MiB (`bucket_cap_mb` of PyTorch's DDP).
    pub bucket_megabytes: u32,
    /// Format of gradients on the network.
    #[serde(default)]
    pub compress_gradients: GradientCompression,
}

/// Offload moves state from the GPU's to the pod's memory.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Offload {
    /// optimizer says where the optimizer runs and keeps its state: moments, fp32 weights and their
    /// average (ema). None is the GPU. CPU is the pod's CPUs and memory, as DeepSpeed's
    /// offload_optimizer. Then the GPU holds only weights, gradients and activations, and each step
    /// waits for copies and CPUs. The trained model is the same. Request the memory in
    /// workers.resources. With workers.device cpu it only needs more memory.
    #[serde(default)]
    pub optimizer: OffloadTo,
    /// parameters says where each rank's shard of the weights is at zeroStage 3. None is the GPU.
    /// CPU is the pod's memory, as DeepSpeed's offload_param: shards are copied to the GPUs to
    /// gather a block. It needs optimizer CPU and more than one rank.
    #[serde(default)]
    pub parameters: OffloadTo,
}

impl Offload {
    /// Whether everything is on the device.
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
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

fn yes() -> bool {
    true
}

fn one() -> u32 {
    1
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

    /// Rules of this section and its relations to the model and the ranks.
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
            "needs parallelism.zeroStage 3: other stages never free weights",
        );
        rules.require(
            !self.shard_within_node || self.zero_stage > 0,
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
                self.zero_stage == LAST_ZERO_STAGE && self.offload.optimizer == OffloadTo::Cpu,
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
