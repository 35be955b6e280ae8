//! Reads the progress record of a gang from its rank 0.

use std::time::Duration;

use axum::body::Bytes;
use contract::Progress;
use http::Uri;
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tracing::debug;

/// A look takes at most this long: a node that does not answer must not hold up anything.
const TIMEOUT: Duration = Duration::from_secs(1);
/// A record is well below this.
const LARGEST_BYTES: usize = 64 * 1024;

/// A client for `GET /progress`.
#[derive(Clone, Debug)]
pub(crate) struct ProgressClient(Client<HttpConnector, Empty<Bytes>>);

impl ProgressClient {
    pub(crate) fn new() -> Self {
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(TIMEOUT));
        Self(Client::builder(TokioExecutor::new()).build(connector))
    }

    /// The record; `None` where there is none to be had now. An agent that is starting or stopping does not answer,
    /// which is no fault.
    pub(crate) async fn get(&self, agent: &str) -> Option<Progress> {
        match tokio::time::timeout(TIMEOUT, self.try_get(agent)).await {
            Ok(Ok(progress)) => Some(progress),
            Ok(Err(error)) => {
                debug!(agent, error, "no progress record");
                None
            }
            Err(_) => {
                debug!(agent, "no progress record in time");
                None
            }
        }
    }

    async fn try_get(&self, agent: &str) -> Result<Progress, String> {
        let uri: Uri = format!("{agent}/progress")
            .parse()
            .map_err(|error| format!("not an address: {error}"))?;
        let response = self
            .0
            .get(uri)
            .await
            .map_err(|error| format!("failed to ask: {error}"))?;
        if !response.status().is_success() {
            return Err(format!("answered {}", response.status()));
        }
        let body = Limited::new(response.into_body(), LARGEST_BYTES)
            .collect()
            .await
            .map_err(|error| format!("failed to read the answer: {error}"))?
            .to_bytes();
        serde_json::from_slice(&body).map_err(|error| format!("not a progress record: {error}"))
    }
}
