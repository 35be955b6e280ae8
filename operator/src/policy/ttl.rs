//! When a finished job is deleted.

use jiff::{SignedDuration, Timestamp};

/// How long a finished job is still kept; `None` is forever, zero means to delete it now.
pub(crate) fn time_left(
    ttl_seconds: Option<u32>,
    completed: Option<Timestamp>,
    now: Timestamp,
) -> Option<SignedDuration> {
    let expires = completed? + SignedDuration::from_secs(i64::from(ttl_seconds?));
    Some(expires.duration_since(now).max(SignedDuration::ZERO))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_runs_from_completion() {
        let at = |second| Timestamp::from_second(second).expect("a time");
        assert_eq!(time_left(None, Some(at(0)), at(100)), None);
        assert_eq!(time_left(Some(60), None, at(100)), None);
        assert_eq!(
            time_left(Some(60), Some(at(50)), at(100)),
            Some(SignedDuration::from_secs(10))
        );
        assert_eq!(
            time_left(Some(0), Some(at(50)), at(50)),
            Some(SignedDuration::ZERO)
        );
        assert_eq!(
            time_left(Some(60), Some(at(0)), at(100)),
            Some(SignedDuration::ZERO)
        );
    }
}
