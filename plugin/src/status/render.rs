//! The screen.

use contract::progress_line::significant;
use crds::Phase;
use crds::status::{FailureStatus, ProgressStatus, ViTTrainingJobStatus};
use jiff::SignedDuration;
use kube::ResourceExt as _;

use super::View;
use super::placement::{placed, queue};
use crate::gang::{AGENTS_ASKED, Found};
use crate::paint::Paint;
use crate::step_times::Split;
use crate::text::{self, age, bar, counted, duration, percent, sparkline, wrapped};
use crate::why::{HIGH_SYNC_SHARE, Why};

/// Columns of the names on the left.
pub(super) const LEFT: usize = 13;
/// Cells of the progress bar, at most, and columns of what is beside it, mostly.
const BAR: usize = 30;
const BESIDE_BAR: usize = 50;
/// Cells of the sparkline, at most.
const SPARKLINE: usize = 60;

/// The screen as it is written.
pub(super) struct Screen {
    pub(super) paint: Paint,
    text: String,
}

impl Screen {
    /// A line with its name on the left, wrapped.
    pub(super) fn line(&mut self, name: &str, words: &str) {
        let words = wrapped(words, self.paint.width, LEFT);
        self.raw(name, &words);
    }

    /// The same for what is not to be wrapped.
    pub(super) fn raw(&mut self, name: &str, words: &str) {
        let padded = format!("{name:<LEFT$}");
        self.text += &format!("{}{words}\n", self.paint.dim(padded));
    }
}

/// The screen of a job. `is_wide` lists every node.
pub(crate) fn render(view: &View, why: &Why, is_wide: bool, paint: Paint) -> String {
    let status = view.job.status.clone().unwrap_or_default();
    let mut screen = Screen {
        paint,
        text: head(view, &status, why, paint),
    };
    reason(why, &status, &mut screen);
    if let Some(progress) = status
        .progress
        .as_ref()
        .filter(|progress| progress.total_steps > 0)
    {
        progressed(view, &status, progress, &mut screen);
    }
    if let Some(split) = view
        .step_times
        .yes()
        .and_then(crate::step_times::StepTimes::split)
    {
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
    }
    if let Some(placement) = &status.placement {
        placed(view, &status, placement, is_wide, &mut screen);
    }
    queue(view, &status, &mut screen);
    if let Some(checkpoint) = &status.last_checkpoint {
        let when = checkpoint
            .time
            .as_ref()
            .map_or(String::new(), |time| format!(", {} ago", age(time.0, view.now)));
        screen.line(
            "checkpoint",
            &format!("step {}{when}, in {}", checkpoint.step, checkpoint.path),
        );
    }
    if let Some(failure) = &status.last_failure {
        failed(view, &status, failure, &mut screen);
    }
    missing(view, &mut screen);
    if let Some(step) = why.next.first().filter(|_| needs_someone(&status)) {
        screen.line("next", &step.words);
        if let Some(command) = &step.command {
            // Not wrapped: it is to be copied.
            screen.raw("", &paint.accent(command));
        }
        if why.next.len() > 1 {
            let more = format!(
                "kubectl vit why {} -n {}",
                view.job.name_any(),
                view.job.namespace().unwrap_or_default()
            );
            screen.raw(
                "",
                &paint.dim(format!(
                    "and {}: {more}",
                    text::counted(why.next.len() as i64 - 1, "more step")
                )),
            );
        }
    }
    screen.text
}

fn head(view: &View, status: &ViTTrainingJobStatus, why: &Why, paint: Paint) -> String {
    let name = format!(
        "{}/{}",
        view.job.namespace().unwrap_or_default(),
        view.job.name_any()
    );
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
    format!(
        "{}  {}{since}{}\n",
        paint.bold(name),
        paint.phase(status.phase),
        paint.dim(format!("  {}", facts.join(", ")))
    )
}

/// A job that trains or is done needs no reason.
fn reason(why: &Why, status: &ViTTrainingJobStatus, screen: &mut Screen) {
    if matches!(status.phase, Some(Phase::Running | Phase::Succeeded)) {
        return;
    }
    screen.line("", &why.meaning);
    if let Some(message) = &why.message {
        screen.line("", message);
    }
}

fn needs_someone(status: &ViTTrainingJobStatus) -> bool {
    !matches!(status.phase, Some(Phase::Running | Phase::Succeeded)) || !status.stragglers.is_empty()
}

