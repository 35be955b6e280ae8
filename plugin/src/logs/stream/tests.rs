use std::cell::RefCell;
use std::sync::Mutex;

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::*;
use crate::mock::{Answer, End, Request, server};

fn pod(uid: &str, state: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "digits-2-0", "namespace": "research", "uid": uid, "labels": {
            "vit-operator.dev/attempt": "2", "vit-operator.dev/node-rank": "0"}},
        "status": {"phase": "Running", "containerStatuses": [{
            "name": "trainer", "image": "", "imageID": "", "restartCount": 0, "ready": true, "state": state}]}})
}

fn running() -> Value {
    pod("1", json!({"running": {}}))
}

fn ended() -> Value {
    pod("1", json!({"terminated": {"exitCode": 0}}))
}

/// Follows a log that is answered by these logs, and whose pod is then in these states, one after the other; returns
/// the outcome, the shown text, and the queries.
async fn followed(
    wanted: Wanted,
    logs: Vec<Answer>,
    pods: Vec<Answer>,
) -> (Result<(), Error>, String, Vec<String>) {
    let queries = std::sync::Arc::new(Mutex::new(vec![]));
    let (logs, pods) = (Mutex::new(logs.into_iter()), Mutex::new(pods.into_iter()));
    let seen = queries.clone();
    let cluster = server(move |request: Request| {
        let queue = if request.path.ends_with("/log") {
            seen.lock().expect("queries").push(request.query);
            &logs
        } else {
            &pods
        };
        let next = queue.lock().expect("answers").next();
        next.expect("no more requests than answers")
    });
    let first: Pod = serde_json::from_value(running()).expect("a pod");
    let member = Member::of(&first).expect("of a gang");
    let shown = RefCell::new(String::new());
    let say = |bytes: &[u8]| {
        shown.borrow_mut().push_str(&String::from_utf8_lossy(bytes));
        Ok(())
    };
    let outcome = copy(&cluster, &member, "", wanted, &say).await;
    let queries = queries.lock().expect("queries").clone();
    (outcome, shown.into_inner(), queries)
}

const FOLLOW: Wanted = Wanted {
    follow: true,
    tail: None,
    since: None,
    timestamps: false,
};
const FIRST: &str = "2026-01-01T00:00:01.2Z a\n2026-01-01T00:00:01.6Z b\n";
const AGAIN: &str = "2026-01-01T00:00:01.2Z a\n2026-01-01T00:00:01.6Z b\n2026-01-01T00:00:01.6Z c\n";
const SINCE: &str = "container=trainer&follow=true&sinceTime=2026-01-01T00:00:01Z&timestamps=true";

#[test]
fn an_interruption_is_reported_once() {
    let mut notice = Notice::default();
    assert_eq!(notice.due("a"), None);
    notice.remember("closed");
    let words = notice.due("a");
    assert_eq!(
        words.as_deref(),
        Some("the log of pod a was interrupted (closed); it continues after its last line")
    );
    notice.remember("closed");
    assert_eq!(notice.due("a"), None);
}

#[tokio::test(start_paused = true)]
async fn a_log_goes_on_after_an_interruption_while_the_container_runs() {
    let partial = format!("{FIRST}2026-01-01T00:00:01.6Z c but no");
    let logs = vec![
        Answer::text(&partial).ending(End::Broken),
        Answer::refusal(503, "the server is starting"),
        Answer::text(AGAIN),
        Answer::text(AGAIN),
    ];
    let running = Answer::json(&running());
    let pods = vec![
        running.clone(),
        Answer::refusal(503, "starting"),
        Answer::json(&ended()),
    ];
    let (outcome, shown, queries) = followed(FOLLOW, logs, pods).await;
    outcome.expect("is followed");
    assert_eq!(shown, "a\nb\nc\n");
    assert_eq!(
        queries,
        [
            "container=trainer&follow=true&timestamps=true",
            SINCE,
            SINCE,
            SINCE
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_falls_silent_is_replaced() {
    let logs = vec![
        Answer::text(FIRST).ending(End::Silent),
        Answer::text(AGAIN),
        Answer::text(AGAIN),
    ];
    let pods = vec![Answer::json(&running()), Answer::json(&ended())];
    let (outcome, shown, _) = followed(FOLLOW, logs, pods).await;
    outcome.expect("is followed");
    assert_eq!(shown, "a\nb\nc\n");
}

#[tokio::test(start_paused = true)]
async fn a_log_ends_with_its_pod() {
    for after in [
        Answer::missing("digits-2-0"),
        Answer::json(&pod("2", json!({"running": {}}))),
    ] {
        let logs = vec![Answer::text(
            "2026-01-01T00:00:01Z a\n2026-01-01T00:00:02Z no line break",
        )];
        let (outcome, shown, queries) = followed(FOLLOW, logs, vec![after]).await;
        outcome.expect("is followed");
        assert_eq!(shown, "a\nno line break");
        assert_eq!(queries.len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_not_asked_for_stays_hidden_after_an_interruption() {
    let wanted = Wanted {
        tail: Some(0),
        since: Some(Duration::from_secs(60)),
        ..FOLLOW
    };
    let logs = vec![
        Answer::text("").ending(End::Silent),
        Answer::text(FIRST).ending(End::Broken),
        Answer::text(AGAIN),
        Answer::text(AGAIN),
    ];
    let running = Answer::json(&running());
    let pods = vec![running.clone(), running, Answer::json(&ended())];
    let (outcome, shown, queries) = followed(wanted, logs, pods).await;
    outcome.expect("is followed");
    assert_eq!(shown, "a\nb\nc\n");
    assert_eq!(
        queries[0],
        "container=trainer&follow=true&sinceSeconds=60&tailLines=0&timestamps=true"
    );
    assert_eq!(
        queries[1],
        "container=trainer&follow=true&sinceSeconds=120&timestamps=true"
    );
    assert_eq!(queries[2], SINCE);
}

#[tokio::test(start_paused = true)]
async fn a_first_request_that_is_refused_is_an_error() {
    for code in [403, 500] {
        let logs = vec![Answer::refusal(code, "not for you")];
        let (outcome, _, _) = followed(FOLLOW, logs, vec![]).await;
        let error = outcome.expect_err("refused").to_string();
        assert_eq!(error, "cannot read the log of pod digits-2-0: not for you");
    }
}
