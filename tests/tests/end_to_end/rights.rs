//! The operator's rights: exactly those that it uses.

use anyhow::{Result, ensure};
use crds::Phase;
use serde_json::{Value, json};
use vit_tests::binaries::Binaries;
use vit_tests::chart;
use vit_tests::operator::{ELSEWHERE, OPERATOR, accounts};
use vit_tests::rights::{Coverage, Right, findings, rules_of};

use crate::context::{Context, Namespace};
use crate::steps::{check_attempts, until};

/// The security context that the tests' namespaces require (Pod Security "restricted").
pub(crate) fn restricted() -> Value {
    json!({
        "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": true, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"},
    })
}

/// Foreign objects with the names that the job `digits` needs, in that order.
fn objects_of_others() -> [Value; 4] {
    [
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "digits-1"}}),
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "digits"}, "spec": {"clusterIP": "None"}}),
        json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "digits"},
            "spec": {"podSelector": {"matchLabels": {"is": "not-there"}}},
        }),
        // No scheduler has this name, so the pod stays unscheduled.
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
        let told =
            format!("failed to create {kind} {name}: an object with this name does not belong to this job");
        namespace.wait_message("digits", &told)?;
        namespace.kubectl(["delete", kind, name, "--grace-period=0", "--force"])?;
    }
    let status = namespace.wait_phase("digits", Phase::Succeeded)?;
    // Also while one pod of the gang had started and the other could not be created yet.
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

/// Rights without a request: the admission plugin `OwnerReferencesPermissionEnforcement` requires
/// the right to set the owner's finalizers from a client that creates an object with
/// `blockOwnerDeletion`. Without it every creation is denied (`tests/tests/api_server/chart.rs`).
fn without_request() -> [Right; 2] {
    ["vittrainingjobs/finalizers", "vitscalingstudies/finalizers"]
        .map(|resource| Right::new("vit-operator.dev", resource, "update"))
}

/// Compares the rights that the chart grants with all requests so far, for each account.
///
/// Invariant G14.
pub(crate) fn operator_has_the_rights_it_uses_and_no_others(context: &Context<'_>) -> Result<()> {
    let coverage = if context.is_whole {
        Coverage::Whole
    } else {
        Coverage::Part
    };
    let [operator, test, elsewhere] = accounts();
    // The second installation of the operator need not use all rights again.
    for (account, values, coverage, without_request) in [
        (operator, &[][..], coverage, &without_request()[..]),
        (test, &[], coverage, &[]),
        (elsewhere, &["namespace=any"], Coverage::Part, &without_request()),
    ] {
        let manifests = chart::template(&Binaries::build()?, OPERATOR, account.namespace, values)?;
        let rules = rules_of(&chart::manifests(&manifests)?, account)?;
        ensure!(!rules.is_empty(), "{} has no rules", account.user());
        // The log may lag behind.
        until(|| {
            let mut requests = context.cluster.requests(account)?;
            requests.retain(|request| !context.are_rights_unsettled_at(request.time));
            let found = findings(&rules, &requests, without_request, coverage);
            let lines: Vec<String> = found.iter().map(ToString::to_string).collect();
            ensure!(
                found.is_empty(),
                "{}, {} requests:\n{}",
                account.user(),
                requests.len(),
                lines.join("\n")
            );
            Ok(())
        })?;
    }
    if context.is_whole {
        let requests = context.cluster.requests(elsewhere)?;
        ensure!(!requests.is_empty(), "there are no requests from {ELSEWHERE}");
    }
    Ok(())
}
