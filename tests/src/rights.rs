//! Compares the rights that a chart's roles grant to an account with the requests that it made.

use std::collections::BTreeSet;
use std::fmt;

use anyhow::{Context as _, Result, ensure};
use jiff::Timestamp;
use k8s_openapi::api::rbac::v1::PolicyRule;
use serde_json::{Value, json};

/// One verb on one kind of object.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Right {
    /// API group; empty for the core group.
    pub group: String,
    /// Plural name, with `/` and the subresource, if any.
    pub resource: String,
    /// Verb, such as `list`.
    pub verb: String,
}

impl Right {
    /// A right from its three parts.
    pub fn new(group: &str, resource: &str, verb: &str) -> Self {
        Self {
            group: group.into(),
            resource: resource.into(),
            verb: verb.into(),
        }
    }
}

impl fmt::Display for Right {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let group = if self.group.is_empty() {
            "core"
        } else {
            &self.group
        };
        write!(formatter, "{} {} ({group})", self.verb, self.resource)
    }
}

/// The outcome of a request.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Decision {
    /// The account has the right.
    Allowed,
    /// It lacks the right; the server's message.
    Denied(String),
}

/// A request of an account.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Request {
    /// The right it needs; `None` if it is not about objects, such as for the server's version.
    pub right: Option<Right>,
    /// The requested URI.
    pub uri: String,
    /// When the server received it.
    pub time: Timestamp,
    /// Its outcome.
    pub decision: Decision,
}

impl fmt::Display for Request {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.right {
            Some(right) => write!(formatter, "{right}"),
            None => formatter.write_str(&self.uri),
        }
    }
}

/// A service account.
#[derive(Clone, Copy, Debug)]
pub struct Account<'a> {
    /// Its namespace.
    pub namespace: &'a str,
    /// Its name.
    pub name: &'a str,
}

impl Account<'_> {
    /// Its user name in the API server.
    pub fn user(&self) -> String {
        format!("system:serviceaccount:{}:{}", self.namespace, self.name)
    }
}

/// A problem with the rights of an account.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Finding {
    /// The API server or an admission plugin denied a request because a right is missing.
    Denied {
        /// The request.
        request: String,
        /// The server's message.
        message: String,
    },
    /// A request was allowed, but not by a rule of the chart.
    GrantedByOthers(Right),
    /// A rule grants a right that was never used.
    Unused(Right),
    /// A rule grants an open set of rights: by a wildcard or by non-resource URLs.
    Unbounded(String),
}

impl fmt::Display for Finding {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Denied { request, message } => write!(formatter, "denied: {request}: {message}"),
            Self::GrantedByOthers(right) => {
                write!(formatter, "used, but not granted by the chart: {right}")
            }
            Self::Unused(right) => write!(formatter, "granted, but never used: {right}"),
            Self::Unbounded(rule) => write!(formatter, "granted without bounds: {rule}"),
        }
    }
}

/// Whether every right must have been used.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Coverage {
    /// The requests cover everything the account does.
    Whole,
    /// They cover a part of it.
    Part,
}

/// The rules that these manifests bind to an account.
pub fn rules_of(manifests: &[Value], account: Account<'_>) -> Result<Vec<PolicyRule>> {
    let account = json!({"kind": "ServiceAccount", "name": account.name, "namespace": account.namespace});
    let is_account = |subject: &Value| {
        ["kind", "name", "namespace"]
            .iter()
            .all(|field| subject[field] == account[field])
    };
    let is_bound = |binding: &&Value| {
        let kind = binding["kind"].as_str().unwrap_or_default();
        let mut subjects = binding["subjects"].as_array().into_iter().flatten();
        kind.ends_with("RoleBinding") && subjects.any(is_account)
    };
    let mut rules = Vec::new();
    for binding in manifests.iter().filter(is_bound) {
        let [kind, name] =
            ["kind", "name"].map(|field| binding["roleRef"][field].as_str().unwrap_or_default());
        let role = manifests.iter().find(|role| {
            let is_in_reach =
                kind == "ClusterRole" || role["metadata"]["namespace"] == binding["metadata"]["namespace"];
            role["kind"] == kind && role["metadata"]["name"] == name && is_in_reach
        });
        let role = role.with_context(|| format!("a binding refers to a missing {kind} {name}"))?;
        ensure!(
            role["aggregationRule"].is_null(),
            "{name} is an aggregated role, whose rules cannot be listed"
        );
        let of_role: Option<Vec<PolicyRule>> = serde_json::from_value(role["rules"].clone())?;
        rules.extend(of_role.unwrap_or_default());
    }
    Ok(rules)
}

