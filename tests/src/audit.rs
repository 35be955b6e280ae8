//! The requests of accounts to the API server, from its audit log.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use fs_err as fs;
use serde_json::{Value, json};

use crate::rights::{Account, Decision, Request, Right};
use crate::state::State;

/// Size at which a log is rotated, in megabytes. A run of all tests fills only part of one.
const LOG_MEGABYTES: u32 = 512;
/// Reasons of a 403 by an admission plugin that are not about rights: a namespace is being deleted,
/// or the server does not know all custom resources yet.
const NOT_FOR_WANT_OF_A_RIGHT: [&str; 2] = [
    "because it is being terminated",
    "because cannot find RESTMapping",
];

/// Writes the policy that logs requests of these users without their bodies, and returns the API
/// server's flags for it.
pub(crate) fn flags(state: &State, users: &[String]) -> Result<Vec<(&'static str, String)>> {
    let policy = json!({
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [{"level": "Metadata", "users": users}],
    });
    let path = state.directory().join("audit-policy.json");
    fs::write(&path, serde_json::to_vec_pretty(&policy)?)?;
    let log = log_file(state);
    fs::create_dir_all(log.parent().context("the log is in a folder")?)?;
    Ok(vec![
        ("audit-policy-file", path.display().to_string()),
        ("audit-log-path", log.display().to_string()),
        ("audit-log-maxsize", LOG_MEGABYTES.to_string()),
        ("audit-log-maxbackup", "1".to_owned()),
    ])
}

/// On disk, because it grows as long as the cluster runs.
fn log_file(state: &State) -> PathBuf {
    state.record().data.join("audit.log")
}

/// The logged requests of an account.
pub(crate) fn requests(state: &State, account: Account<'_>) -> Result<Vec<Request>> {
    let path = log_file(state);
    let log = fs::read_to_string(&path)?;
    parse(&log, &account.user()).with_context(|| format!("{}: not an audit log", path.display()))
}

fn parse(log: &str, user: &str) -> Result<Vec<Request>> {
    // The last line may be incomplete.
    let complete = log.rsplit_once('\n').map_or("", |(complete, _)| complete);
    let mut requests = Vec::new();
    for line in complete.lines() {
        let event: Value = serde_json::from_str(line).with_context(|| line.to_owned())?;
        if event["user"]["username"] == user {
            requests.push(request(&event).with_context(|| line.to_owned())?);
        }
    }
    Ok(requests)
}

fn request(event: &Value) -> Result<Request> {
    let text = |pointer: &str| event.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let resource = match (text("/objectRef/resource"), text("/objectRef/subresource")) {
        (resource, "") => resource.to_owned(),
        (resource, subresource) => format!("{resource}/{subresource}"),
    };
    let right = || Right::new(text("/objectRef/apiGroup"), &resource, text("/verb"));
    let message = text("/responseStatus/message");
    let by_authorizer = event["annotations"]["authorization.k8s.io/decision"] == "forbid";
    // Admission plugins also check rights.
    let is_of_rights = !NOT_FOR_WANT_OF_A_RIGHT
        .iter()
        .any(|reason| message.contains(reason));
    let by_admission = event["responseStatus"]["code"] == 403 && is_of_rights;
    Ok(Request {
        right: (!resource.is_empty()).then(right),
        uri: text("/requestURI").to_owned(),
        time: text("/requestReceivedTimestamp").parse()?,
        decision: if by_authorizer || by_admission {
            Decision::Denied(message.to_owned())
        } else {
            Decision::Allowed
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const USER: &str = "system:serviceaccount:vit-operator:vit-operator";

    fn event(user: &str, verb: &str, object: Value, status: Value, decision: &str) -> String {
        let event = json!({
            "kind": "Event", "apiVersion": "audit.k8s.io/v1", "level": "Metadata", "stage": "ResponseComplete",
            "requestURI": "/somewhere", "requestReceivedTimestamp": "2026-01-02T03:04:05.678901Z", "verb": verb, "user": {"username": user, "groups": []},
            "objectRef": object, "responseStatus": status,
            "annotations": {"authorization.k8s.io/decision": decision, "authorization.k8s.io/reason": ""},
        });
        format!("{event}\n")
    }

    fn only(log: &str) -> Request {
        let mut requests = parse(log, USER).unwrap();
        assert_eq!(requests.len(), 1, "{requests:?}");
        requests.remove(0)
    }

    #[test]
    fn a_request_is_read_with_its_subresource() {
        let object =
            json!({"resource": "jobs", "subresource": "status", "apiGroup": "a.b", "apiVersion": "v1"});
        let read = only(&event(USER, "update", object, json!({"code": 200}), "allow"));
        assert_eq!(read.right, Some(Right::new("a.b", "jobs/status", "update")));
        assert_eq!(read.decision, Decision::Allowed);
    }

    #[test]
    fn requests_of_others_and_a_line_that_is_being_written_are_left_out() {
        let pods = || json!({"resource": "pods", "apiVersion": "v1"});
        let log = [
            event("system:admin", "list", pods(), json!({"code": 200}), "allow"),
            event(USER, "list", pods(), json!({"code": 200}), "allow"),
            r#"{"kind": "Ev"#.to_owned(),
        ]
        .concat();
        assert_eq!(only(&log).to_string(), "list pods (core)");
    }

    #[test]
    fn what_is_about_no_object_takes_no_right() {
        let read = only(&event(USER, "get", Value::Null, json!({"code": 200}), "allow"));
        assert_eq!(read.right, None);
        assert_eq!(read.to_string(), "/somewhere");
    }

    #[test]
    fn denials_are_told_from_what_is_refused_for_other_reasons() {
        let pods = || json!({"resource": "pods", "apiVersion": "v1"});
        let decision =
            |status: Value, decision: &str| only(&event(USER, "create", pods(), status, decision)).decision;
        let denied = |message: &str| Decision::Denied(message.into());
        let status =
            |code: u16, message: &str| json!({"code": code, "message": message, "status": "Failure"});
        assert_eq!(decision(status(403, "may not"), "forbid"), denied("may not"));
        let by_admission = "cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set finalizers on";
        assert_eq!(decision(status(403, by_admission), "allow"), denied(by_admission));
        let terminating = "unable to create new content in namespace a because it is being terminated";
        assert_eq!(decision(status(403, terminating), "allow"), Decision::Allowed);
        let unknown = "cannot set blockOwnerDeletion in this case because cannot find RESTMapping for APIVersion a.b/v1 Kind A";
        assert_eq!(decision(status(403, unknown), "allow"), Decision::Allowed);
        assert_eq!(decision(status(409, "exists"), "allow"), Decision::Allowed);
    }
}
