//! `kubectl vit list`: the jobs of a namespace or of all, a line each.

use contract::progress_line::significant;
use crds::conditions::reasons;
use crds::{Phase, ViTTrainingJob};
use jiff::Timestamp;
use kube::api::ListParams;
use kube::core::DeserializeGuard;
use kube::{Api, Resource as _, ResourceExt as _};

use crate::cluster::Cluster;
use crate::error::{Error, Exit};
use crate::output::{self, Format};
use crate::paint::Paint;
use crate::text::{age, counted, percent, table};
use crate::why::{HIGH_SYNC_SHARE, telling};

/// Jobs that are asked for at once.
const PAGE: u32 = 500;

/// List jobs: what they do, how far they are, and what holds them back
#[derive(Debug, clap::Args)]
#[command(visible_alias = "ls", after_help = "Example: kubectl vit list -A")]
pub(crate) struct Arguments {
    /// Jobs of all namespaces, whatever --namespace says
    #[arg(short = 'A', long)]
    all_namespaces: bool,
    /// Only jobs with these labels, as kubectl takes them
    #[arg(short = 'l', long, value_name = "LABELS")]
    selector: Option<String>,
    /// Only jobs in these phases
    #[arg(long, value_name = "PHASE", value_delimiter = ',', value_parser = phase, add = crate::completion::phases())]
    phase: Vec<Phase>,
    /// Output format
    #[arg(short, long, value_enum)]
    output: Option<Format>,
}

/// A phase by its word, in whatever case.
fn phase(word: &str) -> Result<Phase, String> {
    let same = |phase: &Phase| phase.as_str().eq_ignore_ascii_case(word);
    let words = || Phase::ALL.map(Phase::as_str).join(", ");
    Phase::ALL
        .into_iter()
        .find(same)
        .ok_or_else(|| format!("must be one of {}", words()))
}

pub(crate) async fn run(cluster: &Cluster, arguments: &Arguments) -> Result<Exit, Error> {
    let (jobs, unreadable) = fetch(cluster, arguments).await?;
    for (job, why) in &unreadable {
        output::tell(&format!("warning: {job} cannot be read by this plugin: {why}"));
    }
    let jobs: Vec<ViTTrainingJob> = jobs
        .into_iter()
        .filter(|job| {
            let phase = job.status.as_ref().and_then(|status| status.phase);
            arguments.phase.is_empty() || phase.is_some_and(|phase| arguments.phase.contains(&phase))
        })
        .collect();
    if let Some(format) = arguments.output.filter(|format| format.is_object()) {
        output::jobs(jobs, format)?;
        return Ok(Exit::Done);
    }
    if jobs.is_empty() {
        let place = if arguments.all_namespaces {
            "any namespace".into()
        } else {
            format!("namespace {}", cluster.namespace())
        };
        output::tell(&format!("No jobs found in {place}."));
        return Ok(Exit::Done);
    }
    let columns = Columns {
        has_namespace: arguments.all_namespaces,
        is_wide: arguments.output == Some(Format::Wide),
    };
    output::print(&render(&jobs, columns, Timestamp::now(), Paint::of_stdout()))?;
    Ok(Exit::Done)
}

type Unreadable = (String, String);

/// All jobs, page by page; those apart that this version cannot read.
async fn fetch(
    cluster: &Cluster,
    arguments: &Arguments,
) -> Result<(Vec<ViTTrainingJob>, Vec<Unreadable>), Error> {
    let api: Api<DeserializeGuard<ViTTrainingJob>> = if arguments.all_namespaces {
        Api::all(cluster.client().clone())
    } else {
        Api::namespaced(cluster.client().clone(), cluster.namespace())
    };
    let mut params = ListParams::default().limit(PAGE);
    params.label_selector.clone_from(&arguments.selector);
    let (mut jobs, mut unreadable) = (vec![], vec![]);
    loop {
        let page = api
            .list(&params)
            .await
            .map_err(|error| cluster.error("list jobs", error))?;
        for DeserializeGuard(job) in page.items {
            match job {
                Ok(job) => jobs.push(job),
                Err(invalid) => {
                    let meta = invalid.metadata;
                    let name = format!(
                        "{}/{}",
                        meta.namespace.unwrap_or_default(),
                        meta.name.unwrap_or_default()
                    );
                    unreadable.push((name, invalid.error));
                }
            }
        }
        params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
        if params.continue_token.is_none() {
            return Ok((jobs, unreadable));
        }
    }
}

/// Which columns are shown.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Columns {
    has_namespace: bool,
    is_wide: bool,
}

/// The jobs as a table.
fn render(jobs: &[ViTTrainingJob], columns: Columns, now: Timestamp, paint: Paint) -> String {
    let mut header = vec![
        "NAMESPACE",
        "NAME",
        "PHASE",
        "DONE",
        "EPOCH",
        "LOSS",
        "IMAGES/S",
        "SYNC",
        "NODES",
        "GPU",
    ];
    if columns.is_wide {
        header.extend(["ACCURACY", "LEFT", "ATTEMPT", "RESTARTS", "SAVED", "QUEUE"]);
    }
    header.extend(["AGE", "NOTE"]);
    let mut rows: Vec<Vec<String>> = jobs
        .iter()
        .map(|job| row(job, columns.is_wide, now, paint))
        .collect();
    if !columns.has_namespace {
        header.remove(0);
        for row in &mut rows {
            row.remove(0);
        }
    }
    table(&header, &rows)
}

