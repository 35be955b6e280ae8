//! The sections of the screen, except for the placement.

use contract::progress_line::significant;
use crds::Phase;
use crds::status::{FailureStatus, ProgressStatus, TimeSpentStatus, ViTTrainingJobStatus};
use jiff::SignedDuration;
use kube::ResourceExt as _;

use super::View;
use super::placement::{placed, queue};
use super::screen::{LEFT, Screen};
use crate::gang::AGENTS_ASKED;
use crate::paint::Paint;
use crate::step_times::{Split, StepTimes};
use crate::summary::{HIGH_SYNC_SHARE, NOTABLE_SLOWDOWN};
use crate::text::{age, ago, bar, counted, duration, failed_where, last_report, percent, sparkline, wrapped};
use crate::why::Why;

/// Maximum cells of the progress bar, and typical columns beside it.
const BAR: usize = 30;
const BESIDE_BAR: usize = 50;
/// Maximum cells of the sparkline.
const SPARKLINE: usize = 60;

/// The screen of a job. `is_wide` lists every node.
pub(crate) fn render(view: &View, why: &Why, is_wide: bool, paint: Paint) -> String {
    let status = view.job.status.clone().unwrap_or_default();
    let mut screen = Screen {
        paint,
        text: head(view, &status, why, paint),
    };
    reason(view, why, &status, &mut screen);
    let progress = status.progress.as_ref();
    if let Some(progress) = progress.filter(|progress| progress.total_steps > 0) {
        progressed(view, &status, progress, &mut screen);
    }
    if let Some(split) = view.step_times.yes().and_then(StepTimes::split) {
        steps(view, &split, &mut screen);
    }
    for (index, straggler) in status.stragglers.iter().enumerate() {
        let node = straggler.node.as_deref().unwrap_or("an unknown node");
        let name = if index == 0 { "stragglers" } else { "" };
        let words = format!(
            "rank {} on {node} takes {:.2}x as long as the others",
            straggler.rank, straggler.slowdown
        );
        screen.raw(name, &paint.warning(words));
        if let Some(seconds) = straggler.saved_seconds {
            let milliseconds = seconds * 1e3;
            let words = format!("without it, a step would be {milliseconds:.1} ms shorter");
            screen.raw("", &paint.warning(words));
        }
    }
    for (index, rank) in progress
        .iter()
        .flat_map(|progress| &progress.idle_ranks)
        .enumerate()
    {
        let name = if index == 0 { "idle ranks" } else { "" };
        let node = node_of(view, &status, *rank).unwrap_or("an unknown node");
        let words = format!("rank {rank} on {node} gets no images because it would slow every step down");
        screen.raw(name, &paint.warning(words));
    }
    if let Some(placement) = &status.placement {
        placed(view, &status, placement, is_wide, &mut screen);
    }
    queue(view, &status, &mut screen);
    if let Some(checkpoint) = &status.last_checkpoint {
        let (step, when) = (checkpoint.step, ago(checkpoint.time.as_ref(), view.now));
        let words = format!("step {step}{when}, in {}", checkpoint.path);
        screen.line("checkpoint", &words);
    }
    if let Some(spent) = &status.time_spent {
        time(&spent.until(view.now, status.phase), &mut screen);
    }
    if let Some(failure) = &status.last_failure {
        failed(view, &status, failure, &mut screen);
    }
    missing(view, &mut screen);
    if let Some(step) = why.next.first().filter(|_| needs_someone(&status)) {
        screen.line("next", &step.words);
        if let Some(command) = &step.command {
            // Not wrapped, so that it can be copied.
            screen.raw("", &paint.accent(command));
        }
        if why.next.len() > 1 {
            let more = counted(why.next.len() as i64 - 1, "more step");
            let (name, namespace) = (view.job.name_any(), view.job.namespace().unwrap_or_default());
            let more = format!("and {more}: kubectl vit why {name} -n {namespace}");
            screen.raw("", &paint.dim(more));
        }
    }
    screen.text
}

