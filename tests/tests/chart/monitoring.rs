//! Monitors, rules and dashboards.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use crds::labels;
use serde_json::{Value, json};
use vit_tests::{chart, command, documentation, packages, root};

use crate::{objects, of_kind, only, text};

/// Asserts that a monitor selects an object.
fn check_selects(monitor: &Value, object: &Value) -> Result<()> {
    let selector = monitor["spec"]["selector"]["matchLabels"]
        .as_object()
        .context("labels")?;
    let labels = &object["metadata"]["labels"];
    ensure!(
        selector.iter().all(|(key, value)| labels[key] == *value),
        "{selector:?} against {object}"
    );
    Ok(())
}

/// Asserts that a release has no object of a kind by default.
fn check_off_by_default(kind: &str) -> Result<()> {
    let objects = objects(&[])?;
    ensure!(of_kind(&objects, kind).is_empty(), "{objects:?}");
    Ok(())
}

#[test]
fn monitors_choose_the_pods_there_are_and_ports_that_policies_leave_open() -> Result<()> {
    check_off_by_default("PodMonitor")?;
    let objects = objects(&["metrics.podMonitor.operator=true,metrics.podMonitor.jobs=true"])?;
    let [of_operator, of_jobs] = of_kind(&objects, "PodMonitor")[..] else {
        anyhow::bail!("two PodMonitors: {objects:?}")
    };
    let deployment = only(&objects, "Deployment")?;
    let pod = &deployment["spec"]["template"];
    check_selects(of_operator, pod)?;
    ensure!(
        pod["spec"]["containers"][0]["ports"][0]["name"] == "metrics",
        "{pod}"
    );
    let open = &only(&objects, "NetworkPolicy")?["spec"]["ingress"];
    ensure!(
        *open == json!([{"ports": [{"port": "metrics", "protocol": "TCP"}]}]),
        "{open}"
    );

    let selector = &of_jobs["spec"]["selector"];
    ensure!(
        selector["matchLabels"] == json!({labels::MANAGED_BY: labels::MANAGER})
            && selector["matchExpressions"] == json!([{"key": labels::JOB_NAME, "operator": "Exists"}]),
        "{selector}"
    );
    let pods = fs_err::read_to_string(root().join("operator/src/policy/gang.rs"))?;
    ensure!(
        pods.contains(r#"const METRICS_PORT: &str = "metrics";"#),
        "the metrics port of jobs' pods has another name"
    );
    Ok(())
}

#[test]
fn monitors_scrape_as_the_values_say() -> Result<()> {
    for (section, kinds, endpoints) in [
        (
            "podMonitor",
            "metrics.podMonitor.operator=true,metrics.podMonitor.jobs=true",
            "/spec/podMetricsEndpoints",
        ),
        (
            "serviceMonitor",
            "metrics.serviceMonitor.enabled=true",
            "/spec/endpoints",
        ),
    ] {
        let settings = "PATH.interval=15s,PATH.scrapeTimeout=5s,PATH.labels.release=prometheus,\
                        PATH.relabelings[0].targetLabel=cluster,PATH.relabelings[0].replacement=a,\
                        PATH.metricRelabelings[0].action=labeldrop,PATH.metricRelabelings[0].regex=pod"
            .replace("PATH", &format!("metrics.{section}"));
        let plain = json!([{"port": "metrics", "honorLabels": true}]);
        let set = json!([{
            "port": "metrics", "honorLabels": true, "interval": "15s", "scrapeTimeout": "5s",
            "relabelings": [{"targetLabel": "cluster", "replacement": "a"}],
            "metricRelabelings": [{"action": "labeldrop", "regex": "pod"}],
        }]);
        for (values, label, endpoint) in [
            (&[kinds][..], "", plain),
            (&[kinds, &settings], "prometheus", set),
        ] {
            let objects = objects(values)?;
            let monitors: Vec<_> = objects
                .iter()
                .filter(|object| text(object, "/kind").ends_with("Monitor"))
                .collect();
            ensure!(monitors.len() == kinds.matches('=').count(), "{monitors:?}");
            for monitor in monitors {
                ensure!(
                    monitor.pointer(endpoints) == Some(&endpoint)
                        && text(monitor, "/metadata/labels/release") == label,
                    "{monitor}"
                );
            }
        }
    }
    Ok(())
}

#[test]
fn a_service_monitor_finds_the_service_and_the_service_the_pods() -> Result<()> {
    check_off_by_default("Service")?;
    let objects = objects(&["metrics.service.enabled=true,metrics.service.annotations.note=mine"])?;
    ensure!(of_kind(&objects, "ServiceMonitor").is_empty(), "{objects:?}");
    let service = only(&objects, "Service")?;
    ensure!(text(service, "/metadata/annotations/note") == "mine", "{service}");

    let objects = crate::objects(&["metrics.serviceMonitor.enabled=true"])?;
    let (monitor, service) = (only(&objects, "ServiceMonitor")?, only(&objects, "Service")?);
    check_selects(monitor, service)?;
    let deployment = only(&objects, "Deployment")?;
    ensure!(
        service["spec"]["selector"] == deployment["spec"]["selector"]["matchLabels"]
            && service["spec"]["clusterIP"] == "None"
            && service["spec"]["ports"]
                == json!([{"name": "metrics", "port": 8080, "targetPort": "metrics"}]),
        "{service}"
    );
    Ok(())
}

#[test]
fn a_monitor_of_jobs_looks_where_they_are() -> Result<()> {
    for (values, namespaces) in [
        ("metrics.podMonitor.jobs=true", json!({"any": true})),
        (
            "metrics.podMonitor.jobs=true,namespace=research",
            json!({"matchNames": ["research"]}),
        ),
    ] {
        let objects = objects(&[values])?;
        let monitor = only(&objects, "PodMonitor")?;
        ensure!(monitor["spec"]["namespaceSelector"] == namespaces, "{monitor}");
    }
    Ok(())
}

/// Pods: label `managed-by`, label `name`, port, phase, and whether Prometheus scrapes them.
const PODS: [(&str, &str, &str, &str, bool); 7] = [
    ("vit-operator", "", "metrics", "Running", true),
    ("vit-operator", "", "metrics", "Pending", true),
    ("Helm", "vit-operator", "metrics", "Running", true),
    ("vit-operator", "", "rendezvous", "Running", false),
    ("Helm", "grafana", "metrics", "Running", false),
    // Their addresses may belong to other pods by now.
    ("vit-operator", "", "metrics", "Succeeded", false),
    ("vit-operator", "", "metrics", "Failed", false),
];

#[test]
fn the_documented_scrape_job_keeps_pods_with_metrics_until_they_end() -> Result<()> {
    let page = documentation::page("docs/how-to/prometheus.md")?;
    let block = page
        .blocks
        .iter()
        .find(|block| block.text.starts_with("scrape_configs:"));
    let mut config: Value = serde_saphyr::from_str(&block.context("a scrape job")?.text)?;
    let folder = tempfile::tempdir()?;
    let targets = folder.path().join("targets.json");
    let pods = PODS.iter().enumerate();
    let pods = pods.map(|(number, (manager, name, port, phase, _))| {
        json!({"targets": [format!("10.0.0.{number}:9402")], "labels": {
            "__meta_kubernetes_pod_label_app_kubernetes_io_managed_by": manager,
            "__meta_kubernetes_pod_label_app_kubernetes_io_name": name,
            "__meta_kubernetes_pod_container_port_name": port,
            "__meta_kubernetes_pod_phase": phase,
            "__meta_kubernetes_pod_node_name": "node0",
        }})
    });
    fs_err::write(&targets, json!(pods.collect::<Vec<_>>()).to_string())?;
    // Debian's promtool has no discovery in Kubernetes.
    let job = config["scrape_configs"][0].as_object_mut().context("a job")?;
    ensure!(
        job.remove("kubernetes_sd_configs") == Some(json!([{"role": "pod"}])),
        "pods are not discovered"
    );
    job.insert("file_sd_configs".into(), json!([{"files": [targets]}]));
    let file = folder.path().join("prometheus.json");
    fs_err::write(&file, config.to_string())?;
    let mut promtool = Command::new(packages::prometheus()?.with_file_name("promtool"));
    promtool.args(["check", "service-discovery", "--timeout=2s"]);
    let found = command::run(promtool.arg(&file).arg("vit"))?;
    let found: Vec<Value> = serde_json::from_str(&found)?;
    let mut scraped: Vec<(&str, &Value)> = found
        .iter()
        .map(|target| {
            (
                text(target, "/discoveredLabels/__address__"),
                &target["labels"]["node"],
            )
        })
        .collect();
    scraped.sort_unstable_by_key(|(address, _)| *address);
    ensure!(scraped.len() == PODS.len(), "{found:?}");
    for ((address, node), pod) in scraped.into_iter().zip(PODS) {
        ensure!((*node == "node0") == pod.4, "{pod:?} at {address}: node {node}");
    }
    Ok(())
}

#[test]
fn rules_fire_on_what_they_are_for_and_on_nothing_else() -> Result<()> {
    let mut promtool = Command::new(packages::prometheus()?.with_file_name("promtool"));
    promtool
        .args(["test", "rules"])
        .arg(root().join("tests/rules_test.yaml"));
    command::run(&mut promtool)?;
    Ok(())
}

const RULES: &str = "charts/vit-operator/files/rules.yaml";

/// The groups in `files/rules.yaml`.
fn shipped_groups() -> Result<Value> {
    let rules: Value = serde_saphyr::from_str(&fs_err::read_to_string(root().join(RULES))?)?;
    Ok(rules["groups"].clone())
}

/// The rule groups of a release.
fn rendered_groups(values: &[&str]) -> Result<Value> {
    let values = [&["metrics.prometheusRule.enabled=true"], values].concat();
    let objects = objects(&values)?;
    Ok(only(&objects, "PrometheusRule")?["spec"]["groups"].clone())
}

fn rules(groups: &Value) -> impl Iterator<Item = &Value> {
    let groups = groups.as_array().into_iter().flatten();
    groups.flat_map(|group| group["rules"].as_array().into_iter().flatten())
}

/// Alerts by name.
fn alerts(groups: &Value) -> BTreeMap<&str, &Value> {
    let alerts = rules(groups).map(|rule| (text(rule, "/alert"), rule));
    alerts.filter(|(name, _)| !name.is_empty()).collect()
}

#[test]
fn every_alert_is_tested_and_explained() -> Result<()> {
    let read = |path: &str| fs_err::read_to_string(root().join(path));
    let (tests, page) = (read("tests/rules_test.yaml")?, read("docs/operations.md")?);
    let groups = shipped_groups()?;
    for record in rules(&groups).map(|rule| text(rule, "/record")) {
        ensure!(page.contains(record), "{record} is not explained");
    }
    let alerts = alerts(&groups);
    ensure!(alerts.len() == 9, "{alerts:?}");
    for (alert, rule) in alerts {
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
            text(rule, "/annotations/runbook_url") == runbook,
            "{alert} does not lead to {runbook}"
        );
    }
    Ok(())
}

