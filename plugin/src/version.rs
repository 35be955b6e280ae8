//! `kubectl vit version`: this program's version and the operator's.

use k8s_openapi::api::apps::v1::Deployment;
use kube::api::ListParams;
use kube::{Api, ResourceExt as _};
use serde::Serialize;

use crate::cluster::Cluster;
use crate::error::{Error, Exit};
use crate::output::{self, Format, report};

/// Labels that the Helm chart puts on the operator's Deployment.
const OPERATOR: &str = "app.kubernetes.io/name=vit-operator";
const VERSION: &str = "app.kubernetes.io/version";

/// Print the versions of this plugin and of the operator
///
/// The operator's version is a label of its Deployment, which the Helm chart sets. Reading it needs the right to list
/// Deployments of all namespaces. A warning is printed if the versions are more than one minor version apart.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  kubectl vit version\n  kubectl vit version --client")]
pub(crate) struct Arguments {
    /// Only the version of this plugin
    #[arg(long)]
    pub(crate) client: bool,
    /// Output format
    #[arg(short, long, value_enum)]
    output: Option<Format>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Versions {
    plugin: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    operators: Vec<Operator>,
}

/// An installed operator.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Operator {
    namespace: String,
    deployment: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<String>,
}

/// Prints the versions; without a cluster, only the plugin's.
pub(crate) async fn run(cluster: Option<&Cluster>, arguments: &Arguments) -> Result<Exit, Error> {
    let mut versions = Versions {
        plugin: env!("CARGO_PKG_VERSION").into(),
        operators: vec![],
    };
    let found = match cluster {
        Some(cluster) => operators(cluster).await,
        None => Ok(vec![]),
    };
    // The plugin's version is known even if the operator's is not.
    let failed = match found {
        Ok(operators) => {
            versions.operators = operators;
            None
        }
        Err(error) => Some(error),
    };
    match arguments.output.filter(|format| format.is_object()) {
        Some(format) => {
            let names = versions.operators.iter();
            let names = names.map(|operator| format!("deployment.apps/{}", operator.deployment));
            output::object(&versions, &names.collect::<Vec<_>>(), format)?;
        }
        None => output::print(&render(&versions))?,
    }
    for warning in warnings(&versions) {
        report(&format!("warning: {warning}"));
    }
    failed.map_or(Ok(Exit::Done), Err)
}

async fn operators(cluster: &Cluster) -> Result<Vec<Operator>, Error> {
    let api: Api<Deployment> = Api::all(cluster.client().clone());
    let params = ListParams::default().labels(OPERATOR);
    let found = cluster
        .list(api, params, "list the operator's Deployments")
        .await?;
    if found.is_empty() {
        return Err(Error::NotFound(format!(
            "no operator found: no namespace has a Deployment with the label {OPERATOR}"
        )));
    }
    let operator = |deployment: &Deployment| Operator {
        namespace: deployment.namespace().unwrap_or_default(),
        deployment: deployment.name_any(),
        version: deployment.labels().get(VERSION).cloned(),
    };
    Ok(found.iter().map(operator).collect())
}

fn render(versions: &Versions) -> String {
    let mut text = format!("kubectl-vit   {}\n", versions.plugin);
    for operator in &versions.operators {
        let version = operator.version.as_deref().unwrap_or("unknown");
        text += &format!(
            "operator      {version}   {}/{}\n",
            operator.namespace, operator.deployment
        );
    }
    text
}

/// Warnings about operators whose versions are too far from this plugin's.
fn warnings(versions: &Versions) -> Vec<String> {
    let apart = versions.operators.iter().filter_map(|operator| {
        let (plugin, version) = (&versions.plugin, operator.version.as_deref()?);
        are_apart(minor(plugin)?, minor(version)?).then(|| {
            format!(
                "plugin {plugin} and operator {version} in namespace {} are more than one minor version apart: install \
                 a plugin of the operator's version",
                operator.namespace
            )
        })
    });
    apart.collect()
}

/// Major and minor version; `None` for text that is not a version.
fn minor(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.trim_start_matches('v').split(['.', '-', '+']);
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

fn are_apart(one: (u32, u32), other: (u32, u32)) -> bool {
    one.0 != other.0 || one.1.abs_diff(other.1) > 1
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fixtures::assert_contains;
    use crate::mock::{Answer, server};

    fn versions(plugin: &str, operator: Option<&str>) -> Versions {
        let operator = Operator {
            namespace: "vit-system".into(),
            deployment: "vit-operator".into(),
            version: operator.map(Into::into),
        };
        Versions {
            plugin: plugin.into(),
            operators: vec![operator],
        }
    }

    #[test]
    fn versions_more_than_one_minor_apart_are_warned_of() {
        for (operator, is_apart) in [
            (Some("0.1.3"), false),
            (Some("v0.2.0"), false),
            (Some("0.3.0"), true),
            (Some("1.1.0"), true),
            (Some("dev"), false),
            (None, false),
        ] {
            let warnings = warnings(&versions("0.1.0", operator));
            assert_eq!(!warnings.is_empty(), is_apart, "{operator:?}: {warnings:?}");
        }
        let warning = warnings(&versions("0.1.0", Some("0.3.0"))).remove(0);
        assert_contains(
            &warning,
            "plugin 0.1.0 and operator 0.3.0 in namespace vit-system",
        );
    }

    #[test]
    fn every_operator_has_a_line() {
        assert_eq!(
            render(&versions("0.1.0", Some("0.2.0"))),
            "kubectl-vit   0.1.0\noperator      0.2.0   vit-system/vit-operator\n"
        );
    }

    #[tokio::test]
    async fn the_operators_version_is_a_label_of_its_deployment() {
        let cluster = server(|request| {
            assert_eq!(request.path, "/apis/apps/v1/deployments");
            assert_contains(
                &request.query,
                "labelSelector=app.kubernetes.io/name=vit-operator",
            );
            Answer::list(&[json!({"apiVersion": "apps/v1", "kind": "Deployment",
                "metadata": {"name": "vit-operator", "namespace": "vit-system", "labels": {VERSION: "0.2.0"}}})])
        });
        let found = operators(&cluster).await.expect("is found");
        assert_eq!(found, versions("", Some("0.2.0")).operators);
        let none = server(|_| Answer::list(&[] as &[serde_json::Value]));
        assert_eq!(operators(&none).await.expect_err("none").exit(), Exit::NotFound);
    }
}
