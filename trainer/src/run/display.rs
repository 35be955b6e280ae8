//! What a local run shows: a live line on a terminal, plain lines elsewhere, and a summary.

use std::io::IsTerminal as _;
use std::time::Duration;

use contract::{ExitCode, Progress, RunConfig};
use indicatif::{ProgressBar, ProgressStyle};

use super::agents::End;
use crate::agent::output::{describe, write_line};

/// The live display.
#[derive(Debug)]
pub(super) struct Display {
    /// On a terminal.
    bar: Option<ProgressBar>,
    /// The line that was shown last, where there is no terminal.
    last_line: String,
}

impl Display {
    pub(super) fn new(config: &RunConfig) -> Self {
        let ranks = config.world_size();
        write_line(&format!(
            "{}: {} nodes x {} ranks, {} images a step, checkpoints in {}",
            config.job.name,
            config.nodes,
            config.ranks_per_node,
            config.global_batch_size(),
            config.checkpoint.path.display()
        ));
        let bar = std::io::stdout().is_terminal().then(|| {
            let style = ProgressStyle::with_template("[{elapsed_precise}] {bar:30} {percent:>3}%  {msg}")
                .unwrap_or_else(|_| ProgressStyle::default_bar());
            let bar = ProgressBar::new(0).with_style(style);
            bar.set_message(format!("waiting for {ranks} ranks"));
            bar.enable_steady_tick(Duration::from_millis(200));
            bar
        });
        Self {
            bar,
            last_line: String::new(),
        }
    }

    pub(super) fn progress(&mut self, progress: &Progress) {
        let line = describe(progress);
        if let Some(bar) = &self.bar {
            bar.set_length(progress.total_steps);
            bar.set_position(progress.step);
            bar.set_message(line);
        } else if line != self.last_line {
            write_line(&line);
            self.last_line = line;
        }
    }

    pub(super) fn end(self, config: &RunConfig, end: &End, took: Duration) {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
        let seconds = took.as_secs_f64();
        let reached = end
            .progress
            .as_ref()
            .map_or_else(String::new, |progress| format!(" at {}", describe(progress)));
        let name = &config.job.name;
        match (end.code, &end.failure) {
            (ExitCode::Done, _) => write_line(&format!("{name}: done in {seconds:.1} s{reached}")),
            (ExitCode::Stopped, _) => {
                let saved = end
                    .progress
                    .as_ref()
                    .and_then(|progress| progress.last_checkpoint.as_ref());
                let saved = saved.map_or_else(
                    || "nothing was saved yet".to_owned(),
                    |checkpoint| format!("run it again to continue from {}", checkpoint.path),
                );
                write_line(&format!("{name}: stopped after {seconds:.1} s{reached}; {saved}"));
            }
            (code, Some(failure)) => write_line(&format!(
                "{name}: failed after {seconds:.1} s ({}, exit code {}): {}",
                failure.class,
                code.code(),
                failure.message
            )),
            (code, None) => write_line(&format!(
                "{name}: failed after {seconds:.1} s with exit code {}; see the messages above",
                code.code()
            )),
        }
        let log = config.checkpoint.path.join("log.jsonl");
        if log.exists() {
            write_line(&format!("log: {}", log.display()));
        }
    }
}
