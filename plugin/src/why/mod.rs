//! `kubectl vit why`: why a job waits, stalls or failed, and what to do next.

mod advice;
mod explain;
mod render;

use crds::Phase;
use crds::status::RejectedGroup;
use jiff::Timestamp;
use serde::Serialize;

use crate::cluster::Cluster;
use crate::error::{Error, Exit};
use crate::kind::JobName;
use crate::output::{self, Format};
use crate::paint::Paint;
pub(crate) use explain::explain;
use render::render;

/// Explain why a job waits, stalls or failed, and what to do next
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: kubectl vit why digits")]
pub(crate) struct Arguments {
    /// The job
    #[arg(value_name = "JOB", add = crate::completion::jobs())]
    job: JobName,
    /// Output format
    #[arg(short, long, value_enum)]
    output: Option<Format>,
}

pub(crate) async fn run(cluster: &Cluster, arguments: &Arguments) -> Result<Exit, Error> {
    let job = cluster.get(&arguments.job).await?;
    let why = explain(&job, cluster.place(), Timestamp::now());
    match arguments.output {
        Some(format) if format.is_object() => {
            output::object(&why, &[arguments.job.qualified()], format)?;
        }
        _ => output::print(&render(&job, &why, Paint::of_stdout()))?,
    }
    Ok(Exit::Done)
}

/// Why a job is as it is.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Why {
    /// The job, as `namespace/name`.
    pub(crate) job: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) phase: Option<Phase>,
    /// Since when, in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) since: Option<String>,
    /// The reason of the condition that explains it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
    /// The meaning of the reason, in a sentence or two.
    pub(crate) meaning: String,
    /// The condition's message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) message: Option<String>,
    /// Further causes and facts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) findings: Vec<String>,
    /// Groups of GPUs that do not fit.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) refused: Vec<RejectedGroup>,
    /// What to do next.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) next: Vec<Step>,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Step {
    pub(crate) words: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) command: Option<String>,
}

#[cfg(test)]
mod tests;
