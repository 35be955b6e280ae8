//! Parallelism strategies of a job. All train the same model with the same global batch.

use contract::{ActivationCheckpointing, RunConfig};
use serde::Serialize;

use crate::{Footprint, Sent, Speeds, Step, footprint, sent};

/// A strategy's settings.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Settings {
    /// Stage of `ZeRO`.
    pub zero_stage: u8,
    /// Whether training state is sharded only within each node.
    pub shard_within_node: bool,
    /// Ranks that share tokens.
    pub sequence: u32,
    /// Ranks that share heads.
    pub tensor: u32,
    /// Which activations are recomputed.
    pub activation_checkpointing: ActivationCheckpointing,
}

/// A strategy.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Strategy {
    /// Its settings.
    #[serde(flatten)]
    pub settings: Settings,
    /// Micro-batches per step, to keep the job's global batch.
    pub gradient_accumulation_steps: u32,
    /// Memory of a rank.
    pub memory_bytes: Footprint,
    /// Sum of the memory.
    pub total_bytes: f64,
    /// Bytes that a rank sends per step.
    pub sent_bytes: Sent,
    /// Seconds of a step, if speeds were given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step_seconds: Option<Step>,
    /// Whether it fits into the given memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fits: Option<bool>,
    /// Whether it is the first that fits.
    pub is_recommended: bool,
}

/// The strategies for a job in the order to try them: first those without model parallelism and
/// with the job's `activationCheckpointing`, then by bytes sent.
///
/// With `memory`, a rank's bytes for tensors, the first that fits is recommended, and the list ends
/// with its group. With `speeds`, the list is complete, and the shortest steps come first.
pub fn strategies(config: &RunConfig, memory: Option<f64>, speeds: Option<&Speeds>) -> Vec<Strategy> {
    let given = config.training.activation_checkpointing;
    let mut all = Vec::new();
    for checkpointing in [given, ActivationCheckpointing::Block] {
        for (sequence, tensor) in groups(config) {
            for (stage, within_node) in STAGES {
                let settings = Settings {
                    zero_stage: stage,
                    shard_within_node: within_node,
                    sequence,
                    tensor,
                    activation_checkpointing: checkpointing,
                };
                all.extend(Strategy::of(config, settings, memory, speeds));
            }
        }
        if given == ActivationCheckpointing::Block {
            break;
        }
    }
    // Model parallelism comes last: its ranks share images, and wait for each other in each block.
    // Recomputing activations adds a third of the computation.
    let effort = |strategy: &Strategy| {
        (
            strategy.settings.sequence * strategy.settings.tensor,
            strategy.settings.activation_checkpointing != given,
        )
    };
    all.sort_by_key(|strategy| {
        // Ignores differences from the order of summation.
        let sent = (strategy.sent_bytes.total() / f64::from(1 << 20)).round() as u64;
        let step = strategy.step_seconds;
        (
            step.map(|step| (step.total * 1e6).round() as u64),
            effort(strategy),
            sent,
            strategy.memory_bytes.host as u64,
            strategy.settings.zero_stage,
            strategy.settings.shard_within_node,
        )
    });
    // Groups after the first with a fitting strategy are useless.
    let first = all
        .iter()
        .find(|strategy| strategy.fits == Some(true))
        .map(&effort);
    all.retain(|strategy| speeds.is_some() || first.is_none_or(|first| effort(strategy) <= first));
    if let Some(first) = all.iter_mut().find(|strategy| strategy.fits == Some(true)) {
        first.is_recommended = true;
    }
    all
}

/// Stages of `ZeRO`, and whether they shard only within each node.
const STAGES: [(u8, bool); 7] = [
    (0, false),
    (1, false),
    (2, false),
    (3, false),
    (1, true),
    (2, true),
    (3, true),
];

/// Maximum number of ranks that share tokens or heads, as in manifests.
const MOST_TOGETHER: u32 = 64;

/// Numbers of ranks that share tokens, and heads.
fn groups(config: &RunConfig) -> Vec<(u32, u32)> {
    let most = if config.parallelism.across_nodes {
        config.world_size()
    } else {
        config.ranks_per_node
    };
    let heads = config.model.heads;
    let alone = (2..=most.min(MOST_TOGETHER))
        .filter(|ranks| heads.is_multiple_of(*ranks))
        .flat_map(|ranks| [(ranks, 1), (1, ranks)]);
    std::iter::once((1, 1)).chain(alone).collect()
}

impl Settings {
    /// The job with these settings and the same global batch; `None` if impossible.
    pub fn applied_to(self, config: &RunConfig) -> Option<RunConfig> {
        // On one node it has no effect.
        if self.shard_within_node && config.nodes == 1 {
            return None;
        }
        let mut divided = config.clone();
        let parallelism = &mut divided.parallelism;
        parallelism.zero_stage = self.zero_stage;
        parallelism.shard_within_node = self.shard_within_node;
        parallelism.reshard_after_forward = true;
        (parallelism.sequence, parallelism.tensor) = (self.sequence, self.tensor);
        divided.training.activation_checkpointing = self.activation_checkpointing;
        let batch = config.global_batch_size();
        let in_one_pass = u64::from(divided.training.micro_batch_size) * u64::from(divided.replicas());
        if in_one_pass == 0 || !batch.is_multiple_of(in_one_pass) {
            return None;
        }
        divided.training.gradient_accumulation_steps = u32::try_from(batch / in_one_pass).ok()?;
        divided.errors().is_empty().then_some(divided)
    }

    /// A short name, such as `zeroStage 3, sequence 2, block`.
    pub fn name(self) -> String {
        let mut name = format!("zeroStage {}", self.zero_stage);
        if self.shard_within_node {
            name += " within node";
        }
        for (field, ranks) in [("sequence", self.sequence), ("tensor", self.tensor)] {
            if ranks > 1 {
                name += &format!(", {field} {ranks}");
            }
        }
        if self.activation_checkpointing == ActivationCheckpointing::Block {
            name += ", block";
        }
        name
    }
}