#[test]
fn a_release_has_the_shipped_rules_unless_values_change_them() -> Result<()> {
    let shipped = shipped_groups()?;
    ensure!(rendered_groups(&[])? == shipped, "the rules differ from {RULES}");
    let changed = rendered_groups(&[
        "metrics.prometheusRule.runbookUrl=https://wiki.example.com/vit",
        "metrics.prometheusRule.alerts.ViTJobsWaitLong.enabled=false",
        "metrics.prometheusRule.alerts.ViTStraggler.for=1h",
        "metrics.prometheusRule.alerts.ViTStraggler.severity=info",
    ])?;
    let mut expected = alerts(&shipped);
    expected
        .remove("ViTJobsWaitLong")
        .context("an alert of jobs that wait")?;
    let changed = alerts(&changed);
    ensure!(changed.keys().eq(expected.keys()), "{:?}", changed.keys());
    for (name, alert) in changed {
        let mut expected = expected[name].clone();
        expected["annotations"]["runbook_url"] =
            format!("https://wiki.example.com/vit#{}", name.to_lowercase()).into();
        if name == "ViTStraggler" {
            expected["for"] = "1h".into();
            expected["labels"]["severity"] = "info".into();
        }
        ensure!(*alert == expected, "{alert} is not {expected}");
    }
    Ok(())
}

