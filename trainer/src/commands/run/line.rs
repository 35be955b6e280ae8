//! The live line of a run, as long as the terminal is wide.

use contract::Progress;
use contract::progress_line::significant;

/// Minimum length of a useful bar.
const LEAST_BAR: usize = 8;
/// Maximum length of the bar.
const MOST_BAR: usize = 30;
const GAP: &str = "  ";

/// The line for a terminal of `width` columns. A narrow one omits parts, the least important first.
pub(super) fn live_line(progress: &Progress, width: usize) -> String {
    // In display order, each with its place in the order of omission.
    let parts = [
        (None, Some(format!("{:>3}%", progress.percent()))),
        (
            Some(4),
            Some(format!("epoch {}/{}", progress.epoch, progress.total_epochs)),
        ),
        (
            Some(2),
            Some(format!("step {}/{}", progress.step, progress.total_steps)),
        ),
        (
            None,
            progress.loss.map(|loss| format!("loss {}", significant(loss))),
        ),
        (
            Some(1),
            progress
                .validation_accuracy
                .map(|accuracy| format!("val {:.1}%", accuracy * 100.0)),
        ),
        (
            Some(5),
            progress
                .images_per_second
                .map(|rate| format!("{} img/s", significant(rate))),
        ),
        (
            Some(3),
            progress
                .sync_share
                .map(|share| format!("sync {:.0}%", share * 100.0)),
        ),
        (
            None,
            progress
                .eta_seconds
                .map(|seconds| format!("ETA {}", clock(seconds))),
        ),
    ];
    let join = |dropped: u32| {
        let kept = parts
            .iter()
            .filter(|(place, _)| place.is_none_or(|place| place > dropped));
        kept.filter_map(|(_, text)| text.as_deref())
            .collect::<Vec<_>>()
            .join(GAP)
    };
    let text = (0..=5)
        .map(join)
        .find(|text| text.len() <= width)
        .unwrap_or_else(|| join(5));
    let room = width.saturating_sub(text.len() + GAP.len());
    if room < LEAST_BAR {
        return text;
    }
    let cells = room.min(MOST_BAR) - 2;
    let filled = cells * usize::from(progress.percent()) / 100;
    format!(
        "[{}{}]{GAP}{text}",
        "#".repeat(filled),
        ".".repeat(cells - filled)
    )
}

/// Minutes and seconds, with hours and days if there are any.
pub(in crate::commands) fn clock(seconds: u64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);
    match () {
        () if days > 0 => format!("{days}d{:02}h", hours % 24),
        () if hours > 0 => format!("{hours}:{:02}:{:02}", minutes % 60, seconds % 60),
        () => format!("{minutes}:{:02}", seconds % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress() -> Progress {
        Progress {
            epoch: 12,
            total_epochs: 40,
            step: 540,
            total_steps: 1800,
            loss: Some(0.612_345),
            validation_accuracy: Some(0.952_1),
            images_per_second: Some(1523.4),
            sync_share: Some(0.184),
            eta_seconds: Some(42),
            ..Progress::default()
        }
    }

    #[test]
    fn every_part_that_a_run_is_watched_by_fits_eighty_columns() {
        assert_eq!(
            live_line(&progress(), 80),
            " 30%  epoch 12/40  step 540/1800  loss 0.6123  1523 img/s  sync 18%  ETA 0:42"
        );
    }

    #[test]
    fn a_wide_terminal_gets_a_bar_and_a_narrow_one_the_most_telling_parts() {
        let wide = live_line(&progress(), 120);
        let (bar, text) = wide.split_once("]  ").expect("a bar");
        assert!(bar.starts_with("[####") && bar.ends_with('.'), "{wide}");
        assert_eq!(
            text,
            " 30%  epoch 12/40  step 540/1800  loss 0.6123  val 95.2%  1523 img/s  sync 18%  ETA 0:42"
        );
        assert_eq!(
            live_line(&progress(), 40),
            " 30%  loss 0.6123  1523 img/s  ETA 0:42"
        );
        assert_eq!(live_line(&progress(), 10), " 30%  loss 0.6123  ETA 0:42");
    }

    #[test]
    fn no_width_is_overrun_whatever_the_numbers() {
        let long = Progress {
            epoch: 99_999,
            total_epochs: 100_000,
            step: 123_456_789,
            total_steps: 1_000_000_000,
            eta_seconds: Some(86_400 * 12),
            ..progress()
        };
        for width in 40..200 {
            for progress in [&long, &progress()] {
                let line = live_line(progress, width);
                assert!(line.len() <= width, "{width}: {line}");
            }
        }
        for width in [80, 100, 120] {
            assert!(live_line(&long, width).contains("img/s"));
        }
    }

    #[test]
    fn times_are_as_long_as_they_need_to_be() {
        assert_eq!(
            [clock(7), clock(95), clock(3725), clock(86_400 + 7200)],
            ["0:07", "1:35", "1:02:05", "1d02h"]
        );
    }
}
