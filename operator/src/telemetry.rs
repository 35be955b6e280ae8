//! Logs: a JSON object a line on standard output.

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;

/// Why logging could not be started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LogError {
    /// The filter is not one.
    #[error("log filter {filter:?} is not one, such as `info` or `vit_operator=debug,info`")]
    Filter {
        /// What was given.
        filter: String,
        /// What is wrong with it.
        source: ParseError,
    },
    /// Something else logs already.
    #[error("failed to start logging: {0}")]
    Start(String),
}

/// Starts logging. `filter` is such as `info` or `vit_operator=debug,info`.
pub(crate) fn start(filter: &str) -> Result<(), LogError> {
    let filter = EnvFilter::try_new(filter).map_err(|source| LogError::Filter {
        filter: filter.into(),
        source,
    })?;
    tracing_subscriber::fmt()
        .json()
        .flatten_event(true)
        .with_current_span(true)
        .with_span_list(false)
        .with_env_filter(filter)
        .try_init()
        .map_err(|error| LogError::Start(error.to_string()))
}
