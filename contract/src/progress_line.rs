//! Progress as a readable line on the standard output of rank 0's agent, and its parser.

use crate::progress::Progress;

/// Start of a run's last line.
pub const END: &str = "ended at ";

/// A record as a readable line.
pub fn write(progress: &Progress) -> String {
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
        .validation_mean_average_precision
        .map(|precision| format!("mAP {precision:.4}")));
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

/// A number with four significant digits: 0.6123, 2.302, 87.25, 1523.
pub fn significant(value: f64) -> String {
    let decimals = match value.abs() {
        size if size < 1.0 => 4,
        size if size < 10.0 => 3,
        size if size < 100.0 => 2,
        size if size < 1000.0 => 1,
        _ => 0,
    };
    format!("{value:.decimals$}")
}

/// Optimizer step and mean training loss of a line by [`write()`]; `None` for other lines and
/// before the first loss.
pub fn read_loss(line: &str) -> Option<(u64, f64)> {
    let line = line.strip_prefix(END).unwrap_or(line);
    let mut parts = line.split("  ");
    let (epochs, steps) = parts.next()?.strip_prefix("epoch ")?.split_once(" step ")?;
    let whole = |text: &str| text.parse::<u64>().ok();
    let of = |text: &str| {
        text.split_once('/')
            .map(|(done, total)| (whole(done), whole(total)))
    };
    let (Some(_), Some(_)) = of(epochs)? else {
        return None;
    };
    let (Some(step), Some(_)) = of(steps)? else {
        return None;
    };
    let loss = parts.next()?.strip_prefix("loss ")?.parse().ok()?;
    Some((step, loss))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress() -> Progress {
        Progress {
            epoch: 1,
            total_epochs: 5,
            step: 17,
            total_steps: 50,
            ..Progress::default()
        }
    }

    #[test]
    fn numbers_have_the_digits_that_matter() {
        assert_eq!(
            [0.5, 0.612_34, 2.345_6, 87.254, 523.44, 1235.3, 15_230.0].map(significant),
            ["0.5000", "0.6123", "2.346", "87.25", "523.4", "1235", "15230"]
        );
    }

    #[test]
    fn a_line_holds_what_is_known() {
        let mut progress = Progress {
            total_epochs: 5,
            total_steps: 50,
            ..Progress::default()
        };
        assert_eq!(write(&progress), "epoch 0/5 step 0/50");
        progress.loss = Some(1.25);
        progress.sync_share = Some(0.125);
        progress.validation_accuracy = Some(0.5);
        progress.eta_seconds = Some(7);
        assert_eq!(
            write(&progress),
            "epoch 0/5 step 0/50  loss 1.2500  validation 0.5000  sync 12.5%  7 s left"
        );
    }

    #[test]
    fn what_was_written_reads_back() {
        let mut progress = progress();
        assert_eq!(read_loss(&write(&progress)), None, "no loss yet");
        progress.loss = Some(0.625);
        assert_eq!(read_loss(&write(&progress)), Some((17, 0.625)));
        progress.train_accuracy = Some(0.5);
        progress.images_per_second = Some(1234.5);
        let line = write(&progress);
        assert_eq!(read_loss(&line), Some((17, 0.625)));
        assert_eq!(read_loss(&format!("{END}{line}")), Some((17, 0.625)));
    }

    #[test]
    fn other_lines_are_no_progress() {
        for line in [
            "",
            "2026-01-01T00:00:00Z  INFO starting from the weights of /pretrained/vit.safetensors",
            "epoch 1 of 5",
            "epoch 1/5 step x/50  loss 1.0",
            "epoch 1/5 step 3/50  train 0.5",
            "rank 0 failed (Diverged): loss is NaN",
        ] {
            assert_eq!(read_loss(line), None, "{line}");
        }
    }
}
