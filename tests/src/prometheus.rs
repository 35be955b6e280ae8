//! A real Prometheus in the cluster's network that scrapes annotated pods, and a client for it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use fs_err as fs;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::json;

use crate::binaries::Binaries;
use crate::root;
use crate::state::State;
use crate::{discovery, packages, process};

/// The name under which its process and log are recorded.
pub const COMPONENT: &str = "prometheus";

/// How often pods are scraped and rules evaluated.
pub const INTERVAL: Duration = Duration::from_secs(1);

/// Time limit of a query.
const TIMEOUT: Duration = Duration::from_secs(10);
const READY_DEADLINE: Duration = Duration::from_secs(60);

/// Starts Prometheus, and waits until it is ready.
pub fn start(state: &State, binaries: &Binaries) -> Result<()> {
    let config = state.directory().join("prometheus.json");
    fs::write(&config, serde_json::to_vec_pretty(&configuration(state))?)?;
    fs::write(
        rules_file(state),
        fs::read(root().join("charts/vit-operator/files/rules.yaml"))?,
    )?;
    let words = [
        packages::prometheus()?.display().to_string(),
        format!("--config.file={}", config.display()),
        format!(
            "--storage.tsdb.path={}",
            state.record().data.join("prometheus").display()
        ),
        format!("--web.listen-address={}:9090", state.addresses().api()),
        "--web.enable-lifecycle".into(),
    ];
    discovery::write(&discovery::targets_file(state), &json!([]))?;
    process::start(state, COMPONENT, None, &words, &binaries.search_path())?;
    let words = [
        harness_program()?.display().to_string(),
        "discover".into(),
        "--name".into(),
        state.name().to_string(),
    ];
    process::start(state, discovery::COMPONENT, None, &words, &binaries.search_path())?;
    let started = Instant::now();
    while ureq::get(format!("{}/-/ready", state.addresses().prometheus_url()))
        .call()
        .is_err()
    {
        process::check(state, COMPONENT)?;
        ensure!(
            started.elapsed() < READY_DEADLINE,
            "Prometheus is not ready after {READY_DEADLINE:?}"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// Prometheus' rules: the chart's, until others are [loaded](load_rules).
fn rules_file(state: &State) -> PathBuf {
    state.directory().join("rules.yaml")
}

/// Replaces the rules of a running Prometheus.
pub fn load_rules(state: &State, rules: &str) -> Result<()> {
    fs::write(rules_file(state), rules)?;
    let mut answer = ureq::post(format!("{}/-/reload", state.addresses().prometheus_url()))
        .config()
        .http_status_as_error(false)
        .timeout_global(Some(TIMEOUT))
        .build()
        .send_empty()
        .context("cannot reach Prometheus")?;
    let body = answer.body_mut().read_to_string()?;
    ensure!(
        answer.status().is_success(),
        "Prometheus refuses the rules: {body}"
    );
    Ok(())
}

/// Scrapes the pods that [`discovery`] finds every second.
fn configuration(state: &State) -> serde_json::Value {
    let every = format!("{}s", INTERVAL.as_secs());
    json!({
        "rule_files": [rules_file(state)],
        "global": {"scrape_interval": every, "scrape_timeout": every, "evaluation_interval": every},
        "scrape_configs": [{
            "job_name": "pods",
            // A pod's own labels `job` and `namespace` win over those of the target.
            "honor_labels": true,
            "file_sd_configs": [{"files": [discovery::targets_file(state)]}],
        }],
    })
}

/// The `vit-cluster` program, in the folder of this program or its parent.
fn harness_program() -> Result<PathBuf> {
    const NAME: &str = "vit-cluster";
    let this = std::env::current_exe().context("this program's path")?;
    let folders = this.ancestors().skip(1).take(2);
    let mut candidates = folders.map(|folder| folder.join(NAME));
    candidates.find(|path| path.is_file()).with_context(|| {
        format!(
            "no {NAME} next to {}: build it with `cargo build -p vit-tests --bin {NAME}`",
            this.display()
        )
    })
}

/// One time series' value at the time of a query.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct Sample {
    /// The series' labels, including `__name__` unless the query dropped it.
    #[serde(rename = "metric")]
    pub labels: BTreeMap<String, String>,
    /// Its value.
    #[serde(deserialize_with = "value")]
    pub value: f64,
}

/// One time series over a time range.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct Range {
    /// The series' labels.
    #[serde(rename = "metric")]
    pub labels: BTreeMap<String, String>,
    /// Times in Unix seconds, and values.
    #[serde(deserialize_with = "values")]
    pub values: Vec<(f64, f64)>,
}

/// A pending or firing alert.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct Alert {
    /// Its labels, including `alertname`.
    pub labels: BTreeMap<String, String>,
    /// Its rule's annotations, with expanded templates.
    pub annotations: BTreeMap<String, String>,
    /// Whether it is firing.
    pub state: AlertState,
}

/// The state of an alert.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq)]
#[serde(rename_all = "lowercase")]
pub enum AlertState {
    /// Its `for` duration has not passed.
    Pending,
    /// It is firing.
    Firing,
}

/// Evaluates a `PromQL` expression now; a scalar becomes a sample without labels.
pub fn query(url: &str, expression: &str) -> Result<Vec<Sample>> {
    let data: Data = ask(url, "query", &[("query", expression)])
        .with_context(|| format!("Prometheus query {expression:?}"))?;
    Ok(data.samples())
}

