//! The lines of a log: prefixes, times, and resumption after an interrupted request.

use std::collections::HashMap;

use jiff::{Timestamp, Unit};

/// Turns bytes from the API server into lines for standard output.
#[derive(Debug)]
pub(super) struct Lines {
    /// Begins every line.
    prefix: String,
    /// Whether each line starts with its time, so that another request can continue, and whether to show it.
    has_times: bool,
    shows_times: bool,
    position: Position,
    /// The start of a line still incomplete, and that of the previous request.
    pending: Vec<u8>,
    interrupted: Vec<u8>,
}

impl Lines {
    /// Lines that are shown as they are received.
    pub(super) fn plain(prefix: &str) -> Self {
        Self {
            prefix: prefix.into(),
            has_times: false,
            shows_times: true,
            position: Position::default(),
            pending: vec![],
            interrupted: vec![],
        }
    }

    /// Lines that begin with their times, of a log that may need several requests.
    pub(super) fn followed(prefix: &str, shows_times: bool) -> Self {
        Self {
            has_times: true,
            shows_times,
            ..Self::plain(prefix)
        }
    }

    /// Prepares for the next request, which repeats an incomplete line.
    pub(super) fn next_request(&mut self) {
        self.interrupted = std::mem::take(&mut self.pending);
        self.position.next_request();
    }

    /// The time from which the next request must send lines; `None` if none has been shown.
    pub(super) fn since(&self) -> Option<Timestamp> {
        self.position.second
    }

    /// The complete lines among the bytes so far.
    pub(super) fn take(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.interrupted.clear();
        self.pending.extend_from_slice(bytes);
        let Some(end) = self.pending.iter().rposition(|byte| *byte == b'\n') else {
            return vec![];
        };
        let rest = self.pending.split_off(end + 1);
        let complete = std::mem::replace(&mut self.pending, rest);
        let mut shown = Vec::with_capacity(complete.len());
        for line in complete.split_inclusive(|byte| *byte == b'\n') {
            self.show(line, &mut shown);
        }
        shown
    }

    /// The last line of a log without a final line break.
    pub(super) fn rest(&mut self) -> Vec<u8> {
        let mut line = std::mem::take(&mut self.pending);
        if line.is_empty() {
            // The last request sent nothing, not even this line again.
            line = std::mem::take(&mut self.interrupted);
        }
        let mut shown = vec![];
        if !line.is_empty() {
            self.show(&line, &mut shown);
        }
        if !shown.is_empty() && !self.prefix.is_empty() {
            // Another log's line may follow.
            shown.push(b'\n');
        }
        shown
    }

    fn show(&mut self, line: &[u8], shown: &mut Vec<u8>) {
        let mut words = line;
        if self.has_times {
            match timed(line) {
                Some((time, _)) if !self.position.is_new(time, line) => return,
                Some((_, rest)) if !self.shows_times => words = rest,
                // The kubelet's remarks have no time; the first request has shown the relevant ones.
                None if self.position.is_continued => return,
                Some(_) | None => {}
            }
        }
        shown.extend_from_slice(self.prefix.as_bytes());
        shown.extend_from_slice(words);
    }
}

/// A line's time, and the rest.
fn timed(line: &[u8]) -> Option<(Timestamp, &[u8])> {
    let space = line.iter().position(|byte| *byte == b' ')?;
    let time = std::str::from_utf8(&line[..space]).ok()?.parse().ok()?;
    Some((time, &line[space + 1..]))
}

/// How much of a log was shown. Requests start at whole seconds, and several lines may have the same time, so the lines
/// of the last second are counted.
#[derive(Debug, Default)]
struct Position {
    /// The time of the first line shown. Earlier lines were not requested.
    first: Option<Timestamp>,
    /// The whole second of the last line shown, and the lines since then.
    second: Option<Timestamp>,
    shown: HashMap<Vec<u8>, usize>,
    /// Lines that the current request has yet to repeat.
    repeated: HashMap<Vec<u8>, usize>,
    /// Whether the current request is not the first one.
    is_continued: bool,
}

impl Position {
    fn next_request(&mut self) {
        self.repeated = self.shown.clone();
        self.is_continued = true;
    }

    /// Whether the line is new; marks it as shown.
    fn is_new(&mut self, time: Timestamp, line: &[u8]) -> bool {
        let first = *self.first.get_or_insert(time);
        if self.is_continued && time < first {
            return false;
        }
        if let Some(count) = self.repeated.get_mut(line).filter(|count| **count > 0) {
            *count -= 1;
            return false;
        }
        let second = whole_second(time);
        if self.second.is_none_or(|last| last < second) {
            self.second = Some(second);
            self.shown.clear();
            self.repeated.clear();
        }
        if self.second == Some(second) {
            *self.shown.entry(line.to_vec()).or_default() += 1;
        }
        true
    }
}

