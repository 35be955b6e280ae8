//! An API server for tests: a function from requests to answers.

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use futures::{StreamExt as _, stream};
use kube::Client;
use serde::Serialize;
use serde_json::json;

use crate::cluster::Cluster;

/// The parts of a request that tests check.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) path: String,
    /// Decoded as far as tests need.
    pub(crate) query: String,
    pub(crate) body: String,
}

/// How the body of an answer ends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum End {
    Whole,
    /// The connection breaks.
    Broken,
    /// Nothing more comes, but the connection stays open.
    Silent,
}

/// An answer.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    code: u16,
    body: String,
    end: End,
}

impl Answer {
    pub(crate) fn json(object: &impl Serialize) -> Self {
        Self::text(&serde_json::to_string(object).expect("JSON"))
    }

    /// A list of objects.
    pub(crate) fn list(items: &[impl Serialize]) -> Self {
        Self::json(
            &json!({"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": "1"}, "items": items}),
        )
    }

    pub(crate) fn text(text: &str) -> Self {
        Self {
            code: 200,
            body: text.into(),
            end: End::Whole,
        }
    }

    /// The answer for an object that does not exist.
    pub(crate) fn missing(name: &str) -> Self {
        Self::refusal(404, &format!("{name} not found"))
    }

    pub(crate) fn refusal(code: u16, message: &str) -> Self {
        let status = json!({"apiVersion": "v1", "kind": "Status", "status": "Failure", "code": code,
            "message": message, "reason": if code == 404 { "NotFound" } else { "Test" }, "details": {}});
        Self {
            code,
            ..Self::json(&status)
        }
    }

    pub(crate) fn ending(self, end: End) -> Self {
        Self { end, ..self }
    }
}

/// A cluster whose API server answers like this.
pub(crate) fn server(respond: impl Fn(Request) -> Answer + Send + Sync + 'static) -> Cluster {
    let respond = Arc::new(respond);
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let respond = respond.clone();
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect_bytes().await.expect("a request");
            let query = parts.uri.query().unwrap_or_default().trim_start_matches('&');
            let answer = respond(Request {
                method: parts.method.to_string(),
                path: parts.uri.path().into(),
                query: query
                    .replace("%3A", ":")
                    .replace("%3D", "=")
                    .replace("%2C", ",")
                    .replace("%2F", "/"),
                body: String::from_utf8_lossy(&body).into_owned(),
            });
            let chunk = Ok(Bytes::from(answer.body));
            let end = match answer.end {
                End::Whole => stream::empty().boxed(),
                End::Broken => stream::iter([Err("the connection broke")]).boxed(),
                End::Silent => stream::pending().boxed(),
            };
            let body = Body::from_stream(stream::iter([chunk]).chain(end));
            let answer = http::Response::builder().status(answer.code).body(body);
            Ok::<_, Infallible>(answer.expect("a response"))
        }
    });
    Cluster::from_client(Client::new(service, "research"))
}
