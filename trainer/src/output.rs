//! Standard output: lines, and progress at a readable rate.

use std::io::Write as _;
use std::time::{Duration, Instant};

use contract::{Progress, progress_line};

/// Minimum time between two lines of text.
const INTERVAL: Duration = Duration::from_secs(5);

/// How progress is written.
#[derive(Clone, Copy, Debug, Eq, PartialEq, clap::ValueEnum)]
pub(crate) enum Output {
    /// Lines of text
    Text,
    /// One JSON record a line
    Json,
}

impl Output {
    /// Writes a record; as text only if one is due.
    pub(crate) fn progress(self, pace: &mut Pace, progress: &Progress) {
        match self {
            Self::Text if pace.is_due(progress, Instant::now()) => {
                write_line(&progress_line::write(progress));
            }
            Self::Text => {}
            Self::Json => write_line(&serde_json::to_string(progress).unwrap_or_default()),
        }
    }

    /// Writes the final progress.
    pub(crate) fn end(self, progress: Option<&Progress>) {
        if let (Self::Text, Some(progress)) = (self, progress) {
            write_line(&format!(
                "{}{}",
                progress_line::END,
                progress_line::write(progress)
            ));
        }
    }
}

/// Picks the records to show as lines: the first ones, the last one, and one every few seconds
/// between them.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    last: Option<(Instant, Progress)>,
}

impl Pace {
    /// Whether to show a record at `now`.
    pub(crate) fn is_due(&mut self, progress: &Progress, now: Instant) -> bool {
        let due = self.last.as_ref().is_none_or(|(shown, last)| {
            let first_loss = last.loss.is_none() && progress.loss.is_some();
            // The last step is reported twice: when it is done, and again with the accuracy.
            let over = progress.step == progress.total_steps;
            (first_loss || over || now.duration_since(*shown) >= INTERVAL)
                && progress_line::write(last) != progress_line::write(progress)
        });
        if due {
            self.last = Some((now, progress.clone()));
        }
        due
    }
}

/// Writes a line to standard output. A closed one does not stop training.
pub(crate) fn write_line(line: &str) {
    let mut stdout = std::io::stdout().lock();
    let _ = writeln!(stdout, "{line}").and_then(|()| stdout.flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_at_the_start_at_the_end_and_every_few_seconds() {
        let mut pace = Pace::default();
        let start = Instant::now();
        let mut due = |step, loss, seconds| {
            let progress = Progress {
                step,
                total_steps: 9,
                loss,
                ..Progress::default()
            };
            pace.is_due(&progress, start + Duration::from_secs(seconds))
        };
        assert!(due(0, None, 0), "the first record");
        assert!(due(1, Some(2.0), 1), "the first loss");
        assert!(!due(2, Some(1.9), 2), "too soon");
        assert!(due(3, Some(1.8), 6), "after the interval");
        assert!(!due(3, Some(1.8), 60), "nothing new");
        assert!(due(9, Some(1.0), 61), "the last step");
        assert!(!due(9, Some(1.0), 62), "nothing new");
    }
}