fn progressed(view: &View, status: &ViTTrainingJobStatus, progress: &ProgressStatus, screen: &mut Screen) {
    let paint = screen.paint;
    let is_running = status.phase == Some(Phase::Running);
    let share = progress.step as f64 / progress.total_steps as f64;
    let cells = paint.width.saturating_sub(LEFT + BESIDE_BAR).clamp(8, BAR);
    let left = progress
        .eta_seconds
        .filter(|seconds| is_running && *seconds > 0)
        .map_or(String::new(), |seconds| {
            format!("  {} left", duration(SignedDuration::from_secs(seconds)))
        });
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
    let stale = is_running
        .then_some(progress.updated_at.as_ref())
        .flatten()
        .map(|time| view.now.duration_since(time.0))
        .filter(|silence| silence.as_secs() > 60);
    if let Some(silence) = stale {
        screen.raw(
            "",
            &paint.warning(format!(
                "rank 0 told this {} ago: it evaluates, saves, or stands still",
                duration(silence)
            )),
        );
    }
    if let Some(loss) = progress.loss {
        screen.raw("loss", &course_of_loss(view, loss, paint));
    }
    let accuracies = [
        (progress.validation_accuracy, "held out"),
        (progress.ema_validation_accuracy, "held out, averaged weights"),
        (progress.train_accuracy, "in training"),
    ];
    let told: Vec<String> = accuracies
        .iter()
        .filter_map(|(share, of)| Some(format!("{:.1}% {of}", (*share)? * 100.0)))
        .collect();
    if !told.is_empty() {
        screen.line("accuracy", &told.join(", "));
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
            "{} of step time waits for synchronisation, of late",
            percent(share)
        );
        let words = if share > HIGH_SYNC_SHARE {
            paint.warning(words)
        } else {
            words
        };
        screen.raw("sync", &words);
    }
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
        .map_or(String::new(), |span| format!(", {}", duration(span)));
    let words = format!(
        "from {} (steps {first_step} to {last_step}{span})",
        significant(first)
    );
    let room = paint.width.saturating_sub(LEFT + now.len() + words.len() + 4);
    let line = sparkline(&losses.values(), room.min(SPARKLINE));
    format!("{now}  {}  {}", paint.accent(line), paint.dim(words))
}

fn steps(view: &View, split: &Split, screen: &mut Screen) {
    let paint = screen.paint;
    let part = |phase: &str, name: &str| format!("{name} {}", percent(split.of(phase)));
    screen.line(
        "step time",
        &format!(
            "{} ms: {}, {}, {}, waits {}, {}",
            significant(split.step_seconds * 1000.0),
            part("data", "data"),
            part("forward", "forward"),
            part("backward", "backward"),
            percent(split.of("sync_exposed") + split.of("sync_straggler")),
            part("optimizer", "optimizer"),
        ),
    );
    let straggler = percent(split.of("sync_straggler"));
    let pods = view.members.yes().map_or(0, |members| {
        members.iter().filter(|member| member.is_ready).count()
    });
    let of = if pods > AGENTS_ASKED {
        format!("{} ranks of {AGENTS_ASKED} of {pods} pods", split.ranks)
    } else {
        counted(split.ranks as i64, "rank")
    };
    let when = if view.is_of_late {
        "of late"
    } else {
        "since the attempt began"
    };
    screen.line(
        "waits",
        &format!(
            "{} for the network, {straggler} for slower ranks ({} more is hidden behind backward)",
            percent(split.of("sync_exposed")),
            percent(split.hidden),
        ),
    );
    screen.raw("", &paint.dim(format!("mean of {of} {when}")));
}

fn failed(view: &View, status: &ViTTrainingJobStatus, failure: &FailureStatus, screen: &mut Screen) {
    let paint = screen.paint;
    let when = failure
        .time
        .as_ref()
        .map_or(String::new(), |time| format!(", {} ago", age(time.0, view.now)));
    let class = if status.phase == Some(Phase::Failed) {
        paint.bad(&failure.class)
    } else {
        paint.warning(&failure.class)
    };
    screen.raw(
        "last failure",
        &format!("{class} in {}{when}", text::failed_where(failure)),
    );
    screen.line("", &failure.message);
}

/// Says what is not shown, and why.
fn missing(view: &View, screen: &mut Screen) {
    let mut told = vec![];
    let paint = screen.paint;
    let mut tell = |what: &str, why: &str| {
        // One refusal is behind all of them, mostly.
        if !told.iter().any(|known| known == why) {
            told.push(why.to_owned());
            let words = wrapped(&format!("{what}: {why}"), paint.width, LEFT);
            screen.raw("not shown", &paint.dim(words));
        }
    };
    if let Found::No(why) = &view.members {
        tell("pods, step times and the course of the loss", why);
    }
    if let Found::No(why) = &view.step_times {
        tell("where step time goes", why);
    }
    if let Found::No(why) = &view.losses {
        tell("the course of the loss", why);
    }
}
