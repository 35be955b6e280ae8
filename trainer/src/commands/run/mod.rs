//! `vit-trainer run`: runs a manifest on this machine, without Kubernetes. Each node of the gang is
//! an agent process, as a pod would be.

mod display;
pub(super) mod line;

use std::path::PathBuf;
use std::time::Instant;

use contract::{Device, ExitCode, Origin, RunConfig};

use crate::config;
use crate::error::TrainError;
use crate::launch::{self, Event, Launch, Nodes};
use crate::manifest::{read_config, with_pretrained};
use crate::signals::stop_on_signal;
use crate::speeds::Speeds;

/// The command line of `run`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: vit-trainer run -f examples/digits.yaml --data target/digits --checkpoints /tmp/runs"
)]
pub(crate) struct Arguments {
    /// Manifest of a ViTTrainingJob, or - for standard input
    #[arg(short = 'f', long = "file", value_name = "FILE")]
    manifest: PathBuf,
    /// Folder of the data set, in place of the manifest's volume
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Safetensors file of weights to start from, in place of model.pretrained
    #[arg(long, value_name = "FILE")]
    pretrained: Option<PathBuf>,
    /// Folder for checkpoints, in place of the manifest's volume; the job's folder is created in it
    #[arg(long, value_name = "DIR", default_value = "checkpoints")]
    checkpoints: PathBuf,
    /// Number of nodes, in place of workers.nodes; each is an agent process with workers.gpusPerNode ranks
    #[arg(long, value_name = "N")]
    nodes: Option<u32>,
    /// Device of the tensors, in place of workers.device
    #[arg(long, value_parser = config::device())]
    device: Option<Device>,
    /// Emulated speeds of all ranks, each a share of a core's, such as 1,0.5,0.1, to try different
    /// devices; only on the CPU, one thread per rank
    #[arg(long, value_name = "SPEED", value_delimiter = ',')]
    speeds: Vec<f64>,
    #[command(flatten)]
    places: Nodes,
}

/// Runs the manifest to its end. Returns the exit code.
pub(crate) fn main(arguments: &Arguments) -> Result<ExitCode, TrainError> {
    let config = configure(arguments)?;
    let speeds = Speeds::from_arguments(&arguments.speeds, None, &config)?;
    let launch = arguments.places.launch(config.nodes)?;
    launch::block_on(run(&config, speeds, launch))?
}

async fn run(config: &RunConfig, speeds: Option<Speeds>, launch: Launch) -> Result<ExitCode, TrainError> {
    let start = Instant::now();
    let stop = stop_on_signal()?;
    let mut display = display::Display::new(config);
    let launch = Launch {
        keep_errors: display.is_live(),
        environment: speeds.iter().flat_map(Speeds::variables).collect(),
        ..launch
    };
    let end = launch::run(config, &launch, stop, |event| match event {
        Event::Progress(progress) => display.progress(progress),
        Event::Said(line) => display.said(line),
    })
    .await?;
    display.end(config, &end, start.elapsed());
    Ok(end.code)
}

/// The run configuration of a manifest, changed by the command line.
fn configure(arguments: &Arguments) -> Result<RunConfig, TrainError> {
    let mut config = read_config(
        &arguments.manifest,
        arguments.data.as_deref(),
        &arguments.checkpoints,
        arguments.nodes,
    )?;
    if let Some(folder) = config.data.path.as_ref().filter(|folder| !folder.exists())
        && arguments.data.is_none()
        && !config.data.from.as_ref().is_some_and(Origin::is_streamed)
    {
        return Err(TrainError::Config(format!(
            "{}: spec.data.path is {}, a volume's mount point in pods, and this machine has no such folder: pass --data DIR",
            arguments.manifest.display(),
            folder.display()
        )));
    }
    if let Some(device) = arguments.device {
        config.device = device;
    }
    with_pretrained(config, arguments.pretrained.as_deref(), &arguments.manifest)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn configured(manifest: &str, nodes: Option<u32>) -> Result<RunConfig, TrainError> {
        configured_with(manifest, nodes, Some("here".into()))
    }

    fn configured_with(
        manifest: &str,
        nodes: Option<u32>,
        data: Option<PathBuf>,
    ) -> Result<RunConfig, TrainError> {
        let file = tempfile::NamedTempFile::new().expect("a file");
        fs_err::write(file.path(), manifest).expect("writes");
        configure(&Arguments {
            manifest: file.path().into(),
            data,
            pretrained: Some("weights.safetensors".into()),
            checkpoints: "there".into(),
            nodes,
            device: Some(Device::Cpu),
            speeds: Vec::new(),
            places: Nodes::default(),
        })
    }

    const DIGITS: &str = include_str!("../../../../examples/digits.yaml");

    #[test]
    fn the_example_runs_with_folders_and_nodes_of_the_command_line() {
        let config = configured(DIGITS, Some(3)).expect("a sound manifest");
        assert_eq!((config.world_size(), config.device), (3, Device::Cpu));
        assert_eq!(config.data.path.as_deref(), Some(Path::new("here")));
        assert_eq!(config.checkpoint.path, Path::new("there/digits"));
        assert_eq!(
            config.model.pretrained.as_deref(),
            Some(Path::new("weights.safetensors"))
        );
        assert_eq!(config.job.namespace, "local");
    }

    #[test]
    fn a_volume_that_is_not_here_is_told_with_the_flag_for_it() {
        let manifest = DIGITS.replace("  data:\n", "  data:\n    path: /no/such/folder\n");
        let message = configured_with(&manifest, None, None)
            .expect_err("refused")
            .to_string();
        assert!(
            message.contains("spec.data.path is /no/such/folder") && message.ends_with("pass --data DIR"),
            "{message}"
        );
    }

    #[test]
    fn every_example_is_a_job_that_can_be_run() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples");
        let files: Vec<_> = fs_err::read_dir(folder)
            .expect("a folder")
            .map(|entry| entry.expect("an entry").path())
            .filter(|path| path.extension().is_some_and(|extension| extension == "yaml"))
            .collect();
        assert!(files.len() > 1, "{files:?}");
        // Manifests with other objects, or of another trainer, are for clusters only.
        let is_for_clusters = |file: &PathBuf| {
            let manifest = fs_err::read_to_string(file).expect("text");
            manifest.contains("\n---\n") || manifest.contains("\n  external:\n")
        };
        for file in files.into_iter().filter(|file| !is_for_clusters(file)) {
            read_config(&file, None, Path::new("runs"), None)
                .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        }
    }

    #[test]
    fn a_manifest_of_something_else_is_refused() {
        for (from, to) in [("kind: ViTTrainingJob", "kind: Deployment"), ("v1alpha1", "v1")] {
            let message = configured(&DIGITS.replace(from, to), None)
                .expect_err("refused")
                .to_string();
            assert!(
                message.ends_with("must be vit-operator.dev/v1alpha1 and ViTTrainingJob"),
                "{message}"
            );
        }
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
        assert!(message.contains("is not a valid ViTTrainingJob"), "{message}");
    }
}
