//! What the operator may do: all that it does, and nothing else.

use anyhow::{Result, ensure};
use crds::Phase;
use serde_json::{Value, json};
use vit_tests::binaries::Binaries;
use vit_tests::chart;
use vit_tests::operator::{ELSEWHERE, OPERATOR, accounts};
use vit_tests::rights::{Coverage, Right, findings, rules_of};

use crate::context::{Context, Namespace};
use crate::steps::{check_attempts, until};

/// What the Pod Security Standard of the tests' namespaces asks of a container.
pub(crate) fn restricted() -> Value {
    json!({
        "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": true, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"},
    })
}

/// Objects of others that have the names which the job `digits` needs, in the order in which it needs them.
fn objects_of_others() -> [Value; 4] {
    [
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "digits-1"}}),
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "digits"}, "spec": {"clusterIP": "None"}}),
        json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "digits"},
            "spec": {"podSelector": {"matchLabels": {"is": "not-there"}}},
        }),
        // No scheduler has this name, so it stays where it is.
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "digits-1-0"},
            "spec": {
                "schedulerName": "none",
                "containers": [{"name": "none", "image": "there.is/none:here", "securityContext": restricted()}],
            },
        }),
    ]
}

pub(crate) fn objects_of_others_are_left_alone_and_told(context: &Context<'_>) -> Result<()> {
    let namespace = context.namespace("taken")?;
    let others = objects_of_others();
    namespace.apply_all(&others)?;
    namespace.create("digits", json!({"training": {"epochs": 2}}))?;
    for object in &others {
        let [kind, name] =
            [&object["kind"], &object["metadata"]["name"]].map(|text| text.as_str().unwrap_or_default());
        let told = format!("failed to create {kind} {name}: there is one that does not belong to this job");
        namespace.wait_told("digits", &told)?;
        namespace.kubectl(["delete", kind, name, "--grace-period=0", "--force"])?;
    }
    let status = namespace.wait_phase("digits", Phase::Succeeded)?;
    // Also when one pod of the gang had started, and the other could not be created yet.
    check_attempts(&status, 1, 0)
}

impl Namespace<'_> {
    /// Applies objects in this namespace.
    pub(crate) fn apply_all(&self, items: &[Value]) -> Result<()> {
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
fn without_request() -> [Right; 2] {
    ["vittrainingjobs/finalizers", "vitscalingstudies/finalizers"]
        .map(|resource| Right::new("vit-operator.dev", resource, "update"))
}

/// Compares what the chart grants with all that was asked for until now, by whom it was granted to.
pub(crate) fn operator_has_the_rights_it_uses_and_no_others(context: &Context<'_>) -> Result<()> {
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
        // The log may be a moment behind.
        until(|| {
            let mut requests = context.cluster.requests(account)?;
            requests.retain(|request| !context.are_rights_unsettled_at(request.time));
            let found = findings(&rules, &requests, without_request, coverage);
            let lines: Vec<String> = found.iter().map(ToString::to_string).collect();
            ensure!(
                found.is_empty(),
                "{}, of {} requests:\n{}",
                account.user(),
                requests.len(),
                lines.join("\n")
            );
            Ok(())
        })?;
    }
    if context.is_whole {
        let requests = context.cluster.requests(elsewhere)?;
        ensure!(!requests.is_empty(), "nothing was asked for from {ELSEWHERE}");
    }
    Ok(())
}
