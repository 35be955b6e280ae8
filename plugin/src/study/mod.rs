//! `kubectl vit study`: what a ViTScalingStudy has measured so far, and the report on it.

mod render;

use std::path::PathBuf;

use crds::ViTScalingStudy;
use crds::study::status::StudyPhase;
use fs_err as fs;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, ResourceExt as _};
use study::{Records, Report};

use crate::cluster::{Cluster, object_name};
use crate::error::{Error, Exit};
use crate::output::{self, Format};
use crate::paint::Paint;
use render::render;

/// See what scaling studies have measured
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Show one study on one screen: its runs, what they wait for, and each point's medians so far
    #[command(after_help = "Example: kubectl vit study status digits")]
    Status {
        /// The study
        #[arg(value_name = "STUDY", add = crate::completion::studies())]
        study: StudyName,
        /// Output format
        #[arg(short, long, value_enum)]
        output: Option<Format>,
        /// Tell the study's state by the exit code: 0 succeeded, 4 failed, 5 neither yet
        #[arg(long)]
        exit_code: bool,
    },
    /// Write the report on what has been measured so far: report.html, report.md, report.csv, report.json
    #[command(after_help = "Example: kubectl vit study report digits --to digits-report")]
    Report {
        /// The study
        #[arg(value_name = "STUDY", add = crate::completion::studies())]
        study: StudyName,
        /// Folder for the report; STUDY-report, if not given
        #[arg(long, value_name = "DIR")]
        to: Option<PathBuf>,
    },
}

/// The name of a study; `vits/NAME`, as kubectl prints it, means the same.
#[derive(Clone, Debug)]
struct StudyName(String);

impl std::str::FromStr for StudyName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let kinds = [
            "vits",
            "vitscalingstudy",
            "vitscalingstudies",
            "vitscalingstudy.vit-operator.dev",
        ];
        object_name(text, &kinds, "study").map(Self)
    }
}

pub(crate) async fn run(cluster: &Cluster, arguments: &Arguments) -> Result<Exit, Error> {
    match &arguments.command {
        Command::Status {
            study,
            output,
            exit_code,
        } => show(cluster, study, *output, *exit_code).await,
        Command::Report { study, to } => {
            let folder = to.clone().unwrap_or_else(|| format!("{}-report", study.0).into());
            report(cluster, study, folder).await
        }
    }
}

async fn show(
    cluster: &Cluster,
    name: &StudyName,
    format: Option<Format>,
    exit_code: bool,
) -> Result<Exit, Error> {
    let mut study = find(cluster, name).await?;
    let phase = study.status.as_ref().and_then(|status| status.phase);
    match format {
        Some(format) if format.is_object() => {
            study.metadata.managed_fields = None;
            let name = format!("vitscalingstudy.vit-operator.dev/{}", study.name_any());
            output::object(&study, &[name], format)?;
        }
        _ => output::print(&render(
            &study,
            cluster.place(),
            Timestamp::now(),
            Paint::of_stdout(),
        ))?,
    }
    Ok(match phase {
        _ if !exit_code => Exit::Done,
        Some(StudyPhase::Succeeded) => Exit::Done,
        Some(StudyPhase::Failed) => Exit::JobFailed,
        _ => Exit::NotYet,
    })
}

/// Writes the same report as `vit-trainer study`.
async fn report(cluster: &Cluster, name: &StudyName, folder: PathBuf) -> Result<Exit, Error> {
    let study = find(cluster, name).await?;
    let plan =
        study::plan(&study.spec).map_err(|error| Error::Usage(format!("study {}: {error}", name.0)))?;
    let results = Records::config_map(&name.0);
    let config_maps: Api<ConfigMap> = Api::namespaced(cluster.client().clone(), cluster.namespace());
    let found = config_maps
        .get_opt(&results)
        .await
        .map_err(|error| cluster.error(&format!("get ConfigMap {results}"), error))?;
    let data = found.and_then(|found| found.data).unwrap_or_default();
    let measured = Records::read(&data).measured(&plan);
    if measured.iter().flatten().all(Result::is_err) {
        return Err(Error::Usage(format!(
            "study {} has measured nothing yet: {} tells why",
            name.0,
            cluster.place().vit(&format!("study status {}", name.0))
        )));
    }
    let report = Report::new(&name.0, &study.spec, &plan, &measured);
    fs::create_dir_all(&folder).map_err(Error::Report)?;
    for (name, text) in report.files() {
        fs::write(folder.join(name), text).map_err(Error::Report)?;
    }
    output::print(&format!("{}\n", folder.join("report.html").display()))?;
    Ok(Exit::Done)
}

async fn find(cluster: &Cluster, name: &StudyName) -> Result<ViTScalingStudy, Error> {
    let found = cluster.studies().get(&name.0).await;
    found.map_err(
        |error| match cluster.error(&format!("get study {}", name.0), error) {
            Error::NotFound(_) => Error::NoStudy {
                name: name.0.clone(),
                namespace: cluster.namespace().into(),
            },
            error => error,
        },
    )
}

#[cfg(test)]
mod tests;
