//! `vit-trainer study`: measures a ViTScalingStudy's points on this machine and writes the report.

mod display;
mod external;
mod folder;
mod leftovers;

use std::path::{Path, PathBuf};
use std::time::Duration;

use contract::{ExitCode, FailureClass, Measure, RunConfig};
use crds::study::ViTScalingStudySpec;
use crds::{ViTScalingStudy, ViTTrainingJob};
use study::{Plan, Run};
use study_report::Report;
use tokio_util::sync::CancellationToken;

use super::plan::positive;
use crate::error::TrainError;
use crate::launch::{self, Event, Launch};
use crate::machine::this_machine;
use crate::manifest::{self, local_config, with_pretrained};
use crate::metrics::LOG_NAME;
use crate::output::write_line;
use crate::signals::stop_on_signal;
use crate::speeds::Speeds;
use display::Display;
use folder::{Folder, Origin, Place};
use leftovers::Leftovers;

/// How long ranks may take to stop: nothing of them is kept.
const GRACE_AFTER_STOP: Duration = Duration::from_secs(10);

/// The command line of `study`.
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "Run it again to continue: finished runs are kept. Exit code 1 if some runs failed.\n\nExample: vit-trainer study -f examples/studies/digits.yaml --data target/digits --output target/study"
)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    /// Manifest of a ViTScalingStudy, or - for standard input
    #[arg(short = 'f', long = "file", value_name = "FILE", required = true)]
    manifest: Option<PathBuf>,
    /// Folder of the data set, in place of the template's volume
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Safetensors file of weights to start from, in place of model.pretrained
    #[arg(long, value_name = "FILE")]
    pretrained: Option<PathBuf>,
    /// Folder for the measurements and the report
    #[arg(long, value_name = "DIR", default_value = "study")]
    output: PathBuf,
    #[command(flatten)]
    nodes_at: launch::Nodes,
    /// Print the points and their runs, and measure nothing
    #[arg(long)]
    dry_run: bool,
    /// Images/s of one rank that trains the first run's model: estimates the hours
    #[arg(long, value_name = "N", value_parser = positive, requires = "dry_run")]
    images_per_second: Option<f64>,
    /// Training images of the data set; by default CIFAR's 50,000, or data.syntheticImages
    #[arg(long, value_name = "N", requires = "images_per_second")]
    train_images: Option<u64>,
}

/// Commands about measurements.
#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Write the report on a folder's runs: report.html, report.md, report.csv, report.json
    #[command(after_help = "Example: vit-trainer study report target/study")]
    Report {
        /// Folder of a study
        #[arg(value_name = "DIR")]
        folder: PathBuf,
    },
}

/// Measures what is missing and writes the report. Returns the exit code.
pub(crate) fn main(arguments: &Arguments) -> Result<ExitCode, TrainError> {
    if let Some(Command::Report { folder }) = &arguments.command {
        let study = Study::read(&folder.join(folder::MANIFEST))?;
        study.report(&Folder::open(folder), Origin::Any)?;
        return Ok(ExitCode::Done);
    }
    let manifest = arguments.manifest.as_deref().unwrap_or(Path::new(""));
    let study = Study::read(manifest)?;
    if arguments.dry_run {
        study.tell();
        if let Some(rate) = arguments.images_per_second {
            let duration = study.plan.duration(rate, arguments.train_images);
            let duration = duration.ok_or_else(|| {
                TrainError::Config("the size of the data set is unknown: give --train-images".into())
            })?;
            write_line(&format!(
                "{:.1} hours of training at {rate} images/s per rank, if ranks scale ideally",
                duration.as_secs_f64() / 3600.0
            ));
        }
        return Ok(ExitCode::Done);
    }
    study.check_nodes(&arguments.nodes_at, manifest)?;
    arguments.check_paths()?;
    let folder = Folder::make(&arguments.output, &study.manifest, manifest)?;
    let ended = launch::block_on(study.measure(&folder, arguments))??;
    study.report(&folder, arguments.origin())?;
    Ok(match ended {
        Ended { stopped: true, .. } => {
            tracing::info!("stopped: run the study again to continue");
            ExitCode::Stopped
        }
        Ended { failed: 0, .. } => ExitCode::Done,
        Ended { failed, .. } => {
            tracing::error!("{failed} runs failed: the report names them; run the study again to retry them");
            ExitCode::Other(1)
        }
    })
}

struct Study {
    manifest: ViTScalingStudy,
    plan: Plan,
}

/// Why a run is incomplete.
#[derive(Debug)]
struct Failure {
    message: String,
    /// Whether a retry may succeed.
    may_pass: bool,
}

impl From<String> for Failure {
    fn from(message: String) -> Self {
        Self {
            message,
            may_pass: false,
        }
    }
}

/// The outcome of measuring.
#[derive(Debug, Default)]
struct Ended {
    failed: usize,
    stopped: bool,
}

