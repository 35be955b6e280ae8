//! `vit-trainer plan`: memory and communication per rank of each parallel strategy.

use std::path::{Path, PathBuf};

use bytesize::ByteSize;
use contract::{ExitCode, Offload, OffloadTo, RunConfig};
use footprint::{Footprint, Speeds, Strategy, strategies};

use crate::error::TrainError;
use crate::manifest;
use crate::output::write_line;

/// The command line of `plan`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "All strategies train the same model with the same global batch. They are listed in the order in which to try them: first without ranks that compute a model together, and with the manifest's activationCheckpointing. With --memory the first that fits is recommended and ends the list; the exit code is 77 if none fits. Memory counts tensors: leave room for the CUDA context, libraries, fragmentation, and NCCL's communicators, whose column is not part of the total.\n\nWith --images-per-second, and the speeds of the links that the job's ranks use, strategies with the shortest steps come first. A step lasts as long as computation or communication of gradients and weights, whichever is longer, plus the exchange of activations. This is a minimum, because some communication is exposed.\n\nExample: vit-trainer plan -f examples/high-resolution.yaml --memory 40Gi --ranks 8\nExample: vit-trainer plan -f examples/zero.yaml --images-per-second 300 --within-node 200 --between-nodes 25"
)]
pub(crate) struct Arguments {
    /// Manifest of a ViTTrainingJob, or - for standard input
    #[arg(short = 'f', long = "file", value_name = "FILE")]
    manifest: PathBuf,
    /// Memory per rank for tensors, such as 16Gi
    #[arg(long, value_name = "QUANTITY")]
    memory: Option<ByteSize>,
    /// Number of ranks, in place of workers.nodes x workers.gpusPerNode; as many per node
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
    ranks: Option<u32>,
    /// Images/s of one rank that trains this model alone, as `bench` measures them: predicts the
    /// minimum time of a step
    #[arg(long, value_name = "N", value_parser = positive)]
    images_per_second: Option<f64>,
    /// Bandwidth from a rank to the others on its node, Gbit/s
    #[arg(long, value_name = "GBIT", value_parser = positive, requires = "images_per_second")]
    within_node: Option<f64>,
    /// Bandwidth from all ranks of a node to other nodes, Gbit/s
    #[arg(long, value_name = "GBIT", value_parser = positive, requires = "images_per_second")]
    between_nodes: Option<f64>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A number above zero.
pub(super) fn positive(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(number) if number > 0.0 && f64::is_finite(number) => Ok(number),
        _ => Err("must be a number above 0".into()),
    }
}

impl Arguments {
    /// The machines' speeds; links that the job's ranks use are required.
    fn speeds(&self, config: &RunConfig) -> Result<Option<Speeds>, TrainError> {
        let Some(images_per_second) = self.images_per_second else {
            return Ok(None);
        };
        let link = |given: Option<f64>, is_used: bool, option: &str| match given {
            None if is_used => Err(TrainError::Config(format!(
                "--images-per-second also needs {option}: ranks of this job use that link"
            ))),
            None => Ok(f64::INFINITY),
            Some(gigabits) => Ok(gigabits * 1e9 / 8.0),
        };
        Ok(Some(Speeds {
            images_per_second,
            within_node: link(self.within_node, config.ranks_per_node > 1, "--within-node")?,
            between_nodes: link(self.between_nodes, config.nodes > 1, "--between-nodes")?,
        }))
    }
}

