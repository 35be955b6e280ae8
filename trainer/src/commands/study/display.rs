//! Output of a study while it measures: a line per run, and on a terminal a live line below them.

use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use contract::{Measurement, Progress};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::output::write_line;

#[derive(Debug)]
pub(super) struct Display {
    /// On a terminal.
    bar: Option<ProgressBar>,
    total: usize,
    done: usize,
    /// Runs that were carried out, and since when.
    trained: u32,
    start: Instant,
}

impl Display {
    pub(super) fn new(heading: &str, total: usize) -> Self {
        write_line(heading);
        let bar = std::io::stdout().is_terminal().then(|| {
            let style = ProgressStyle::with_template("{spinner} {wide_msg}")
                .unwrap_or_else(|_| ProgressStyle::default_spinner());
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stdout()).with_style(style);
            bar.enable_steady_tick(Duration::from_millis(200));
            bar
        });
        Self {
            bar,
            total,
            done: 0,
            trained: 0,
            start: Instant::now(),
        }
    }

    /// Shows a run that was trained earlier.
    pub(super) fn kept(&mut self, label: &str, repetition: u32, result: &Result<Measurement, String>) {
        self.line(
            label,
            repetition,
            &format!("{}, from an earlier run", words(result)),
        );
    }

    /// Shows the progress of a run.
    pub(super) fn progress(&self, label: &str, progress: &Progress) {
        if let Some(bar) = &self.bar {
            bar.set_message(format!("{label} {} %{}", progress.percent(), self.remaining()));
        }
    }

    /// Shows a run that has ended.
    pub(super) fn measured(&mut self, label: &str, repetition: u32, result: &Result<Measurement, String>) {
        self.trained += 1;
        self.line(label, repetition, &words(result));
    }

    /// Shows a failed run that is retried.
    pub(super) fn again(&self, label: &str, repetition: u32, message: &str) {
        self.write(&format!(
            "{label} #{}: failed, retrying: {message}",
            repetition + 1
        ));
    }

    pub(super) fn end(self) {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
    }

    fn line(&mut self, label: &str, repetition: u32, text: &str) {
        self.done += 1;
        let line = format!(
            "[{}/{}] {label} #{}: {text}{}",
            self.done,
            self.total,
            repetition + 1,
            self.remaining()
        );
        self.write(&line);
    }

    fn write(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| write_line(line)),
            None => write_line(line),
        }
    }

    /// The remaining time, from the mean of the runs so far.
    fn remaining(&self) -> String {
        let rest = self.total - self.done;
        if self.trained == 0 || rest == 0 {
            return String::new();
        }
        let seconds = self.start.elapsed().as_secs_f64() / f64::from(self.trained) * rest as f64;
        match (seconds / 60.0).ceil() as u64 {
            0 | 1 => ", less than a minute left".into(),
            minutes => format!(", about {minutes} minutes left"),
        }
    }
}

fn words(result: &Result<Measurement, String>) -> String {
    let measured = match result {
        Ok(measured) => measured,
        Err(message) => return format!("failed: {message}"),
    };
    let rate = format!("{:.0} images/s", measured.images_per_second);
    // Other trainers may not report what they wait for.
    if !measured.phases_cover_step() {
        return rate;
    }
    let waiting = measured.phases.waiting() / measured.step_seconds;
    format!("{rate}, {:.1} % of a step waiting", waiting * 100.0)
}
