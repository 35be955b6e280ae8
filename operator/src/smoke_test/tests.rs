use std::sync::{Arc, Mutex};

use crds::status::{FailureStatus, ProgressStatus};
use http::{Method, Request, Response};
use kube::client::Body;
use serde_json::json;
use tower_test::mock;

use super::*;
use crate::fixtures;

const DEADLINE: Duration = Duration::from_secs(60);

/// What an API server was asked for.
type Asked = Arc<Mutex<Vec<Method>>>;

/// An API server that creates and deletes a job, and answers each look at it with the next of these statuses, the last one
/// for good; none stands for a job that is gone.
fn server(statuses: Vec<Option<ViTTrainingJobStatus>>) -> (Client, Asked) {
    let (service, mut handle) = mock::pair::<Request<Body>, Response<Body>>();
    let asked = Asked::default();
    let seen = Arc::clone(&asked);
    tokio::spawn(async move {
        let (mut looks, mut deletions) = (0, 0);
        while let Some((request, answer)) = handle.next_request().await {
            let method = request.method().clone();
            seen.lock().expect("a list").push(method.clone());
            let (code, body): (u16, _) = match method {
                Method::POST => (201, serde_json::to_vec(&fixtures::job())),
                Method::DELETE => {
                    deletions += 1;
                    if deletions > 1 {
                        (404, serde_json::to_vec(&not_found()))
                    } else {
                        (200, serde_json::to_vec(&fixtures::job()))
                    }
                }
                _ => {
                    let status = &statuses[looks.min(statuses.len() - 1)];
                    looks += 1;
                    match status {
                        Some(status) => {
                            let mut job = fixtures::job();
                            job.status = Some(status.clone());
                            (200, serde_json::to_vec(&job))
                        }
                        None => (404, serde_json::to_vec(&not_found())),
                    }
                }
            };
            let response = Response::builder()
                .status(code)
                .body(Body::from(body.expect("serializes")));
            answer.send_response(response.expect("a response"));
        }
    });
    (Client::new(service, "default"), asked)
}

fn not_found() -> serde_json::Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404, "message": "not found"})
}

fn failed() -> ViTTrainingJobStatus {
    let mut status = fixtures::status(Phase::Failed, 1);
    status.conditions = vec![
        serde_json::from_value(json!({
            "type": types::FAILED, "status": "True", "reason": "NotRetryable", "message": "BadConfig is never retried",
            "lastTransitionTime": fixtures::at(0).to_string(),
        }))
        .expect("a condition"),
    ];
    status.last_failure = Some(FailureStatus {
        class: "BadConfig".into(),
        message: "no such preset".into(),
        node: Some("node0".into()),
        ..FailureStatus::default()
    });
    status
}

async fn tried(
    statuses: Vec<Option<ViTTrainingJobStatus>>,
) -> (Result<(), SmokeTestError>, String, Vec<Method>) {
    let (client, asked) = server(statuses);
    let mut output = Vec::new();
    let outcome = run(
        &client,
        &fixtures::job(),
        DEADLINE,
        std::future::pending(),
        &mut output,
    )
    .await;
    let asked = asked.lock().expect("a list").clone();
    (outcome, String::from_utf8(output).expect("text"), asked)
}

#[tokio::test(start_paused = true)]
async fn a_job_that_succeeds_is_followed_and_deleted() {
    let mut running = fixtures::status(Phase::Running, 1);
    running.progress = Some(ProgressStatus {
        step: 3,
        total_steps: 32,
        ..ProgressStatus::default()
    });
    let succeeded = ViTTrainingJobStatus {
        phase: Some(Phase::Succeeded),
        ..running.clone()
    };
    let statuses = vec![
        Some(ViTTrainingJobStatus::default()),
        Some(running.clone()),
        Some(running),
        Some(succeeded),
    ];
    let (outcome, output, asked) = tried(statuses).await;
    outcome.expect("it passes");
    let lines: Vec<&str> = output.lines().collect();
    assert_eq!(
        lines,
        [
            "created ViTTrainingJob research/digits",
            "not looked at yet: is the operator running, and for this namespace?",
            "Running: 3 of 32 steps on a, b (Tesla-T4)",
            "Succeeded: 3 of 32 steps on a, b (Tesla-T4)",
            "deleted it",
        ]
    );
    assert_eq!(asked[asked.len() - 2..], [Method::DELETE, Method::DELETE]);
}

