//! What the chart makes of its values. Needs the built helm, but no cluster.

mod package;
mod values;

use std::collections::BTreeSet;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use vit_tests::binaries::Binaries;
use vit_tests::{chart, command, operator, packages};

/// What a release of this name is in a namespace.
fn rendered(helm: &Binaries, namespace: &str, values: &[&str]) -> Result<String> {
    chart::template(helm, "vit-operator", namespace, values)
}

/// The objects of a release of this name in a namespace.
fn objects(helm: &Binaries, namespace: &str, values: &[&str]) -> Result<Vec<Value>> {
    chart::manifests(&rendered(helm, namespace, values)?)
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

#[test]
fn releases_of_one_name_in_two_namespaces_share_nothing() -> Result<()> {
    let helm = Binaries::build()?;
    for values in [&[][..], &["namespace=research"]] {
        let [first, second] = ["first", "second"].map(|namespace| objects(&helm, namespace, values));
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
        // There is one resource in a cluster: `crds.install` says which release brings it.
        let crd = (
            "CustomResourceDefinition".into(),
            "vittrainingjobs.vit-operator.dev".into(),
        );
        ensure!(shared == [&crd], "{shared:?}");
    }
    Ok(())
}

#[test]
fn every_binding_is_of_a_role_and_an_account_of_the_release() -> Result<()> {
    let helm = Binaries::build()?;
    for values in [&[][..], &["namespace=research"]] {
        let objects = objects(&helm, "first", values)?;
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

/// A value that is wrong, and what its refusal must name.
const WRONG: &[(&str, &str)] = &[
    ("replicas=two", "at '/replicas': got string, want integer"),
    ("replica=3", "additional properties 'replica' not allowed"),
    ("networkPolicy.job=false", "at '/networkPolicy'"),
    ("image.pullPolicy=Sometimes", "at '/image/pullPolicy'"),
    ("image.repository=", "at '/image/repository'"),
    ("namespace=Research", "at '/namespace'"),
    ("podGroups=maybe", "at '/podGroups'"),
    ("kueue=1", "at '/kueue'"),
    ("imagePullSecrets[0].name=registry", "at '/imagePullSecrets/0'"),
    ("podLabels.team=7", "at '/podLabels/team'"),
    ("tolerations=all", "at '/tolerations'"),
    ("metrics.dashboards=true", "at '/metrics/dashboards'"),
    (
        "metrics.dashboards.namespace=Grafana",
        "at '/metrics/dashboards/namespace'",
    ),
    (
        "metrics.dashboards.labels.grafana_dashboard=1",
        "at '/metrics/dashboards/labels/grafana_dashboard'",
    ),
    ("fullnameOverride=Vit", "at '/fullnameOverride'"),
    ("commonLabels.helm\\.sh/chart=mine", "at '/commonLabels/helm.sh"),
    (
        "podLabels.app\\.kubernetes\\.io/name=mine",
        "at '/podLabels/app.kubernetes.io",
    ),
    ("serviceAccount.create=false", "at '/serviceAccount/name'"),
    ("extraEnv[0].name=POD_NAME", "at '/extraEnv/0/name'"),
    ("extraEnv[0].value=7", "at '/extraEnv/0'"),
    (
        "topologySpreadConstraints[0].maxSkew=1",
        "at '/topologySpreadConstraints/0'",
    ),
    (
        "metrics.podMonitor.interval=often",
        "at '/metrics/podMonitor/interval'",
    ),
    ("metrics.podMonitor=true", "at '/metrics/podMonitor'"),
    ("test.gpuResource=gpu", "at '/test/gpuResource'"),
    ("test.deadlineSeconds=1", "at '/test/deadlineSeconds'"),
    ("test.image.tag=a:b", "at '/test/image/tag'"),
];

#[test]
fn a_wrong_value_is_refused_by_its_name() -> Result<()> {
    let helm = Binaries::build()?;
    for (value, named) in WRONG {
        let refusal = match rendered(&helm, "first", &[value]) {
            Ok(_) => anyhow::bail!("{value} is taken"),
            Err(refusal) => format!("{refusal:#}"),
        };
        ensure!(refusal.contains(named), "{value}: {refusal}");
    }
    rendered(
        &helm,
        "first",
        &["resources.requests.cpu=1", "nodeSelector.pool=system"],
    )?;
    Ok(())
}

#[test]
fn rules_fire_on_what_they_are_for_and_on_nothing_else() -> Result<()> {
    let mut promtool = Command::new(packages::prometheus()?.with_file_name("promtool"));
    promtool
        .args(["test", "rules"])
        .arg(operator::root().join("tests/rules_test.yaml"));
    command::run(&mut promtool)?;
    Ok(())
}

#[test]
fn every_alert_is_tested_and_explained() -> Result<()> {
    let helm = Binaries::build()?;
    let objects = objects(&helm, "first", &["metrics.prometheusRule=true"])?;
    let rules = objects
        .iter()
        .find(|object| text(object, "/kind") == "PrometheusRule")
        .context("there is a PrometheusRule")?;
    let read = |path: &str| fs_err::read_to_string(operator::root().join(path));
    let (tests, page) = (read("tests/rules_test.yaml")?, read("docs/operations.md")?);
    let groups = rules.pointer("/spec/groups").and_then(Value::as_array);
    let rules = groups
        .into_iter()
        .flatten()
        .filter_map(|group| group["rules"].as_array());
    let mut alerts = 0;
    for rule in rules.flatten() {
        let alert = text(rule, "/alert");
        if alert.is_empty() {
            let record = text(rule, "/record");
            ensure!(page.contains(record), "{record} is not explained");
            continue;
        }
        alerts += 1;
        ensure!(
            tests.contains(&format!("alertname: {alert}")),
            "{alert} is not tested"
        );
        ensure!(
            page.contains(&format!("\n### {alert}\n")),
            "{alert} is not explained"
        );
        let runbook = format!("docs/operations.md#{}", alert.to_lowercase());
        ensure!(
            text(rule, "/annotations/runbook") == runbook,
            "{alert} does not lead to {runbook}"
        );
    }
    ensure!(alerts == 10, "{alerts} alerts");
    Ok(())
}

#[test]
fn rules_name_metrics_that_there_are() -> Result<()> {
    let root = operator::root();
    let read = |path: &str| fs_err::read_to_string(root.join(path));
    let rules = read("charts/vit-operator/files/rules.yaml")?;
    let known = [
        read("trainer/contract/src/metrics.rs")?,
        read("operator/src/metrics/names.rs")?,
    ]
    .concat();
    let expressions = rules.lines().filter(|line| !line.contains("record:"));
    let words =
        expressions.flat_map(|line| line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != ':'));
    let metrics: BTreeSet<&str> = words.filter(|word| word.starts_with("vit_")).collect();
    ensure!(metrics.len() > 8, "{metrics:?}");
    for metric in metrics {
        let base = metric.trim_end_matches("_sum").trim_end_matches("_bucket");
        ensure!(
            known.contains(&format!("\"{base}\"")),
            "there is no metric {metric}"
        );
    }
    Ok(())
}

#[test]
fn dashboards_are_config_maps_that_a_sidecar_finds() -> Result<()> {
    let helm = Binaries::build()?;
    let config_maps = |values: &[&str]| -> Result<Vec<Value>> {
        let objects = objects(&helm, "first", values)?.into_iter();
        Ok(objects
            .filter(|object| text(object, "/kind") == "ConfigMap")
            // That of `helm test` is not there for longer than the test.
            .filter(|object| object.pointer("/metadata/annotations/helm.sh~1hook").is_none())
            .collect())
    };
    ensure!(config_maps(&[])?.is_empty(), "without being asked for");
    let values = [
        "metrics.dashboards.enabled=true",
        "metrics.dashboards.namespace=monitoring",
        "metrics.dashboards.labels.team=vision",
        "metrics.dashboards.annotations.grafana_folder=Training",
    ];
    let found = config_maps(&values)?;
    let folder = operator::root().join("charts/vit-operator/files/dashboards");
    let files: Vec<_> = fs_err::read_dir(folder)?.collect::<Result<_, _>>()?;
    ensure!(files.len() == 2 && found.len() == 2, "{} ConfigMaps", found.len());
    for file in files {
        let name = file.file_name().to_string_lossy().into_owned();
        let map = found
            .iter()
            .find(|map| map["data"].get(&name).is_some())
            .with_context(|| format!("no ConfigMap has {name}"))?;
        ensure!(
            text(map, &format!("/data/{name}")) == fs_err::read_to_string(file.path())?,
            "{name} is not the file"
        );
        for (pointer, expected) in [
            ("/metadata/namespace", "monitoring"),
            ("/metadata/labels/grafana_dashboard", "1"),
            ("/metadata/labels/team", "vision"),
            ("/metadata/annotations/grafana_folder", "Training"),
        ] {
            ensure!(text(map, pointer) == expected, "{pointer} of {map}");
        }
    }
    let own = config_maps(&["metrics.dashboards.enabled=true"])?;
    ensure!(
        own.iter().all(|map| text(map, "/metadata/namespace") == "first"),
        "{own:?}"
    );
    Ok(())
}