impl Strategy {
    fn of(
        config: &RunConfig,
        settings: Settings,
        memory: Option<f64>,
        speeds: Option<&Speeds>,
    ) -> Option<Self> {
        let divided = settings.applied_to(config)?;
        let given = config.training.activation_checkpointing;
        let computes_again = settings.activation_checkpointing != given;
        let (memory_bytes, sent_bytes) = (footprint(&divided), sent(&divided));
        Some(Self {
            settings,
            gradient_accumulation_steps: divided.training.gradient_accumulation_steps,
            memory_bytes,
            total_bytes: memory_bytes.total(),
            sent_bytes,
            step_seconds: speeds.map(|speeds| speeds.step(&divided, sent_bytes, computes_again)),
            fits: memory.map(|memory| memory_bytes.total() <= memory),
            is_recommended: false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(nodes: u32, per_node: u32) -> RunConfig {
        crate::fixtures::job("vit_large_patch16_224", nodes, per_node)
    }

    fn recommended(config: &RunConfig, gibibytes: f64) -> Option<Strategy> {
        let strategies = strategies(config, Some(gibibytes * f64::from(1 << 30)), None);
        strategies.into_iter().find(|strategy| strategy.is_recommended)
    }

    #[test]
    fn the_first_that_fits_is_recommended() {
        let mut config = job(2, 4);
        config.training.gradient_accumulation_steps = 2;
        for (gibibytes, stage, checkpointing) in [
            (80.0, 0, ActivationCheckpointing::None),
            (4.5, 1, ActivationCheckpointing::None),
            (3.6, 2, ActivationCheckpointing::None),
            (2.6, 3, ActivationCheckpointing::None),
            (1.4, 3, ActivationCheckpointing::Block),
        ] {
            let strategy = recommended(&config, gibibytes).expect("fits");
            assert_eq!(
                (
                    strategy.settings.zero_stage,
                    strategy.settings.sequence,
                    strategy.settings.tensor,
                    strategy.settings.activation_checkpointing
                ),
                (stage, 1, 1, checkpointing),
                "{gibibytes} GiB"
            );
        }
        assert_eq!(recommended(&config, 0.1), None);
    }

    #[test]
    fn an_offloaded_optimizer_is_divided_where_that_costs_nothing() {
        let mut config = job(2, 4);
        config.parallelism.offload.optimizer = contract::OffloadTo::Cpu;
        let strategy = recommended(&config, 80.0).expect("fits");
        assert!(
            strategy.settings.zero_stage == 1 && !strategy.settings.shard_within_node,
            "{strategy:?}"
        );
    }

    #[test]
    fn images_that_do_not_fit_alone_are_divided_with_the_same_batch() {
        let mut config = job(2, 4);
        config.model.image_size = 2048;
        config.training.micro_batch_size = 1;
        config.training.gradient_accumulation_steps = 2;
        let strategy = recommended(&config, 2.5).expect("fits");
        assert!(
            strategy.settings.sequence > 1 && strategy.settings.tensor == 1,
            "{strategy:?}"
        );
        assert_eq!(
            strategy.gradient_accumulation_steps,
            2 * strategy.settings.sequence
        );
    }

    #[test]
    fn all_are_told_where_no_memory_is_given() {
        let strategies = strategies(&job(2, 4), None, None);
        // Without, and with tokens or heads split by two or four: four stages, and three within
        // nodes, except for heads split by four, which leave no ranks. All with and without
        // recomputation.
        assert_eq!(strategies.len(), (4 * 5 + 3 * 4) * 2);
        assert!(
            strategies
                .iter()
                .all(|strategy| !strategy.is_recommended && strategy.fits.is_none())
        );
        let named = |name: &str| {
            strategies
                .iter()
                .position(|strategy| strategy.settings.name() == name)
                .expect(name)
        };
        assert!(named("zeroStage 0") < named("zeroStage 3"));
        assert!(named("zeroStage 3") < named("zeroStage 0, block"));
        assert!(named("zeroStage 3, block") < named("zeroStage 0, sequence 2"));
    }

    #[test]
    fn the_shortest_step_comes_first_where_speeds_are_known() {
        let mut config = job(2, 4);
        config.training.gradient_accumulation_steps = 1;
        let speeds = |within_node, between_nodes| Speeds {
            images_per_second: 100.0,
            within_node,
            between_nodes,
        };
        let first = |speeds: &Speeds, gibibytes: f64| {
            let memory = Some(gibibytes * f64::from(1 << 30));
            let all = strategies(&config, memory, Some(speeds));
            let first = all.iter().find(|strategy| strategy.is_recommended).expect("fits");
            (first.settings.name(), first.step_seconds.expect("speeds"))
        };
        // Everything hides behind 4 images: the lowest stage wins.
        let (name, step) = first(&speeds(1e15, 1e15), 80.0);
        assert_eq!(name, "zeroStage 0");
        assert!(
            (step.total - 0.04).abs() < 1e-3 && (step.compute - 0.04).abs() < 1e-9,
            "{step:?}"
        );
        // With a slow network between nodes, its traffic determines the step.
        let (name, step) = first(&speeds(1e12, 1e9), 80.0);
        assert_eq!(name, "zeroStage 1 within node");
        // Each of two nodes sends half of twice 4 bytes per parameter, over all its ranks.
        let expected = 4.0 * crate::parameters(&config.model) / 1e9;
        assert!(
            (step.total - expected).abs() < 1e-3 && step.overlapped > step.compute,
            "{step:?}"
        );
    }
}
