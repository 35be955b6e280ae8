//! Progress, if standard error is a terminal.

use std::io::IsTerminal as _;
use std::time::Instant;

use contract::progress_line::significant;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::commands::run::line::clock;

/// A line that is cleared at the end; none without a terminal.
#[derive(Debug)]
pub(super) struct Display {
    bar: Option<ProgressBar>,
    start: Instant,
}

impl Display {
    pub(super) fn new(images: u64) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template("[{bar:28}] {percent:>3}%  {pos}/{len} images  {msg}")
                .unwrap_or_else(|_| ProgressStyle::default_bar());
            ProgressBar::with_draw_target(Some(images), ProgressDrawTarget::stderr())
                .with_style(style.progress_chars("##."))
        });
        Self {
            bar,
            start: Instant::now(),
        }
    }

    pub(super) fn at(&self, images: u64) {
        let Some(bar) = &self.bar else { return };
        let rate = images as f64 / self.start.elapsed().as_secs_f64().max(1e-9);
        let left = bar.length().unwrap_or(0).saturating_sub(images) as f64 / rate;
        bar.set_message(format!(
            "{} img/s  ETA {}",
            significant(rate),
            clock(left.ceil() as u64)
        ));
        bar.set_position(images);
    }

    pub(super) fn end(self) {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
    }
}
