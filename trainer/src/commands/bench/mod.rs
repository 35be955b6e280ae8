//! `vit-trainer bench`: measures real training steps, started as by `run`.

mod buckets;
mod configure;
mod input;
mod report;

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use contract::{ExitCode, RunConfig};

use crate::error::TrainError;
use crate::launch::{self, Launch};
use crate::output::write_line;
use crate::signals::stop_on_signal;
use crate::speeds::Speeds;
use crate::train::Plan;
use buckets::BucketSize;
use configure::Setting;
use report::Summary;

/// The command line of `bench`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exposed communication is measured twice: inside the step, and as the difference to paired steps without gradient reduction.\n\nExample: vit-trainer bench --model vit_tiny_patch16_224 --batch-size 16 --nodes 2\nExample: vit-trainer bench -f examples/digits.yaml --set workers.device=cpu --json -"
)]
pub(crate) struct Arguments {
    /// Manifest of a ViTTrainingJob, or - for standard input; ViT-Ti/16 with batches of 16 if not given
    #[arg(short = 'f', long = "file", value_name = "FILE")]
    manifest: Option<PathBuf>,
    /// Preset of the model, in place of model.name
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Images per step and rank, in place of training.microBatchSize
    #[arg(long, value_name = "N")]
    batch_size: Option<u32>,
    /// Number of nodes, in place of workers.nodes; each is an agent process
    #[arg(long, value_name = "N")]
    nodes: Option<u32>,
    /// Ranks per node, in place of workers.gpusPerNode
    #[arg(long, value_name = "N")]
    gpus_per_node: Option<u32>,
    /// Any other field of the manifest's spec, such as training.precision=bf16; can be repeated
    #[arg(long, value_name = "FIELD=VALUE")]
    set: Vec<Setting>,
    /// Folder of the manifest's data set, in place of synthetic images
    #[arg(long, value_name = "DIR", requires = "manifest")]
    data: Option<PathBuf>,
    /// Emulated speeds of all ranks, each a share of a core's, such as 1,0.5,0.1, to try different
    /// devices; only on the CPU, one thread per rank
    #[arg(long, value_name = "SPEED", value_delimiter = ',')]
    speeds: Vec<f64>,
    /// File with the measured speed of a core for --speeds, created if missing; use one file for
    /// measurements to compare
    #[arg(long, value_name = "FILE", requires = "speeds")]
    calibration: Option<PathBuf>,
    /// Warm-up steps; the first gives the seconds to the first step
    #[arg(long, value_name = "N", default_value = "5", value_parser = clap::value_parser!(u32).range(1..))]
    warmup_steps: u32,
    /// Measured steps
    #[arg(long, value_name = "N", default_value = "30", value_parser = clap::value_parser!(u32).range(1..))]
    steps: u32,
    /// Pairs of steps with and without gradient reduction, after the measured steps
    #[arg(long, value_name = "N", default_value = "0")]
    pairs: u32,
    /// After the measured steps, time all-reduces of gradient buckets of these sizes, such as
    /// 0.25,1,5,25, and show the bus bandwidth
    #[arg(long, value_name = "MB", value_delimiter = ',')]
    bucket_megabytes: Vec<BucketSize>,
    /// Nominal bandwidth of a rank's link, Gbit/s: bus bandwidths are shown as shares of it
    #[arg(long, value_name = "GBITS", requires = "bucket_megabytes", value_parser = positive)]
    link_gigabits: Option<f64>,
    /// Fail if a step makes the host wait for its device, by its operators and, on a GPU, by CUDA's
    /// sync debug mode
    #[arg(long)]
    forbid_host_stops: bool,
    /// After the measured steps, write a Chrome trace of one more step on rank 0 to this file
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Write the result as JSON to this file; `-` prints it in place of the table
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    nodes_at: launch::Nodes,
}

