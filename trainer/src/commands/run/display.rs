//! Output of a local run: a live line on a terminal, plain lines elsewhere, and a summary.

use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use contract::{ExitCode, Progress, RunConfig, progress_line};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::line::live_line;
use crate::launch::End;
use crate::metrics::LOG_NAME;
use crate::output::{Pace, write_line};

/// Columns of the spinner before the live line.
const SPINNER: usize = 2;

#[derive(Debug)]
pub(super) struct Display {
    /// On a terminal.
    bar: Option<ProgressBar>,
    pace: Pace,
}

impl Display {
    pub(super) fn new(config: &RunConfig) -> Self {
        let ranks = config.world_size();
        write_line(&format!(
            "{}: {}, {}, {} images a step, checkpoints in {}",
            config.job.name,
            counted(config.nodes, "node"),
            counted(ranks, "rank"),
            config.global_batch_size(),
            config.checkpoint.path.display()
        ));
        let bar = std::io::stdout().is_terminal().then(|| {
            let style = ProgressStyle::with_template("{spinner} {msg}")
                .unwrap_or_else(|_| ProgressStyle::default_spinner());
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stdout()).with_style(style);
            bar.set_message(format!("waiting for {}", counted(ranks, "rank")));
            bar.enable_steady_tick(Duration::from_millis(200));
            bar
        });
        Self {
            bar,
            pace: Pace::default(),
        }
    }

    /// Whether there is a live line, which other output must not break.
    pub(super) fn is_live(&self) -> bool {
        self.bar.is_some()
    }

    pub(super) fn progress(&mut self, progress: &Progress) {
        if let Some(bar) = &self.bar {
            let columns = usize::from(console::Term::stdout().size().1);
            // The last column stays free: some terminals wrap as soon as it is written.
            bar.set_message(live_line(progress, columns.saturating_sub(SPINNER + 1)));
        } else if self.pace.is_due(progress, Instant::now()) {
            write_line(&progress_line::write(progress));
        }
    }

    /// Shows a line of an agent or a rank above the live line.
    pub(super) fn said(&self, line: &str) {
        let write = || {
            // A closed standard error does not stop training.
            let _ = writeln!(std::io::stderr(), "{line}");
        };
        match &self.bar {
            Some(bar) => bar.suspend(write),
            None => write(),
        }
    }

    pub(super) fn end(self, config: &RunConfig, end: &End, took: Duration) {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
        for line in summary(config, end, took) {
            write_line(&line);
        }
    }
}

/// The last lines: the outcome and the results.
fn summary(config: &RunConfig, end: &End, took: Duration) -> Vec<String> {
    let name = &config.job.name;
    let seconds = took.as_secs_f64();
    let checkpoint = end
        .progress
        .as_ref()
        .and_then(|progress| progress.last_checkpoint.as_ref());
    let mut lines = vec![match (end.code, &end.failure) {
        (ExitCode::Done, _) => format!("{name}: done in {seconds:.1} s"),
        (ExitCode::Stopped, _) => {
            let saved = checkpoint.map_or_else(
                || "nothing was saved yet".to_owned(),
                |checkpoint| format!("run it again to continue from {}", checkpoint.path),
            );
            format!("{name}: stopped after {seconds:.1} s; {saved}")
        }
        (code, Some(failure)) => format!(
            "{name}: failed after {seconds:.1} s ({}, exit code {}): {}",
            failure.class,
            code.code(),
            failure.message
        ),
        (code, None) => format!(
            "{name}: failed after {seconds:.1} s with exit code {}; see the messages above",
            code.code()
        ),
    }];
    let mut add = |what: &str, text: String| lines.push(format!("  {what:<11}{text}"));
    if let Some(progress) = &end.progress {
        let loss = progress
            .loss
            .map_or_else(String::new, |loss| format!(", loss {loss:.4}"));
        let accuracy = progress
            .train_accuracy
            .map_or_else(String::new, |accuracy| format!(", accuracy {accuracy:.4}"));
        add(
            "trained",
            format!(
                "{} of {} epochs, {} of {} steps{loss}{accuracy}",
                progress.epoch, progress.total_epochs, progress.step, progress.total_steps
            ),
        );
        if let Some(accuracy) = progress.validation_accuracy {
            let precision = progress
                .validation_mean_average_precision
                .map_or_else(String::new, |precision| format!(", mAP {precision:.4}"));
            add("held out", format!("accuracy {accuracy:.4}{precision}"));
        }
        if let (Some(rate), Some(share)) = (progress.images_per_second, progress.sync_share) {
            add(
                "speed",
                format!(
                    "{rate:.0} images/s, {:.1} % of step time waiting for other ranks",
                    share * 100.0
                ),
            );
        }
    }
    if let Some(checkpoint) = checkpoint {
        add("checkpoint", checkpoint.path.clone());
    }
    let log = config.checkpoint.path.join(LOG_NAME);
    if log.exists() {
        add("log", log.display().to_string());
    }
    lines
}

fn counted(count: u32, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}
