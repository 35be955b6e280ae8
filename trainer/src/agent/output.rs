//! Progress on the agent's standard output.

use std::io::Write as _;

use contract::Progress;

/// How progress is written.
#[derive(Clone, Copy, Debug, Eq, PartialEq, clap::ValueEnum)]
pub(crate) enum Output {
    /// A line to read.
    Text,
    /// The record as a line of JSON.
    Json,
}

impl Output {
    /// Writes a record; as text only where it reads differently from the `previous` one.
    pub(super) fn progress(self, previous: Option<&Progress>, progress: &Progress) {
        let line = match self {
            Self::Text => {
                let line = describe(progress);
                if previous.map(describe).as_ref() == Some(&line) {
                    return;
                }
                line
            }
            Self::Json => serde_json::to_string(progress).unwrap_or_default(),
        };
        write_line(&line);
    }

    /// Says how far it came, at the end.
    pub(super) fn end(self, progress: Option<&Progress>) {
        if let (Self::Text, Some(progress)) = (self, progress) {
            write_line(&format!("ended at {}", describe(progress)));
        }
    }
}

/// Writes a line to standard output. One that is closed is no reason to stop training.
pub(crate) fn write_line(line: &str) {
    let mut stdout = std::io::stdout().lock();
    let _ = writeln!(stdout, "{line}").and_then(|()| stdout.flush());
}

/// A record as a line to read.
pub(crate) fn describe(progress: &Progress) -> String {
    let mut line = format!(
        "epoch {}/{} step {}/{}",
        progress.epoch, progress.total_epochs, progress.step, progress.total_steps
    );
    let mut add = |text: Option<String>| {
        if let Some(text) = text {
            line.push_str("  ");
            line.push_str(&text);
        }
    };
    add(progress.loss.map(|loss| format!("loss {loss:.4}")));
    add(progress
        .train_accuracy
        .map(|accuracy| format!("train {accuracy:.4}")));
    add(progress
        .validation_accuracy
        .map(|accuracy| format!("validation {accuracy:.4}")));
    add(progress
        .images_per_second
        .map(|rate| format!("{rate:.0} images/s")));
    add(progress
        .sync_share
        .map(|share| format!("sync {:.1}%", share * 100.0)));
    add(progress
        .eta_seconds
        .filter(|seconds| *seconds > 0)
        .map(|seconds| format!("{seconds} s left")));
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_holds_what_is_known() {
        let mut progress = Progress {
            total_epochs: 5,
            total_steps: 50,
            ..Progress::default()
        };
        assert_eq!(describe(&progress), "epoch 0/5 step 0/50");
        progress.loss = Some(1.25);
        progress.sync_share = Some(0.125);
        progress.validation_accuracy = Some(0.5);
        progress.eta_seconds = Some(7);
        assert_eq!(
            describe(&progress),
            "epoch 0/5 step 0/50  loss 1.2500  validation 0.5000  sync 12.5%  7 s left"
        );
    }
}
