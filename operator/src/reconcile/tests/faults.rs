//! Whole rounds in which the API server rejects objects, watches lag, or other pods take GPUs.

use contract::FailureClass;
use crds::ViTTrainingJobStatus;

use super::super::apply::Applied;
use super::super::step::Write;
use super::*;

/// kube-scheduler's status of a pod that fits nowhere.
fn unschedulable() -> Value {
    json!({"phase": "Pending", "conditions": [{
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
        "message": "0/3 nodes are available: 1 Insufficient nvidia.com/gpu",
    }]})
}

/// A kubelet's status of a pod that it does not admit.
fn rejected() -> Value {
    json!({
        "phase": "Failed", "reason": "OutOfnvidia.com/gpu",
        "message": "Pod was rejected: Node didn't have enough resource: nvidia.com/gpu, requested: 1, used: 1, capacity: 1",
    })
}

/// A foreign pod that holds the GPU of node `b`.
fn foreign_pod() -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": "notebook", "namespace": "others"},
        "spec": {
            "nodeName": "b",
            "containers": [{"name": "notebook", "resources": {"limits": {"nvidia.com/gpu": "1"}}}],
        },
        "status": {"phase": "Running"},
    }))
    .expect("a pod")
}

/// The gang of attempt 1, whose pod on node `b` has this status.
fn gang_of_which_one_is(status: &Value, is_bound: bool) -> Vec<Pod> {
    let mut pods = fixtures::pod_objects(1, "Running");
    pods[1].status = serde_json::from_value(status.clone()).expect("a status");
    if !is_bound {
        pods[1].spec.as_mut().expect("a spec").node_name = None;
    }
    pods
}

fn three_nodes(pods: Vec<Pod>) -> Rounds {
    Rounds {
        nodes: nodes(["a", "b", "c"]),
        ..Rounds::with_gang(pods)
    }
}

#[tokio::test]
async fn a_gang_one_of_whose_nodes_was_taken_is_replaced_at_once_and_at_no_cost() {
    for (status, is_bound) in [(unschedulable(), false), (rejected(), true)] {
        let mut pods = gang_of_which_one_is(&status, is_bound);
        pods.push(foreign_pod());
        let (calls, job, result) = three_nodes(pods)
            .run(fixtures::job_in(Phase::Starting, 1), 2)
            .await;
        result.expect("reconciled");
        assert_eq!(calls[0], "PATCH status Restarting", "{calls:?}");
        assert!(
            calls
                .iter()
                .any(|call| call.starts_with("DELETE pods digits-1-1")),
            "{calls:?}"
        );
        let status = job.status.expect("a status");
        assert_eq!((status.restarts, &status.last_failure), (0, &None));
        assert_eq!(status.failed_nodes, []);
    }
}

#[tokio::test]
async fn a_gang_whose_nodes_fit_by_all_that_is_known_has_its_time() {
    let (_, job, _) = three_nodes(gang_of_which_one_is(&unschedulable(), false))
        .run(fixtures::job_in(Phase::Starting, 1), 1)
        .await;
    assert_eq!(phase(&job), Some(Phase::Starting));
    let (_, job, _) = three_nodes(gang_of_which_one_is(&rejected(), true))
        .run(fixtures::job_in(Phase::Starting, 1), 1)
        .await;
    let failure = job.status.expect("a status").last_failure.expect("a failure");
    assert_eq!(failure.class, FailureClass::PodLost.as_str());
}

/// The result for a job whose pods an API server answers like this.
async fn denied(
    resource: &'static str,
    code: u16,
    message: &'static str,
) -> (ViTTrainingJobStatus, Result<Action, Error>) {
    let rounds = Rounds {
        denied: Some((resource, code, message)),
        ..Rounds::fresh()
    };
    let (_, job, result) = rounds.run(fixtures::job_in(Phase::Starting, 1), 1).await;
    (job.status.expect("a status"), result)
}

