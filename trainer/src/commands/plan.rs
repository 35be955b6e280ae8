//! `vit-trainer plan`: what each way to divide a job takes of every rank, before anything is started.

use std::path::{Path, PathBuf};

use bytesize::ByteSize;
use contract::{ActivationCheckpointing, ExitCode, RunConfig};
use serde::Serialize;

use crate::error::TrainError;
use crate::footprint::{Footprint, Sent, footprint, sent};
use crate::manifest;
use crate::output::write_line;

/// The command line of `plan`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "All ways train the same model with the same global batch. They are in the order in which to try them: first without ranks that compute a model together, and with the manifest's activationCheckpointing. With --memory the first is recommended that fits, and the list ends there; the exit code is 77 where none fits. Memory is that of tensors: leave room for the CUDA context, libraries and fragmentation.\n\nExample: vit-trainer plan -f examples/high-resolution.yaml --memory 40Gi --ranks 8"
)]
pub(crate) struct Arguments {
    /// Manifest of a ViTTrainingJob
    #[arg(short = 'f', long = "file", value_name = "FILE")]
    manifest: PathBuf,
    /// Memory of a rank for tensors, such as 16Gi
    #[arg(long, value_name = "QUANTITY")]
    memory: Option<ByteSize>,
    /// Number of ranks, in place of workers.nodes x workers.gpusPerNode; as many a node
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
    ranks: Option<u32>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// One way to divide a job.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Way {
    zero_stage: u8,
    sequence: u32,
    tensor: u32,
    activation_checkpointing: ActivationCheckpointing,
    gradient_accumulation_steps: u32,
    memory_bytes: Footprint,
    total_bytes: f64,
    sent_bytes: Sent,
    /// Whether it fits into the memory that was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    fits: Option<bool>,
    is_recommended: bool,
}

/// Prints the ways. Gives the exit code.
pub(crate) fn main(arguments: &Arguments) -> Result<ExitCode, TrainError> {
    let mut config = manifest::read_config(&arguments.manifest, None, Path::new("checkpoints"), None)?;
    if let Some(ranks) = arguments.ranks {
        set_ranks(&mut config, ranks)?;
    }
    let memory = arguments.memory.map(|memory| memory.as_u64() as f64);
    let ways = ways(&config, memory);
    if arguments.json {
        write_line(&serde_json::to_string_pretty(&ways).expect("numbers and names"));
    } else {
        for line in table(&config, &ways, arguments.memory) {
            write_line(&line);
        }
    }
    let nothing_fits = memory.is_some() && ways.iter().all(|way| way.fits == Some(false));
    Ok(if nothing_fits {
        ExitCode::OutOfMemory
    } else {
        ExitCode::Done
    })
}

/// On nodes of as many GPUs as before, or on one that has fewer.
fn set_ranks(config: &mut RunConfig, ranks: u32) -> Result<(), TrainError> {
    let per_node = config.ranks_per_node.min(ranks);
    if !ranks.is_multiple_of(per_node) {
        return Err(TrainError::Config(format!(
            "--ranks is {ranks}: must be a multiple of workers.gpusPerNode ({per_node})"
        )));
    }
    (config.nodes, config.ranks_per_node) = (ranks / per_node, per_node);
    Ok(())
}

/// The ways in the order in which they are to be tried, up to the first kind of which one fits.
fn ways(config: &RunConfig, memory: Option<f64>) -> Vec<Way> {
    let given = config.training.activation_checkpointing;
    let mut all = Vec::new();
    for checkpointing in [given, ActivationCheckpointing::Block] {
        for (sequence, tensor) in groups(config) {
            for stage in 0..=3 {
                all.extend(divided(config, stage, (sequence, tensor), checkpointing, memory));
            }
        }
        if given == ActivationCheckpointing::Block {
            break;
        }
    }
    // Ranks that compute a model together wait for each other in each block, and have their images alike: that comes last.
    // To compute activations again costs a third of the computation.
    let effort = |way: &Way| (way.sequence * way.tensor, way.activation_checkpointing != given);
    all.sort_by(|one, other| {
        let sent = |way: &Way| way.sent_bytes.total();
        (effort(one).cmp(&effort(other)))
            .then(sent(one).total_cmp(&sent(other)))
            .then(one.zero_stage.cmp(&other.zero_stage))
    });
    // What comes after a kind of which one fits is of no use.
    let first = all.iter().find(|way| way.fits == Some(true)).map(&effort);
    let mut ways: Vec<Way> = all
        .into_iter()
        .filter(|way| first.is_none_or(|first| effort(way) <= first))
        .collect();
    if let Some(first) = ways.iter_mut().find(|way| way.fits == Some(true)) {
        first.is_recommended = true;
    }
    ways
}

