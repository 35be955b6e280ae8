//! Time spans on the command line.

use std::time::Duration;

use jiff::SignedDuration;

/// A span such as `90`, `90s`, `5m` or `1h30m`; a plain number is in seconds.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let span = match text.parse() {
        Ok(seconds) => Some(SignedDuration::from_secs(seconds)),
        Err(_) => text.parse().ok(),
    };
    span.and_then(|span| Duration::try_from(span).ok())
        .ok_or_else(|| "must be a duration such as 90, 90s, 5m or 1h30m".into())
}

/// The seconds of a span, rounded up. The API server accepts no fractions and no 0.
pub(crate) fn whole_seconds(span: Duration) -> i64 {
    let seconds = span.as_secs() + u64::from(span.subsec_nanos() > 0);
    i64::try_from(seconds).unwrap_or(i64::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_written_as_for_kubectl_or_as_seconds() {
        for (text, seconds) in [
            ("90", 90),
            ("0", 0),
            ("90s", 90),
            ("5m", 300),
            ("1h30m", 5400),
            ("1.5h", 5400),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        assert_eq!(parse("500ms"), Ok(Duration::from_millis(500)));
        for text in ["", "-5", "-5m", "5 apples", "m", "1h30"] {
            parse(text).expect_err(text);
        }
    }

    #[test]
    fn the_api_server_gets_whole_seconds() {
        let seconds = [0, 1, 1000, 1001].map(|millis| whole_seconds(Duration::from_millis(millis)));
        assert_eq!(seconds, [1, 1, 1, 2]);
    }
}
