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

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::routing::get;
    use tokio::net::TcpListener;

    use super::*;

    async fn agent_that_answers(body: String) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let router = Router::new().route("/progress", get(move || async move { body }));
        tokio::spawn(async move { axum::serve(listener, router).await });
        format!("http://{address}")
    }

    #[tokio::test]
    async fn a_record_is_read() {
        let told = Progress {
            attempt: 2,
            step: 7,
            ..Progress::default()
        };
        let agent = agent_that_answers(serde_json::to_string(&told).expect("serializes")).await;
        assert_eq!(ProgressClient::new().get(&agent).await, Some(told));
    }

    #[tokio::test]
    async fn what_is_no_record_is_none() {
        let client = ProgressClient::new();
        for body in ["", "{}", "not json"] {
            let agent = agent_that_answers(body.into()).await;
            assert_eq!(client.get(&agent).await, None, "{body:?}");
        }
        let endless = agent_that_answers(" ".repeat(LARGEST_BYTES + 1)).await;
        assert_eq!(client.get(&endless).await, None);
        assert_eq!(client.get("not an address").await, None);
    }

    #[tokio::test]
    async fn an_agent_that_hangs_or_is_not_there_holds_nothing_up() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let client = ProgressClient::new();
        let started = tokio::time::Instant::now();
        assert_eq!(client.get(&format!("http://{address}")).await, None);
        drop(listener);
        assert_eq!(client.get(&format!("http://{address}")).await, None);
        assert!(started.elapsed() < 3 * TIMEOUT);
    }
}
