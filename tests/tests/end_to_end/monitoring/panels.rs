//! Asks Prometheus what Grafana would ask it for every panel, with variables put in as Grafana does.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use vit_tests::{operator, prometheus};

use super::{now, until};
use crate::context::{Context, Namespace};

/// The resolution of the queries: an hour on a screen.
pub(super) const STEP: Duration = Duration::from_secs(5);

/// What the samples of a query are.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Samples {
    /// There are none, or they are no numbers.
    None,
    /// There are some, and all are 0.
    Zero,
    /// Some are not 0.
    Data,
}

/// Queries, by panel and legend, that show something else than data here, and why.
const EXCEPTIONS: [(&str, &str, &[Samples], &str); 12] = [
    (
        "Accuracy",
        "mAP",
        &[Samples::None],
        "each image of the digits shows one class",
    ),
    (
        "Model FLOPs utilization",
        "utilization",
        &[Samples::None],
        "no GPUs: the chart's tests have series for it",
    ),
    (
        "GPU memory",
        "rank {{rank}}: in use",
        &[Samples::None],
        "no GPUs: the chart's tests have series for it",
    ),
    (
        "GPU memory",
        "rank {{rank}}: tensors, peak",
        &[Samples::None],
        "no GPUs: the chart's tests have series for it",
    ),
    (
        "GPU load",
        "rank {{rank}}",
        &[Samples::None],
        "no GPUs: the chart's tests have series for it",
    ),
    (
        "GPU power",
        "rank {{rank}}",
        &[Samples::None],
        "no GPUs: the chart's tests have series for it",
    ),
    (
        "GPU temperature",
        "rank {{rank}}",
        &[Samples::None],
        "no GPUs: the chart's tests have series for it",
    ),
    (
        "GPUs throttled",
        "{{reason}}",
        &[Samples::None],
        "no GPUs: the chart's tests have series for it",
    ),
    (
        "Learning rate and skipped steps",
        "skipped steps",
        &[Samples::Zero],
        "no gradient overflows in fp32",
    ),
    ("Failed", "Failed", &[Samples::Zero], "no job fails for good"),
    (
        "Restarting",
        "Restarting",
        &[Samples::Zero, Samples::Data],
        "a restart may be over between two samples",
    ),
    (
        "Failed reconciles, by category",
        "{{category}}",
        &[Samples::Zero, Samples::Data],
        "conflicts are normal, but need not happen",
    ),
];

/// A query, and where it stands.
struct Asked {
    place: String,
    expression: String,
    /// Whether it is asked for now alone.
    instant: bool,
    expected: &'static [Samples],
}

/// Loads the dashboards as Grafana's sidecar would, and asserts that every panel, variable and annotation shows data
/// of the time since `from`, but for [`EXCEPTIONS`].
pub(super) fn all_show_data(
    context: &Context<'_>,
    namespace: &Namespace<'_>,
    job: &str,
    from: f64,
) -> Result<()> {
    let dashboards = installed(context)?;
    ensure!(dashboards.len() == 2, "{} dashboards", dashboards.len());
    let (mut panels, mut exceptions) = (0, 0);
    for dashboard in dashboards {
        let title = dashboard["title"].as_str().context("has a title")?;
        let variables = BTreeMap::from([
            ("namespace", namespace.name.as_str()),
            ("job", job),
            // As Grafana joins several values.
            ("rank", "(0|1)"),
            // All: series have no such label here.
            ("cluster", ".*"),
        ]);
        for variable in array(&dashboard, "/templating/list") {
            check_variable(context, title, variable, &variables, from)?;
        }
        let asked = queries(title, &dashboard, &variables)?;
        panels += asked.len();
        exceptions += asked
            .iter()
            .filter(|query| query.expected != [Samples::Data])
            .count();
        // What has just begun is in no window yet.
        let mut wrong = Vec::new();
        let all = until("every panel shows what it should", || {
            wrong = wrong_in(context, &asked, from)?;
            Ok(wrong.is_empty().then_some(()))
        });
        ensure!(all.is_ok(), "{}", wrong.join("\n"));
    }
    ensure!(panels > 40, "only {panels} queries");
    ensure!(
        exceptions == EXCEPTIONS.len(),
        "{exceptions} exceptions of {}",
        EXCEPTIONS.len()
    );
    Ok(())
}

