//! `vit-trainer plan`: what each strategy to divide a job takes of every rank, before anything is started.

use std::path::{Path, PathBuf};

use bytesize::ByteSize;
use contract::{ExitCode, RunConfig};
use footprint::{Footprint, Strategy, strategies};

use crate::error::TrainError;
use crate::manifest;
use crate::output::write_line;

/// The command line of `plan`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "All strategies train the same model with the same global batch. They are in the order in which to try them: first without ranks that compute a model together, and with the manifest's activationCheckpointing. With --memory the first is recommended that fits, and the list ends there; the exit code is 77 where none fits. Memory is that of tensors: leave room for the CUDA context, libraries and fragmentation.\n\nExample: vit-trainer plan -f examples/high-resolution.yaml --memory 40Gi --ranks 8"
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

/// Prints the ways. Gives the exit code.
pub(crate) fn main(arguments: &Arguments) -> Result<ExitCode, TrainError> {
    let mut config = manifest::read_config(&arguments.manifest, None, Path::new("checkpoints"), None)?;
    if let Some(ranks) = arguments.ranks {
        set_ranks(&mut config, ranks)?;
    }
    let memory = arguments.memory.map(|memory| memory.as_u64() as f64);
    let strategies = strategies(&config, memory);
    if arguments.json {
        write_line(&serde_json::to_string_pretty(&strategies).expect("numbers and names"));
    } else {
        for line in table(&config, &strategies, arguments.memory) {
            write_line(&line);
        }
    }
    let nothing_fits = memory.is_some() && strategies.iter().all(|strategy| strategy.fits == Some(false));
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

fn table(config: &RunConfig, strategies: &[Strategy], memory: Option<ByteSize>) -> Vec<String> {
    let mut lines = vec![
        format!(
            "{} ranks, {} images a step, {} a micro-batch",
            config.world_size(),
            config.global_batch_size(),
            config.training.micro_batch_size
        ),
        format!(
            "{:<36} {:>7} {:>9} {:>9} {:>11} {:>8} {:>8} {:>9}",
            "", "weights", "gradients", "optimizer", "activations", "working", "total", "sent/step"
        ),
    ];
    for strategy in strategies {
        let Footprint {
            weights,
            gradients,
            optimizer,
            activations,
            working,
        } = strategy.memory_bytes;
        let fits = match strategy.fits {
            _ if strategy.is_recommended => "  <- recommended",
            Some(true) => "  fits",
            Some(false) | None => "",
        };
        lines.push(format!(
            "{:<36} {:>7} {:>9} {:>9} {:>11} {:>8} {:>8} {:>9}{fits}",
            strategy.settings.name(),
            size(weights),
            size(gradients),
            size(optimizer),
            size(activations),
            size(working),
            size(strategy.total_bytes),
            size(strategy.sent_bytes.total()),
        ));
    }
    if let Some(memory) = memory {
        lines.push(match strategies.iter().find(|strategy| strategy.is_recommended) {
            Some(strategy) => format!("set {}", fields(strategy)),
            None => format!("nothing fits into {memory}: lower training.microBatchSize, or take more ranks"),
        });
    }
    lines
}

/// What a manifest says of a strategy.
fn fields(strategy: &Strategy) -> String {
    let settings = strategy.settings;
    let checkpointing = serde_json::to_value(settings.activation_checkpointing).expect("a name");
    let within_node = if settings.shard_within_node {
        ", shardWithinNode: true"
    } else {
        ""
    };
    format!(
        "parallelism: {{zeroStage: {}{within_node}, sequence: {}, tensor: {}}}, training.gradientAccumulationSteps: {}, training.activationCheckpointing: {}",
        settings.zero_stage,
        settings.sequence,
        settings.tensor,
        strategy.gradient_accumulation_steps,
        checkpointing.as_str().expect("a name")
    )
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

    fn job(nodes: u32, per_node: u32) -> RunConfig {
        let mut config = config("{format: synthetic, syntheticImages: 64}");
        (config.nodes, config.ranks_per_node) = (nodes, per_node);
        config
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