impl Study {
    fn read(path: &Path) -> Result<Self, TrainError> {
        let manifest: ViTScalingStudy = manifest::read_resource(path, "ViTScalingStudy")?;
        let plan = study::plan(&manifest.spec)
            .map_err(|error| TrainError::Config(format!("{}: {error}", path.display())))?;
        Ok(Self { manifest, plan })
    }

    /// Refuses remote nodes if some run cannot use them.
    fn check_nodes(&self, nodes: &launch::Nodes, manifest: &Path) -> Result<(), TrainError> {
        let runs = || self.plan.runs.iter();
        nodes.launch(runs().map(|run| run.config.nodes).max().unwrap_or(0))?;
        if !nodes.are_here() && runs().any(|run| run.spec.external.is_some()) {
            return Err(TrainError::Config(format!(
                "{}: --addresses and --launcher are for vit-trainer only, but a variant has spec.external: omit them, or \
                 use a cluster",
                manifest.display()
            )));
        }
        Ok(())
    }

    fn spec(&self) -> &ViTScalingStudySpec {
        &self.manifest.spec
    }

    fn name(&self) -> &str {
        self.manifest.metadata.name.as_deref().unwrap_or("study")
    }

    /// Prints the planned runs.
    fn tell(&self) {
        for run in &self.plan.runs {
            let points = self
                .plan
                .points
                .iter()
                .filter(|point| self.plan.runs[point.run].key == run.key);
            let sweeps: Vec<&str> = points.map(|point| point.sweep.as_str()).collect();
            write_line(&format!(
                "{}  {}  {} ranks x {} images x {}, of {}",
                run.key,
                run.label,
                run.config.world_size(),
                run.config.training.micro_batch_size,
                run.config.training.gradient_accumulation_steps,
                sweeps.join(", ")
            ));
        }
        write_line(&self.counted());
    }

    fn counted(&self) -> String {
        format!(
            "{}: {} points, {} of them distinct, {} times each",
            self.name(),
            self.plan.points.len(),
            self.plan.runs.len(),
            self.plan.repetitions
        )
    }

    /// Carries out the missing measurements. Repetitions of a run are far apart, so that changes on
    /// the machine do not affect one point only.
    async fn measure(&self, folder: &Folder, arguments: &Arguments) -> Result<Ended, TrainError> {
        let stop = stop_on_signal()?;
        let machine = this_machine();
        let mut ended = Ended::default();
        let places: Vec<(&Run, u32)> = (0..self.plan.repetitions)
            .flat_map(|repetition| self.plan.runs.iter().map(move |run| (run, repetition)))
            .collect();
        let mut display = Display::new(&self.counted(), places.len());
        for (run, repetition) in places {
            let place = folder.place(run, repetition, arguments.origin())?;
            let result = if place.is_trained(self.plan.warmup_steps) {
                let result = place.result(self.plan.warmup_steps);
                display.kept(&run.label, repetition, &result);
                result
            } else {
                let trained = self
                    .try_to_train((run, repetition), arguments, &place, &stop, &mut display)
                    .await?;
                // A stopped run has measured nothing, whatever its result.
                if stop.is_cancelled() {
                    place.discard()?;
                    ended.stopped = true;
                    break;
                }
                match &trained {
                    Ok(()) => place.keep(&machine)?,
                    Err(message) => place.fail(message)?,
                }
                let result = trained.and_then(|()| place.result(self.plan.warmup_steps));
                display.measured(&run.label, repetition, &result);
                result
            };
            ended.failed += usize::from(result.is_err());
        }
        display.end();
        Ok(ended)
    }

    /// Carries out a run, with retries. The inner error says why it is incomplete.
    async fn try_to_train(
        &self,
        (run, repetition): (&Run, u32),
        arguments: &Arguments,
        place: &Place,
        stop: &CancellationToken,
        display: &mut Display,
    ) -> Result<Result<(), String>, TrainError> {
        let mut retries = self.plan.retries;
        loop {
            place.begin()?;
            let trained = match arguments.config((run, repetition), self.plan.warmup_steps, &place.partial())
            {
                Ok(config) => {
                    self.train(&config, run, &arguments.nodes_at, place, stop, display)
                        .await
                }
                Err(error) => Err(error.into()),
            };
            match trained {
                Err(failure) if failure.may_pass && retries > 0 && !stop.is_cancelled() => {
                    retries -= 1;
                    display.again(&run.label, repetition, &failure.message);
                }
                trained => return Ok(trained.map_err(|failure| failure.message)),
            }
        }
    }