/// Numbers of ranks that divide tokens, and heads.
fn groups(config: &RunConfig) -> Vec<(u32, u32)> {
    let most = if config.parallelism.across_nodes {
        config.world_size()
    } else {
        config.ranks_per_node
    };
    let alone = (2..=most).flat_map(|ranks| [(ranks, 1), (1, ranks)]);
    std::iter::once((1, 1)).chain(alone).collect()
}

/// The job divided in this way, with the same global batch; `None` where it cannot be.
fn divided(
    config: &RunConfig,
    zero_stage: u8,
    (sequence, tensor): (u32, u32),
    checkpointing: ActivationCheckpointing,
    memory: Option<f64>,
) -> Option<Way> {
    let mut divided = config.clone();
    let batch = config.global_batch_size();
    divided.parallelism.zero_stage = zero_stage;
    divided.parallelism.reshard_after_forward = true;
    (divided.parallelism.sequence, divided.parallelism.tensor) = (sequence, tensor);
    divided.training.activation_checkpointing = checkpointing;
    let in_one_pass = u64::from(divided.training.micro_batch_size) * u64::from(divided.replicas());
    if in_one_pass == 0 || !batch.is_multiple_of(in_one_pass) {
        return None;
    }
    divided.training.gradient_accumulation_steps = u32::try_from(batch / in_one_pass).ok()?;
    if !divided.errors().is_empty() {
        return None;
    }
    let memory_bytes = footprint(&divided);
    Some(Way {
        zero_stage,
        sequence,
        tensor,
        activation_checkpointing: checkpointing,
        gradient_accumulation_steps: divided.training.gradient_accumulation_steps,
        memory_bytes,
        total_bytes: memory_bytes.total(),
        sent_bytes: sent(&divided),
        fits: memory.map(|memory| memory_bytes.total() <= memory),
        is_recommended: false,
    })
}

fn table(config: &RunConfig, ways: &[Way], memory: Option<ByteSize>) -> Vec<String> {
    let mut lines = vec![
        format!(
            "{} ranks, {} images a step, {} a micro-batch",
            config.world_size(),
            config.global_batch_size(),
            config.training.micro_batch_size
        ),
        format!(
            "{:<34} {:>8} {:>9} {:>9} {:>11} {:>8} {:>8} {:>9}",
            "", "weights", "gradients", "optimizer", "activations", "working", "total", "sent/step"
        ),
    ];
    for way in ways {
        let Footprint {
            weights,
            gradients,
            optimizer,
            activations,
            working,
        } = way.memory_bytes;
        let fits = match way.fits {
            _ if way.is_recommended => "  <- recommended",
            Some(true) => "  fits",
            Some(false) | None => "",
        };
        lines.push(format!(
            "{:<34} {:>8} {:>9} {:>9} {:>11} {:>8} {:>8} {:>9}{fits}",
            way.name(),
            size(weights),
            size(gradients),
            size(optimizer),
            size(activations),
            size(working),
            size(way.total_bytes),
            size(way.sent_bytes.total()),
        ));
    }
    if let Some(memory) = memory {
        lines.push(match ways.iter().find(|way| way.is_recommended) {
            Some(way) => format!("set {}", way.fields()),
            None => format!("nothing fits into {memory}: lower training.microBatchSize, or take more ranks"),
        });
    }
    lines
}

