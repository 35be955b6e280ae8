//! Tests of the rendered chart. Needs the built helm, but no cluster.

mod dashboards;
mod monitoring;
mod package;
mod values;

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use vit_tests::binaries::Binaries;
use vit_tests::chart;

/// The default namespace of releases.
const NAMESPACE: &str = "first";

/// Renders a release in a namespace.
fn rendered(namespace: &str, values: &[&str]) -> Result<String> {
    chart::template(&Binaries::build()?, "vit-operator", namespace, values)
}

/// The objects of a release.
fn objects(values: &[&str]) -> Result<Vec<Value>> {
    chart::manifests(&rendered(NAMESPACE, values)?)
}

fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object
        .pointer(pointer)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

fn kind_and_name(object: &Value) -> (String, String) {
    (
        text(object, "/kind").into(),
        text(object, "/metadata/name").into(),
    )
}

fn of_kind<'a>(objects: &'a [Value], kind: &str) -> Vec<&'a Value> {
    objects
        .iter()
        .filter(|object| text(object, "/kind") == kind)
        .collect()
}

fn only<'a>(objects: &'a [Value], kind: &str) -> Result<&'a Value> {
    match of_kind(objects, kind)[..] {
        [object] => Ok(object),
        ref found => anyhow::bail!("{} objects of kind {kind}", found.len()),
    }
}

#[test]
fn releases_of_one_name_in_two_namespaces_share_nothing() -> Result<()> {
    for values in [&[][..], &["namespace=research"]] {
        let [first, second] =
            ["first", "second"].map(|namespace| chart::manifests(&rendered(namespace, values)?));
        let of_cluster = |objects: &[Value]| -> BTreeSet<(String, String)> {
            let in_own = |object: &&Value| matches!(text(object, "/metadata/namespace"), "first" | "second");
            objects
                .iter()
                .filter(|object| !in_own(object))
                .map(kind_and_name)
                .collect()
        };
        let [first, second] = [of_cluster(&first?), of_cluster(&second?)];
        ensure!(first.len() > 4, "only {first:?}");
        let shared: Vec<_> = first.intersection(&second).collect();
        // CRDs exist once per cluster: `crds.install` selects the release that installs them.
        let crds = ["vitscalingstudies", "vittrainingjobs"].map(|name| {
            (
                "CustomResourceDefinition".into(),
                format!("{name}.vit-operator.dev"),
            )
        });
        ensure!(shared == crds.each_ref(), "{shared:?}");
    }
    Ok(())
}

#[test]
fn every_binding_is_of_a_role_and_an_account_of_the_release() -> Result<()> {
    for values in [&[][..], &["namespace=research"]] {
        let objects = objects(values)?;
        let names: BTreeSet<(String, String)> = objects.iter().map(kind_and_name).collect();
        let bindings = objects
            .iter()
            .filter(|object| text(object, "/kind").ends_with("RoleBinding"));
        let mut found = 0;
        for binding in bindings {
            for reference in ["/roleRef", "/subjects/0"] {
                let part = |part: &str| text(binding, &format!("{reference}/{part}")).to_owned();
                let named = (part("kind"), part("name"));
                ensure!(
                    names.contains(&named),
                    "{named:?} of {binding} is not in {names:?}"
                );
            }
            found += 1;
        }
        ensure!(found == 4, "{found} bindings");
    }
    Ok(())
}

/// Whether a rule applies to a resource of the core API.
fn covers(rule: &Value, resource: &str) -> bool {
    let has = |part: &str, name: &str| {
        let listed = rule[part].as_array().into_iter().flatten();
        listed
            .filter_map(Value::as_str)
            .any(|listed| listed == name || listed == "*")
    };
    has("apiGroups", "") && has("resources", resource)
}

/// The right to change ConfigMaps would cover those of every tenant.
#[test]
fn no_role_reads_secrets_or_changes_config_maps() -> Result<()> {
    const OF_NAMESPACE: [&str; 5] = ["get", "list", "watch", "create", "delete"];
    for (values, of_cluster) in [(&[][..], &OF_NAMESPACE[..]), (&["namespace=research"], &[])] {
        let objects = objects(values)?;
        let mut rules = 0;
        for (kind, allowed) in [("ClusterRole", of_cluster), ("Role", &OF_NAMESPACE)] {
            for role in of_kind(&objects, kind) {
                for rule in role["rules"].as_array().into_iter().flatten() {
                    ensure!(!covers(rule, "secrets"), "{role}");
                    let verbs = rule["verbs"].as_array().into_iter().flatten();
                    let mut verbs = verbs.filter_map(Value::as_str);
                    ensure!(
                        !covers(rule, "configmaps") || verbs.all(|verb| allowed.contains(&verb)),
                        "{kind} {}: {rule}",
                        text(role, "/metadata/name")
                    );
                    rules += usize::from(covers(rule, "configmaps"));
                }
            }
        }
        ensure!(rules == 1, "{rules} rules for ConfigMaps");
    }
    Ok(())
}

