//! Logs: a JSON object a line on standard output.

use tracing_subscriber::EnvFilter;

/// Starts logging. `filter` is such as `info` or `vit_operator=debug,info`.
pub fn start(filter: &str) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(filter)
        .map_err(|error| anyhow::anyhow!("log filter {filter:?} is not one: {error}"))?;
    tracing_subscriber::fmt()
        .json()
        .flatten_event(true)
        .with_current_span(true)
        .with_span_list(false)
        .with_env_filter(filter)
        .try_init()
        .map_err(|error| anyhow::anyhow!("failed to start logging: {error}"))
}