fn head(view: &View, status: &ViTTrainingJobStatus, why: &Why, paint: Paint) -> String {
    let mut facts = vec![];
    if status.attempt > 0 {
        facts.push(format!("attempt {}", status.attempt));
    }
    if status.restarts > 0 {
        facts.push(counted(status.restarts, "restart"));
    }
    if let (Some(start), Some(end)) = (&status.start_time, &status.completion_time) {
        facts.push(format!("took {}", duration(end.0.duration_since(start.0))));
        facts.push(format!("ended {} ago", age(end.0, view.now)));
    } else if let Some(created) = view.job.creation_timestamp() {
        facts.push(format!("created {} ago", age(created.0, view.now)));
    }
    let since = match (&why.since, status.phase) {
        (Some(since), Some(phase)) if !phase.is_terminal() => format!(" for {since}"),
        _ => String::new(),
    };
    let facts = paint.dim(format!("  {}", facts.join(", ")));
    format!(
        "{}  {}{since}{facts}\n",
        paint.bold(&why.job),
        paint.phase(status.phase)
    )
}

/// A job that trains or is done needs no reason, unless it is being deleted.
fn reason(view: &View, why: &Why, status: &ViTTrainingJobStatus, screen: &mut Screen) {
    let is_kept = view.job.metadata.deletion_timestamp.is_none();
    if is_kept && matches!(status.phase, Some(Phase::Running | Phase::Succeeded)) {
        return;
    }
    screen.line("", &why.meaning);
    if let Some(message) = &why.message {
        screen.line("", message);
    }
}

/// The node that a rank is on.
fn node_of<'a>(view: &View, status: &'a ViTTrainingJobStatus, rank: i32) -> Option<&'a str> {
    let ranks_per_node = view.job.spec.workers.gpus_per_node.max(1);
    let node = usize::try_from(rank / ranks_per_node).ok()?;
    status.nodes().get(node).map(String::as_str)
}

fn needs_someone(status: &ViTTrainingJobStatus) -> bool {
    !matches!(status.phase, Some(Phase::Running | Phase::Succeeded)) || !status.stragglers.is_empty()
}

fn progressed(view: &View, status: &ViTTrainingJobStatus, progress: &ProgressStatus, screen: &mut Screen) {
    let paint = screen.paint;
    let is_running = status.phase == Some(Phase::Running);
    let share = progress.step as f64 / progress.total_steps as f64;
    let cells = paint.width.saturating_sub(LEFT + BESIDE_BAR).clamp(8, BAR);
    let left = progress.eta_seconds.filter(|seconds| is_running && *seconds > 0);
    let left = left.map(|seconds| format!("  {} left", duration(SignedDuration::from_secs(seconds))));
    let left = left.unwrap_or_default();
    screen.raw(
        "progress",
        &format!(
            "{} {:>3}%  epoch {}/{}  step {}/{}{left}",
            paint.good(bar(share, cells)),
            progress.percent,
            progress.epoch,
            progress.total_epochs,
            progress.step,
            progress.total_steps
        ),
    );
    let updated = progress.updated_at.as_ref().filter(|_| is_running);
    let age = updated.map(|time| view.now.duration_since(time.0));
    if let Some(age) = age.filter(|age| age.as_secs() > 60) {
        screen.raw("", &paint.warning(last_report(age)));
    }
    if let Some(loss) = progress.loss {
        screen.raw("loss", &course_of_loss(view, loss, paint));
    }
    let accuracies = [
        (progress.validation_accuracy, "held out"),
        (progress.ema_validation_accuracy, "held out, averaged weights"),
        (progress.train_accuracy, "in training"),
    ];
    let known = accuracies.iter();
    let known = known.filter_map(|(share, of)| Some(format!("{:.1}% {of}", (*share)? * 100.0)));
    let known: Vec<String> = known.collect();
    if !known.is_empty() {
        screen.line("accuracy", &known.join(", "));
    }
    if let Some(precision) = progress.validation_mean_average_precision {
        screen.line("mAP", &format!("{:.1}% held out", precision * 100.0));
    }
    if let Some(rate) = progress.images_per_second.filter(|_| is_running) {
        let ranks =
            f64::from(status.workers.unwrap_or_default().desired * view.job.spec.workers.gpus_per_node);
        let each = if ranks > 1.0 {
            format!(" over {ranks} ranks, {} each", significant(rate / ranks))
        } else {
            String::new()
        };
        screen.line("throughput", &format!("{} images/s{each}", significant(rate)));
    }
    if let Some(share) = progress.sync_share.filter(|_| is_running) {
        let words = format!(
            "{} of step time waits for synchronization, recently",
            percent(share)
        );
        let is_high = share > HIGH_SYNC_SHARE;
        screen.raw("sync", &if is_high { paint.warning(words) } else { words });
    }
    if let Some(slowdown) = progress
        .slowdown
        .filter(|slowdown| is_running && *slowdown >= NOTABLE_SLOWDOWN)
    {
        screen.line(
            "slowdown",
            &format!("a step takes {slowdown:.2}x as long as without slow ranks, recently"),
        );
    }
}