fn row(job: &ViTTrainingJob, is_wide: bool, now: Timestamp, paint: Paint) -> Vec<String> {
    let status = job.status.clone().unwrap_or_default();
    let progress = status.progress.unwrap_or_default();
    let has_begun = progress.total_steps > 0;
    let is_running = status.phase == Some(Phase::Running);
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".into());
    let sync = progress.sync_share.filter(|_| is_running).map(percent);
    let is_high = progress.sync_share.is_some_and(|share| share > HIGH_SYNC_SHARE);
    let workers = status.workers.unwrap_or_default();
    let asked = job.spec.workers.nodes;
    let gpu = status
        .placement
        .as_ref()
        .and_then(|placement| match &placement.group {
            Some(group) => Some(group.product.clone()),
            None if !placement.mixed.is_empty() => Some(format!("{} kinds", placement.mixed.len())),
            None => None,
        });
    let mut row = vec![
        job.namespace().unwrap_or_default(),
        job.name_any(),
        paint.phase(status.phase),
        or_dash(has_begun.then(|| format!("{}%", progress.percent))),
        or_dash(has_begun.then(|| format!("{}/{}", progress.epoch, progress.total_epochs))),
        or_dash(progress.loss.map(significant)),
        or_dash(progress.images_per_second.filter(|_| is_running).map(significant)),
        or_dash(sync.map(|sync| if is_high { paint.warning(sync) } else { sync })),
        format!("{}/{asked}", workers.desired),
        or_dash(gpu),
    ];
    if is_wide {
        let saved = status.last_checkpoint.as_ref();
        row.extend([
            or_dash(progress.validation_accuracy.map(percent)),
            or_dash(
                progress
                    .eta_seconds
                    .filter(|_| is_running)
                    .map(|seconds| crate::text::duration(jiff::SignedDuration::from_secs(seconds))),
            ),
            status.attempt.to_string(),
            status.restarts.to_string(),
            or_dash(saved.map(|checkpoint| format!("step {}", checkpoint.step))),
            or_dash(job.spec.scheduling.queue_name.clone()),
        ]);
    }
    row.push(or_dash(job.creation_timestamp().map(|time| age(time.0, now))));
    row.push(note(job, paint));
    row
}

/// What one should know of a job, in a few words.
pub(crate) fn note(job: &ViTTrainingJob, paint: Paint) -> String {
    let Some(status) = &job.status else {
        return String::new();
    };
    if job.meta().deletion_timestamp.is_some() {
        return "is being deleted".into();
    }
    let reason = telling(status).map(|condition| condition.reason.as_str());
    let failure = status.last_failure.as_ref().map(|failure| failure.class.as_str());
    match status.phase {
        Some(Phase::Pending) => match reason {
            Some(reasons::IN_QUEUE) => "waits for quota".into(),
            Some(reasons::ADMITTED) => "has quota, looks for GPUs".into(),
            Some(reasons::NO_PRIORITY_CLASS) => paint.bad("no such PriorityClass"),
            _ => "waits for GPUs".into(),
        },
        Some(Phase::Starting) => {
            let workers = status.workers.unwrap_or_default();
            match reason {
                Some(reasons::RECONCILE_FAILED) => paint.bad("pods are refused"),
                _ => format!("{} of {} pods ready", workers.ready, workers.desired),
            }
        }
        Some(Phase::Running) => {
            let slow: Vec<String> = status
                .stragglers
                .iter()
                .map(|slow| slow.rank.to_string())
                .collect();
            match slow.as_slice() {
                [] => String::new(),
                [rank] => paint.warning(format!("rank {rank} is slow")),
                ranks => paint.warning(format!("ranks {} are slow", ranks.join(", "))),
            }
        }
        Some(Phase::Restarting) => match reason {
            Some(reasons::RESIZING) => "changes its size".into(),
            Some(reasons::NODE_UNFIT) => "a node no longer fits".into(),
            Some(reasons::EVICTED) => "loses its quota".into(),
            _ => paint.warning(format!("after {}", failure.unwrap_or("a failure"))),
        },
        Some(Phase::Failed) => {
            let word = match reason {
                Some(reasons::INVALID_SPEC | reasons::DEADLINE_EXCEEDED) => reason,
                _ => failure.or(reason),
            };
            paint.bad(word.unwrap_or_default())
        }
        Some(Phase::Suspended) => match &status.last_checkpoint {
            Some(checkpoint) => format!("saved at step {}", checkpoint.step),
            None => String::new(),
        },
        Some(Phase::Succeeded) if status.restarts > 0 => counted(status.restarts, "restart"),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests;
