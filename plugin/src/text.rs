//! Words, numbers, bars and tables for a terminal.

use console::{Alignment, pad_str};
use crds::status::FailureStatus;
pub(crate) use crds::words::counted;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// Spaces between columns of a table, as in kubectl.
const GAP: usize = 3;

/// Age in kubectl's format: at most two units, fewer for longer ages.
pub(crate) fn age(since: Timestamp, now: Timestamp) -> String {
    duration(now.duration_since(since))
}

/// Age after a comma; empty if the time is unknown.
pub(crate) fn ago(time: Option<&Time>, now: Timestamp) -> String {
    time.map(|time| format!(", {} ago", age(time.0, now)))
        .unwrap_or_default()
}

/// A time span in at most two units.
pub(crate) fn duration(span: SignedDuration) -> String {
    let seconds = span.as_secs().max(0);
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    let two = |large: i64, unit: &str, small: i64, small_unit: &str| match small {
        0 => format!("{large}{unit}"),
        _ => format!("{large}{unit}{small}{small_unit}"),
    };
    match () {
        () if seconds < 120 => format!("{seconds}s"),
        () if minutes < 10 => two(minutes, "m", seconds % 60, "s"),
        () if hours < 3 => format!("{minutes}m"),
        () if hours < 8 => two(hours, "h", minutes % 60, "m"),
        () if days < 2 => format!("{hours}h"),
        () if days < 8 => two(days, "d", hours % 24, "h"),
        () => format!("{days}d"),
    }
}

/// The age of rank 0's last report, and what may be its cause.
pub(crate) fn last_report(age: SignedDuration) -> String {
    let age = duration(age);
    format!("last report of rank 0 was {age} ago: it evaluates, saves or is stuck, or no operator runs")
}

/// A share from 0 to 1 in percent, with a decimal if it is small.
pub(crate) fn percent(share: f64) -> String {
    let percent = share * 100.0;
    let decimals = usize::from(percent < 9.95);
    format!("{percent:.decimals$}%")
}

/// Attempt, rank, node and exit code of a failure, if known.
pub(crate) fn failed_where(failure: &FailureStatus) -> String {
    let mut words = format!("attempt {}", failure.attempt);
    if let Some(rank) = failure.rank {
        words += &format!(", rank {rank}");
    }
    if let Some(node) = &failure.node {
        words += &format!(" on {node}");
    }
    if let Some(code) = failure.exit_code {
        words += &format!(" (exit code {code})");
    }
    words
}

/// The ranks of a pod: `rank 3`, `ranks 0-7`.
pub(crate) fn ranks(node_rank: i32, ranks_per_node: i32) -> String {
    let first = node_rank * ranks_per_node;
    match ranks_per_node {
        ..=1 => format!("rank {node_rank}"),
        _ => format!("ranks {first}-{}", first + ranks_per_node - 1),
    }
}

/// Memory in MiB, as GiB from 1024 MiB on.
pub(crate) fn mebibytes(mebibytes: i64) -> String {
    if mebibytes >= 1024 {
        format!("{:.0} GiB", mebibytes as f64 / 1024.0)
    } else {
        format!("{mebibytes} MiB")
    }
}

/// Text, or a dash in its place.
pub(crate) fn or_dash(text: Option<String>) -> String {
    text.unwrap_or_else(|| "-".into())
}

/// A bar of `cells` characters, filled to a share from 0 to 1.
pub(crate) fn bar(share: f64, cells: usize) -> String {
    let filled = (share.clamp(0.0, 1.0) * cells as f64).floor() as usize;
    format!("{}{}", "█".repeat(filled), "░".repeat(cells - filled))
}