/// Measures and prints the result. Returns the exit code.
pub(crate) fn main(arguments: &Arguments) -> Result<ExitCode, TrainError> {
    let started = started().map_err(TrainError::system("failed to read when this process started"))?;
    let folder =
        launch::folder("bench").map_err(TrainError::system("failed to create a temporary folder"))?;
    let config = configure::configure(arguments, folder.path())?;
    let speeds = Speeds::from_arguments(&arguments.speeds, arguments.calibration.as_deref(), &config)?;
    if let Some(path) = arguments.json.as_deref().filter(|path| path.as_os_str() != "-") {
        prepare(path)?;
    }
    let trace = arguments.trace.as_deref().map(prepare).transpose()?;
    let plan = Plan {
        warmup_steps: arguments.warmup_steps,
        steps: arguments.steps,
        pairs: arguments.pairs,
        forbid_host_stops: arguments.forbid_host_stops,
        buckets: arguments.buckets(&config)?,
        trace,
        started,
        folder: folder.path().into(),
    };
    let launch = Launch {
        environment: speeds
            .iter()
            .flat_map(Speeds::variables)
            .chain([(Plan::VARIABLE.into(), plan.write()?.into())])
            .collect(),
        ..arguments.nodes_at.launch(config.nodes)?
    };
    let end = launch::block_on(async { launch::run(&config, &launch, stop_on_signal()?, |_| ()).await })??;
    if end.code == ExitCode::Stopped {
        tracing::error!("stopped: nothing was measured");
        return Ok(end.code);
    }
    if end.code != ExitCode::Done {
        let message = end
            .failure
            .map_or_else(|| "see the messages above".to_owned(), |failure| failure.message);
        tracing::error!("nothing was measured (exit code {}): {message}", end.code.code());
        return Ok(end.code);
    }
    let summary = Summary::new(
        &config,
        plan.results(config.world_size())?,
        arguments.link_gigabits,
    );
    tell(arguments, &config, &summary)?;
    if arguments.forbid_host_stops {
        summary.require_no_host_stops()?;
    }
    Ok(ExitCode::Done)
}

impl Arguments {
    /// Bytes of the buckets to measure.
    fn buckets(&self, config: &RunConfig) -> Result<Vec<u64>, TrainError> {
        let ranks = config.world_size() / config.parallelism.tensor;
        if ranks < 2 && !self.bucket_megabytes.is_empty() {
            return Err(TrainError::Config(format!(
                "--bucket-megabytes needs 2 or more ranks with gradients for the same weights, but there is {ranks}"
            )));
        }
        Ok(self.bucket_megabytes.iter().map(|size| size.bytes()).collect())
    }
}

fn positive(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "is not a number".to_owned())?;
    if number.is_finite() && number > 0.0 {
        Ok(number)
    } else {
        Err("must be a finite number above 0".into())
    }
}

/// Creates an output file early, so that no measurement is lost. Returns its full path.
fn prepare(path: &Path) -> Result<PathBuf, TrainError> {
    let failed = TrainError::system("failed to create the output file");
    let mut options = fs_err::OpenOptions::new();
    options.append(true).create(true).open(path).map_err(&failed)?;
    fs_err::canonicalize(path).map_err(failed)
}

fn tell(arguments: &Arguments, config: &RunConfig, summary: &Summary) -> Result<(), TrainError> {
    let failed = TrainError::system("failed to write the result");
    let json = serde_json::to_string_pretty(summary)
        .map_err(std::io::Error::other)
        .map_err(&failed)?;
    match arguments.json.as_deref() {
        Some(path) if path.as_os_str() == "-" => write_line(&json),
        Some(path) => {
            write_line(&summary.table(config));
            fs_err::write(path, json).map_err(failed)?;
        }
        None => write_line(&summary.table(config)),
    }
    Ok(())
}

/// Start of this process, seconds since 1970. `main` begins later: libtorch is loaded first.
fn started() -> std::io::Result<f64> {
    let number = |text: Option<&str>| {
        text.and_then(|text| text.parse::<f64>().ok())
            .ok_or_else(|| std::io::Error::other("/proc has an unexpected format"))
    };
    let stat = fs_err::read_to_string("/proc/self/stat")?;
    let uptime = fs_err::read_to_string("/proc/uptime")?;
    // The name in parentheses, the second field, may hold spaces; `starttime` is field 22.
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    let start_ticks = number(after_name.split_whitespace().nth(19))?;
    let uptime = number(uptime.split_whitespace().next())?;
    let ticks_per_second = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK)?.unwrap_or(100) as f64;
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_err(std::io::Error::other)?;
    Ok(now.as_secs_f64() - (uptime - start_ticks / ticks_per_second))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_started_before_now() {
        let started = started().expect("on Linux");
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
        let age = now.as_secs_f64() - started;
        assert!((-0.02..24.0 * 3600.0).contains(&age), "{age}");
    }
}