/// Maximum number of lost-time parts shown, the longest first.
const TIME_PARTS_SHOWN: usize = 4;

fn time(spent: &TimeSpentStatus, screen: &mut Screen) {
    let mut lost = spent.parts()[1..].to_vec();
    let all = spent.total();
    // Parts below 1 % are not shown.
    lost.retain(|(_, seconds)| *seconds >= 0.01 * all && *seconds >= 1.0);
    if all < 1.0 {
        return;
    }
    lost.sort_by(|left, right| right.1.total_cmp(&left.1));
    let parts = lost.iter().take(TIME_PARTS_SHOWN);
    let parts =
        parts.map(|(part, seconds)| format!("{part} {}", duration(SignedDuration::from_secs_f64(*seconds))));
    let parts: Vec<String> = parts.collect();
    let lost = if parts.is_empty() {
        String::new()
    } else {
        format!("; the rest is {}", parts.join(", "))
    };
    let words = format!("{} of it in useful steps{lost}", percent(spent.effective_ratio));
    screen.line("time", &words);
}

fn course_of_loss(view: &View, loss: f64, paint: Paint) -> String {
    let now = significant(loss);
    let Some(losses) = view.losses.yes() else {
        return now;
    };
    let Some(((first_step, first), (last_step, _))) = losses.ends() else {
        return now;
    };
    let span = losses
        .span()
        .map(|span| format!(", {}", duration(span)))
        .unwrap_or_default();
    let first = significant(first);
    let words = format!("from {first} (steps {first_step} to {last_step}{span})");
    let room = paint.width.saturating_sub(LEFT + now.len() + words.len() + 4);
    let line = sparkline(&losses.values(), room.min(SPARKLINE));
    format!("{now}  {}  {}", paint.accent(line), paint.dim(words))
}

fn steps(view: &View, split: &Split, screen: &mut Screen) {
    let part = |phase: &str| percent(split.of(phase));
    let words = format!(
        "{} ms: data {}, forward {}, backward {}, waits {}, optimizer {}",
        significant(split.step_seconds * 1000.0),
        part("data"),
        part("forward"),
        part("backward"),
        percent(split.of("sync_exposed") + split.of("sync_straggler")),
        part("optimizer"),
    );
    screen.line("step time", &words);
    let words = format!(
        "{} for the network, {} for slower ranks ({} more is hidden behind backward)",
        part("sync_exposed"),
        part("sync_straggler"),
        percent(split.hidden),
    );
    screen.line("waits", &words);
    let members = view.members.yes().map_or(&[][..], Vec::as_slice);
    let pods = members.iter().filter(|member| member.is_ready).count();
    let of = if pods > AGENTS_ASKED {
        format!("{} ranks of {AGENTS_ASKED} of {pods} pods", split.ranks)
    } else {
        counted(split.ranks as i64, "rank")
    };
    let when = if view.is_recent {
        "recently"
    } else {
        "since the attempt began"
    };
    let words = screen.paint.dim(format!("mean of {of} {when}"));
    screen.raw("", &words);
}

fn failed(view: &View, status: &ViTTrainingJobStatus, failure: &FailureStatus, screen: &mut Screen) {
    let class = match status.phase {
        Some(Phase::Failed) => screen.paint.bad(&failure.class),
        _ => screen.paint.warning(&failure.class),
    };
    let (place, when) = (failed_where(failure), ago(failure.time.as_ref(), view.now));
    screen.raw("last failure", &format!("{class} in {place}{when}"));
    screen.line("", &failure.message);
}

/// Reports missing parts and why; a reason common to several is shown once.
fn missing(view: &View, screen: &mut Screen) {
    let mut reasons = vec![];
    let mut add = |what: &str, reason: Option<&str>| {
        if let Some(reason) = reason.filter(|reason| !reasons.contains(&(*reason).to_owned())) {
            reasons.push(reason.to_owned());
            let words = wrapped(&format!("{what}: {reason}"), screen.paint.width, LEFT);
            screen.raw("not shown", &screen.paint.dim(words));
        }
    };
    add("pods, step times and loss over time", view.members.no());
    add("where step time goes", view.step_times.no());
    add("loss over time", view.losses.no());
}
