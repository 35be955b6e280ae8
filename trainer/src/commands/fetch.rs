//! `vit-trainer fetch`: copies files from a store to a folder.

use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::time::Duration;

use bytesize::ByteSize;
use contract::ExitCode;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use objects::{Location, Plan, Progress};
use tokio::time::{MissedTickBehavior, interval};

use crate::error::{Failure, TrainError};
use crate::output::write_line;
use crate::signals::stop_on_signal;
use crate::termination;

/// Time between two lines or updates of the bar.
const TERMINAL_PACE: Duration = Duration::from_millis(200);
const LINE_PACE: Duration = Duration::from_secs(10);

/// The command line of `fetch`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Credentials come from the environment: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT_URL, AWS_SKIP_SIGNATURE=true for public buckets; GOOGLE_SERVICE_ACCOUNT_KEY, GOOGLE_SKIP_SIGNATURE; HF_TOKEN, HF_ENDPOINT.\n\nExisting files are not fetched again, and interrupted ones are resumed. Exit code 2 if a location is wrong or needs credentials, 79 if the store or the folder failed, 143 if it was stopped.\n\nExample: vit-trainer fetch hf://datasets/uoft-cs/cifar10 --to /data/cifar10\nExample: vit-trainer fetch 's3://images/train-*.tar' 's3://images/val-*.tar' --to /data/images"
)]
pub(crate) struct Arguments {
    #[arg(
        required = true,
        value_name = "LOCATION",
        help = "Location of the files: s3://BUCKET/PATH, gs://BUCKET/PATH, hf://datasets/OWNER/NAME[@REVISION][/PATH], hf://OWNER/NAME[@REVISION][/PATH] of a model, or https://HOST/PATH. The last part of a path may have a range such as {000..127} and, except for web servers, a *"
    )]
    from: Vec<Location>,
    /// Folder to fetch into
    #[arg(long, value_name = "DIR")]
    to: PathBuf,
    /// How long to retry a failing store, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "300")]
    retry_seconds: u64,
}

impl Failure for objects::Error {
    fn exit_code(&self) -> ExitCode {
        if self.is_of_storage() {
            ExitCode::Storage
        } else {
            ExitCode::BadConfig
        }
    }
}

/// Fetches and shows progress. Returns the exit code. In a pod, the operator learns of failures.
pub(crate) fn main(arguments: &Arguments) -> Result<ExitCode, TrainError> {
    run(arguments).inspect_err(|error| termination::leave(termination::from_error(error)))
}

fn run(arguments: &Arguments) -> Result<ExitCode, TrainError> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(TrainError::system("failed to start threads"))?;
    runtime.block_on(async {
        let stop = stop_on_signal()?;
        tokio::select! {
            fetched = fetch(arguments) => fetched.map(|()| ExitCode::Done),
            () = stop.cancelled() => {
                tracing::warn!("stopped: fetch again to continue");
                Ok(ExitCode::Stopped)
            }
        }
    })
}

async fn fetch(arguments: &Arguments) -> Result<(), TrainError> {
    let patience = Duration::from_secs(arguments.retry_seconds);
    let plan = Plan::new(&arguments.from, &arguments.to, patience).await?;
    let (progress, bytes) = (Progress::default(), plan.bytes());
    let shown = async {
        let bar = bar(bytes);
        let mut ticks = interval(if bar.is_some() { TERMINAL_PACE } else { LINE_PACE });
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            ticks.tick().await;
            match &bar {
                Some(bar) => bar.set_position(progress.bytes()),
                None if progress.bytes() > 0 => {
                    write_line(&format!(
                        "fetched {} of {}",
                        ByteSize(progress.bytes()),
                        ByteSize(bytes)
                    ));
                }
                None => {}
            }
        }
    };
    let done = tokio::select! {
        done = plan.carry_out(&progress) => done?,
        () = shown => unreachable!("progress has no end"),
    };
    write_line(&format!(
        "{}: {} files, {} of them fetched ({})",
        arguments.to.display(),
        done.files,
        done.fetched,
        ByteSize(bytes)
    ));
    Ok(())
}

/// A line that is cleared at the end; none without a terminal.
fn bar(bytes: u64) -> Option<ProgressBar> {
    std::io::stderr().is_terminal().then(|| {
        let style = ProgressStyle::with_template(
            "[{bar:28}] {percent:>3}%  {bytes}/{total_bytes}  {bytes_per_sec}  ETA {eta}",
        )
        .unwrap_or_else(|_| ProgressStyle::default_bar());
        ProgressBar::with_draw_target(Some(bytes), ProgressDrawTarget::stderr())
            .with_style(style.progress_chars("##."))
    })
}
