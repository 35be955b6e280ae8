//! Failures, and health of the operator.

use contract::FailureClass;
use contract::operator_metrics as operator;

use crate::layout::Layout;
use crate::panel::{Builder, Unit, stat, time_series};
use crate::query::{Expr, LABEL_CLUSTER, Series, quantile};

/// The colors of the failure classes that are retried.
const CLASS_COLORS: [(FailureClass, &str); 8] = [
    (FailureClass::Crashed, "red"),
    (FailureClass::DeviceFault, "dark-red"),
    (FailureClass::Killed, "orange"),
    (FailureClass::PeerLost, "yellow"),
    (FailureClass::PodLost, "blue"),
    (FailureClass::Stalled, "purple"),
    (FailureClass::StartFailed, "light-blue"),
    (FailureClass::Storage, "green"),
];

pub(super) fn rows(layout: Layout) -> Layout {
    own_health(failures(layout))
}

fn failures(layout: Layout) -> Layout {
    layout.heading("What fails?").line(
        8,
        [
            time_series(
                12,
                "Restarts in the last hour, by failure class",
                Unit::Count,
                "For a job that keeps restarting, see ViTRestartLoop in docs/operations.md. \
                 docs/failures.md explains the classes.",
            )
            .query(
                Series::of(operator::RESTARTS_TOTAL)
                    .increase("1h")
                    .sum_by(&[operator::LABEL_CLASS]),
                "{{class}}",
            )
            .colors(CLASS_COLORS.map(|(class, color)| (class.as_str(), color)))
            .threshold(5.0, "dark-red"),
            time_series(
                12,
                "Slow ranks, by node",
                Unit::Count,
                "Ranks that stay slower than the others of their job. A node that appears with \
                 several jobs is faulty.",
            )
            .query(
                Expr::from(Series::of(operator::STRAGGLER_SLOWDOWN_RATIO)).count_by(&[operator::LABEL_NODE]),
                "{{node}}",
            )
            .steps()
            .or_else("no straggler"),
        ],
    )
}

fn own_health(layout: Layout) -> Layout {
    let latency = |histogram| {
        move |panel: Builder| {
            // Placements are minutes apart.
            panel
                .query(quantile(0.5, histogram, "5m"), "median")
                .query(quantile(0.99, histogram, "5m"), "p99")
                .colors([("median", "green"), ("p99", "orange")])
        }
    };
    layout
        .heading("Is the operator healthy?")
        .line(
            8,
            [
                stat(
                    3,
                    "Leaders",
                    Unit::Count,
                    "Leading replicas: one per cluster. With none, no job starts or restarts. See \
                     ViTOperatorDoesNotLead in docs/operations.md.",
                )
                .query(
                    Expr::from(Series::of(operator::LEADER)).sum_by(&[LABEL_CLUSTER]),
                    "{{cluster}}",
                )
                .base_color("red")
                .threshold(1.0, "green")
                .threshold(2.0, "red"),
                latency(operator::RECONCILE_SECONDS)(time_series(
                    7,
                    "Time of a reconcile",
                    Unit::Seconds,
                    "Including calls to the API server. See ViTOperatorIsSlow in docs/operations.md.",
                )),
                time_series(6, "Reconciles", Unit::PerSecond, "All reconciles of jobs.")
                    .query(Series::of(operator::RECONCILES_TOTAL).rate().sum(), "reconciles")
                    .color("reconciles", "blue"),
                time_series(
                    8,
                    "Failed reconciles, by category",
                    Unit::PerSecond,
                    "Conflict is normal: the job changed meanwhile. See ViTOperatorFails and the \
                     categories in docs/operations.md.",
                )
                .query(
                    Series::of(operator::RECONCILE_ERRORS_TOTAL)
                        .rate()
                        .sum_by(&[operator::LABEL_CATEGORY]),
                    "{{category}}",
                )
                .legend_on_the_right(),
            ],
        )
        .line(
            8,
            [
                latency(operator::PLACEMENT_SECONDS)(time_series(
                    10,
                    "Time of a placement",
                    Unit::Seconds,
                    "Until a gang is placed or found not to fit, including the wait for other \
                     placements.",
                )),
                latency(operator::API_REQUEST_SECONDS)(time_series(
                    6,
                    "Time of a call to the API server",
                    Unit::Seconds,
                    "Until the response; for a watch, until it starts.",
                )),
                time_series(
                    8,
                    "Calls to the API server",
                    Unit::PerSecond,
                    "By method and status code, which is empty without a response.",
                )
                .query(
                    Series::of(operator::API_REQUESTS_TOTAL)
                        .rate()
                        .sum_by(&[operator::LABEL_METHOD, operator::LABEL_CODE]),
                    "{{method}} {{code}}",
                )
                .stacked()
                .legend_on_the_right(),
            ],
        )
}
