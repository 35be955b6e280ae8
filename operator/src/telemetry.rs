//! Logs to standard output, one JSON object per line.

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;

/// Checks a filter, such as `info` or `vit_operator=debug,info`.
pub(crate) fn log_filter(filter: &str) -> Result<String, ParseError> {
    EnvFilter::try_new(filter).map(|_| filter.into())
}

pub(crate) fn start(filter: &str) {
    tracing_subscriber::fmt()
        .json()
        .flatten_event(true)
        .with_current_span(true)
        .with_span_list(false)
        .with_env_filter(EnvFilter::new(filter))
        .init();
}