impl Way {
    fn name(&self) -> String {
        let mut name = format!("zeroStage {}", self.zero_stage);
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

    /// What a manifest says of it.
    fn fields(&self) -> String {
        let checkpointing = serde_json::to_value(self.activation_checkpointing).expect("a name");
        format!(
            "parallelism: {{zeroStage: {}, sequence: {}, tensor: {}}}, training.gradientAccumulationSteps: {}, training.activationCheckpointing: {}",
            self.zero_stage,
            self.sequence,
            self.tensor,
            self.gradient_accumulation_steps,
            checkpointing.as_str().expect("a name")
        )
    }
}

/// In gigabytes as GPUs count them.
fn size(bytes: f64) -> String {
    let gibibytes = bytes / f64::from(1 << 30);
    if gibibytes < 0.095 {
        format!("{:.0}Mi", bytes / f64::from(1 << 20))
    } else {
        format!("{gibibytes:.1}Gi")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::fixtures::config;
    use crate::model::fixtures::preset;

    fn job(nodes: u32, per_node: u32) -> RunConfig {
        let mut config = config("{format: synthetic, syntheticImages: 64}");
        config.model = preset("vit_large_patch16_224");
        (config.nodes, config.ranks_per_node) = (nodes, per_node);
        config
    }

    fn recommended(config: &RunConfig, gibibytes: f64) -> Option<Way> {
        let ways = ways(config, Some(gibibytes * f64::from(1 << 30)));
        ways.into_iter().find(|way| way.is_recommended)
    }

    #[test]
    fn the_least_is_divided_that_fits() {
        let config = job(2, 4);
        for (gibibytes, stage, checkpointing) in [
            (80.0, 0, ActivationCheckpointing::None),
            (4.5, 1, ActivationCheckpointing::None),
            (3.6, 2, ActivationCheckpointing::None),
            (2.6, 3, ActivationCheckpointing::None),
            (1.3, 3, ActivationCheckpointing::Block),
        ] {
            let way = recommended(&config, gibibytes).expect("fits");
            assert_eq!(
                (
                    way.zero_stage,
                    way.sequence,
                    way.tensor,
                    way.activation_checkpointing
                ),
                (stage, 1, 1, checkpointing),
                "{gibibytes} GiB"
            );
        }
        assert_eq!(recommended(&config, 0.1), None);
    }

    #[test]
    fn images_that_do_not_fit_alone_are_divided_with_the_same_batch() {
        let mut config = job(2, 4);
        config.model.image_size = 1024;
        config.training.micro_batch_size = 1;
        config.training.gradient_accumulation_steps = 2;
        let way = recommended(&config, 1.2).expect("fits");
        assert!(way.sequence > 1 && way.tensor == 1, "{way:?}");
        assert_eq!(way.gradient_accumulation_steps, 2 * way.sequence);
    }

    #[test]
    fn all_ways_are_told_where_no_memory_is_given() {
        let ways = ways(&job(2, 4), None);
        // Four stages for each: nothing, tokens or heads divided by two or four; with and without recomputation.
        assert_eq!(ways.len(), 4 * 5 * 2);
        assert!(ways.iter().all(|way| !way.is_recommended && way.fits.is_none()));
        let named = |name: &str| ways.iter().position(|way| way.name() == name).expect(name);
        assert!(named("zeroStage 0") < named("zeroStage 3"));
        assert!(named("zeroStage 3") < named("zeroStage 0, block"));
        assert!(named("zeroStage 3, block") < named("zeroStage 0, sequence 2"));
    }

    #[test]
    fn another_number_of_ranks_has_whole_nodes() {
        let mut config = job(2, 4);
        set_ranks(&mut config, 16).expect("four nodes");
        assert_eq!((config.nodes, config.ranks_per_node), (4, 4));
        set_ranks(&mut config, 2).expect("half a node");
        assert_eq!((config.nodes, config.ranks_per_node), (1, 2));
        let error = set_ranks(&mut job(2, 4), 6).expect_err("one and a half");
        assert!(error.to_string().contains("--ranks is 6"), "{error}");
    }
}
