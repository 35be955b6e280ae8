//! A real Prometheus in the cluster's network that scrapes annotated pods, and queries to it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use fs_err as fs;
use serde::Deserialize;
use serde_json::json;

use crate::binaries::Binaries;
use crate::state::State;
use crate::{discovery, packages, process};

/// The name under which its process and log are recorded.
pub const COMPONENT: &str = "prometheus";

const READY_DEADLINE: Duration = Duration::from_secs(60);

/// Starts Prometheus, and waits until it is ready.
pub fn start(state: &State, binaries: &Binaries) -> Result<()> {
    let config = state.directory().join("prometheus.json");
    fs::write(&config, serde_json::to_vec_pretty(&configuration(state))?)?;
    let words = [
        packages::prometheus()?.display().to_string(),
        format!("--config.file={}", config.display()),
        format!(
            "--storage.tsdb.path={}",
            state.record().data.join("prometheus").display()
        ),
        format!("--web.listen-address={}:9090", state.addresses().api()),
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

/// Scrapes, each second, the pods that [`discovery`] finds.
fn configuration(state: &State) -> serde_json::Value {
    json!({
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "scrape_configs": [{
            "job_name": "pods",
            // Where a pod's series name a job or a namespace themselves, theirs are the meaningful ones.
            "honor_labels": true,
            "file_sd_configs": [{"files": [discovery::targets_file(state)]}],
        }],
    })
}

/// The `vit-cluster` program: this one, or the one that cargo put beside this one or above its tests.
fn harness_program() -> Result<PathBuf> {
    const NAME: &str = "vit-cluster";
    let this = std::env::current_exe().context("this program's path")?;
    let folders = this.ancestors().skip(1).take(2);
    let mut candidates = folders.map(|folder| folder.join(NAME));
    candidates.find(|path| path.is_file()).with_context(|| {
        format!(
            "no {NAME} beside {}: build it with `cargo build -p vit-tests --bin {NAME}`",
            this.display()
        )
    })
}

/// One time series' value at the time of a query.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// The series' labels, `__name__` among them unless the query dropped it.
    pub labels: BTreeMap<String, String>,
    /// Its value.
    pub value: f64,
}

/// Evaluates a `PromQL` expression now; a scalar gives one sample without labels.
pub fn query(url: &str, expression: &str) -> Result<Vec<Sample>> {
    let text = ureq::get(format!("{url}/api/v1/query"))
        .config()
        .http_status_as_error(false)
        .timeout_global(Some(Duration::from_secs(10)))
        .build()
        .query("query", expression)
        .call()
        .with_context(|| format!("cannot reach Prometheus at {url}"))?
        .body_mut()
        .read_to_string()?;
    parse(&text).with_context(|| format!("Prometheus query {expression:?}"))
}

#[derive(Deserialize)]
#[serde(tag = "status", rename_all = "lowercase")]
enum Answer {
    Success { data: Data },
    Error { error: String },
}

#[derive(Deserialize)]
#[serde(tag = "resultType", content = "result", rename_all = "lowercase")]
enum Data {
    Vector(Vec<Series>),
    Scalar((f64, String)),
}

#[derive(Deserialize)]
struct Series {
    metric: BTreeMap<String, String>,
    value: (f64, String),
}

fn parse(text: &str) -> Result<Vec<Sample>> {
    let data =
        match serde_json::from_str(text).with_context(|| format!("not an instant query's answer: {text}"))? {
            Answer::Success { data } => data,
            Answer::Error { error } => bail!("{error}"),
        };
    let series = match data {
        Data::Vector(series) => series,
        Data::Scalar(value) => vec![Series {
            metric: BTreeMap::new(),
            value,
        }],
    };
    series
        .into_iter()
        .map(
            |Series {
                 metric,
                 value: (_, value),
             }| {
                // Prometheus writes NaN, +Inf and -Inf as Rust reads them.
                let value = value.parse().with_context(|| format!("{value:?} is no number"))?;
                Ok(Sample {
                    labels: metric,
                    value,
                })
            },
        )
        .collect()
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn a_vector_becomes_samples() {
        let text = r#"{"status":"success","data":{"resultType":"vector","result":[
            {"metric":{"__name__":"up","pod":"a"},"value":[1700000000.1,"1"]},
            {"metric":{},"value":[1700000000.1,"+Inf"]}]}}"#;
        let samples = parse(text).unwrap();
        assert_eq!(samples[0].labels["pod"], "a");
        assert!((samples[0].value - 1.0).abs() < f64::EPSILON);
        assert!(samples[1].value.is_infinite());
    }

    #[test]
    fn a_scalar_becomes_one_sample_and_nothing_none() {
        let scalar = r#"{"status":"success","data":{"resultType":"scalar","result":[1,"0.5"]}}"#;
        assert!((parse(scalar).unwrap()[0].value - 0.5).abs() < f64::EPSILON);
        let nothing = r#"{"status":"success","data":{"resultType":"vector","result":[]}}"#;
        assert!(parse(nothing).unwrap().is_empty());
    }

    #[test]
    fn an_error_says_what_prometheus_said() {
        let text = r#"{"status":"error","errorType":"bad_data","error":"parse error at char 3"}"#;
        assert!(parse(text).unwrap_err().to_string().contains("char 3"));
        assert!(parse("<html>").unwrap_err().to_string().contains("<html>"));
    }
}
