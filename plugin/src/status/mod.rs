//! `kubectl vit status`: one job on one screen.

mod placement;
mod render;
mod screen;

use crds::ViTTrainingJob;
use jiff::Timestamp;

use crate::cluster::Cluster;
use crate::error::{Error, Exit};
use crate::gang::{self, AGENTS_ASKED, Found, Member};
use crate::kind::{JobName, exit};
use crate::losses::Losses;
use crate::output::{self, Format};
use crate::paint::Paint;
use crate::step_times::StepTimes;
use crate::summary::phase;
use crate::why;
pub(crate) use render::render;

/// Show one job on one screen: progress, loss, where step time goes, stragglers, placement, last failure
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: kubectl vit status digits")]
pub(crate) struct Arguments {
    /// The job
    #[arg(value_name = "JOB", add = crate::completion::jobs())]
    job: JobName,
    /// Output format; wide names every node of a large gang
    #[arg(short, long, value_enum)]
    output: Option<Format>,
    /// Report the job's state as the exit code: 0 succeeded, 4 failed, 5 not finished
    #[arg(long)]
    exit_code: bool,
    /// Show only the job's status, without querying its pods, agents and logs
    #[arg(long)]
    status_only: bool,
}

/// The job, and data from its pods.
#[derive(Clone, Debug)]
pub(crate) struct View {
    pub(crate) job: ViTTrainingJob,
    pub(crate) now: Timestamp,
    /// The pods of the current attempt, by node rank.
    pub(crate) members: Found<Vec<Member>>,
    /// Where step time goes.
    pub(crate) step_times: Found<StepTimes>,
    /// Whether `step_times` covers the time since the last refresh, rather than the whole attempt.
    pub(crate) is_recent: bool,
    pub(crate) losses: Found<Losses>,
}

pub(crate) async fn run(cluster: &Cluster, arguments: &Arguments) -> Result<Exit, Error> {
    let job = cluster.get(&arguments.job).await?;
    let phase = phase(&job);
    if let Some(format) = arguments.output.filter(|format| format.is_object()) {
        output::one(job, format)?;
    } else {
        let view = look(cluster, job, arguments.status_only).await;
        let why = why::explain(&view.job, cluster.place(), view.now);
        let is_wide = arguments.output == Some(Format::Wide);
        output::print(&render(&view, &why, is_wide, Paint::of_stdout()))?;
    }
    Ok(if arguments.exit_code {
        exit(phase)
    } else {
        Exit::Done
    })
}

/// Collects data from the job's pods, or the reasons it is missing.
pub(crate) async fn look(cluster: &Cluster, job: ViTTrainingJob, status_only: bool) -> View {
    let mut view = View {
        job,
        now: Timestamp::now(),
        members: Found::None,
        step_times: Found::None,
        is_recent: false,
        losses: Found::None,
    };
    let attempt = view.job.status.as_ref().map_or(0, |status| status.attempt);
    if status_only || attempt == 0 {
        return view;
    }
    let mut members = match gang::members(cluster, &view.job).await {
        Ok(members) => members,
        Err(error) => {
            view.members = Found::No(error.to_string());
            return view;
        }
    };
    members.retain(|member| member.attempt == attempt);
    let expositions = gang::expositions(cluster, &members, AGENTS_ASKED);
    let (texts, losses) = tokio::join!(expositions, async {
        match members.first().filter(|member| member.node_rank == 0) {
            Some(first) => gang::losses(cluster, first).await,
            None => Found::None,
        }
    });
    view.step_times = texts.map(|texts| StepTimes::read(&texts));
    view.losses = losses;
    view.members = Found::Yes(members);
    view
}

#[cfg(test)]
pub(crate) mod tests;