#[tokio::test]
async fn what_the_api_server_will_never_take_ends_the_job_at_once_in_its_words() {
    for (resource, code, message) in [
        (
            "pods",
            403,
            r#"pods "digits-1-0" is forbidden: violates PodSecurity "restricted:latest": restricted volume types"#,
        ),
        (
            "pods",
            403,
            r#"pods "digits-1-0" is forbidden: [maximum cpu usage per Container is 100m, but limit is 4, maximum memory usage per Container is 64Mi, but limit is 16Gi]"#,
        ),
        (
            "pods",
            403,
            r#"pods "digits-1-0" is forbidden: minimum cpu usage per Pod is 8, but request is 4"#,
        ),
        (
            "pods",
            403,
            r#"pods "digits-1-0" is forbidden: failed quota: cpus: must specify limits.cpu for: trainer"#,
        ),
        (
            "pods",
            403,
            r#"pods "digits-1-0" is forbidden: cpu max limit to request ratio per Container is 2, but provided ratio is 4.000000"#,
        ),
        (
            "pods",
            403,
            r#"pods "digits-1-0" is forbidden: unable to validate against any security context constraint: [provider restricted-v2: .containers[0].runAsUser: Invalid value: 65532: must be in the ranges: [1000640000, 1000649999]]"#,
        ),
        (
            "pods",
            422,
            r#"Pod "digits-1-0" is invalid: spec.nodeSelector: Invalid value: "a b""#,
        ),
        (
            "pods",
            400,
            r#"admission webhook "images.example.com" denied the request: no such registry"#,
        ),
        (
            "networkpolicies",
            403,
            r#"networkpolicies "digits" is forbidden: ValidatingAdmissionPolicy 'ours' with binding 'all' denied request: no"#,
        ),
    ] {
        let (status, result) = denied(resource, code, message).await;
        assert_eq!(status.phase, Some(Phase::Failed), "{message}");
        result.expect("that was to be done");
        assert_eq!(status.condition(conditions::types::RECONCILED), None);
        let failed = status.condition(conditions::types::FAILED).expect("a condition");
        assert_eq!(failed.reason, conditions::reasons::NOT_RETRYABLE);
        let object = match resource {
            "pods" => "Pod digits-1-0",
            _ => "NetworkPolicy digits",
        };
        assert_eq!(
            failed.message,
            format!("attempt 1: BadConfig: failed to create {object}: {message}")
        );
        let failure = status.last_failure.expect("a failure");
        assert_eq!(
            (failure.class.as_str(), failure.pod.as_deref(), failure.node),
            (FailureClass::BadConfig.as_str(), Some("digits-1-0"), None)
        );
    }
}

#[tokio::test]
async fn what_may_be_taken_later_is_tried_again() {
    for (code, message) in [
        (
            403,
            r#"pods "digits-1-0" is forbidden: status unknown for quota: gpus"#,
        ),
        (
            403,
            r#"pods is forbidden: User "system:serviceaccount:a:b" cannot create resource "pods""#,
        ),
        (
            403,
            r#"pods "digits-1-0" is forbidden: error looking up service account research/default: serviceaccount "default" not found"#,
        ),
        (
            500,
            r#"failed calling webhook "images.example.com": no endpoints available"#,
        ),
    ] {
        let (status, result) = denied("pods", code, message).await;
        let error = result.expect_err("refused").to_string();
        assert_eq!(
            (status.phase, &status.last_failure),
            (Some(Phase::Starting), &None),
            "{message}"
        );
        let running = status.condition(conditions::types::RUNNING).expect("a condition");
        assert_eq!(running.message, error);
    }
}