/// Values as characters of different height, at most `cells`; with more values, each is the mean of several.
pub(crate) fn sparkline(values: &[f64], cells: usize) -> String {
    const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let cells = cells.min(values.len());
    let means: Vec<f64> = (0..cells)
        .map(|cell| {
            let part = &values[cell * values.len() / cells..(cell + 1) * values.len() / cells];
            part.iter().sum::<f64>() / part.len() as f64
        })
        .collect();
    let least = means.iter().copied().fold(f64::INFINITY, f64::min);
    let range = means.iter().copied().fold(f64::NEG_INFINITY, f64::max) - least;
    means
        .iter()
        .map(|mean| {
            let height = if range > 0.0 { (mean - least) / range } else { 0.0 };
            LEVELS[((height * 8.0) as usize).min(7)]
        })
        .collect()
}

/// Text wrapped at `width` columns; all lines but the first are indented by `indent` spaces.
pub(crate) fn wrapped(text: &str, width: usize, indent: usize) -> String {
    let spaces = " ".repeat(indent);
    let options = textwrap::Options::new(width.max(indent + 20))
        .initial_indent(&spaces)
        .subsequent_indent(&spaces)
        .break_words(false);
    let lines = textwrap::fill(text, options);
    // The caller has written the first line's indentation.
    lines.strip_prefix(&spaces).unwrap_or(&lines).to_owned()
}

/// Rows under a header, in columns as in kubectl. Cells may be colored.
pub(crate) fn table<S: AsRef<str>>(header: &[&str], rows: &[Vec<S>]) -> String {
    let mut widths: Vec<usize> = header.iter().map(|title| title.len()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(console::measure_text_width(cell.as_ref()));
        }
    }
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let cells = cells.zip(&widths);
        let cells = cells.map(|(cell, width)| pad_str(cell, width + GAP, Alignment::Left, None).into_owned());
        format!("{}\n", cells.collect::<String>().trim_end())
    };
    let rows = rows.iter().map(|row| line(&mut row.iter().map(AsRef::as_ref)));
    line(&mut header.iter().copied()) + &rows.collect::<String>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_read_like_kubectls() {
        let ages = |seconds| duration(SignedDuration::from_secs(seconds));
        assert_eq!(
            [
                0, 119, 120, 150, 700, 10_799, 10_800, 12_000, 100_000, 200_000, 700_000, -5
            ]
            .map(ages),
            [
                "0s", "119s", "2m", "2m30s", "11m", "179m", "3h", "3h20m", "27h", "2d7h", "8d", "0s"
            ]
        );
    }

    #[test]
    fn numbers_have_the_digits_that_matter() {
        assert_eq!([0.0042, 0.176, 1.0].map(percent), ["0.4%", "18%", "100%"]);
        assert_eq!([141_557, 512].map(mebibytes), ["138 GiB", "512 MiB"]);
    }

    #[test]
    fn a_bar_is_full_only_at_the_end() {
        assert_eq!(bar(0.999, 4), "███░");
        assert_eq!(bar(1.0, 4), "████");
        assert_eq!(bar(7.0, 2), "██");
    }

    #[test]
    fn a_sparkline_goes_from_the_highest_to_the_lowest_value() {
        assert_eq!(sparkline(&[3.0, 2.0, 1.0], 10), "█▅▁");
        assert_eq!(sparkline(&[1.0, 1.0], 10), "▁▁");
        assert_eq!(sparkline(&[], 10), "");
        let falling: Vec<f64> = (0..1000).map(|step| 1000.0 - f64::from(step)).collect();
        assert_eq!(sparkline(&falling, 8), "█▇▆▅▄▃▂▁");
    }

    #[test]
    fn lines_are_wrapped_below_where_they_begin() {
        assert_eq!(
            wrapped("one two three four five six seven", 24, 4),
            "one two three four\n    five six seven"
        );
    }

    #[test]
    fn a_table_is_aligned_whatever_the_colours() {
        let red = console::style("Failed").red().force_styling(true).to_string();
        let text = table(
            &["A", "B"],
            &[vec![red, "1".to_owned()], vec!["x".to_owned(), "22".to_owned()]],
        );
        assert_eq!(
            console::strip_ansi_codes(&text),
            "A        B\nFailed   1\nx        22\n"
        );
    }
}
