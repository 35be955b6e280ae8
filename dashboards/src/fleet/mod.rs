//! All jobs, the GPUs they share, and the operator.

mod health;

use contract::metrics as of;
use contract::operator_metrics as operator;
use crds::Phase;
use crds::conditions::reasons;
use serde_json::json;

use crate::job;
use crate::layout::Layout;
use crate::panel::{Builder, Unit, bar_gauge, stat, table, time_series};
use crate::query::{Expr, LABEL_CLUSTER, Series, quantile};
use crate::schema::Dashboard;
use crate::variable;

/// The colors of phases, in the order of [`Phase::ALL`].
const PHASE_COLORS: [&str; 8] = [
    "yellow",
    "light-blue",
    "green",
    "orange",
    "light-purple",
    "purple",
    "blue",
    "red",
];
/// The states of GPUs and their colors.
const STATE_COLORS: [(&str, &str); 4] = [
    (operator::GPU_STATES[0], "green"),
    (operator::GPU_STATES[1], "blue"),
    (operator::GPU_STATES[2], "super-light-green"),
    (operator::GPU_STATES[3], "red"),
];
const GANGS: &str = operator::GPU_STATES[0];
const OTHERS: &str = operator::GPU_STATES[1];
const FREE: &str = operator::GPU_STATES[2];

const JOB: [&str; 3] = [LABEL_CLUSTER, operator::LABEL_NAMESPACE, operator::LABEL_JOB_NAME];

pub(crate) fn dashboard() -> Dashboard {
    Dashboard {
        uid: "vit-fleet",
        title: "ViT fleet",
        description: "All ViTTrainingJobs, the GPUs they share, and the operator. The metrics are explained \
            in docs/dashboards.md and docs/operations.md of vit-operator.",
        refresh: "1m",
        time: json!({"from": "now-6h", "to": "now"}),
        templating: json!({"list": [variable::data_source(), variable::clusters()]}),
        panels: health::rows(waiting(gpus(overview(Layout::default())))).panels(),
        ..Dashboard::default()
    }
}

fn in_phase(phase: Phase) -> Expr {
    Expr::from(Series::of(operator::JOBS).with(operator::LABEL_PHASE, phase.as_str())).sum()
}

fn gpus_in(states: &[&str]) -> Series {
    Series::of(operator::GPUS).matching(operator::LABEL_STATE, &states.join("|"))
}

fn overview(layout: Layout) -> Layout {
    let count = |width, title, phase, description, color| {
        stat(width, title, Unit::Count, description)
            .query(in_phase(phase), phase.as_str())
            .base_color(color)
    };
    layout
        .heading("What is the state of the jobs?")
        .line(
            5,
            [
                count(4, "Running", Phase::Running, "Jobs whose pods all run.", "green"),
                count(4, "Waiting", Phase::Pending, "Jobs that wait for GPUs.", "text")
                    .threshold(1.0, "yellow"),
                count(
                    4,
                    "Restarting",
                    Phase::Restarting,
                    "Jobs whose gang is being replaced.",
                    "text",
                )
                .threshold(1.0, "orange"),
                count(
                    4,
                    "Failed",
                    Phase::Failed,
                    "Jobs that failed and are not retried.",
                    "text",
                )
                .threshold(1.0, "red"),
                stat(4, "GPUs free", Unit::Count, "Unused GPUs on ready nodes.")
                    .query(Expr::from(gpus_in(&[FREE])).sum(), "free"),
                stat(
                    4,
                    "GPUs in use",
                    Unit::Share,
                    "Share of all GPUs that gangs or other pods hold.",
                )
                .query(
                    Expr::from(gpus_in(&[GANGS, OTHERS]))
                        .sum()
                        .over(Expr::from(Series::of(operator::GPUS)).sum()),
                    "in use",
                )
                .decimals(0)
                .base_color("blue"),
            ],
        )
        .line(8, [jobs(), alerts()])
}

fn jobs() -> Builder {
    let newest = |metric: &str| Expr::from(Series::of(metric)).max_by(&JOB);
    let waits = Series::of(of::SYNC_SECONDS_TOTAL)
        .matching(of::LABEL_KIND, &of::SYNC_KINDS[1..].join("|"))
        .rate()
        .sum_by(&JOB)
        .over(Series::sum_of(of::STEP_SECONDS).rate().sum_by(&JOB));
    table(
        15,
        "Jobs",
        Unit::Count,
        "All jobs. Speed and Sync, the share of step time spent waiting for \
         synchronization, cover the last minutes. Click a row to open the job.",
    )
    .query(newest(of::STEP).over(newest(of::RUN_STEPS)), "")
    .query(Series::of(of::IMAGES_TOTAL).rate().sum_by(&JOB), "")
    .query(waits, "")
    .query(newest(operator::JOB_ATTEMPT), "")
    .query(newest(operator::JOB_RESTARTS), "")
    .columns(
        &[
            (LABEL_CLUSTER, "Cluster"),
            (operator::LABEL_NAMESPACE, "Namespace"),
            (operator::LABEL_JOB_NAME, "Job"),
        ],
        &["Progress", "Images/s", "Sync", "Attempt", "Restarts"],
    )
    .unit_of("Progress", Unit::Share)
    .unit_of("Sync", Unit::Share)
    .decimals(0)
    .link(
        "Show this job",
        format!(
            "/d/{}?var-datasource=${{datasource}}&${{cluster:queryparam}}&var-namespace=${{__data.fields.Namespace}}&var-job=${{__data.fields.Job}}&${{__url_time_range}}",
            job::UID
        ),
    )
}

