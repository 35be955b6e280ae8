//! `kubectl vit list`: the jobs of one namespace or of all, one line each.

use contract::progress_line::significant;
use crds::{Phase, ViTTrainingJob};
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt as _;

use crate::cluster::Cluster;
use crate::error::{Error, Exit};
use crate::output::{self, Format};
use crate::paint::Paint;
use crate::summary::{self, HIGH_SYNC_SHARE};
use crate::text::{age, duration, or_dash, percent, table};

/// List jobs: phase, progress, and what delays them
#[derive(Debug, clap::Args)]
#[command(visible_alias = "ls", after_help = "Example: kubectl vit list -A")]
pub(crate) struct Arguments {
    /// Jobs of all namespaces; --namespace is ignored
    #[arg(short = 'A', long)]
    all_namespaces: bool,
    /// Only jobs with these labels, in kubectl's syntax
    #[arg(short = 'l', long, value_name = "LABELS")]
    selector: Option<String>,
    /// Only jobs in these phases
    #[arg(long, value_name = "PHASE", value_delimiter = ',', value_parser = phase, add = crate::completion::phases())]
    phase: Vec<Phase>,
    /// Output format
    #[arg(short, long, value_enum)]
    output: Option<Format>,
}

/// Parses a phase, ignoring case.
fn phase(word: &str) -> Result<Phase, String> {
    let mut phases = Phase::ALL.into_iter();
    let found = phases.find(|phase| phase.as_str().eq_ignore_ascii_case(word));
    found.ok_or_else(|| format!("must be one of {}", Phase::ALL.map(Phase::as_str).join(", ")))
}

pub(crate) async fn run(cluster: &Cluster, arguments: &Arguments) -> Result<Exit, Error> {
    let labels = arguments.selector.as_deref();
    let mut jobs: Vec<ViTTrainingJob> = cluster.list_readable(arguments.all_namespaces, labels).await?;
    let phases = &arguments.phase;
    jobs.retain(|job| phases.is_empty() || summary::phase(job).is_some_and(|phase| phases.contains(&phase)));
    if let Some(format) = arguments.output.filter(|format| format.is_object()) {
        output::many(jobs, format)?;
    } else if jobs.is_empty() {
        cluster.report_none("jobs", arguments.all_namespaces);
    } else {
        let columns = Columns {
            has_namespace: arguments.all_namespaces,
            is_wide: arguments.output == Some(Format::Wide),
        };
        output::print(&render(&jobs, columns, Timestamp::now(), Paint::of_stdout()))?;
    }
    Ok(Exit::Done)
}

/// Which columns are shown.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Columns {
    has_namespace: bool,
    is_wide: bool,
}

/// A non-empty list of jobs as a table.
fn render(jobs: &[ViTTrainingJob], columns: Columns, now: Timestamp, paint: Paint) -> String {
    let rows = jobs.iter().map(|job| row(job, columns, now, paint));
    let (mut header, rows): (Vec<Vec<_>>, Vec<Vec<_>>) = rows.map(|row| row.into_iter().unzip()).unzip();
    table(&header.swap_remove(0), &rows)
}

/// The cells of a job under their titles.
fn row(job: &ViTTrainingJob, columns: Columns, now: Timestamp, paint: Paint) -> Vec<(&'static str, String)> {
    let status = job.status.clone().unwrap_or_default();
    let progress = status.progress.unwrap_or_default();
    let has_begun = progress.total_steps > 0;
    let is_running = status.phase == Some(Phase::Running);
    let rate = progress.images_per_second.filter(|_| is_running);
    let sync = progress
        .sync_share
        .filter(|_| is_running)
        .map(|share| match percent(share) {
            words if share > HIGH_SYNC_SHARE => paint.warning(words),
            words => words,
        });
    let gpu = status.placement.and_then(|placement| match placement.group {
        Some(group) => Some(group.product),
        None if !placement.mixed.is_empty() => Some(format!("{} kinds", placement.mixed.len())),
        None => None,
    });
    let nodes = (status.workers.unwrap_or_default().desired, job.spec.workers.nodes);
    let mut row = vec![];
    if columns.has_namespace {
        row.push(("NAMESPACE", job.namespace().unwrap_or_default()));
    }
    row.extend([
        ("NAME", job.name_any()),
        ("PHASE", paint.phase(status.phase)),
        (
            "DONE",
            or_dash(has_begun.then(|| format!("{}%", progress.percent))),
        ),
        (
            "EPOCH",
            or_dash(has_begun.then(|| format!("{}/{}", progress.epoch, progress.total_epochs))),
        ),
        ("LOSS", or_dash(progress.loss.map(significant))),
        ("IMAGES/S", or_dash(rate.map(significant))),
        ("SYNC", or_dash(sync)),
        ("NODES", format!("{}/{}", nodes.0, nodes.1)),
        ("GPU", or_dash(gpu)),
    ]);
    if columns.is_wide {
        let left = progress.eta_seconds.filter(|_| is_running);
        let left = left.map(|seconds| duration(SignedDuration::from_secs(seconds)));
        let saved = status.last_checkpoint;
        row.extend([
            ("ACCURACY", or_dash(progress.validation_accuracy.map(percent))),
            ("LEFT", or_dash(left)),
            ("ATTEMPT", status.attempt.to_string()),
            ("RESTARTS", status.restarts.to_string()),
            (
                "SAVED",
                or_dash(saved.map(|checkpoint| format!("step {}", checkpoint.step))),
            ),
            ("QUEUE", or_dash(job.spec.scheduling.queue_name.clone())),
        ]);
    }
    row.extend([
        (
            "AGE",
            or_dash(job.creation_timestamp().map(|time| age(time.0, now))),
        ),
        ("NOTE", summary::note(job, paint)),
    ]);
    row
}

#[cfg(test)]
mod tests;
