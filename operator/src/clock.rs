//! The wall clock, handed down to what reads it, so that tests set it. Spans of time are measured
//! with [`tokio::time::Instant`], which tests pause.

use std::sync::Arc;

use jiff::Timestamp;

#[derive(Clone)]
pub(crate) struct Clock(Arc<dyn Fn() -> Timestamp + Send + Sync>);

impl Clock {
    /// The machine's clock.
    #[expect(clippy::disallowed_methods, reason = "the one place that reads it")]
    pub(crate) fn system() -> Self {
        Self(Arc::new(Timestamp::now))
    }

    /// A clock that goes with tokio's time from `start` on.
    #[cfg(test)]
    pub(crate) fn starting_at(start: Timestamp) -> Self {
        let began = tokio::time::Instant::now();
        Self(Arc::new(move || start + began.elapsed()))
    }

    pub(crate) fn now(&self) -> Timestamp {
        (self.0)()
    }
}

impl std::fmt::Debug for Clock {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_tuple("Clock").field(&self.now()).finish()
    }
}
