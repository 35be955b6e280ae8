//! Whether and when a failed attempt is followed by another.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

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

/// Time between a failure and the next attempt: doubles with each failure since the last new
/// checkpoint, up to a minute.
pub(crate) fn back_off(failures_since_checkpoint: i32) -> SignedDuration {
    let before = u32::try_from(failures_since_checkpoint - 1).unwrap_or(0);
    SignedDuration::try_from(error::back_off(before)).unwrap_or(SignedDuration::MAX)
}

/// Time between a pod refused by a ResourceQuota and the next try. It varies, so that two jobs that each
/// got half of a quota do not meet forever.
pub(crate) fn pause_over_quota(uid: &str, attempt: i32) -> SignedDuration {
    let mut hasher = DefaultHasher::new();
    (uid, attempt).hash(&mut hasher);
    SignedDuration::from_secs(60 + (hasher.finish() % 30).cast_signed())
}

/// How long an attempt whose only known failure is an echo keeps its pods, so that the record of
/// the causing rank can still arrive. Kubelets report an ended container within a second.
pub(crate) const SETTLE: SignedDuration = SignedDuration::from_secs(3);

/// Grace period in seconds for the remaining pods of a failed attempt. Rank 0 may be writing its
/// last checkpoint; others may hold GPUs in a collective with a peer that will never answer.
pub(crate) const STOP_AFTER_FAILURE_SECONDS: u32 = 30;
