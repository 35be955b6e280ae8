//! The round of a job that cannot be decoded, because another version wrote it. Sets the condition
//! `Reconciled` with the reason, as plain JSON, and changes nothing else.

use crds::ViTTrainingJob;
use crds::conditions::{self, reasons, types};
use crds::spec::is_for_vit_operator;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use kube::Api;
use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::core::error_boundary::InvalidObject;
use kube::runtime::controller::Action;
use serde_json::{Value, json};
use tracing::warn;

use super::context::Context;
use crate::error::Error;
use crate::objects;

/// Fails if the condition is new, or could not be written.
pub(super) async fn round(context: &Context, invalid: &InvalidObject) -> Result<Action, Error> {
    let error = Error::InvalidObject(Box::new(invalid.clone()));
    match report(context, &invalid.metadata, &error).await {
        Ok(true) => Err(error),
        Ok(false) => Ok(Action::await_change()),
        // The schema may refuse the whole job. Then only the Event and the log report the error.
        Err(refusal) if refusal.is_refusal() => {
            warn!(%refusal, "failed to write condition Reconciled of a job that cannot be decoded");
            Err(error)
        }
        Err(failure) => Err(failure),
    }
}

/// Writes the condition. Returns whether it changed.
async fn report(context: &Context, metadata: &ObjectMeta, error: &Error) -> Result<bool, Error> {
    let name = metadata.name.clone().unwrap_or_default();
    let namespace = metadata.namespace.as_deref().unwrap_or_default();
    let resource = ApiResource::erase::<ViTTrainingJob>(&());
    let api: Api<DynamicObject> = Api::namespaced_with(context.client.clone(), namespace, &resource);
    let kind = objects::kind::<ViTTrainingJob>();
    // A get by name would need another permission.
    let by_name = ListParams::default().fields(&format!("metadata.name={name}"));
    let listed = api.list(&by_name).await;
    let listed = listed.map_err(Error::api("read", kind, &name))?;
    let same = |job: &DynamicObject| job.metadata.uid == metadata.uid;
    let Some(mut job) = listed.items.into_iter().find(same) else {
        return Ok(false);
    };
    if !set_condition(&mut job, &error.to_string(), context.settings.clock.now()) {
        return Ok(false);
    }
    objects::replace_status(&api, kind, &job).await?;
    Ok(true)
}

