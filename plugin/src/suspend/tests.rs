use std::cell::RefCell;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crds::{ViTScalingStudy, ViTTrainingJob};
use serde_json::Value;

use super::*;
use crate::fixtures;
use crate::mock::{Answer, End, server};

fn outcome_of(action: Action, status: Value) -> Option<String> {
    let name = "digits".parse().expect("a name");
    let outcome = outcome(&name, action, Some(&fixtures::job(status)));
    outcome.map(|outcome| outcome.unwrap_or_else(|error| format!("error: {error}")))
}

#[test]
fn suspending_ends_with_the_step_that_was_saved() {
    let shown = |phase: &str| {
        let saved = json!({"step": 450, "path": "/checkpoints/digits/step-450"});
        let status = json!({"phase": phase, "attempt": 1, "observedGeneration": 1, "lastCheckpoint": saved});
        outcome_of(Action::Suspend, status)
    };
    assert_eq!(shown("Suspending"), None);
    assert_eq!(
        shown("Suspended").as_deref(),
        Some("digits is suspended, saved at step 450 in /checkpoints/digits/step-450")
    );
    assert_eq!(shown("Succeeded").as_deref(), Some("digits had already finished"));
}

#[test]
fn a_status_from_before_the_change_does_not_count() {
    let status = json!({"phase": "Suspended", "attempt": 1, "observedGeneration": 0});
    assert_eq!(outcome_of(Action::Suspend, status), None);
}

#[test]
fn resuming_ends_with_the_attempt() {
    let status = json!({"phase": "Running", "attempt": 2, "observedGeneration": 1});
    let shown = outcome_of(Action::Resume, status);
    assert_eq!(shown.as_deref(), Some("digits is running again, attempt 2"));
}

/// Changes these objects on a server that has `objects`; returns the lines, the exit code and the patches.
async fn changed<K: Kind>(
    objects: Vec<K>,
    names: &[&str],
    action: Action,
    timeout: Option<Timeout>,
) -> (Vec<String>, Exit, Vec<String>) {
    let patches = Arc::new(Mutex::new(vec![]));
    let seen = patches.clone();
    let find = move |name: &str| {
        let mut named = objects
            .iter()
            .filter(|object| object.meta().name.as_deref() == Some(name));
        named.next().cloned()
    };
    let cluster = server(move |request| {
        let name = request.path.rsplit('/').next().unwrap_or_default();
        if request.method == "PATCH" {
            seen.lock()
                .expect("patches")
                .push(format!("{name} {}", request.body));
        }
        // A wait lists one object, then watches it.
        let waited = request
            .query
            .split('&')
            .find_map(|part| part.strip_prefix("fieldSelector=metadata.name="));
        match waited {
            Some(_) if request.query.contains("watch=true") => Answer::text("").ending(End::Silent),
            Some(name) => Answer::list(&find(name).into_iter().collect::<Vec<_>>()),
            None => find(name).map_or_else(|| Answer::missing(name), |object| Answer::json(&object)),
        }
    });
    let names: Vec<Name<K>> = names.iter().map(|name| name.parse().expect("a name")).collect();
    let lines = RefCell::new(vec![]);
    let say = |line: &str| {
        lines.borrow_mut().push(line.trim_end().to_owned());
        Ok(())
    };
    let exit = change(&cluster, &names, action, timeout, &say).await;
    let patches = patches.lock().expect("patches").clone();
    (lines.into_inner(), exit.expect("is tried"), patches)
}

fn job(name: &str, suspend: bool, status: Value) -> ViTTrainingJob {
    let mut job = fixtures::job(status);
    job.metadata.name = Some(name.into());
    job.spec.suspend = suspend;
    job
}

#[tokio::test]
async fn each_of_several_jobs_has_a_line_and_the_worst_decides() {
    let jobs = vec![
        job("a", false, fixtures::training()),
        job("b", true, fixtures::suspended()),
        job("over", false, fixtures::done()),
    ];
    let (lines, exit, patches) = changed(jobs, &["a", "gone", "b", "over"], Action::Suspend, None).await;
    assert_eq!(
        lines,
        [
            "a is suspending: its pods save a checkpoint and stop, which releases its GPUs",
            "b is already suspended, saved at step 1800 in /checkpoints/digits/step-1800",
        ]
    );
    // The missing job would be 3; there is nothing left to suspend of the finished one.
    assert_eq!(exit, Exit::Usage);
    assert_eq!(patches, [r#"a {"spec":{"suspend":true}}"#]);
}

#[tokio::test]
async fn a_failed_job_is_suspended_before_it_is_resumed() {
    let failed = || {
        job(
            "failed",
            false,
            json!({"phase": "Failed", "observedGeneration": 1}),
        )
    };
    let (lines, exit, patches) = changed(vec![failed()], &["failed"], Action::Resume, None).await;
    assert_eq!((lines.len(), exit, patches.len()), (0, Exit::Usage, 0));
    let (_, exit, patches) = changed(vec![failed()], &["failed"], Action::Suspend, None).await;
    assert_eq!(
        (exit, &*patches),
        (
            Exit::Done,
            &[r#"failed {"spec":{"suspend":true}}"#.to_owned()][..]
        )
    );
    let status = json!({"phase": "Failed", "observedGeneration": 1});
    assert_eq!(
        outcome_of(Action::Suspend, status),
        None,
        "the operator has not seen it yet"
    );
}

#[tokio::test]
async fn studies_are_resumed_as_jobs_are() {
    let mut study = fixtures::study(json!({"phase": "Suspended"}));
    study.spec.suspend = true;
    let name = study.metadata.name.clone().expect("a name");
    let (lines, exit, patches) =
        changed::<ViTScalingStudy>(vec![study], &[&name], Action::Resume, None).await;
    assert_eq!(
        lines,
        [format!(
            "{name} is resuming: its next run starts when its nodes are free"
        )]
    );
    assert_eq!(exit, Exit::Done);
    assert_eq!(patches, [format!(r#"{name} {{"spec":{{"suspend":false}}}}"#)]);
}

#[tokio::test(start_paused = true)]
async fn all_are_waited_for_and_the_slowest_decides() {
    let jobs = vec![
        job("stays", false, fixtures::training()),
        job("parked", true, fixtures::suspended()),
    ];
    let timeout = Some(Timeout::after(Duration::from_secs(60)));
    let (lines, exit, _) = changed(jobs, &["stays", "parked"], Action::Suspend, timeout).await;
    let saved = "saved at step 1800 in /checkpoints/digits/step-1800";
    assert_eq!(
        lines[1..],
        [
            format!("parked is already suspended, {saved}"),
            format!("parked is suspended, {saved}")
        ]
    );
    assert_eq!(exit, Exit::NotYet);
}