/// Problems with an account's rules, given its requests. `without_request` are rights that are
/// needed without a request for them.
pub fn findings(
    rules: &[PolicyRule],
    requests: &[Request],
    without_request: &[Right],
    coverage: Coverage,
) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut granted = BTreeSet::new();
    for rule in rules {
        match rights(rule) {
            Some(rights) => granted.extend(rights),
            None => found.push(Finding::Unbounded(
                serde_json::to_string(rule).unwrap_or_default(),
            )),
        }
    }
    let mut used: BTreeSet<Right> = without_request.iter().cloned().collect();
    for request in requests {
        match &request.decision {
            Decision::Allowed => used.extend(request.right.clone()),
            Decision::Denied(message) => {
                let denied = Finding::Denied {
                    request: request.to_string(),
                    message: message.clone(),
                };
                if !found.contains(&denied) {
                    found.push(denied);
                }
            }
        }
    }
    let by_others = used.difference(&granted).cloned();
    found.extend(by_others.map(Finding::GrantedByOthers));
    if coverage == Coverage::Whole {
        found.extend(granted.difference(&used).cloned().map(Finding::Unused));
    }
    found
}

/// The rights of a rule; `None` if it is unbounded.
fn rights(rule: &PolicyRule) -> Option<Vec<Right>> {
    let words = |words: &Option<Vec<String>>| words.clone().unwrap_or_default();
    let (groups, resources) = (words(&rule.api_groups), words(&rule.resources));
    let all = [&groups, &resources, &rule.verbs];
    let is_wild = all
        .iter()
        .any(|words| words.iter().any(|word| word.contains('*')));
    if is_wild || !words(&rule.non_resource_urls).is_empty() {
        return None;
    }
    let mut rights = Vec::new();
    for group in &groups {
        for resource in &resources {
            rights.extend(rule.verbs.iter().map(|verb| Right::new(group, resource, verb)));
        }
    }
    Some(rights)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACCOUNT: Account<'_> = Account {
        namespace: "system",
        name: "operator",
    };

    fn rule(groups: &[&str], resources: &[&str], verbs: &[&str]) -> PolicyRule {
        serde_json::from_value(json!({"apiGroups": groups, "resources": resources, "verbs": verbs})).unwrap()
    }

    fn allowed(group: &str, resource: &str, verb: &str) -> Request {
        Request {
            right: Some(Right::new(group, resource, verb)),
            uri: "/".into(),
            time: Timestamp::UNIX_EPOCH,
            decision: Decision::Allowed,
        }
    }

    #[test]
    fn rights_that_are_all_used_are_as_they_should_be() {
        let rules = [
            rule(&[""], &["pods", "services"], &["create"]),
            rule(&["a.b"], &["jobs/status"], &["update"]),
            rule(&["a.b"], &["jobs/finalizers"], &["update"]),
        ];
        let requests = [
            allowed("", "pods", "create"),
            allowed("", "pods", "create"),
            allowed("", "services", "create"),
            allowed("a.b", "jobs/status", "update"),
        ];
        let without_request = [Right::new("a.b", "jobs/finalizers", "update")];
        assert_eq!(findings(&rules, &requests, &without_request, Coverage::Whole), []);
    }

    #[test]
    fn a_right_that_is_never_used_is_found_where_all_was_seen() {
        let rules = [rule(&[""], &["pods"], &["create", "delete"])];
        let requests = [allowed("", "pods", "create")];
        let unused = [Finding::Unused(Right::new("", "pods", "delete"))];
        assert_eq!(findings(&rules, &requests, &[], Coverage::Whole), unused);
        assert_eq!(findings(&rules, &requests, &[], Coverage::Part), []);
        assert_eq!(
            unused[0].to_string(),
            "granted, but never used: delete pods (core)"
        );
    }

    #[test]
    fn a_subresource_is_no_use_of_its_resource() {
        let rules = [rule(&["a.b"], &["jobs"], &["update"])];
        let requests = [allowed("a.b", "jobs/status", "update")];
        assert_eq!(
            findings(&rules, &requests, &[], Coverage::Whole),
            [
                Finding::GrantedByOthers(Right::new("a.b", "jobs/status", "update")),
                Finding::Unused(Right::new("a.b", "jobs", "update")),
            ]
        );
    }

    #[test]
    fn a_denial_is_told_once_and_is_no_use() {
        let rules = [rule(&[""], &["pods"], &["list"])];
        let denied = Request {
            decision: Decision::Denied("no".into()),
            ..allowed("", "secrets", "list")
        };
        let requests = [allowed("", "pods", "list"), denied.clone(), denied];
        let found = findings(&rules, &requests, &[], Coverage::Part);
        let [Finding::Denied { request, message }] = &found[..] else {
            panic!("{found:?}");
        };
        assert_eq!(
            (request.as_str(), message.as_str()),
            ("list secrets (core)", "no")
        );
    }

    #[test]
    fn what_has_no_bounds_is_refused() {
        let addresses: PolicyRule =
            serde_json::from_value(json!({"nonResourceURLs": ["/metrics"], "verbs": ["get"]})).unwrap();
        for unbounded in [
            rule(&["*"], &["pods"], &["get"]),
            rule(&[""], &["*"], &["get"]),
            rule(&[""], &["pods/*"], &["get"]),
            rule(&[""], &["pods"], &["*"]),
            addresses,
        ] {
            let found = findings(std::slice::from_ref(&unbounded), &[], &[], Coverage::Part);
            assert!(
                matches!(found[..], [Finding::Unbounded(_)]),
                "{unbounded:?}: {found:?}"
            );
        }
    }

    fn binding(kind: &str, namespace: Option<&str>, role: (&str, &str), account: &str) -> Value {
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind,
            "metadata": {"name": "a", "namespace": namespace},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": role.0, "name": role.1},
            "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": "system"}],
        })
    }

    fn role(kind: &str, namespace: Option<&str>, name: &str, resource: &str) -> Value {
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind,
            "metadata": {"name": name, "namespace": namespace},
            "rules": [{"apiGroups": [""], "resources": [resource], "verbs": ["get"]}],
        })
    }

    #[test]
    fn rules_are_those_of_all_roles_bound_to_the_account_and_of_no_other() {
        let manifests = [
            role("ClusterRole", None, "wide", "nodes"),
            role("Role", Some("one"), "same", "pods"),
            role("Role", Some("two"), "same", "services"),
            role("ClusterRole", None, "viewer", "secrets"),
            binding("ClusterRoleBinding", None, ("ClusterRole", "wide"), "operator"),
            binding("RoleBinding", Some("two"), ("Role", "same"), "operator"),
            binding("ClusterRoleBinding", None, ("ClusterRole", "viewer"), "someone"),
        ];
        let rules = rules_of(&manifests, ACCOUNT).unwrap();
        let resources: Vec<_> = rules
            .into_iter()
            .flat_map(|rule| rule.resources.unwrap())
            .collect();
        assert_eq!(resources, ["nodes", "services"]);
    }

    #[test]
    fn a_binding_of_a_role_that_is_not_there_is_an_error() {
        let manifests = [binding("RoleBinding", Some("one"), ("Role", "gone"), "operator")];
        let error = rules_of(&manifests, ACCOUNT).unwrap_err().to_string();
        assert_eq!(error, "a binding refers to a missing Role gone");
    }
}
