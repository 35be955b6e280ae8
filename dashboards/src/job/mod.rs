//! One training job: from whether it gets on to whether it is safe.

mod gang;
mod training;

use contract::metrics as of;
use contract::operator_metrics as operator;

use crate::layout::Layout;
use crate::query::{Expr, Series};
use crate::schema::{
    Annotation, AnnotationTarget, Choice, CursorSync, Dashboard, DashboardLink, DataSource,
    DataSourceVariable, List, QueryVariable, SchemaVersion, TimeRange, Variable, VariableQuery,
};

/// Its uid, by which the other dashboard leads to it.
pub(crate) const UID: &str = "vit-training-job";
/// The tag of all dashboards, by which they find one another.
const TAG: &str = "vit-operator";

/// How closely marks tell when an attempt began. What has changed since one step ago is one mark, however often it is scraped.
const ATTEMPT_MARKS_STEP: &str = "15s";

pub(crate) fn dashboard() -> Dashboard {
    Dashboard {
        uid: UID,
        title: "ViT training job",
        description: "One ViTTrainingJob: progress, speed, what synchronisation costs, slow ranks, checkpoints. \
            What the metrics mean: docs/dashboards.md and docs/operations.md of vit-operator.",
        tags: vec![TAG],
        schema_version: SchemaVersion,
        editable: true,
        graph_tooltip: CursorSync::Crosshair,
        timezone: "browser",
        refresh: "30s",
        time: TimeRange {
            from: "now-1h",
            to: "now",
        },
        links: links(),
        templating: List { list: variables() },
        annotations: List {
            list: vec![new_attempts()],
        },
        panels: gang::rows(training::rows(Layout::default())).panels(),
    }
}

/// To the other dashboards, at the same time.
pub(crate) fn links() -> Vec<DashboardLink> {
    vec![DashboardLink {
        title: "vit-operator",
        tooltip: "Dashboards of vit-operator",
        r#type: "dashboards",
        url: "",
        tags: vec![TAG],
        icon: "external link",
        as_dropdown: false,
        include_vars: false,
        keep_time: true,
        target_blank: false,
    }]
}

/// Which Prometheus.
pub(crate) fn data_source() -> Variable {
    Variable::DataSource(DataSourceVariable {
        name: "datasource",
        label: "Data source",
        query: "prometheus",
    })
}

fn variables() -> Vec<Variable> {
    let values = |label: &str, series: Series| format!("label_values({series}, {label})");
    let query = |name, label, description, query| QueryVariable {
        name,
        label,
        description,
        datasource: DataSource::CHOSEN,
        query: VariableQuery { query, ref_id: "A" },
        refresh: 2,
        sort: 7,
        multi: false,
        include_all: false,
        all_value: None,
        current: None,
    };
    let step = || Series::of(of::STEP);
    let in_namespace = step().with(of::LABEL_NAMESPACE, "$namespace");
    let all = Choice {
        text: "All",
        value: "$__all",
    };
    vec![
        data_source(),
        Variable::Query(query(
            "namespace",
            "Namespace",
            "Namespaces with jobs that train",
            values(of::LABEL_NAMESPACE, step()),
        )),
        Variable::Query(query(
            "job",
            "Job",
            "Jobs that train",
            values(of::LABEL_JOB_NAME, in_namespace),
        )),
        Variable::Query(QueryVariable {
            multi: true,
            include_all: true,
            all_value: Some(".*"),
            current: Some(all),
            ..query(
                "rank",
                "Rank",
                "Ranks that are shown where the job is shown by rank",
                values(of::LABEL_RANK, job(step())),
            )
        }),
    ]
}

fn new_attempts() -> Annotation {
    let attempt = job(Series::of(operator::JOB_ATTEMPT));
    let jobs = [operator::LABEL_JOB_NAME];
    let before = attempt.before(ATTEMPT_MARKS_STEP).max_by(&jobs);
    let more = Expr::from(attempt).max_by(&jobs).minus(before);
    Annotation {
        name: "New attempts",
        datasource: DataSource::CHOSEN,
        enable: true,
        icon_color: "orange",
        target: AnnotationTarget {
            ref_id: "Anno",
            expr: more.above(0.0).to_string(),
        },
        step: ATTEMPT_MARKS_STEP,
        title_format: "New attempt",
        text_format: "The gang of {{job_name}} was replaced",
    }
}

/// Of the job as a whole.
fn job(series: Series) -> Series {
    series
        .with(of::LABEL_NAMESPACE, "$namespace")
        .with(of::LABEL_JOB_NAME, "$job")
}

/// Of the ranks that are chosen.
fn ranks(series: Series) -> Series {
    job(series).matching(of::LABEL_RANK, "$rank")
}

fn newest(metric: &str) -> Expr {
    Expr::from(job(Series::of(metric))).max()
}

fn step_seconds() -> Series {
    Series::sum_of(of::STEP_SECONDS)
}
