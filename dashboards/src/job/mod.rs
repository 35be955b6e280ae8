//! One training job: progress, speed, synchronization, slow ranks and safety.

mod gang;
mod training;

use contract::metrics as of;
use contract::operator_metrics as operator;
use serde_json::{Value, json};

use crate::layout::Layout;
use crate::query::{Expr, Series};
use crate::schema::{Dashboard, DataSource};
use crate::variable;

/// Its uid, for links from the other dashboard.
pub(crate) const UID: &str = "vit-training-job";

/// Number of ranks in a panel by rank: those with the worst values. A job may have hundreds.
const WORST: usize = 10;

/// Resolution of the marks of attempts. All scrapes of a change within one step give one mark.
const ATTEMPT_MARKS_STEP: &str = "15s";

pub(crate) fn dashboard() -> Dashboard {
    Dashboard {
        uid: UID,
        title: "ViT training job",
        description: "One ViTTrainingJob: progress, speed, cost of synchronization, slow ranks, \
            checkpoints. docs/dashboards.md and docs/operations.md explain the metrics of \
            vit-operator.",
        refresh: "30s",
        time: json!({"from": "now-1h", "to": "now"}),
        templating: json!({"list": variables()}),
        annotations: json!({"list": [new_attempts()]}),
        panels: gang::rows(training::rows(Layout::default())).panels(),
        ..Dashboard::default()
    }
}

fn variables() -> Vec<Value> {
    let step = || Series::of(of::STEP);
    let in_namespace = step().with(of::LABEL_NAMESPACE, "$namespace");
    let namespaces = "Namespaces with running jobs";
    let ranks = "Ranks in panels by rank, which show the ten with the worst values";
    vec![
        variable::data_source(),
        variable::clusters(),
        variable::one_of("namespace", "Namespace", namespaces, of::LABEL_NAMESPACE, step()),
        variable::one_of("job", "Job", "Running jobs", of::LABEL_JOB_NAME, in_namespace),
        variable::any_of("Rank", ranks, of::LABEL_RANK, job(step())),
    ]
}

/// Marks on the time axis.
fn new_attempts() -> Value {
    let attempt = job(Series::of(operator::JOB_ATTEMPT));
    let jobs = [operator::LABEL_JOB_NAME];
    let before = attempt.before(ATTEMPT_MARKS_STEP).max_by(&jobs);
    let more = Expr::from(attempt).max_by(&jobs).minus(before);
    json!({
        "name": "New attempts",
        "datasource": DataSource::CHOSEN,
        "enable": true,
        "iconColor": "orange",
        "target": {"refId": "Anno", "expr": more.above(0.0).to_string()},
        // The default is a minute.
        "step": ATTEMPT_MARKS_STEP,
        "titleFormat": "New attempt",
        "textFormat": "The gang of {{job_name}} was replaced",
    })
}

/// Series of the whole job.
fn job(series: Series) -> Series {
    series
        .with(of::LABEL_NAMESPACE, "$namespace")
        .with(of::LABEL_JOB_NAME, "$job")
}

/// Series of the chosen ranks.
fn ranks(series: Series) -> Series {
    job(series).matching(of::LABEL_RANK, "$rank")
}

fn newest(metric: &str) -> Expr {
    Expr::from(job(Series::of(metric))).max()
}

fn step_seconds() -> Series {
    Series::sum_of(of::STEP_SECONDS)
}
