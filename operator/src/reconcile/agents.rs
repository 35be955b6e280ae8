//! A client of a gang's agents: rank 0's for its progress, all for the heartbeats of their ranks.

use std::time::Duration;

use axum::body::Bytes;
use contract::{Heartbeats, Progress};
use futures::{StreamExt as _, stream};
use http::{StatusCode, Uri};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use serde::de::DeserializeOwned;
use tracing::debug;

use super::memory::Answer;

/// Timeout of a request, so that a node that does not answer delays nothing.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Largest accepted answer.
const LARGEST_BYTES: usize = 64 * 1024;
/// Concurrent requests.
const ASKED_AT_ONCE: usize = 64;

/// A poll of agents.
#[derive(Clone, Debug)]
pub(crate) enum Poll {
    /// The progress record of rank 0's agent, which is to save after this step.
    Progress { agent: String, save_after: Option<u64> },
    /// The ranks' heartbeats of all agents, by node rank.
    Heartbeats(Vec<(usize, String)>),
}

/// The reply of a running agent.
enum Reply<T> {
    Value(T),
    NothingYet,
}

#[derive(Clone, Debug)]
pub(crate) struct AgentClient(Client<HttpConnector, Empty<Bytes>>);

impl AgentClient {
    pub(crate) fn new() -> Self {
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(TIMEOUT));
        // Without a timer, unused connections stay open.
        Self(
            Client::builder(TokioExecutor::new())
                .pool_timer(TokioTimer::new())
                .build(connector),
        )
    }

    /// `None` without an answer.
    pub(crate) async fn poll(&self, poll: Poll) -> Option<Answer> {
        match poll {
            Poll::Progress { agent, save_after } => self.progress(&agent, save_after).await,
            Poll::Heartbeats(agents) => Some(Answer::Heartbeats(self.heartbeats(agents).await)),
        }
    }

    /// The progress record, or that there is none yet; `None` without an answer.
    async fn progress(&self, agent: &str, save_after: Option<u64>) -> Option<Answer> {
        let path = save_after.map_or_else(
            || "/progress".into(),
            |step| format!("/progress?saveAfter={step}"),
        );
        Some(match self.get::<Progress>(agent, &path).await? {
            Reply::Value(progress) => Answer::Progress(Box::new(progress)),
            Reply::NothingYet => Answer::NoProgress,
        })
    }

    /// The heartbeats of the agents that answer, each with its given number.
    async fn heartbeats(&self, agents: Vec<(usize, String)>) -> Vec<(usize, Heartbeats)> {
        stream::iter(agents)
            .map(|(number, agent)| async move {
                match self.get(&agent, "/heartbeats").await? {
                    Reply::Value(heartbeats) => Some((number, heartbeats)),
                    Reply::NothingYet => None,
                }
            })
            .buffered(ASKED_AT_ONCE)
            .filter_map(std::future::ready)
            .collect()
            .await
    }

    /// An agent's reply. One that is starting or stopping does not answer, which is not an error.
    async fn get<T: DeserializeOwned>(&self, agent: &str, path: &str) -> Option<Reply<T>> {
        match tokio::time::timeout(TIMEOUT, self.try_get(agent, path)).await {
            Ok(Ok(answer)) => Some(answer),
            Ok(Err(error)) => {
                debug!(agent, path, error, "an agent did not answer");
                None
            }
            Err(_) => {
                debug!(agent, path, "an agent did not answer in time");
                None
            }
        }
    }

    async fn try_get<T: DeserializeOwned>(&self, agent: &str, path: &str) -> Result<Reply<T>, String> {
        let uri: Uri = format!("{agent}{path}")
            .parse()
            .map_err(|error| format!("invalid address: {error}"))?;
        let response = self
            .0
            .get(uri)
            .await
            .map_err(|error| format!("request failed: {error}"))?;
        if response.status() == StatusCode::SERVICE_UNAVAILABLE {
            return Ok(Reply::NothingYet);
        }
        if !response.status().is_success() {
            return Err(format!("answered {}", response.status()));
        }
        let body = Limited::new(response.into_body(), LARGEST_BYTES)
            .collect()
            .await
            .map_err(|error| format!("failed to read the answer: {error}"))?
            .to_bytes();
        let answer = serde_json::from_slice(&body);
        answer
            .map(Reply::Value)
            .map_err(|error| format!("unexpected answer: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::routing::get;
    use contract::Heartbeat;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    async fn agent_that_answers(path: &str, body: String) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let router = Router::new().route(path, get(move || async move { body }));
        tokio::spawn(async move { axum::serve(listener, router).await });
        format!("http://{address}")
    }

    #[tokio::test]
    async fn a_record_is_read() {
        let progress = Progress {
            attempt: 2,
            step: 7,
            ..Progress::default()
        };
        let agent =
            agent_that_answers("/progress", serde_json::to_string(&progress).expect("serializes")).await;
        assert_eq!(
            AgentClient::new().progress(&agent, None).await,
            Some(Answer::Progress(Box::new(progress)))
        );
    }

    #[tokio::test]
    async fn an_agent_without_a_record_is_there() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let router = Router::new().route("/progress", get(|| async { StatusCode::SERVICE_UNAVAILABLE }));
        tokio::spawn(async move { axum::serve(listener, router).await });
        let answer = AgentClient::new()
            .progress(&format!("http://{address}"), None)
            .await;
        assert_eq!(answer, Some(Answer::NoProgress));
    }

    #[tokio::test]
    async fn of_many_agents_those_that_answer_count() {
        let heartbeats = |rank| Heartbeats {
            attempt: 2,
            ranks: vec![Heartbeat {
                rank,
                ..Heartbeat::default()
            }],
        };
        let mut agents = Vec::new();
        for rank in 0..3 {
            let body = serde_json::to_string(&heartbeats(rank)).expect("serializes");
            agents.push(agent_that_answers("/heartbeats", body).await);
        }
        agents[1] = "not an address".into();
        let asked = agents.into_iter().enumerate().collect();
        assert_eq!(
            AgentClient::new().heartbeats(asked).await,
            [(0, heartbeats(0)), (2, heartbeats(2))]
        );
    }

    #[tokio::test]
    async fn what_is_no_record_is_none() {
        let client = AgentClient::new();
        for body in ["", "{}", "not json"] {
            let agent = agent_that_answers("/progress", body.into()).await;
            assert_eq!(client.progress(&agent, None).await, None, "{body:?}");
        }
        let endless = agent_that_answers("/progress", " ".repeat(LARGEST_BYTES + 1)).await;
        assert_eq!(client.progress(&endless, None).await, None);
        assert_eq!(client.progress("not an address", None).await, None);
    }

    #[tokio::test]
    async fn a_connection_that_nobody_uses_any_more_is_closed() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let agent = format!("http://{}", listener.local_addr().expect("an address"));
        let client = AgentClient::new();
        let server = async {
            let (mut connection, _) = listener.accept().await.expect("a connection");
            let asked = connection.read(&mut [0; 1024]).await.expect("a request");
            assert_ne!(asked, 0);
            let body = serde_json::to_string(&Progress::default()).expect("serializes");
            let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
            connection.write_all(answer.as_bytes()).await.expect("answered");
            connection
        };
        let (mut connection, answer) = tokio::join!(server, client.progress(&agent, None));
        assert_eq!(answer, Some(Answer::Progress(Box::default())));
        tokio::time::pause();
        let mut nothing = [0];
        let read = tokio::time::timeout(Duration::from_secs(600), connection.read(&mut nothing));
        assert_eq!(read.await.expect("it is closed").expect("closed well"), 0);
        drop(client);
    }

    #[tokio::test]
    async fn an_agent_that_hangs_or_is_not_there_holds_nothing_up() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let client = AgentClient::new();
        let started = tokio::time::Instant::now();
        assert_eq!(client.progress(&format!("http://{address}"), None).await, None);
        drop(listener);
        assert_eq!(client.progress(&format!("http://{address}"), None).await, None);
        assert!(started.elapsed() < 3 * TIMEOUT);
    }
}
