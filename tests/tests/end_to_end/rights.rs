//! What the operator may do: all that it does, and nothing else.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use crds::Phase;
use serde_json::{Value, json};
use vit_tests::binaries::Binaries;
use vit_tests::chart;
use vit_tests::operator::{ELSEWHERE, OPERATOR, accounts};
use vit_tests::rights::{Coverage, Finding, Right, findings, rules_of};

use crate::context::{Context, Namespace, check_attempts};

/// How long the API server may take to write what it was asked for.
const DEADLINE: Duration = Duration::from_secs(10);

/// Objects of others that have the names which the job `digits` needs, in the order in which it needs them.
fn objects_of_others() -> [(&'static str, &'static str, Value); 4] {
    let restricted = json!({
        "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": true, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"},
    });
    let object = |version: &str, kind: &str, name: &str, rest: Value| {
        let mut object = json!({"apiVersion": version, "kind": kind, "metadata": {"name": name}});
        if let (Some(fields), Value::Object(rest)) = (object.as_object_mut(), rest) {
            fields.extend(rest);
        }
        object
    };
    [
        (
            "ConfigMap",
            "digits-1",
            object("v1", "ConfigMap", "digits-1", json!({})),
        ),
        (
            "Service",
            "digits",
            object("v1", "Service", "digits", json!({"spec": {"clusterIP": "None"}})),
        ),
        (
            "NetworkPolicy",
            "digits",
            object(
                "networking.k8s.io/v1",
                "NetworkPolicy",
                "digits",
                json!({"spec": {"podSelector": {"matchLabels": {"is": "not-there"}}}}),
            ),
        ),
        // No scheduler has this name, so it stays where it is.
        (
            "Pod",
            "digits-1-0",
            object(
                "v1",
                "Pod",
                "digits-1-0",
                json!({"spec": {
                    "schedulerName": "none",
                    "containers": [{"name": "none", "image": "there.is/none:here", "securityContext": restricted}],
                }}),
            ),
        ),
    ]
}

pub(crate) fn objects_of_others_are_left_alone(context: &Context<'_>) -> Result<()> {
    let namespace = context.namespace("taken")?;
    let others = objects_of_others();
    let items: Vec<&Value> = others.iter().map(|(.., object)| object).collect();
    namespace.apply_all(&items)?;
    namespace.create("digits", json!({"training": {"epochs": 2}}))?;
    for (kind, name, _) in &others {
        let told = format!("failed to create {kind} {name}: there is one that does not belong to this job");
        namespace.wait("digits", &format!("tells of {kind} {name}"), |status| {
            let mut conditions = status.conditions.iter();
            conditions.any(|condition| condition.message.contains(&told))
        })?;
        namespace.kubectl(["delete", kind, name, "--grace-period=0", "--force"])?;
    }
    let status = namespace.wait_phase("digits", Phase::Succeeded)?;
    // Also when one pod of the gang had started, and the other could not be created yet.
    check_attempts(&status, 1, 0)
}

impl Namespace<'_> {
    /// Applies objects in this namespace.
    pub(crate) fn apply_all(&self, items: &[&Value]) -> Result<()> {
        let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
        let path = self.folder.join("objects.json");
        fs_err::write(&path, list.to_string())?;
        self.kubectl(["apply", "-f", &path.display().to_string()])?;
        Ok(())
    }
}

/// Rights that are asked for in no request of their own: the admission plugin `OwnerReferencesPermissionEnforcement`, which is
/// on, looks whether someone who creates an object that blocks its owner's deletion may set the owner's finalizers. Without
/// that right every creation is denied (`tests/tests/api_server.rs`).
fn without_request() -> [Right; 1] {
    [Right::new(
        "vit-operator.dev",
        "vittrainingjobs/finalizers",
        "update",
    )]
}

/// Compares what the chart grants with all that was asked for until now, by whom it was granted to.
pub(crate) fn rights_are_those_that_are_used(context: &Context<'_>) -> Result<()> {
    let coverage = if context.is_whole {
        Coverage::Whole
    } else {
        Coverage::Part
    };
    let [operator, test, elsewhere] = accounts();
    // Where the operator is the same, its rights need not all be used once more.
    for (account, values, coverage, without_request) in [
        (operator, &[][..], coverage, &without_request()[..]),
        (test, &[], coverage, &[]),
        (elsewhere, &["namespace=any"], Coverage::Part, &without_request()),
    ] {
        let manifests = chart::template(&Binaries::build()?, OPERATOR, account.namespace, values)?;
        let rules = rules_of(&chart::manifests(&manifests)?, account)?;
        ensure!(!rules.is_empty(), "{} has no rules", account.user());
        let began = Instant::now();
        loop {
            let mut requests = context.cluster.requests(account)?;
            requests.retain(|request| !context.are_rights_unsettled_at(request.time));
            let found = findings(&rules, &requests, without_request, coverage);
            if found.is_empty() {
                break;
            }
            // The log may be a moment behind.
            ensure!(
                began.elapsed() < DEADLINE,
                "{}, of {} requests:\n{}",
                account.user(),
                requests.len(),
                told(&found)
            );
            std::thread::sleep(Duration::from_millis(500));
        }
    }
    if context.is_whole {
        let requests = context.cluster.requests(elsewhere)?;
        ensure!(!requests.is_empty(), "nothing was asked for from {ELSEWHERE}");
    }
    Ok(())
}

fn told(findings: &[Finding]) -> String {
    let lines: Vec<String> = findings.iter().map(ToString::to_string).collect();
    lines.join("\n")
}
