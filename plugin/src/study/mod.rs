//! `kubectl vit study`: shows, reports on, suspends and resumes scaling studies.

mod list;
mod render;

use std::path::PathBuf;
use std::sync::Arc;

use crds::{ViTScalingStudy, ViTTrainingJob, labels};
use fs_err as fs;
use jiff::Timestamp;
use study::StudyJob;
use study_report::Report;

use crate::cluster::Cluster;
use crate::error::{Error, Exit};
use crate::kind::{Kind as _, StudyName, exit};
use crate::output::{self, Format};
use crate::paint::Paint;
use crate::suspend::{self, Action};
use crate::wait::Timeout;
use crate::watch;
use render::render;

/// List, watch, suspend and resume scaling studies, and report on them
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    List(list::Arguments),
    /// Show one study on one screen: its runs, why they wait, and each point's medians so far
    #[command(after_help = "Example: kubectl vit study status digits")]
    Status {
        /// The study
        #[arg(value_name = "STUDY", add = crate::completion::studies())]
        study: StudyName,
        /// Output format
        #[arg(short, long, value_enum)]
        output: Option<Format>,
        /// Report the study's state as the exit code: 0 succeeded, 4 failed, 5 not finished
        #[arg(long)]
        exit_code: bool,
    },
    /// Follow a study until it is over
    ///
    /// A terminal shows the screen of study status, kept current; otherwise, each change is a line. The exit code reports
    /// how the study ended.
    #[command(after_help = "Example: kubectl vit study watch digits && kubectl vit study report digits")]
    Watch {
        /// The study
        #[arg(value_name = "STUDY", add = crate::completion::studies())]
        study: StudyName,
        #[command(flatten)]
        timeout: Timeout,
    },
    /// Write a report on the measurements so far: report.html, report.md, report.csv, report.json
    #[command(after_help = "Example: kubectl vit study report digits --to digits-report")]
    Report {
        /// The study
        #[arg(value_name = "STUDY", add = crate::completion::studies())]
        study: StudyName,
        /// Folder for the report; STUDY-report, if not given
        #[arg(long, value_name = "DIR")]
        to: Option<PathBuf>,
    },
    /// Stop studies and their current runs; measurements are kept
    #[command(
        after_help = "Examples:\n  kubectl vit study suspend digits --wait\n  kubectl vit study suspend --all"
    )]
    Suspend(suspend::Arguments<ViTScalingStudy>),
    /// Resume suspended studies with the next run
    #[command(
        after_help = "Examples:\n  kubectl vit study resume digits\n  kubectl vit study resume -l team=vision"
    )]
    Resume(suspend::Arguments<ViTScalingStudy>),
}

pub(crate) async fn run(cluster: &Cluster, arguments: &Arguments) -> Result<Exit, Error> {
    match &arguments.command {
        Command::List(arguments) => list::run(cluster, arguments).await,
        Command::Status {
            study,
            output,
            exit_code,
        } => show(cluster, study, *output, *exit_code).await,
        Command::Watch { study, timeout } => {
            // A missing study is an error; the watch would wait for it.
            cluster.get(study).await?;
            let screen = async |study| screen(cluster, &study);
            watch::follow(cluster, study, *timeout, screen).await
        }
        Command::Report { study, to } => {
            let folder = to.clone().unwrap_or_else(|| format!("{study}-report").into());
            report(cluster, study, folder).await
        }
        Command::Suspend(arguments) => suspend::run(cluster, arguments, Action::Suspend).await,
        Command::Resume(arguments) => suspend::run(cluster, arguments, Action::Resume).await,
    }
}

async fn show(
    cluster: &Cluster,
    name: &StudyName,
    format: Option<Format>,
    exit_code: bool,
) -> Result<Exit, Error> {
    let study = cluster.get(name).await?;
    let phase = study.phase();
    match format {
        Some(format) if format.is_object() => output::one(study, format)?,
        _ => output::print(&screen(cluster, &study))?,
    }
    Ok(if exit_code { exit(phase) } else { Exit::Done })
}

fn screen(cluster: &Cluster, study: &ViTScalingStudy) -> String {
    render(study, cluster.place(), Timestamp::now(), Paint::of_stdout())
}

/// Writes the same report as `vit-trainer study`.
async fn report(cluster: &Cluster, name: &StudyName, folder: PathBuf) -> Result<Exit, Error> {
    let study = cluster.get(name).await?;
    let plan = study::plan(&study.spec).map_err(|error| Error::Usage(format!("study {name}: {error}")))?;
    let of_study = format!("{}={name}", labels::STUDY_NAME);
    let jobs: Vec<ViTTrainingJob> = cluster.list_readable(false, Some(&of_study)).await?;
    let jobs = jobs.into_iter().map(Arc::new);
    let jobs: Vec<StudyJob> = jobs.filter_map(|job| StudyJob::new(job, &study)).collect();
    let measured = plan.measured(&jobs);
    if measured.iter().flatten().all(Result::is_err) {
        return Err(Error::Usage(format!(
            "study {name} has measured nothing yet: {} shows why",
            cluster.place().vit(&format!("study status {name}"))
        )));
    }
    let report = Report::new(name.as_str(), &study.spec, &plan, &measured);
    fs::create_dir_all(&folder).map_err(Error::Report)?;
    for (name, text) in report.files() {
        fs::write(folder.join(name), text).map_err(Error::Report)?;
    }
    output::print(&format!("{}\n", folder.join("report.html").display()))?;
    Ok(Exit::Done)
}

#[cfg(test)]
mod tests;