fn alerts() -> Builder {
    let labels = [
        "alertname",
        "severity",
        LABEL_CLUSTER,
        operator::LABEL_NAMESPACE,
        operator::LABEL_JOB_NAME,
        operator::LABEL_NODE,
    ];
    let firing = Series::of("ALERTS")
        .matching("alertname", "ViT.+")
        .with("alertstate", "firing");
    table(
        9,
        "Firing alerts",
        Unit::Count,
        "Alerts of the chart's rules, if Prometheus has them. docs/operations.md has the remedies.",
    )
    .query(Expr::from(firing).sum_by(&labels), "")
    .columns(
        &[
            (labels[0], "Alert"),
            (labels[1], "Severity"),
            (labels[2], "Cluster"),
            (labels[3], "Namespace"),
            (labels[4], "Job"),
            (labels[5], "Node"),
        ],
        &["Count"],
    )
    .width_of("Alert", 160)
    .or_else("none")
}

fn gpus(layout: Layout) -> Layout {
    let product = [operator::LABEL_PRODUCT];
    let used = Expr::from(gpus_in(&[GANGS, OTHERS])).sum_by(&product);
    let all = Expr::from(Series::of(operator::GPUS)).sum_by(&product);
    layout.heading("Who has the GPUs?").line(
        8,
        [
            time_series(
                10,
                "GPUs, by state",
                Unit::Count,
                "gangs: used by jobs or promised to them; others: used by other pods; unavailable: \
                 unhealthy, or on a node that is cordoned or not ready.",
            )
            .query(
                Expr::from(Series::of(operator::GPUS)).sum_by(&[operator::LABEL_STATE]),
                "{{state}}",
            )
            .stacked()
            .steps()
            .colors(STATE_COLORS),
            time_series(
                7,
                "GPUs free, by product",
                Unit::Count,
                "A gang uses identical GPUs, unless its job allows a mix.",
            )
            .query(Expr::from(gpus_in(&[FREE])).sum_by(&product), "{{product}}")
            .steps(),
            bar_gauge(
                7,
                "GPUs in use, by product",
                "Share of the GPUs of each product that gangs or other pods hold.",
            )
            .query(used.over(all), "{{product}}")
            .base_color("blue"),
        ],
    )
}

fn waiting(layout: Layout) -> Layout {
    let reason_colors = [
        (reasons::NO_FITTING_GROUP, "yellow"),
        (reasons::IN_QUEUE, "blue"),
        (reasons::ADMITTED, "light-blue"),
        (reasons::NO_PRIORITY_CLASS, "red"),
        (reasons::QUOTA_EXCEEDED, "orange"),
        (reasons::START_FAILING, "purple"),
        (operator::REASON_UNDECIDED, "text"),
    ];
    let longest = Expr::from(Series::of(operator::JOB_WAITING_SECONDS))
        .max_by(&JOB)
        .largest(10);
    let until_running = |share| quantile(share, operator::TIME_TO_RUNNING_SECONDS, "1h");
    layout.heading("Who waits, and why?").line(
        8,
        [
            time_series(
                6,
                "Jobs, by phase",
                Unit::Count,
                "docs/reference/vittrainingjob.md explains the phases.",
            )
            .query(
                Expr::from(Series::of(operator::JOBS)).sum_by(&[operator::LABEL_PHASE]),
                "{{phase}}",
            )
            .stacked()
            .steps()
            .colors(Phase::ALL.map(Phase::as_str).into_iter().zip(PHASE_COLORS)),
            time_series(
                6,
                "Waiting jobs, by reason",
                Unit::Count,
                "The reason of the condition Placed; its message has details and counts. See \"Why \
                 a job waits\" in docs/operations.md.",
            )
            .query(
                Expr::from(Series::of(operator::WAITING_JOBS)).sum_by(&[operator::LABEL_REASON]),
                "{{reason}}",
            )
            .stacked()
            .steps()
            .colors(reason_colors),
            time_series(
                6,
                "Time to running",
                Unit::Seconds,
                "From a job's creation until every pod of its first gang is ready, for the jobs of \
                 the last hour, including waiting for GPUs, pulling images and starting.",
            )
            .query(until_running(0.5), "median")
            .query(until_running(0.9), "p90")
            .colors([("median", "green"), ("p90", "orange")]),
            time_series(
                6,
                "Longest waits",
                Unit::Seconds,
                "The ten longest waits since a job was created or lost its GPUs. Above a day, see \
                 ViTJobsWaitLong in docs/operations.md.",
            )
            .query(longest, "{{namespace}}/{{job_name}}")
            .or_else("no job waits"),
        ],
    )
}
