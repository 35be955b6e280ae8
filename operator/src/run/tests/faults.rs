//! The whole operator with an API server that is slow, dead or refusing.

use std::collections::BTreeMap;
use std::convert::Infallible;

use axum::body::{Body as Content, Bytes};
use kube::core::Status;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::Instant;
use tower::ServiceExt as _;
use tower_test::mock::{self, SendResponse};

use super::*;
use crate::metrics::gpu_counts::GpuCounts;

pub(super) type Answer = Response<Content>;

pub(super) fn answer(code: u16, body: &Value) -> Answer {
    let body = Content::from(body.to_string());
    Response::builder().status(code).body(body).expect("an answer")
}

pub(super) fn list(objects: &[Value]) -> Answer {
    answer(
        200,
        &json!({"metadata": {"resourceVersion": "1"}, "items": objects}),
    )
}

fn failure(code: u16, reason: &str) -> Answer {
    answer(code, &json!(Status::failure(reason, reason).with_code(code)))
}

/// The answer to a watch with these events.
pub(super) fn watched(events: impl Stream<Item = Value> + Send + 'static) -> Answer {
    let lines = events.map(|event| Ok::<_, Infallible>(Bytes::from(format!("{event}\n"))));
    Response::new(Content::from_stream(lines))
}

/// A call of the operator.
pub(super) struct Call {
    method: Method,
    pub(super) path: String,
    pub(super) is_watch: bool,
    pub(super) body: Value,
    pub(super) answer: SendResponse<Answer>,
}

impl Call {
    /// Answers that nothing exists, that nothing happens, or that what was sent is stored.
    pub(super) fn answer_as_usual(self) {
        self.answer.send_response(match self.method {
            Method::GET if self.is_watch => watched(stream::pending()),
            Method::GET if self.path.contains("/leases/") => failure(404, "NotFound"),
            Method::GET => list(&[]),
            _ => answer(200, &self.body),
        });
    }
}

/// A study that this version cannot read, so that the operator writes its condition.
fn study() -> Value {
    json!({
        "metadata": {"name": "sizes", "namespace": "research", "uid": "study-uid", "resourceVersion": "1"},
        "spec": {"of": "a later version"},
    })
}

/// An operator that runs until this is dropped, and its calls.
pub(super) struct Running {
    server: mock::Handle<Request<Body>, Answer>,
    operator: AbortOnDropHandle<Result<(), RunError>>,
    metrics: Arc<Metrics>,
}

impl Running {
    pub(super) fn start() -> Self {
        let (service, server) = mock::pair();
        let metrics = Arc::new(Metrics::new().expect("registers"));
        let service = service.map_response(|answer: Answer| {
            assert!(!answer.headers().contains_key("panic"), "a test");
            answer
        });
        let client = Client::new(service, "default");
        let running = run_on(
            all(&client),
            Arc::clone(&metrics),
            arguments(),
            CancellationToken::new(),
        );
        let operator = AbortOnDropHandle::new(tokio::spawn(running));
        Self {
            server,
            operator,
            metrics,
        }
    }

    /// The rounds of all jobs and studies.
    pub(super) fn rounds(&self) -> u64 {
        let metrics = self.metrics.render([], &GpuCounts::default(), fixtures::at(0));
        let metrics = metrics.expect("renders");
        let mut lines = metrics.lines();
        let rounds = lines.find_map(|line| line.strip_prefix("vit_operator_reconciles_total "));
        rounds.expect("counted").parse().expect("a number")
    }

    /// The next call before `end`.
    pub(super) async fn call_before(&mut self, end: Instant) -> Option<Call> {
        let call = tokio::time::timeout_at(end, self.server.next_request()).await;
        let (request, answer) = call.ok()?.expect("it runs");
        let query = request.uri().query().unwrap_or_default();
        let is_watch = query.contains("watch=true");
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let body = request.into_body().collect_bytes().await.expect("a body");
        let body = serde_json::from_slice(&body).unwrap_or_default();
        Some(Call {
            method,
            path,
            is_watch,
            body,
            answer,
        })
    }
}

