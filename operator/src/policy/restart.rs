//! Whether and when a failed attempt is followed by another.

use contract::FailureClass;
use jiff::SignedDuration;

use crate::error;

/// What follows a failed attempt.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Verdict {
    /// Another attempt from the last checkpoint.
    Restart,
    /// Another attempt would fail in the same way.
    NotRetryable,
    /// `failurePolicy.maxRestarts` is used up.
    Exhausted,
}

/// Decides by the class of the root failure and the failed attempts since the last new checkpoint,
/// this one included. `next_differs` says whether the next attempt avoids [the node that
/// failed](super::failed_nodes::is_of_the_node) or [uses less memory](super::strategy::takes_less).
pub(crate) fn verdict(
    class: FailureClass,
    next_differs: bool,
    failures_since_checkpoint: i32,
    max_restarts: u32,
) -> Verdict {
    if !class.is_retryable() && !next_differs {
        Verdict::NotRetryable
    } else if i64::from(failures_since_checkpoint) > i64::from(max_restarts) {
        Verdict::Exhausted
    } else {
        Verdict::Restart
    }
}

/// What follows a failed start, this one included in `failed`. Outages, such as a registry's, pass: the
/// budget counts only after starts have failed for long, or if there are no restarts.
pub(crate) fn verdict_on_start(failed: i32, failing_for: SignedDuration, max_restarts: u32) -> Verdict {
    let is_used_up = i64::from(failed) > i64::from(max_restarts);
    if is_used_up && (max_restarts == 0 || failing_for >= START_OUTAGE) {
        Verdict::Exhausted
    } else {
        Verdict::Restart
    }
}

/// How long starts may fail at least.
const START_OUTAGE: SignedDuration = SignedDuration::from_mins(30);

/// Time between a failed start and the next attempt: 1 s, doubled up to 5 minutes.
pub(crate) fn back_off_of_start(failed_starts: i32) -> SignedDuration {
    let before = u32::try_from(failed_starts - 1).unwrap_or(0);
    SignedDuration::from_secs((1 << before.min(9)).min(300))
}

/// Time between a failure and the next attempt: doubles with each failure since the last new
/// checkpoint, up to a minute.
pub(crate) fn back_off(failures_since_checkpoint: i32) -> SignedDuration {
    let before = u32::try_from(failures_since_checkpoint - 1).unwrap_or(0);
    SignedDuration::try_from(error::back_off(before)).unwrap_or(SignedDuration::MAX)
}

/// Time between a pod refused by a `ResourceQuota` and the next try. It varies, so that two jobs that each
/// got half of a quota do not meet forever.
pub(crate) fn pause_over_quota(uid: &str, attempt: i32) -> SignedDuration {
    let sum: i64 = uid.bytes().map(i64::from).sum();
    SignedDuration::from_secs(60 + (sum + 11 * i64::from(attempt)).rem_euclid(30))
}

/// How long an attempt whose only known failure is an echo keeps its pods, so that the record of
/// the causing rank can still arrive. Kubelets report an ended container within a second.
pub(crate) const SETTLE: SignedDuration = SignedDuration::from_secs(3);

/// Grace period in seconds for the remaining pods of a failed attempt. Rank 0 may be writing its
/// last checkpoint; others may hold GPUs in a collective with a peer that will never answer.
pub(crate) const STOP_AFTER_FAILURE_SECONDS: u32 = 30;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_may_fail_for_half_an_hour_unless_there_are_no_restarts() {
        for (failed_starts, minutes, max_restarts, expected) in [
            (1, 0, 5, Verdict::Restart),
            (6, 29, 5, Verdict::Restart),
            (6, 30, 5, Verdict::Exhausted),
            (5, 300, 5, Verdict::Restart),
            (1, 0, 0, Verdict::Exhausted),
        ] {
            let found = verdict_on_start(failed_starts, SignedDuration::from_mins(minutes), max_restarts);
            assert_eq!(found, expected, "{failed_starts} in {minutes} min");
        }
    }

    #[test]
    fn starts_slow_down_to_one_in_five_minutes() {
        let seconds = [1, 2, 3, 9, 10, 1000].map(|failed| back_off_of_start(failed).as_secs());
        assert_eq!(seconds, [1, 2, 4, 256, 300, 300]);
    }
}