/// The dashboards of the ConfigMaps that the chart makes, found by the label that the sidecar looks for.
fn installed(context: &Context<'_>) -> Result<Vec<Value>> {
    operator::install(&context.cluster, &["metrics.dashboards.enabled=true".into()])?;
    let found = context.kubectl([
        "get",
        "configmaps",
        "-A",
        "-l",
        "grafana_dashboard=1",
        "-o",
        "json",
    ])?;
    operator::install(&context.cluster, &[])?;
    let found: Value = serde_json::from_str(&found)?;
    let files = array(&found, "/items")
        .iter()
        .filter_map(|map| map["data"].as_object());
    files
        .flat_map(serde_json::Map::values)
        .map(|file| Ok(serde_json::from_str(file.as_str().context("a text")?)?))
        .collect()
}

fn array<'a>(value: &'a Value, pointer: &str) -> &'a [Value] {
    let found = value.pointer(pointer).and_then(Value::as_array);
    found.map_or(&[], Vec::as_slice)
}

/// Every query of panels and annotations.
fn queries(title: &str, dashboard: &Value, variables: &BTreeMap<&str, &str>) -> Result<Vec<Asked>> {
    let mut asked = Vec::new();
    let mut ask = |place: &str, target: &Value| -> Result<()> {
        let expression = target["expr"].as_str().context("a query has an expression")?;
        let is =
            |(panel, legend, ..): &&(&str, &str, _, _)| *panel == place && target["legendFormat"] == *legend;
        let exception = EXCEPTIONS.iter().find(is);
        asked.push(Asked {
            place: format!("{title}, {place}"),
            expression: filled_in(expression, variables),
            instant: target["instant"] == true,
            expected: exception.map_or(&[Samples::Data], |(.., expected, _)| *expected),
        });
        Ok(())
    };
    for panel in array(dashboard, "/panels") {
        let name = panel["title"].as_str().context("a panel has a title")?;
        for target in array(panel, "/targets") {
            ask(name, target)?;
        }
    }
    for annotation in array(dashboard, "/annotations/list") {
        ask("annotation", &annotation["target"])?;
    }
    Ok(asked)
}

/// The expression with the values of variables in it. Rates go over what Grafana's documentation says of
/// `$__rate_interval`: the larger of four scrapes, and the resolution and one scrape.
fn filled_in(expression: &str, variables: &BTreeMap<&str, &str>) -> String {
    let scrape = prometheus::INTERVAL;
    let window = format!("{}s", (4 * scrape).max(STEP + scrape).as_secs());
    let expression = expression.replace("$__rate_interval", &window);
    let expression = expression.replace("$__range", "1h");
    variables.iter().fold(expression, |expression, (name, value)| {
        expression.replace(&format!("${name}"), value)
    })
}

/// The queries that show something else than they should. One that Prometheus refuses is an error.
fn wrong_in(context: &Context<'_>, asked: &[Asked], from: f64) -> Result<Vec<String>> {
    let url = context.cluster.prometheus_url()?;
    let mut wrong = Vec::new();
    for query in asked {
        let expression = &query.expression;
        let place = || format!("{}: {expression}", query.place);
        let mut values: Vec<f64> = if query.instant {
            let samples = prometheus::query(&url, expression).with_context(place)?;
            samples.iter().map(|sample| sample.value).collect()
        } else {
            let series =
                prometheus::query_range(&url, expression, (from, now()), STEP).with_context(place)?;
            let values = series.iter().flat_map(|series| &series.values);
            values.map(|(_, value)| *value).collect()
        };
        values.retain(|value| value.is_finite());
        let found = match values.as_slice() {
            [] => Samples::None,
            values if values.iter().all(|value| *value == 0.0) => Samples::Zero,
            _ => Samples::Data,
        };
        if !query.expected.contains(&found) {
            wrong.push(format!("{}: {found:?} in place of {:?}", place(), query.expected));
        }
    }
    Ok(wrong)
}

/// A variable of a label's values offers the one that is asked for here.
fn check_variable(
    context: &Context<'_>,
    title: &str,
    variable: &Value,
    variables: &BTreeMap<&str, &str>,
    from: f64,
) -> Result<()> {
    let Some(query) = variable["query"]["query"].as_str() else {
        return Ok(());
    };
    let name = variable["name"].as_str().context("a variable has a name")?;
    let filled = filled_in(query, variables);
    let (series, label) = filled
        .strip_prefix("label_values(")
        .and_then(|rest| rest.strip_suffix(')')?.rsplit_once(", "))
        .with_context(|| format!("{title}: {name} asks {filled}"))?;
    let url = context.cluster.prometheus_url()?;
    let values = prometheus::label_values(&url, label, series, (from, now()))?;
    let wanted = match name {
        "cluster" => None,
        "rank" => Some("1"),
        name => Some(variables[name]),
    };
    ensure!(
        wanted.is_none_or(|wanted| values.iter().any(|value| value == wanted)),
        "{title}: {name} does not offer {wanted:?}, but {values:?}"
    );
    Ok(())
}
