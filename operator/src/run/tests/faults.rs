//! The whole operator with an API server that is slow, dead or refusing.

use std::collections::BTreeMap;
use std::convert::Infallible;

use axum::body::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::Instant;
use tower_test::mock;

use super::*;

type Answer = Response<UnsyncBoxBody<Bytes, Infallible>>;

fn answer(code: u16, body: &Value) -> Answer {
    let body = Full::new(Bytes::from(body.to_string())).boxed_unsync();
    Response::builder().status(code).body(body).expect("an answer")
}

/// The answer to a watch that stays silent.
fn silent_watch() -> Answer {
    Response::new(StreamBody::new(stream::pending()).boxed_unsync())
}

/// The answer to whatever is not a watch: nothing exists, and the Lease is free.
fn usual(method: &Method, path: &str, body: Value) -> Answer {
    match (method, path.contains("/leases/")) {
        (&Method::GET, false) => answer(200, &json!({"metadata": {"resourceVersion": "1"}, "items": []})),
        (&Method::GET, true) => answer(
            404,
            &json!({"status": "Failure", "code": 404, "reason": "NotFound"}),
        ),
        _ => answer(200, &body),
    }
}

fn is_watch(request: &Request<Body>) -> bool {
    request
        .uri()
        .query()
        .is_some_and(|query| query.contains("watch=true"))
}

#[tokio::test(start_paused = true)]
async fn every_watch_of_a_dead_server_starts_again_within_a_minute() {
    let (service, mut server) = mock::pair::<Request<Body>, Answer>();
    let metrics = Arc::new(Metrics::new().expect("registers"));
    let running = run_on(
        Client::new(service, "default"),
        metrics,
        arguments(),
        CancellationToken::new(),
    );
    let running = AbortOnDropHandle::new(tokio::spawn(running));
    let mut watches: BTreeMap<String, Vec<Instant>> = BTreeMap::new();
    let end = Instant::now() + Duration::from_secs(70);
    while let Ok(request) = tokio::time::timeout_at(end, server.next_request()).await {
        let (request, answer) = request.expect("it runs");
        let path = request.uri().path().to_owned();
        if is_watch(&request) {
            watches.entry(path).or_default().push(Instant::now());
            answer.send_response(silent_watch());
            continue;
        }
        let method = request.method().clone();
        let body = request.into_body().collect_bytes().await.expect("a body");
        answer.send_response(usual(
            &method,
            &path,
            serde_json::from_slice(&body).unwrap_or_default(),
        ));
    }
    assert!(!running.is_finished());
    assert_eq!(watches.len(), 10, "{watches:?}");
    for (path, started) in watches {
        let again = started
            .get(1)
            .map(|again| again.duration_since(started[0]).as_secs());
        assert!(again.is_some_and(|seconds| seconds <= 60), "{path}: {again:?}");
    }
}

#[tokio::test]
async fn a_server_that_dies_within_an_answer_holds_no_call_for_good() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let config = Config::new(format!("http://{address}").parse().expect("a URL"));
    let client = ClientBuilder::try_from(patient(config))
        .expect("a client")
        .build();
    let jobs: Api<StoredJob> = own_api(&client, None);
    let list = tokio::spawn(async move { jobs.list(&kube::api::ListParams::default()).await });
    let (mut connection, _) = listener.accept().await.expect("a connection");
    connection.read(&mut [0; 4096]).await.expect("a request");
    connection
        .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n{")
        .await
        .expect("answered");
    tokio::time::pause();
    let ended = tokio::time::timeout(SILENCE + Duration::from_secs(1), list).await;
    ended.expect("it ends").expect("no panic").expect_err("no answer");
}