    /// Carries out a run once. The error says why it is incomplete.
    async fn train(
        &self,
        config: &RunConfig,
        run: &Run,
        nodes: &launch::Nodes,
        place: &Place,
        stop: &CancellationToken,
        display: &Display,
    ) -> Result<(), Failure> {
        // Stopped runs and runs that exceed the timeout end in the same way.
        let end = stop.child_token();
        let leftovers = Leftovers::track()?;
        let under_way = async {
            match &run.spec.external {
                Some(external) => train_externally(&external.command, config, place, end.clone()).await,
                None => train_here(config, (run, place), nodes, end.clone(), display).await,
            }
        };
        tokio::pin!(under_way);
        let ended = tokio::select! {
            ended = &mut under_way => ended,
            () = tokio::time::sleep(self.plan.timeout) => {
                end.cancel();
                under_way.await.ok();
                let seconds = self.plan.timeout.as_secs();
                Err(format!("it took more than measure.timeoutSeconds ({seconds})").into())
            }
        };
        leftovers.kill().await;
        ended.and_then(|()| Ok(place.trained(run, config)?))
    }

    /// Writes the report on the folder's results of this origin.
    fn report(&self, folder: &Folder, origin: Origin<'_>) -> Result<(), TrainError> {
        let of_run = |run: &Run| {
            (0..self.plan.repetitions)
                .map(|repetition| {
                    let place = folder.place(run, repetition, origin)?;
                    Ok(place.result(self.plan.warmup_steps))
                })
                .collect::<Result<Vec<_>, TrainError>>()
        };
        let measured = self.plan.runs.iter().map(of_run);
        let measured = measured.collect::<Result<Vec<_>, TrainError>>()?;
        let report = Report::new(self.name(), self.spec(), &self.plan, &measured);
        for (name, text) in report.files() {
            folder.write(name, &text)?;
        }
        write_line(&format!(
            "report: {}",
            folder.path().join("report.html").display()
        ));
        Ok(())
    }
}

impl Arguments {
    /// Refuses unreadable paths before a failing run replaces an earlier measurement.
    fn check_paths(&self) -> Result<(), TrainError> {
        let refused = |option: &str, path: &Path, error: std::io::Error| {
            TrainError::Config(format!("{option} {} cannot be read: {error}", path.display()))
        };
        if let Some(folder) = &self.data {
            std::fs::read_dir(folder).map_err(|error| refused("--data", folder, error))?;
        }
        if let Some(file) = &self.pretrained {
            std::fs::File::open(file).map_err(|error| refused("--pretrained", file, error))?;
        }
        Ok(())
    }

    fn origin(&self) -> Origin<'_> {
        Origin::Of {
            data: self.data.as_deref(),
            pretrained: self.pretrained.as_deref(),
            nodes: &self.nodes_at,
        }
    }

    /// The configuration of a repetition, with its checkpoints in `folder`.
    fn config(
        &self,
        (run, repetition): (&Run, u32),
        warmup_steps: u32,
        folder: &Path,
    ) -> Result<RunConfig, String> {
        let job = ViTTrainingJob::new(folder::JOB, run.job(repetition));
        let config =
            local_config(job, self.data.as_deref(), folder, None).map_err(|error| error.to_string())?;
        let config = RunConfig {
            measure: Some(Measure { warmup_steps }),
            ..config
        };
        let manifest = self.manifest.as_deref().unwrap_or(Path::new(""));
        with_pretrained(config, self.pretrained.as_deref(), manifest).map_err(|error| error.to_string())
    }
}

/// Runs this program's ranks.
async fn train_here(
    config: &RunConfig,
    (run, place): (&Run, &Place),
    nodes: &launch::Nodes,
    stop: CancellationToken,
    display: &Display,
) -> Result<(), Failure> {
    let speeds = Speeds::from_arguments(&run.speeds, Some(place.calibration()), config)
        .map_err(|error| error.to_string())?;
    let launch = Launch {
        keep_errors: true,
        grace_after_stop: Some(GRACE_AFTER_STOP),
        environment: speeds.iter().flat_map(Speeds::variables).collect(),
        ..nodes.launch(config.nodes).map_err(|error| error.to_string())?
    };
    let end = launch::run(config, &launch, stop, |event| match event {
        Event::Progress(progress) => display.progress(&run.label, progress),
        Event::Said(line) => tracing::debug!("{line}"),
    })
    .await
    .map_err(|error| error.to_string())?;
    match end.code {
        ExitCode::Done => Ok(()),
        code => {
            let class = end.failure.as_ref().map(|failure| failure.class);
            let class = class.or(code.failure_class());
            Err(Failure {
                may_pass: class.is_some_and(FailureClass::is_retryable),
                message: end
                    .failure
                    .map_or_else(|| format!("exit code {}", code.code()), |failure| failure.message),
            })
        }
    }
}

/// Runs another trainer.
async fn train_externally(
    command: &[String],
    config: &RunConfig,
    place: &Place,
    stop: CancellationToken,
) -> Result<(), Failure> {
    let folder = place.partial();
    let files = external::Files {
        folder: &folder,
        log: &config.checkpoint.path.join(LOG_NAME),
    };
    external::run(command, config, files, stop).await
}
