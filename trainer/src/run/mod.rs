//! `vit-trainer run`: a manifest on this machine, without Kubernetes. Each node of the gang is an agent process, as it
//! would be a pod.

mod agents;
mod display;

use std::path::{Path, PathBuf};
use std::time::Instant;

use contract::{DataFormat, ExitCode, RunConfig};
use crds::ViTTrainingJob;

use crate::error::TrainError;
use crate::signals::stop_on_signal;

/// The command line of `run`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: vit-trainer run -f examples/digits.yaml --data target/digits --checkpoints /tmp/runs"
)]
pub(crate) struct Arguments {
    /// Manifest of a ViTTrainingJob
    #[arg(short = 'f', long = "file", value_name = "FILE")]
    manifest: PathBuf,
    /// Folder of the data set, in place of the manifest's volume
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Folder for checkpoints, in place of the manifest's volume; a folder of the job's name is made in it
    #[arg(long, value_name = "DIR", default_value = "checkpoints")]
    checkpoints: PathBuf,
    /// Number of nodes, in place of workers.nodes; each is an agent process with workers.gpusPerNode ranks
    #[arg(long, value_name = "N")]
    nodes: Option<u32>,
}

/// Runs the manifest to its end. Gives the exit code.
pub(crate) fn main(arguments: &Arguments) -> Result<ExitCode, TrainError> {
    let config = configure(arguments)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| TrainError::System {
            action: "failed to start",
            error,
        })?;
    runtime.block_on(run(&config))
}

async fn run(config: &RunConfig) -> Result<ExitCode, TrainError> {
    let start = Instant::now();
    let stop = stop_on_signal()?;
    let mut display = display::Display::new(config);
    let end = agents::run(config, stop, |progress| display.progress(progress)).await?;
    display.end(config, &end, start.elapsed());
    Ok(end.code)
}

/// The run configuration of a manifest, with what the command line replaces.
fn configure(arguments: &Arguments) -> Result<RunConfig, TrainError> {
    let mut job = read_manifest(&arguments.manifest)?;
    job.metadata.namespace = Some("local".into());
    if let Some(nodes) = arguments.nodes {
        job.spec.workers.nodes = i32::try_from(nodes)
            .map_err(|_| TrainError::Config(format!("--nodes is {nodes}: must be at most {}", i32::MAX)))?;
    }
    let mut config = crds::validate(&job)
        .map_err(|error| TrainError::Config(format!("{}: {error}", arguments.manifest.display())))?
        .run_config;
    config.checkpoint.path = arguments.checkpoints.join(&config.job.name);
    if config.data.format != DataFormat::Synthetic
        && let Some(folder) = &arguments.data
    {
        config.data.path = Some(folder.clone());
    }
    Ok(config)
}

fn read_manifest(path: &Path) -> Result<ViTTrainingJob, TrainError> {
    let text = fs_err::read_to_string(path)
        .map_err(|error| TrainError::Config(format!("failed to read the manifest: {error}")))?;
    serde_saphyr::from_str(&text)
        .map_err(|error| TrainError::Config(format!("{} is no ViTTrainingJob: {error}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn configured(manifest: &str, nodes: Option<u32>) -> Result<RunConfig, TrainError> {
        let file = tempfile::NamedTempFile::new().expect("a file");
        fs_err::write(file.path(), manifest).expect("writes");
        configure(&Arguments {
            manifest: file.path().into(),
            data: Some("here".into()),
            checkpoints: "there".into(),
            nodes,
        })
    }

    const DIGITS: &str = include_str!("../../../examples/digits.yaml");

    #[test]
    fn the_example_runs_with_folders_and_nodes_of_the_command_line() {
        let config = configured(DIGITS, Some(3)).expect("a sound manifest");
        assert_eq!(config.world_size(), 3);
        assert_eq!(config.data.path.as_deref(), Some(Path::new("here")));
        assert_eq!(config.checkpoint.path, Path::new("there/digits"));
        assert_eq!(config.job.namespace, "local");
    }

    #[test]
    fn a_broken_rule_is_named_as_in_the_cluster() {
        let message = configured(&DIGITS.replace("heads: 4", "heads: 5"), None)
            .expect_err("refused")
            .to_string();
        assert!(
            message.contains(": spec.model.hiddenSize is ")
                && message.ends_with(": must be a multiple of model.heads (5)"),
            "{message}"
        );
        let message = configured("spec: 3", None).expect_err("refused").to_string();
        assert!(message.contains("is no ViTTrainingJob"), "{message}");
    }
}
