//! What the chart makes of its values. Needs the built helm, but no cluster.

use std::collections::BTreeSet;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use vit_tests::binaries::Binaries;
use vit_tests::{command, operator, packages};

/// What a release of this name is in a namespace.
fn rendered(helm: &Binaries, namespace: &str, values: &[&str]) -> Result<String> {
    let mut template = Command::new(helm.path("helm"));
    template
        .args(["template", "vit-operator"])
        .arg(operator::root().join("charts/vit-operator"))
        .args(["--namespace", namespace, "--kube-version", "1.30.0"]);
    for value in values {
        template.args(["--set", value]);
    }
    command::run(&mut template)
}

/// The objects of a release of this name in a namespace.
fn objects(helm: &Binaries, namespace: &str, values: &[&str]) -> Result<Vec<Value>> {
    rendered(helm, namespace, values)?
        .split("\n---\n")
        .filter(|document| document.lines().any(|line| line.starts_with("kind:")))
        .map(|document| serde_saphyr::from_str(document).with_context(|| document.to_owned()))
        .collect()
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
        ensure!(found == 3, "{found} bindings");
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
        read("operator/src/metrics.rs")?,
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