#[test]
fn values_change_every_alert_and_the_thresholds_that_there_are() -> Result<()> {
    let schema = fs_err::read_to_string(chart::folder().join("values.schema.json"))?;
    let schema: Value = serde_json::from_str(&schema)?;
    let known = schema
        .pointer("/properties/metrics/properties/prometheusRule/properties/alerts/properties")
        .and_then(Value::as_object)
        .context("alerts in values.schema.json")?;
    let shipped = shipped_groups()?;
    let alerts_of_rules = alerts(&shipped);
    ensure!(
        known.keys().map(String::as_str).collect::<BTreeSet<_>>()
            == alerts_of_rules.keys().copied().collect(),
        "{known:?}"
    );

    let set = |name: &String, change| format!("metrics.prometheusRule.alerts.{name}.{change}");
    let with_threshold = known
        .iter()
        .filter(|(_, kind)| text(kind, "/$ref").ends_with("WithThreshold"));
    let with_threshold: Vec<&String> = with_threshold.map(|(name, _)| name).collect();
    ensure!(with_threshold.len() == 5, "{with_threshold:?}");
    let values: Vec<String> = with_threshold
        .iter()
        .map(|name| set(name, "threshold=0.75"))
        .collect();
    let changed = rendered_groups(&values.iter().map(String::as_str).collect::<Vec<_>>())?;
    for (name, alert) in alerts(&changed) {
        let mut expected = alerts_of_rules[name].clone();
        if with_threshold.iter().any(|changed| *changed == name) {
            let (condition, _) = text(&expected, "/expr")
                .rsplit_once(" > ")
                .context("a threshold")?;
            expected["expr"] = format!("{condition} > 0.75").into();
        }
        ensure!(*alert == expected, "{alert} is not {expected}");
    }

    let values: Vec<String> = known.keys().map(|name| set(name, "enabled=false")).collect();
    let left = rendered_groups(&values.iter().map(String::as_str).collect::<Vec<_>>())?;
    ensure!(
        alerts(&left).is_empty()
            && rules(&left).count() == 3
            && left.as_array().is_some_and(|groups| groups.len() == 1),
        "should be one group of recording rules, and no empty one: {left}"
    );
    Ok(())
}

#[test]
fn rules_name_metrics_that_there_are() -> Result<()> {
    let read = |path: &str| fs_err::read_to_string(root().join(path));
    let rules = read(RULES)?;
    let known = [
        read("contract/src/metrics.rs")?,
        read("contract/src/operator_metrics.rs")?,
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