/// Invalid values, and what the error of each must contain.
const WRONG: &str = r"
replicaCount=two -> at '/replicaCount': got string, want integer
replicas=3 -> additional properties 'replicas' not allowed
revisionHistoryLimit=-1 -> at '/revisionHistoryLimit'
rbac.create=maybe -> at '/rbac/create'
rbac.created=false -> at '/rbac'
networkPolicy.job=false -> at '/networkPolicy'
image.pullPolicy=Sometimes -> at '/image/pullPolicy'
image.repository= -> at '/image/repository'
image.registry=registry.example.com/ -> at '/image/registry'
image.digest=sha256:0123 -> at '/image/digest'
image.tag=0.1.0@sha256:0123 -> at '/image/tag'
namespace=Research -> at '/namespace'
podGroups=maybe -> at '/podGroups'
kueue=1 -> at '/kueue'
imagePullSecrets={registry} -> at '/imagePullSecrets/0': got string, want object
podLabels.team=7 -> at '/podLabels/team'
tolerations=all -> at '/tolerations'
metrics.dashboards=true -> at '/metrics/dashboards'
metrics.dashboards.namespace=Grafana -> at '/metrics/dashboards/namespace'
metrics.dashboards.labels.grafana_dashboard=1 -> at '/metrics/dashboards/labels/grafana_dashboard'
nameOverride=Vit -> at '/nameOverride'
fullnameOverride=Vit -> at '/fullnameOverride'
commonLabels.helm\.sh/chart=mine -> at '/commonLabels/helm.sh
podLabels.app\.kubernetes\.io/name=mine -> at '/podLabels/app.kubernetes.io
serviceAccount.create=false -> at '/serviceAccount/name'
extraEnv[0].name=POD_NAME -> at '/extraEnv/0/name'
extraEnv[0].value=7 -> at '/extraEnv/0'
extraArgs=--kueue=false -> at '/extraArgs'
extraVolumes[0].emptyDir.medium=Memory -> at '/extraVolumes/0'
extraVolumeMounts[0].name=scratch -> at '/extraVolumeMounts/0'
livenessProbe.httpGet.path=/ -> at '/livenessProbe'
readinessProbe.periodSeconds=0 -> at '/readinessProbe/periodSeconds'
podSecurityContext=none -> at '/podSecurityContext'
securityContext=none -> at '/securityContext'
topologySpreadConstraints[0].maxSkew=1 -> at '/topologySpreadConstraints/0'
metrics.podMonitor.interval=often -> at '/metrics/podMonitor/interval'
metrics.podMonitor=true -> at '/metrics/podMonitor'
metrics.podMonitor.relabelings=drop -> at '/metrics/podMonitor/relabelings'
metrics.service.annotations.a=1 -> at '/metrics/service/annotations/a'
metrics.serviceMonitor.scrapeTimeout=soon -> at '/metrics/serviceMonitor/scrapeTimeout'
metrics.prometheusRule=true -> at '/metrics/prometheusRule'
metrics.prometheusRule.runbookUrl=docs/operations.md#a -> at '/metrics/prometheusRule/runbookUrl'
metrics.prometheusRule.alerts.ViTStragler.enabled=false -> additional properties 'ViTStragler' not allowed
metrics.prometheusRule.alerts.ViTStraggler.threshold=high -> at '/metrics/prometheusRule/alerts/ViTStraggler/threshold'
metrics.prometheusRule.alerts.ViTOperatorFails.threshold=1 -> at '/metrics/prometheusRule/alerts/ViTOperatorFails'
test.gpuResource=gpu -> at '/test/gpuResource'
test.deadlineSeconds=1 -> at '/test/deadlineSeconds'
test.image.tag=a:b -> at '/test/image/tag'
";

#[test]
fn a_wrong_value_is_refused_by_its_name() -> Result<()> {
    for line in WRONG.trim().lines() {
        let (value, named) = line.split_once(" -> ").context("a value -> what is named")?;
        let Err(refusal) = rendered(NAMESPACE, &[value]) else {
            anyhow::bail!("{value} is accepted")
        };
        let refusal = format!("{refusal:#}");
        ensure!(refusal.contains(named), "{value}: {refusal}");
    }
    rendered(
        NAMESPACE,
        &["resources.requests.cpu=1", "nodeSelector.pool=system"],
    )?;
    Ok(())
}