#[tokio::test(start_paused = true)]
async fn a_job_that_fails_is_told_with_its_reason_and_deleted() {
    let (outcome, _, asked) = tried(vec![Some(failed())]).await;
    let error = outcome.expect_err("it failed").to_string();
    assert_eq!(
        error,
        "digits failed: BadConfig is never retried (BadConfig on node0: no such preset)"
    );
    assert!(asked.contains(&Method::DELETE), "{asked:?}");
}

#[tokio::test(start_paused = true)]
async fn a_job_that_nobody_looks_at_is_told_at_the_deadline_and_deleted() {
    let (outcome, _, asked) = tried(vec![Some(ViTTrainingJobStatus::default())]).await;
    let error = outcome.expect_err("too late").to_string();
    assert!(
        error.starts_with("digits is not over after 60 s: not looked at yet"),
        "{error}"
    );
    assert!(asked.contains(&Method::DELETE), "{asked:?}");
}

#[tokio::test(start_paused = true)]
async fn a_job_that_vanishes_is_told() {
    let (outcome, ..) = tried(vec![Some(fixtures::status(Phase::Running, 1)), None]).await;
    assert!(matches!(outcome, Err(SmokeTestError::Gone(job)) if job == "digits"));
}

#[tokio::test(start_paused = true)]
async fn a_test_that_is_stopped_deletes_its_job() {
    let (client, asked) = server(vec![Some(fixtures::status(Phase::Running, 1))]);
    let stopped = tokio::time::sleep(5 * POLL);
    let outcome = run(&client, &fixtures::job(), DEADLINE, stopped, &mut Vec::new()).await;
    assert!(matches!(outcome, Err(SmokeTestError::Stopped)), "{outcome:?}");
    assert_eq!(asked.lock().expect("a list").last(), Some(&Method::DELETE));
}

#[tokio::test(start_paused = true)]
async fn a_job_is_deleted_even_if_nobody_reads_what_happens() {
    struct Closed;
    impl Write for Closed {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let (client, asked) = server(vec![Some(fixtures::status(Phase::Running, 1))]);
    let outcome = run(
        &client,
        &fixtures::job(),
        DEADLINE,
        std::future::pending(),
        &mut Closed,
    )
    .await;
    assert!(matches!(outcome, Err(SmokeTestError::Output(_))), "{outcome:?}");
    assert_eq!(asked.lock().expect("a list").last(), Some(&Method::DELETE));
}

#[tokio::test]
async fn a_cluster_without_the_resource_is_told() {
    let (service, mut handle) = mock::pair::<Request<Body>, Response<Body>>();
    tokio::spawn(async move {
        let (_, answer) = handle.next_request().await.expect("a request");
        let body = Body::from(b"404 page not found\n".to_vec());
        answer.send_response(Response::builder().status(404).body(body).expect("a response"));
    });
    let client = Client::new(service, "default");
    let outcome = run(
        &client,
        &fixtures::job(),
        DEADLINE,
        std::future::pending(),
        &mut Vec::new(),
    )
    .await;
    let error = outcome.expect_err("there is no such kind").to_string();
    assert!(
        error.contains("vittrainingjobs.vit-operator.dev, is not there"),
        "{error}"
    );
}

#[test]
fn a_manifest_that_is_wrong_is_told_with_its_file() {
    let folder = std::env::temp_dir().join(format!("vit-smoke-test-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let read_text = |text: &str| {
        let path = folder.join("job.yaml");
        std::fs::write(&path, text).expect("written");
        read(&path)
    };
    assert!(matches!(
        read(&folder.join("none.yaml")),
        Err(SmokeTestError::Read { .. })
    ));
    assert!(matches!(
        read_text("kind: Pod"),
        Err(SmokeTestError::Manifest { .. })
    ));
    let synthetic = include_str!("../../../examples/synthetic.yaml");
    let broken = synthetic.replace("microBatchSize: 16", "microBatchSize: 0");
    let error = read_text(&broken).expect_err("a batch of nothing").to_string();
    assert!(error.contains("microBatchSize"), "{error}");
    read_text(synthetic).expect("the example can be run");
    std::fs::remove_dir_all(&folder).expect("removed");
}