/// Sets the condition. False if it is set already, or the job is another controller's.
fn set_condition(job: &mut DynamicObject, why: &str, now: Timestamp) -> bool {
    let managed_by = job.data.pointer("/spec/managedBy").and_then(Value::as_str);
    if job.metadata.deletion_timestamp.is_some() || !is_for_vit_operator(managed_by) {
        return false;
    }
    let status = &mut job.data["status"];
    if !status.is_object() {
        *status = json!({});
    }
    // Undecodable conditions are replaced.
    let last: Vec<Condition> = serde_json::from_value(status["conditions"].clone()).unwrap_or_default();
    let mut next = last.clone();
    let cause = (reasons::RECONCILE_FAILED, why);
    let condition = conditions::condition(types::RECONCILED, false, cause, job.metadata.generation, now);
    conditions::set(&mut next, condition);
    if next == last {
        return false;
    }
    status["conditions"] = json!(next);
    true
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use http::{Method, Request, Response};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use kube::client::Body;
    use planner::GuardedJob;
    use serde_json::Value;
    use tower_test::mock::Handle;

    use super::super::tests::{failure, idle_context};
    use super::super::{error_policy, reconcile};
    use super::*;
    use crate::fixtures::{self, assert_contains};

    /// An API server that stores one job; `refuses` every write of its status with this code.
    async fn serve(
        mut handle: Handle<Request<Body>, Response<Body>>,
        stored: Arc<Mutex<Value>>,
        refuses: Option<u16>,
    ) -> Vec<String> {
        let mut calls = Vec::new();
        while let Some((request, answer)) = handle.next_request().await {
            let (parts, body) = request.into_parts();
            let body: Value =
                serde_json::from_slice(&body.collect_bytes().await.expect("a body")).unwrap_or_default();
            let query = parts.uri.query().unwrap_or_default();
            let (call, code, response) = match (&parts.method, refuses) {
                (&Method::GET, _) => {
                    let job = stored.lock().expect("a job").clone();
                    let list = json!({"kind": "List", "apiVersion": "v1", "metadata": {}, "items": [job]});
                    (format!("list {query}"), 200, list)
                }
                (&Method::PUT, Some(code)) => ("refused".into(), code, failure(code, "Reason")),
                (&Method::PUT, None) => {
                    *stored.lock().expect("a job") = body.clone();
                    (
                        format!("status {}", body["status"]["conditions"][0]["message"]),
                        200,
                        body,
                    )
                }
                _ => (format!("event {}", body["reason"]), 201, body),
            };
            calls.push(call);
            answer.send_response(fixtures::response(code, &response));
        }
        calls
    }

    /// A job of a later version.
    fn unreadable() -> Value {
        let mut object = serde_json::to_value(fixtures::job()).expect("a job");
        object["spec"]["later"] = json!({"a": 1});
        object
    }

    /// Two rounds of a job: their calls, their errors, and the job after them.
    async fn rounds(job: Value, refuses: Option<u16>) -> (Vec<String>, Vec<Option<&'static str>>, Value) {
        let (context, handle) = idle_context();
        let stored = Arc::new(Mutex::new(job));
        let server = tokio::spawn(serve(handle, Arc::clone(&stored), refuses));
        let mut said = Vec::new();
        for _ in 0..2 {
            let job = stored.lock().expect("a job").clone();
            let guarded: Arc<GuardedJob> =
                Arc::new(serde_json::from_value(job).expect("at least its metadata"));
            let result = Box::pin(reconcile(Arc::clone(&guarded), Arc::clone(&context))).await;
            let next = match &result {
                Ok(action) => action.clone(),
                Err(error) => error_policy(guarded, error, Arc::clone(&context)),
            };
            let waits = next == Action::await_change();
            said.push(result.err().map(|error| error.category()));
            assert_eq!(waits, said.last() != Some(&Some("ApiServer")), "{said:?}");
        }
        drop(context);
        let calls = server.await.expect("served");
        let job = stored.lock().expect("a job").clone();
        (calls, said, job)
    }

    #[tokio::test]
    async fn the_job_tells_once_why_it_cannot_be_read_and_is_left_until_it_changes() {
        let (calls, said, job) = rounds(unreadable(), None).await;
        let list = "list &fieldSelector=metadata.name%3Ddigits";
        let condition = &job["status"]["conditions"][0];
        let status = format!("status {}", condition["message"]);
        assert_eq!(calls, [list, &status, "event \"ReconcileFailed\"", list]);
        assert_eq!(said, [Some("InvalidObject"), None]);
        assert_contains(&status, "failed to read the job: Unknown field later");
        assert_eq!(
            (&condition["type"], &condition["status"]),
            (&json!("Reconciled"), &json!("False"))
        );
        assert_eq!(job["spec"], unreadable()["spec"], "nothing else is touched");
    }

    #[tokio::test]
    async fn a_server_that_refuses_the_whole_job_leaves_the_event() {
        let (calls, said, _) = rounds(unreadable(), Some(422)).await;
        assert_eq!(said, [Some("InvalidObject"); 2]);
        assert!(calls.contains(&"event \"ReconcileFailed\"".into()), "{calls:?}");
    }

    #[tokio::test]
    async fn a_server_that_fails_is_asked_again() {
        let (_, said, _) = rounds(unreadable(), Some(500)).await;
        assert_eq!(said, [Some("ApiServer"); 2]);
    }

    #[tokio::test]
    async fn a_job_of_another_controller_or_one_that_is_going_is_left_alone() {
        let mut of_another = unreadable();
        of_another["spec"]["managedBy"] = json!("kueue.x-k8s.io/multikueue");
        let mut going = unreadable();
        going["metadata"]["deletionTimestamp"] = json!(fixtures::at(1).to_string());
        for job in [of_another, going] {
            let (calls, said, after) = rounds(job.clone(), None).await;
            assert_eq!((calls.len(), said), (2, vec![None, None]), "{calls:?}");
            assert_eq!(after, job);
        }
    }

    #[test]
    fn what_is_no_status_is_replaced() {
        for status in [Value::Null, json!("words"), json!({"conditions": "none"})] {
            let mut object = unreadable();
            object["status"] = status;
            let mut job: DynamicObject = serde_json::from_value(object).expect("an object");
            assert!(set_condition(&mut job, "why", fixtures::at(1)));
            assert_eq!(job.data["status"]["conditions"][0]["message"], "why");
            assert!(!set_condition(&mut job, "why", fixtures::at(2)), "set already");
            assert!(set_condition(&mut job, "why else", fixtures::at(3)));
            assert_eq!(
                job.data["status"]["conditions"][0]["lastTransitionTime"],
                json!(Time(fixtures::at(1)))
            );
        }
    }
}