/// The rounds of a gang until one succeeds, at most `most`, and what each reports, if the API server
/// answers this many creations of pods with a code and a message.
async fn reports_of_refusals(
    (code, message): (u16, &'static str),
    mut refusals: usize,
    most: usize,
) -> Vec<Vec<String>> {
    let (service, mut handle) = mock::pair::<Request<Body>, Response<Body>>();
    let context = context(service, &Rounds::fresh().nodes, &[], &[]);
    let job = StoredJob::from(fixtures::job_in(Phase::Starting, 1));
    apply_event(&context, &job);
    let (job, calls) = (Arc::new(job), Arc::new(Mutex::new(Vec::new())));
    let stored = Mutex::new(json!(fixtures::job_in(Phase::Starting, 1)));
    let seen = Arc::clone(&calls);
    let server = tokio::spawn(async move {
        while let Some((request, answer)) = handle.next_request().await {
            let (path, is_read) = (request.uri().path().to_owned(), request.method() == Method::GET);
            let body = request.into_body().collect_bytes().await.expect("a body");
            let body: Value = serde_json::from_slice(&body).unwrap_or_default();
            let (code, response) = if is_read {
                (200, json!({"metadata": {}, "items": []}))
            } else if path.ends_with("/pods") && refusals > 0 {
                refusals -= 1;
                (code, failure(code, message))
            } else if path.ends_with("/status") {
                let (code, job, _) = write_status(&stored, &body);
                if body["status"]["conditions"]
                    .to_string()
                    .contains("ReconcileFailed")
                {
                    seen.lock().expect("calls").push("condition".to_owned());
                }
                (code, job)
            } else {
                if body["reason"] == "ReconcileFailed" {
                    seen.lock().expect("calls").push("event".to_owned());
                }
                (201, body)
            };
            answer.send_response(fixtures::response(code, &response));
        }
    });
    let mut rounds = Vec::new();
    while rounds.len() < most {
        let result = reconcile(Arc::clone(&job), Arc::clone(&context)).await;
        // Events are published in the background.
        tokio::time::sleep(Duration::from_secs(1)).await;
        rounds.push(std::mem::take(&mut *calls.lock().expect("calls")));
        match result {
            Ok(_) => break,
            Err(error) => drop(error_policy(Arc::clone(&job), &error, Arc::clone(&context))),
        }
    }
    drop(context);
    server.await.expect("served");
    rounds
}

#[tokio::test(start_paused = true)]
async fn that_a_server_is_busy_is_reported_once_it_is_busy_for_long() {
    let nothing = Vec::<String>::new();
    let reported = Vec::from(["condition", "event"].map(str::to_owned));
    for answer in [429, 503, 504].map(|code| (code, "Busy")) {
        assert_eq!(
            reports_of_refusals(answer, 2, 3).await,
            std::slice::from_ref(&nothing),
            "{answer:?}"
        );
        let expected = [nothing.clone(), nothing.clone(), reported.clone()];
        assert_eq!(
            reports_of_refusals(answer, usize::MAX, 3).await,
            expected,
            "{answer:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn that_a_new_kind_is_not_known_yet_is_reported_after_a_minute() {
    let answer = (403, "cannot find RESTMapping: no matches for kind");
    let reports = reports_of_refusals(answer, usize::MAX, 61).await;
    let first = reports.iter().position(|report| !report.is_empty());
    assert_eq!(first, Some(60), "{reports:?}");
}

#[tokio::test(start_paused = true)]
async fn the_newest_warning_about_pods_without_volumes_is_read_now_and_then() {
    let waits =
        json!({"phase": "Pending", "conditions": [{"type": "PodReadyToStartContainers", "status": "False"}]});
    let mut pods = fixtures::pod_objects(1, "Pending");
    for pod in &mut pods {
        pod.status = serde_json::from_value(waits.clone()).expect("a status");
    }
    let event = |note: &str, second: i64| {
        let time = fixtures::at(second).to_string();
        json!({
            "metadata": {}, "eventTime": null, "reason": "FailedMount", "note": note,
            "deprecatedLastTimestamp": time, "regarding": {},
        })
    };
    let rounds = |denied| Rounds {
        events: vec![
            event("older", 90),
            event("no such\nshare", 95),
            event("oldest", 80),
        ],
        denied,
        // One a second.
        happens: Some(|_, _| ()),
        ..Rounds::with_gang(pods.clone())
    };
    let placed_at = |second| {
        let mut job = fixtures::job_in(Phase::Starting, 1);
        let placement = job.status.as_mut().expect("a status").placement.as_mut();
        placement.expect("placed").time = Some(Time(fixtures::at(second)));
        job
    };
    let read = |calls: &[String]| {
        calls
            .iter()
            .filter(|call| call.starts_with("GET events "))
            .count()
    };
    let (calls, job, _) = rounds(None).run(placed_at(100), 19).await;
    assert_eq!(read(&calls), 0, "{calls:?}");
    let message = |job: &ViTTrainingJob| {
        let status = job.status.as_ref().expect("a status");
        let running = status.condition(conditions::types::RUNNING);
        running.expect("a condition").message.clone()
    };
    assert_eq!(message(&job), "0 of 2 pods are ready");
    let (calls, job, _) = rounds(None).run(placed_at(70), 20).await;
    let of_pod =
        |pod: &str| format!("GET events &fieldSelector=regarding.uid%3D{pod}%2Ctype%3DWarning&limit=100");
    let reads: Vec<&String> = calls
        .iter()
        .filter(|call| call.starts_with("GET events "))
        .collect();
    assert_eq!(
        reads,
        [&of_pod(&uid_of("digits-1-0")), &of_pod(&uid_of("digits-1-1"))]
    );
    let expected = "0 of 2 pods are ready; pod digits-1-0: FailedMount: no such share";
    assert_eq!(message(&job), expected);
    let (calls, ..) = rounds(None).run(placed_at(70), 24).await;
    assert_eq!(read(&calls), 4, "{calls:?}");
    // Who must not read them still learns everything else.
    let (_, job, result) = rounds(Some(("events", 403, ""))).run(placed_at(70), 3).await;
    assert_eq!(message(&job), "0 of 2 pods are ready");
    result.expect("reconciled");
}

#[tokio::test]
async fn a_gang_over_quota_waits_without_pods_at_no_cost() {
    let message =
        r#"pods "digits-1-1" is forbidden: exceeded quota: gpus, requested: 1, used: 8, limited: 8"#;
    let rounds = Rounds {
        denied: Some(("pods digits-1-1", 403, message)),
        ..Rounds::fresh()
    };
    let (calls, job, result) = rounds.run(fixtures::job_in(Phase::Starting, 1), 3).await;
    let created = |call: &String| call == "POST pods digits-1-1";
    let since = calls.iter().position(created).expect("a pod");
    let expected = ["PATCH status Pending", "DELETE pods digits-1-0"];
    assert_eq!(calls[since + 1..since + 3], expected, "{calls:?}");
    assert_eq!(result.expect("reconciled"), Action::requeue(IN_MOTION));
    let status = job.status.expect("a status");
    let placed = status.condition(conditions::types::PLACED).expect("a condition");
    assert_eq!(placed.reason, conditions::reasons::QUOTA_EXCEEDED);
    assert_eq!(
        placed.message,
        format!("failed to create Pod digits-1-1: {message}")
    );
    assert_eq!(status.condition(conditions::types::RECONCILED), None);
    assert_eq!((status.restarts, status.last_failure), (0, None));
    assert_eq!((status.failed_nodes, status.start_time), (vec![], None));
    // The deadlines of a job that has trained go on.
    let rounds = Rounds {
        denied: Some(("pods digits-1-1", 403, message)),
        ..Rounds::fresh()
    };
    let mut job = fixtures::job_in(Phase::Starting, 1);
    let status = job.status.as_mut().expect("a status");
    status.progress = Some(crds::status::ProgressStatus::default());
    status.start_time = Some(Time(fixtures::at(50)));
    let (_, job, _) = rounds.run(job, 3).await;
    let status = job.status.expect("a status");
    assert_eq!(status.phase, Some(Phase::Pending));
    assert_eq!(status.start_time, Some(Time(fixtures::at(50))));
}

/// A running gang with only one pod in the caches.
fn half_a_gang(unseen: &'static [&'static str]) -> Rounds {
    let mut pods = fixtures::pod_objects(1, "Running");
    pods.pop();
    Rounds {
        unseen,
        ..Rounds::with_gang(pods)
    }
}

#[tokio::test]
async fn a_pod_that_only_the_watch_does_not_show_is_not_lost() {
    let running = || fixtures::job_in(Phase::Running, 1);
    let (calls, job, result) = half_a_gang(&["digits-1-1"]).run(running(), 1).await;
    result.expect("reconciled");
    assert_eq!(calls[0], "GET pods");
    assert_eq!(phase(&job), Some(Phase::Running), "{calls:?}");
    let (calls, job, _) = half_a_gang(&[]).run(running(), 1).await;
    assert_eq!(calls[..2], ["GET pods", "PATCH status Restarting"]);
    assert_eq!(
        job.status
            .expect("a status")
            .last_failure
            .expect("a failure")
            .class,
        "PodLost"
    );
}

#[tokio::test]
async fn a_pod_that_has_the_name_of_one_of_the_jobs_is_left_alone() {
    let rounds = Rounds {
        recreated: &["digits-1-0"],
        ..Rounds::with_gang(pods([("Running", None); 2]))
    };
    let (deleted, result) = deletions(rounds).await;
    result.expect("it is gone");
    assert_eq!(
        deleted,
        ["DELETE pods digits-1-0 that is another", "DELETE pods digits-1-1"]
    );
}

/// Invariant G3.
#[tokio::test(start_paused = true)]
async fn no_round_waits_for_an_event_to_be_taken() {
    let (service, mut handle) = mock::pair::<Request<Body>, Response<Body>>();
    let gang = pods([("Running", None), ("Failed", Some(137))]);
    let context = context(service, &Rounds::fresh().nodes, &gang, &[]);
    let stored = Arc::new(Mutex::new(json!(fixtures::job_in(Phase::Running, 1))));
    let server = Arc::clone(&stored);
    let server = tokio::spawn(async move {
        let mut events = Vec::new();
        while let Some((request, answer)) = handle.next_request().await {
            let path = request.uri().path().to_owned();
            let body = request.into_body().collect_bytes().await.expect("a body");
            let response = if path.ends_with("/events") {
                events.push(answer);
                continue;
            } else if path.ends_with("/status") {
                write_status(&server, &serde_json::from_slice(&body).expect("a job")).1
            } else {
                json!({"kind": "Status", "status": "Success"})
            };
            answer.send_response(fixtures::response(200, &response));
        }
        events.len()
    });
    let started = tokio::time::Instant::now();
    for _ in 0..2 {
        let job = read(&stored);
        apply_event(&context, &job);
        reconcile(Arc::new(job), Arc::clone(&context))
            .await
            .expect("reconciled");
    }
    assert_eq!(stored.lock().expect("a job")["status"]["phase"], "Restarting");
    assert_eq!(started.elapsed(), Duration::ZERO, "an Event was waited for");
    drop(context);
    assert_eq!(server.await.expect("all clients are gone"), 1);
}

/// Invariant G7.
#[tokio::test]
#[should_panic(expected = "half a promise")]
async fn a_panic_that_interrupts_the_planner_ends_the_operator() {
    let (context, _server) = idle_context();
    let round = async {
        let _planner = context.planner.lock();
        panic!("half a promise")
    };
    let _: Result<Action, Error> = context.contain(round).await;
}

#[tokio::test(start_paused = true)]
async fn a_report_that_kueue_refuses_is_repeated_once_a_minute() {
    let (context, mut server) = idle_context();
    let puts = tokio::spawn(async move {
        let mut puts = 0;
        while let Some((_, answer)) = server.next_request().await {
            puts += 1;
            answer.send_response(fixtures::response(403, &failure(403, "Forbidden")));
        }
        puts
    });
    let job = fixtures::job_in(Phase::Running, 1);
    for _ in 0..60 {
        let workload =
            json!({"metadata": {"name": "digits", "namespace": "research"}, "spec": {"podSets": []}});
        let workload = serde_json::from_value(workload).expect("a Workload");
        let write = Write::TryUpdateWorkload(workload);
        let applied = apply::apply(&context, &context.client, &job, vec![write]).await;
        assert_eq!(applied.expect("reported in the log only"), Applied::All);
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    drop(context);
    assert_eq!(puts.await.expect("served"), 2);
}

#[tokio::test(start_paused = true)]
async fn pods_are_created_only_after_a_dry_run_that_nobody_has_to_answer() {
    let dry_runs = async |answer: fn(&Value) -> (u16, Value)| {
        let (context, mut server) = idle_context();
        let queries = tokio::spawn(async move {
            let mut queries = Vec::new();
            while let Some((request, responder)) = server.next_request().await {
                queries.push(request.uri().query().unwrap_or_default().to_owned());
                let body = request.into_body().collect_bytes().await.expect("a body");
                let (code, body) = answer(&serde_json::from_slice(&body).expect("a pod"));
                responder.send_response(fixtures::response(code, &body));
            }
            queries
        });
        let mut job = fixtures::job();
        let admitted_pod = serde_json::from_value(json!({"containers": ["old"]})).ok();
        job.status = Some(ViTTrainingJobStatus {
            admitted_pod,
            ..ViTTrainingJobStatus::default()
        });
        let pod = fixtures::pod_objects(1, "Pending").remove(0);
        let applied = apply::apply(
            &context,
            &context.client,
            &job,
            vec![Write::DryRun(Box::new(pod))],
        )
        .await;
        let known_of = |job: &ViTTrainingJob, now| context.dry_runs.of(job, fixtures::at(now));
        let known = known_of(&job, 0);
        let mut other = job.clone();
        other.metadata.name = Some("other".into());
        assert_eq!(known_of(&other, 0), known, "a name does not matter");
        other.spec.image = "other".into();
        assert_eq!(known_of(&other, 0), None);
        assert_eq!(known_of(&job, -3600), known, "by a slow clock");
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(known_of(&job, 0), None, "of a job that was created later");
        let later = known_of(&job, 1);
        tokio::time::advance(Duration::from_secs(14 * 60)).await;
        assert_eq!(known_of(&job, 3600), None, "policies may have changed");
        drop(context);
        let queries = queries.await.expect("served");
        assert!(
            queries.iter().all(|query| query.contains("dryRun=All")),
            "{queries:?}"
        );
        (applied.is_ok(), known, later)
    };
    let with_sidecar = |pod: &Value| {
        let mut pod = pod.clone();
        let sidecar = json!({"name": "mesh", "image": "mesh"});
        pod["spec"]["containers"]
            .as_array_mut()
            .expect("containers")
            .push(sidecar);
        (201, pod)
    };
    let (is_applied, known, later) = dry_runs(with_sidecar).await;
    assert!(is_applied);
    assert_eq!(later, known);
    assert_eq!(known.expect("a change").containers, ["mesh"]);
    let refused: fn(&Value) -> (u16, Value) = |_| (400, failure(400, "does not support dry run"));
    let (is_applied, known, later) = dry_runs(refused).await;
    assert!(is_applied);
    assert_eq!(known.expect("what was known").containers, ["old"]);
    assert_eq!(later, None, "it is asked again");
    let fails: fn(&Value) -> (u16, Value) = |_| (500, failure(500, "InternalError"));
    assert_eq!(dry_runs(fails).await, (false, None, None), "it is tried again");
    let lags: fn(&Value) -> (u16, Value) = |_| {
        let mut answer = failure(403, "Forbidden");
        answer["message"] = json!(r#"no matches for kind "ViTTrainingJob""#);
        (403, answer)
    };
    assert_eq!(dry_runs(lags).await, (false, None, None), "the CRD is new");
}
