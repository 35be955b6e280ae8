//! Jobs that a later version wrote, as after a rollback.

use super::*;

/// A condition of a later version.
fn condition() -> Value {
    json!({"type": "Later", "status": "True", "reason": "A", "message": "b",
        "lastTransitionTime": "2026-11-28T00:00:00Z"})
}

/// A running job with fields of a later version.
fn later() -> Value {
    let mut job = json!(fixtures::job_in(Phase::Running, 1));
    job["spec"]["later"] = json!({"a": 1});
    job["spec"]["training"]["later"] = 1.into();
    job["status"]["later"] = json!({"a": 1});
    job["status"]["conditions"] = json!([condition()]);
    job
}

/// The same with this value of a later version.
fn unreadable(place: &str) -> Value {
    let mut job = later();
    job["spec"]["parallelism"] = json!({});
    let (object, field) = place.rsplit_once('/').expect("a path");
    job.pointer_mut(object).expect(place)[field] = "Later".into();
    job
}

fn categories(results: &[Result<Action, Error>]) -> Vec<Option<&'static str>> {
    let category = |result: &Result<Action, Error>| result.as_ref().err().map(Error::category);
    results.iter().map(category).collect()
}

#[tokio::test]
async fn a_job_with_unknown_fields_is_worked_on_and_keeps_them() {
    let gang = pods([("Running", None), ("Failed", Some(137))]);
    let (calls, job, results) = Rounds::with_gang(gang).run_stored(later(), 2).await;
    assert_eq!(categories(&results), [None, None]);
    assert_eq!(calls[0], "PATCH status Restarting");
    assert_eq!(job["spec"], later()["spec"]);
    assert_eq!(job["status"]["later"], later()["status"]["later"]);
    let conditions = job["status"]["conditions"].as_array().expect("conditions");
    assert_eq!(conditions[0], condition());
    assert!(conditions.len() > 1, "{conditions:?}");
}

#[tokio::test]
async fn a_job_with_an_unknown_value_tells_so_once_and_trains_on() {
    for (place, expected) in [
        (
            "/spec/parallelism/strategy",
            "failed to read the job: spec.parallelism.strategy: unknown variant `Later`",
        ),
        (
            "/status/phase",
            "failed to read the job: status.phase: unknown variant `Later`",
        ),
    ] {
        let gang = pods([("Running", None), ("Failed", Some(137))]);
        let before = unreadable(place);
        let (calls, job, results) = Rounds::with_gang(gang).run_stored(before.clone(), 3).await;
        let write = format!("PATCH status {}", text(&job["status"]["phase"]));
        assert_eq!(calls, [&write, "POST event ReconcileFailed"]);
        assert_eq!(categories(&results), [Some("InvalidObject"), None, None]);
        let conditions = &job["status"]["conditions"];
        assert_eq!(
            (&conditions[0], &conditions[1]["type"]),
            (&condition(), &json!("Reconciled"))
        );
        assert_contains(text(&conditions[1]["message"]), expected);
        let mut after = job.clone();
        after["status"]["conditions"] = before["status"]["conditions"].clone();
        after["metadata"] = before["metadata"].clone();
        assert_eq!(after, before, "nothing else is touched");
        // A version that can read it goes on.
        let mut readable = job;
        readable["spec"]["parallelism"] = json!({});
        readable["status"]["phase"] = "Running".into();
        let (_, job, _) = Rounds::with_gang(pods([("Running", None); 2]))
            .run_stored(readable, 1)
            .await;
        let conditions = job["status"]["conditions"].as_array().expect("conditions");
        assert!(
            !conditions
                .iter()
                .any(|condition| condition["type"] == "Reconciled")
        );
    }
}

#[tokio::test]
async fn a_job_of_another_controller_or_one_that_is_going_is_left_as_it_is() {
    let mut of_another = unreadable("/status/phase");
    of_another["spec"]["managedBy"] = "kueue.x-k8s.io/multikueue".into();
    let mut going = unreadable("/status/phase");
    going["metadata"]["deletionTimestamp"] = json!(fixtures::at(1).to_string());
    for job in [of_another, going] {
        let (calls, after, results) = Rounds::fresh().run_stored(job.clone(), 2).await;
        assert_eq!((calls, categories(&results)), (vec![], vec![None, None]));
        assert_eq!(after, job);
    }
}

#[tokio::test]
async fn a_server_that_refuses_the_condition_leaves_the_event_and_one_that_fails_is_asked_again() {
    for (code, category) in [(422, "InvalidObject"), (500, "ApiServer"), (409, "Conflict")] {
        let rounds = Rounds {
            denied: Some(("status", code, "no")),
            ..Rounds::fresh()
        };
        let (calls, _, results) = rounds.run_stored(unreadable("/status/phase"), 1).await;
        assert_eq!(categories(&results), [Some(category)]);
        let is_told = calls.contains(&"POST event ReconcileFailed".into());
        assert_eq!(is_told, category != "Conflict", "{calls:?}");
        let error = results[0].as_ref().expect_err("an error");
        let (context, _server) = idle_context();
        let next = error_policy(Arc::new(fixtures::job().into()), error, context);
        assert_eq!(next == Action::await_change(), category == "InvalidObject");
    }
}