/// Evaluates a `PromQL` expression every `step` of a time range in Unix seconds.
pub fn query_range(
    url: &str,
    expression: &str,
    (from, to): (f64, f64),
    step: Duration,
) -> Result<Vec<Range>> {
    let [from, to, step] = [from, to, step.as_secs_f64()].map(|number| number.to_string());
    let parameters = [
        ("query", expression),
        ("start", &from),
        ("end", &to),
        ("step", &step),
    ];
    let matrix: Matrix =
        ask(url, "query_range", &parameters).with_context(|| format!("Prometheus query {expression:?}"))?;
    Ok(matrix.result)
}

/// The values of a label on these series, within a time range in Unix seconds.
pub fn label_values(url: &str, label: &str, series: &str, (from, to): (f64, f64)) -> Result<Vec<String>> {
    let [from, to] = [from, to].map(|number| number.to_string());
    let parameters = [("match[]", series), ("start", &from), ("end", &to)];
    ask(url, &format!("label/{label}/values"), &parameters)
        .with_context(|| format!("values of {label} of {series}"))
}

/// The alerts that are pending or firing now.
pub fn alerts(url: &str) -> Result<Vec<Alert>> {
    let alerts: Alerts = ask(url, "alerts", &[])?;
    Ok(alerts.alerts)
}

fn ask<T: DeserializeOwned>(url: &str, path: &str, parameters: &[(&str, &str)]) -> Result<T> {
    let text = ureq::get(format!("{url}/api/v1/{path}"))
        .config()
        .http_status_as_error(false)
        .timeout_global(Some(TIMEOUT))
        .build()
        .query_pairs(parameters.iter().copied())
        .call()
        .with_context(|| format!("cannot reach Prometheus at {url}"))?
        .body_mut()
        .read_to_string()?;
    parse(&text)
}

#[derive(Deserialize)]
#[serde(tag = "status", rename_all = "lowercase")]
enum Answer<T> {
    Success { data: T },
    Error { error: String },
}

fn parse<T: DeserializeOwned>(text: &str) -> Result<T> {
    match serde_json::from_str(text).with_context(|| format!("unexpected answer: {text}"))? {
        Answer::Success { data } => Ok(data),
        Answer::Error { error } => bail!("{error}"),
    }
}

#[derive(Deserialize)]
struct Alerts {
    alerts: Vec<Alert>,
}

#[derive(Deserialize)]
struct Matrix {
    result: Vec<Range>,
}

#[derive(Deserialize)]
#[serde(tag = "resultType", content = "result", rename_all = "lowercase")]
enum Data {
    Vector(Vec<Sample>),
    #[serde(deserialize_with = "value")]
    Scalar(f64),
}

impl Data {
    fn samples(self) -> Vec<Sample> {
        let labels = BTreeMap::new();
        match self {
            Self::Vector(samples) => samples,
            Self::Scalar(value) => vec![Sample { labels, value }],
        }
    }
}

fn value<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    number(&<(f64, String)>::deserialize(deserializer)?.1)
}

fn values<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<(f64, f64)>, D::Error> {
    let values: Vec<(f64, String)> = Vec::deserialize(deserializer)?;
    let values = values
        .iter()
        .map(|(time, value)| Ok((*time, number::<D::Error>(value)?)));
    values.collect()
}

/// Rust can parse Prometheus' NaN, +Inf and -Inf.
fn number<E: serde::de::Error>(text: &str) -> Result<f64, E> {
    text.parse()
        .map_err(|_| E::custom(format_args!("{text:?} is not a number")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(text: &str) -> Result<Vec<Sample>> {
        Ok(parse::<Data>(text)?.samples())
    }

    #[test]
    fn a_vector_becomes_samples() {
        let text = r#"{"status":"success","data":{"resultType":"vector","result":[
            {"metric":{"__name__":"up","pod":"a"},"value":[1700000000.1,"1"]},
            {"metric":{},"value":[1700000000.1,"+Inf"]}]}}"#;
        let samples = samples(text).unwrap();
        assert_eq!(samples[0].labels["pod"], "a");
        assert!((samples[0].value - 1.0).abs() < f64::EPSILON);
        assert!(samples[1].value.is_infinite());
    }

    #[test]
    fn a_scalar_becomes_one_sample_and_nothing_none() {
        let scalar = r#"{"status":"success","data":{"resultType":"scalar","result":[1,"0.5"]}}"#;
        assert!((samples(scalar).unwrap()[0].value - 0.5).abs() < f64::EPSILON);
        let nothing = r#"{"status":"success","data":{"resultType":"vector","result":[]}}"#;
        assert!(samples(nothing).unwrap().is_empty());
    }

    #[test]
    fn an_error_says_what_prometheus_said() {
        let text = r#"{"status":"error","errorType":"bad_data","error":"parse error at char 3"}"#;
        assert!(samples(text).unwrap_err().to_string().contains("char 3"));
        assert!(samples("<html>").unwrap_err().to_string().contains("<html>"));
    }

    #[test]
    fn alerts_have_a_state_and_words() {
        let text = r#"{"status":"success","data":{"alerts":[{"labels":{"alertname":"A"},"annotations":{"summary":"b"},
            "state":"firing","activeAt":"2026-01-01T00:00:00Z","value":"1e+00"}]}}"#;
        let alerts = parse::<Alerts>(text).unwrap().alerts;
        assert_eq!(alerts[0].state, AlertState::Firing);
        assert_eq!(alerts[0].annotations["summary"], "b");
    }
}