#[tokio::test(start_paused = true)]
async fn every_watch_of_a_dead_server_starts_again_within_a_minute() {
    let mut running = Running::start();
    let mut watches: BTreeMap<String, Vec<Instant>> = BTreeMap::new();
    let end = Instant::now() + Duration::from_secs(70);
    while let Some(call) = running.call_before(end).await {
        if call.is_watch {
            watches.entry(call.path.clone()).or_default().push(Instant::now());
        }
        call.answer_as_usual();
    }
    assert!(!running.operator.is_finished());
    assert_eq!(watches.len(), 10, "{watches:?}");
    for (path, started) in watches {
        let again = started
            .get(1)
            .map(|again| again.duration_since(started[0]).as_secs());
        assert!(again.is_some_and(|seconds| seconds <= 60), "{path}: {again:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiting_job_hears_of_new_nodes_while_the_watch_of_jobs_fails() {
    let mut running = Running::start();
    let mut job = json!(fixtures::job());
    let mut nodes = futures::channel::mpsc::unbounded().0;
    let mut failures = 0;
    let mut joined = None;
    let end = Instant::now() + Duration::from_secs(600);
    while let Some(call) = running.call_before(end).await {
        match (&*call.path, call.is_watch) {
            (path, false) if path.ends_with("/vittrainingjobs") => {
                call.answer.send_response(list(std::slice::from_ref(&job)));
            }
            (path, true) if path.ends_with("/vittrainingjobs") => {
                call.answer.send_response(failure(500, "InternalError"));
                failures += 1;
                if failures == 8 {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    for name in ["a", "b"] {
                        let mut node = fixtures::node(name, "Tesla-T4", 1);
                        node.metadata.resource_version = Some("2".into());
                        let event = json!({"type": "ADDED", "object": node});
                        nodes.unbounded_send(event).expect("watched");
                    }
                    joined = Some(Instant::now());
                }
            }
            ("/api/v1/nodes", true) => {
                let (joins, changes) = futures::channel::mpsc::unbounded();
                nodes = joins;
                call.answer.send_response(watched(changes));
            }
            (path, _) if path.ends_with("/digits/status") => {
                if call.body["status"]["phase"] == "Starting" {
                    let after = joined.expect("there were no nodes").elapsed();
                    return assert!(after < Duration::from_secs(1), "{after:?}");
                }
                json_patch::merge(&mut job, &call.body);
                job["metadata"]["resourceVersion"] = "101".into();
                call.answer.send_response(answer(200, &job));
            }
            _ => call.answer_as_usual(),
        }
    }
    panic!("the job does not start");
}

#[tokio::test]
async fn a_server_that_dies_within_an_answer_holds_no_call_for_good() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let config = Config::new(format!("http://{address}").parse().expect("a URL"));
    let metrics = Arc::new(Metrics::new().expect("registers"));
    let client = client(config, SILENCE, &metrics).expect("a client");
    let jobs: Api<StoredJob> = own_api(&client, None);
    let list = tokio::spawn(async move { jobs.list(&kube::api::ListParams::default()).await });
    let (mut connection, _) = listener.accept().await.expect("a connection");
    let read = connection.read(&mut [0; 4096]).await.expect("a request");
    assert!(read > 0);
    connection
        .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n{")
        .await
        .expect("answered");
    tokio::time::pause();
    let ended = tokio::time::timeout(SILENCE + Duration::from_secs(1), list).await;
    ended.expect("it ends").expect("no panic").expect_err("no answer");
}

#[tokio::test(start_paused = true)]
async fn a_round_that_panics_is_tried_again_and_ends_no_other() {
    let mut running = Running::start();
    let study = study();
    let nodes = ["a", "b"].map(|name| json!(fixtures::node(name, "Tesla-T4", 1)));
    let mut tries: BTreeMap<String, u32> = BTreeMap::new();
    while tries.values().filter(|tries| **tries >= 3).count() < 2 {
        let end = Instant::now() + Duration::from_secs(60);
        let call = running.call_before(end).await.expect("the rounds continue");
        match call.path.rsplit('/').next() {
            Some("nodes") if !call.is_watch => call.answer.send_response(list(&nodes)),
            Some("vittrainingjobs") if !call.is_watch => {
                call.answer.send_response(list(&[json!(fixtures::job())]));
            }
            Some("vitscalingstudies") if !call.is_watch => {
                call.answer.send_response(list(std::slice::from_ref(&study)));
            }
            Some("status") => {
                *tries.entry(call.path).or_default() += 1;
                let panics = Response::builder().header("panic", "yes").body(Content::empty());
                call.answer.send_response(panics.expect("an answer"));
            }
            _ => call.answer_as_usual(),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn conflicts_slow_down_and_the_job_is_read_again() {
    let mut running = Running::start();
    let (mut job, study) = (json!(fixtures::job()), study());
    let mut writes: BTreeMap<String, u32> = BTreeMap::new();
    let changes_at = Instant::now() + Duration::from_secs(10);
    loop {
        let end = changes_at + Duration::from_secs(10);
        let call = running.call_before(end).await.expect("the job is written");
        match call.path.rsplit('/').next() {
            Some("vittrainingjobs") if !call.is_watch => {
                call.answer.send_response(list(std::slice::from_ref(&job)));
            }
            Some("vitscalingstudies") if !call.is_watch => {
                call.answer.send_response(list(std::slice::from_ref(&study)));
            }
            // No watch shows the change of the job.
            Some("digits") if Instant::now() > changes_at => {
                job["metadata"]["resourceVersion"] = "101".into();
                call.answer.send_response(answer(200, &job));
            }
            Some("digits") => call.answer.send_response(answer(200, &job)),
            Some("status") if call.body["metadata"]["resourceVersion"] == "101" => break,
            Some("status") => {
                *writes.entry(call.path).or_default() += 1;
                call.answer.send_response(failure(409, "Conflict"));
            }
            _ => call.answer_as_usual(),
        }
    }
    assert_eq!(writes.len(), 2, "{writes:?}");
    assert!(
        writes.values().all(|writes| (4..=15).contains(writes)),
        "{writes:?}"
    );
}

#[tokio::test]
async fn every_answer_of_a_busy_server_is_counted() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let config = Config::new(format!("http://{address}").parse().expect("a URL"));
    let metrics = Arc::new(Metrics::new().expect("registers"));
    let client = client(config, SILENCE, &metrics).expect("a client");
    let router = axum::Router::new().fallback(|| async { ::http::StatusCode::TOO_MANY_REQUESTS });
    let server = AbortOnDropHandle::new(tokio::spawn(async move { axum::serve(listener, router).await }));
    let jobs: Api<StoredJob> = own_api(&client, None);
    let everything = kube::api::ListParams::default();
    let list = jobs.list(&everything);
    let answered = tokio::time::timeout(Duration::from_secs(10), list).await;
    let refused = answered.expect("only rounds try again");
    refused.expect_err("the server is busy");
    let gpus = crate::metrics::gpu_counts::GpuCounts::default();
    let text = metrics.render([], &gpus, fixtures::at(100)).expect("renders");
    fixtures::assert_contains(&text, r#"requests_total{code="429",method="GET"} 1"#);
    drop(server);
}

#[tokio::test(start_paused = true)]
async fn pods_of_jobs_that_do_not_exist_ask_for_few_rounds() {
    let jobs = Cache::new(|_| ());
    jobs.watched(watcher::Event::Apply(fixtures::job_in(Phase::Pending, 0).into()));
    let (triggers, triggered) = mpsc::unbounded_channel();
    for pod in 0..100 {
        let unknown = Trigger::Job {
            namespace: "elsewhere".into(),
            name: format!("job-{pod}"),
        };
        triggers.send(unknown).expect("sent");
    }
    let (service, _server) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
    let context = fixtures::context(Client::new(service, "default"), jobs, &[], &[], triggers);
    let mut rounds = Box::pin(rounds(triggered, context));
    let mut names = Vec::new();
    while let Ok(Some(job)) = tokio::time::timeout(2 * WAITING_ROUNDS, rounds.next()).await {
        names.push(job.name);
    }
    assert_eq!(names, ["job-99"], "one, so that what is gone is forgotten");
}

#[tokio::test(start_paused = true)]
async fn a_failing_study_slows_down_while_jobs_are_deleted() {
    let mut running = Running::start();
    let study = study();
    let mut writes = 0;
    let end = Instant::now() + Duration::from_secs(60);
    while let Some(call) = running.call_before(end).await {
        match call.path.rsplit('/').next() {
            Some("vitscalingstudies") if !call.is_watch => {
                call.answer.send_response(list(std::slice::from_ref(&study)));
            }
            Some("pods") if call.is_watch => {
                let mut pod = fixtures::pod_objects(1, "Running").remove(0);
                pod.metadata.resource_version = Some("2".into());
                let deleted = json!({"type": "DELETED", "object": pod});
                let every_second = stream::repeat(deleted).then(|event| async {
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    event
                });
                call.answer.send_response(watched(every_second));
            }
            Some("status") => {
                writes += 1;
                call.answer.send_response(failure(500, "InternalError"));
            }
            _ => call.answer_as_usual(),
        }
    }
    assert!((4..=7).contains(&writes), "{writes}");
}

#[tokio::test]
async fn probes_and_prometheus_connect_by_ipv4_and_ipv6() {
    use clap::Parser as _;
    let crate::arguments::Command::Run(arguments) =
        crate::arguments::Arguments::parse_from(["vit-operator", "run"]).command
    else {
        panic!("not run");
    };
    let mut address = arguments.metrics_address;
    assert_eq!(address.port(), 8080);
    address.set_port(0);
    let listener = listen(address).await.expect("it listens");
    let port = listener.local_addr().expect("an address").port();
    for own in ["127.0.0.1", "::1"] {
        let is_known = TcpListener::bind((own, 0)).await.is_ok();
        let connected = tokio::net::TcpStream::connect((own, port)).await;
        assert_eq!(connected.is_ok(), is_known, "{own}");
    }
    drop(listener);
}
