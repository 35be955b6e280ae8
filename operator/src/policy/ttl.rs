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