/// The time rounded down: the API's times have no fractions, and rounding up would lose lines.
fn whole_second(time: Timestamp) -> Timestamp {
    let floor = jiff::TimestampRound::new()
        .smallest(Unit::Second)
        .mode(jiff::RoundMode::Floor);
    time.round(floor).unwrap_or(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(bytes: Vec<u8>) -> String {
        String::from_utf8(bytes).expect("UTF-8")
    }

    #[test]
    fn lines_are_complete_and_prefixed() {
        let mut lines = Lines::plain("[rank 1] ");
        assert_eq!(text(lines.take(b"one\ntwo\nth")), "[rank 1] one\n[rank 1] two\n");
        assert_eq!(text(lines.take(b"r")), "");
        assert_eq!(text(lines.take(b"ee\n\nlast")), "[rank 1] three\n[rank 1] \n");
        assert_eq!(text(lines.rest()), "[rank 1] last\n");
        assert_eq!(text(lines.rest()), "");
    }

    #[test]
    fn times_are_shown_on_request_only() {
        let line = b"2026-01-01T00:00:00.123456789Z a line\n";
        assert_eq!(text(Lines::followed("", false).take(line)), "a line\n");
        assert_eq!(Lines::followed("", true).take(line), line);
        assert_eq!(Lines::followed("", false).take(b"no time\n"), b"no time\n");
        assert_eq!(
            Lines::followed("", false).take(b"\xff\xfe bytes\n"),
            b"\xff\xfe bytes\n"
        );
    }

    /// The lines shown for a log whose first request is interrupted after `cut` bytes.
    fn continued(log: &str, cut: usize, since: &str, tail: usize) -> String {
        let mut lines = Lines::followed("", false);
        let begin = log.lines().take(tail).map(|line| line.len() + 1).sum();
        let mut shown = lines.take(&log.as_bytes()[begin..cut]);
        let asked = lines.since().map(|time| time.to_string());
        assert_eq!(asked.as_deref(), Some(since));
        lines.next_request();
        let again = log.lines().filter(|line| *line >= since.trim_end_matches('Z'));
        for line in again {
            shown.extend(lines.take(format!("{line}\n").as_bytes()));
        }
        text(shown)
    }

    const LOG: &str = "\
        2026-01-01T00:00:00.9Z a\n\
        2026-01-01T00:00:01.2Z b\n\
        2026-01-01T00:00:01.7Z c\n\
        2026-01-01T00:00:01.7Z c\n\
        2026-01-01T00:00:01.7Z d\n\
        2026-01-01T00:00:02.1Z e\n";

    #[test]
    fn no_line_of_a_second_is_lost_or_repeated() {
        // After each line, and in the middle of each.
        for cut in 26..LOG.len() {
            let second = if cut < 50 {
                "2026-01-01T00:00:00Z"
            } else {
                "2026-01-01T00:00:01Z"
            };
            if cut == LOG.len() - 1 {
                continue;
            }
            assert_eq!(continued(LOG, cut, second, 0), "a\nb\nc\nc\nd\ne\n", "{cut}");
        }
    }

    #[test]
    fn lines_before_the_tail_stay_hidden() {
        // The second request also gets b, which is of the same second as c.
        assert_eq!(continued(LOG, 80, "2026-01-01T00:00:01Z", 2), "c\nc\nd\ne\n");
    }

    #[test]
    fn a_log_may_be_interrupted_again_within_a_second() {
        let mut lines = Lines::followed("", false);
        let mut shown = lines.take(&LOG.as_bytes()[..75]);
        for end in [100, 125, LOG.len()] {
            lines.next_request();
            shown.extend(lines.take(&LOG.as_bytes()[25..end]));
        }
        assert_eq!(text(shown), "a\nb\nc\nc\nd\ne\n");
    }

    #[test]
    fn a_last_line_without_a_line_break_survives_its_pod() {
        let mut lines = Lines::followed("", false);
        assert_eq!(text(lines.take(b"2026-01-01T00:00:00Z the end")), "");
        lines.next_request();
        assert_eq!(text(lines.rest()), "the end");
    }

    #[test]
    fn remarks_of_the_kubelet_are_not_repeated() {
        let mut lines = Lines::followed("", false);
        let remark = b"unable to retrieve container logs for containerd://1\n";
        assert!(!lines.take(remark).is_empty());
        lines.next_request();
        assert_eq!(text(lines.take(remark)), "");
    }
}