/// Prints the strategies. Returns the exit code.
pub(crate) fn main(arguments: &Arguments) -> Result<ExitCode, TrainError> {
    let mut config = manifest::read_config(&arguments.manifest, None, Path::new("checkpoints"), None)?;
    if let Some(ranks) = arguments.ranks {
        set_ranks(&mut config, ranks)?;
    }
    let memory = arguments.memory.map(|memory| memory.as_u64() as f64);
    let speeds = arguments.speeds(&config)?;
    let strategies = strategies(&config, memory, speeds.as_ref());
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

/// With the same number of GPUs per node, or on one node with fewer.
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
    let has_speeds = strategies.iter().any(|strategy| strategy.step_seconds.is_some());
    let step = if has_speeds { "  step >=" } else { "" };
    let is_offloaded = strategies.iter().any(|strategy| strategy.memory_bytes.host > 0.0);
    let host = if is_offloaded { "     host" } else { "" };
    let is_over_nccl = strategies
        .iter()
        .any(|strategy| strategy.memory_bytes.communicators > 0.0);
    let nccl = if is_over_nccl { "     NCCL" } else { "" };
    let names = strategies.iter().map(|strategy| strategy.settings.name());
    let width = names.map(|name| name.len()).max().unwrap_or_default();
    let mut lines = vec![
        format!(
            "{} ranks, {} images a step, {} a micro-batch",
            config.world_size(),
            config.global_batch_size(),
            config.training.micro_batch_size
        ),
        format!(
            "{:<width$} {:>8} {:>9} {:>9} {:>11} {:>8} {:>8}{nccl}{host} {:>9}{step}",
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
            communicators,
            host,
        } = strategy.memory_bytes;
        let column = |is_shown, bytes| {
            if is_shown {
                format!(" {:>8}", size(bytes))
            } else {
                String::new()
            }
        };
        let (nccl, host) = (column(is_over_nccl, communicators), column(is_offloaded, host));
        let step = strategy.step_seconds;
        let step = step.map_or_else(String::new, |step| format!(" {:>6.0}ms", 1e3 * step.total));
        let fits = match strategy.fits {
            _ if strategy.is_recommended => "  <- recommended",
            Some(true) => "  fits",
            Some(false) | None => "",
        };
        lines.push(format!(
            "{:<width$} {:>8} {:>9} {:>9} {:>11} {:>8} {:>8}{nccl}{host} {:>9}{step}{fits}",
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
            Some(strategy) => format!("set {}", fields(config, strategy)),
            None => nothing_fits(config, memory),
        });
    }
    lines
}

/// Advice if no strategy fits.
fn nothing_fits(config: &RunConfig, memory: ByteSize) -> String {
    let words = format!("nothing fits into {memory}: lower training.microBatchSize, or use more ranks");
    let mut offloaded = config.clone();
    offloaded.parallelism.offload.optimizer = OffloadTo::Cpu;
    let strategies = strategies(&offloaded, Some(memory.as_u64() as f64), None);
    match strategies.iter().find(|strategy| strategy.is_recommended) {
        Some(strategy) => format!(
            "{words}; {} fits with parallelism.offload.optimizer: CPU, which uses {} of host memory per rank",
            strategy.settings.name(),
            size(strategy.memory_bytes.host)
        ),
        None => words,
    }
}

/// A strategy as fields of a manifest.
fn fields(config: &RunConfig, strategy: &Strategy) -> String {
    let settings = strategy.settings;
    let checkpointing = serde_json::to_value(settings.activation_checkpointing).expect("a name");
    let within_node = if settings.shard_within_node {
        ", shardWithinNode: true"
    } else {
        ""
    };
    let offload = match config.parallelism.offload {
        Offload {
            optimizer: OffloadTo::None,
            ..
        } => "",
        Offload {
            parameters: OffloadTo::None,
            ..
        } => ", offload: {optimizer: CPU}",
        _ => ", offload: {optimizer: CPU, parameters: CPU}",
    };
    format!(
        "parallelism: {{zeroStage: {}{within_node}, sequence: {}, tensor: {}{offload}}}, training.gradientAccumulationSteps: {}, training.activationCheckpointing: {}",
        settings.zero_stage,
        settings.sequence,
        settings.tensor,
        strategy.gradient_accumulation_steps,
        checkpointing.as_str().expect("a name")
    )
}

/// A size in GiB or MiB.
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

    #[test]
    fn a_link_that_ranks_use_has_a_speed() {
        use clap::Parser as _;

        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            arguments: Arguments,
        }
        let speeds = |options: &str, (nodes, per_node)| {
            let line = format!("plan -f job.yaml {options}");
            let line = Line::try_parse_from(line.split_whitespace()).map_err(|error| error.to_string())?;
            let speeds = line.arguments.speeds(&job(nodes, per_node));
            speeds.map_err(|error| error.to_string())
        };
        assert_eq!(speeds("", (2, 2)), Ok(None));
        let both = speeds(
            "--images-per-second 10 --within-node 80 --between-nodes 8",
            (2, 2),
        );
        let expected = Speeds {
            images_per_second: 10.0,
            within_node: 1e10,
            between_nodes: 1e9,
        };
        assert_eq!(both, Ok(Some(expected)));
        let one_node = speeds("--images-per-second 10 --within-node 80", (1, 2));
        assert!(one_node.is_ok_and(|speeds| speeds.is_some()));
        for (options, named) in [
            ("--images-per-second 10 --within-node 80", "needs --between-nodes"),
            ("--images-per-second 10 --between-nodes 8", "needs --within-node"),
            ("--within-node 80", "--images-per-second"),
            ("--images-per-second 0", "must be a number above 0"),
            ("--images-per-second nan", "must be a number above 0"),
        ] {
            let error = speeds(options, (2, 2)).expect_err(options);
            assert!(error.contains(named), "{options}: {error}");
        }
    }
}
