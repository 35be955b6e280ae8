//! `vit-trainer preflight`: tests what a run will need: configuration, data set and checkpoint
//! storage. Two real steps on synthetic images over all ranks test device, memory and collectives.

mod checks;
mod report;

use std::path::PathBuf;

use contract::{Device, ExitCode, RunConfig, environment};
use crds::ViTTrainingJob;

use crate::config;
use crate::error::TrainError;
use crate::output::write_line;
use crate::{launch, manifest};
use checks::Scratch;
use report::{Check, Report};

/// The job to test if none is given.
const SMALL_JOB: &str = "
apiVersion: vit-operator.dev/v1alpha1
kind: ViTTrainingJob
metadata: {name: preflight}
spec:
  image: unused
  model: {name: vit_tiny_patch16_224, numClasses: 10}
  data: {format: synthetic, syntheticImages: 16}
  training: {epochs: 1, microBatchSize: 8}
  workers: {nodes: 1}
  checkpoint: {volume: {persistentVolumeClaim: {claimName: unused}}}
";

/// The command line of `preflight`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Checks, in this order: configuration, data, storage (write, fsync, read), device, collective (ranks meet and average gradients), memory (a whole step fits), checkpoint (a whole one is written). The exit code is that of the first check that failed: 2 configuration, 3 data, 75 collective, 76 device, 77 memory, 79 storage and checkpoint. Without -f the job is that of VIT_RUN_CONFIG, as in a pod, or else a small one.\n\nExample: vit-trainer preflight -f examples/digits.yaml --data target/digits --checkpoints /tmp/runs"
)]
pub(crate) struct Arguments {
    /// Manifest of a ViTTrainingJob, or - for standard input
    #[arg(short = 'f', long = "file", value_name = "FILE")]
    manifest: Option<PathBuf>,
    /// Folder of the data set, in place of the manifest's volume
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Folder for checkpoints, in place of the manifest's volume
    #[arg(long, value_name = "DIR", default_value = "checkpoints")]
    checkpoints: PathBuf,
    /// File of weights to start from, in place of model.pretrained
    #[arg(long, value_name = "FILE", requires = "manifest")]
    pretrained: Option<PathBuf>,
    /// Number of nodes to run on this machine, in place of workers.nodes
    #[arg(long, value_name = "N")]
    nodes: Option<u32>,
    /// Ranks per node, in place of workers.gpusPerNode
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    gpus_per_node: Option<u32>,
    /// Device of the tensors, in place of workers.device
    #[arg(long, value_parser = config::device())]
    device: Option<Device>,
    /// Print one JSON object instead of the table
    #[arg(long)]
    json: bool,
}

/// Runs all checks and prints the results. Returns the exit code.
pub(crate) fn main(arguments: &Arguments) -> Result<ExitCode, TrainError> {
    let report = launch::block_on(examine(arguments))?;
    if arguments.json {
        write_line(&report.json());
    } else {
        for line in report.table() {
            write_line(&line);
        }
    }
    Ok(report.exit_code())
}

async fn examine(arguments: &Arguments) -> Report {
    let mut report = Report::default();
    let Some(config) = report.check(Check::Configuration, || {
        let config = configure(arguments)?;
        let detail = format!(
            "{}: {} x {} ranks, {} images a step",
            config.job.name,
            config.nodes,
            config.ranks_per_node,
            config.global_batch_size()
        );
        Ok((config, detail))
    }) else {
        return report;
    };
    // A streamed data set has its own runtime, on which threads of this one must not block.
    let data = || std::thread::scope(|scope| scope.spawn(|| checks::data(&config)).join().expect("no panic"));
    report.check(Check::Data, data);
    let scratch = report.check(Check::Storage, || {
        let scratch = Scratch::new(&config.checkpoint.path)?;
        let detail = scratch.write_and_read()?;
        Ok((scratch, detail))
    });
    let device = report.check(Check::Device, || checks::device(&config));
    if let (Some(scratch), Some(())) = (scratch, device) {
        checks::rehearse(&config, &scratch, &mut report).await;
    }
    report
}

/// The job of the manifest, of the pod, or a small one.
fn configure(arguments: &Arguments) -> Result<RunConfig, TrainError> {
    let mut config = match &arguments.manifest {
        Some(path) => {
            let config = manifest::read_config(
                path,
                arguments.data.as_deref(),
                &arguments.checkpoints,
                arguments.nodes,
            )?;
            manifest::with_pretrained(config, arguments.pretrained.as_deref(), path)?
        }
        None if std::env::var_os(environment::RUN_CONFIG).is_some() => RunConfig {
            // The other pods run their own.
            nodes: 1,
            ..config::read_run_config()?
        },
        None => {
            let job: ViTTrainingJob =
                serde_saphyr::from_str(SMALL_JOB).map_err(|error| TrainError::Config(error.to_string()))?;
            manifest::local_config(
                job,
                arguments.data.as_deref(),
                &arguments.checkpoints,
                arguments.nodes,
            )
            .map_err(|error| TrainError::Config(error.to_string()))?
        }
    };
    if let Some(ranks) = arguments.gpus_per_node {
        config.ranks_per_node = ranks;
    }
    if let Some(device) = arguments.device {
        config.device = device;
    }
    config::checked(config)
}
