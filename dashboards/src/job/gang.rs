//! Cost of synchronization, slow ranks, and cost of a failure.

use contract::metrics as of;
use contract::operator_metrics as operator;

use super::{WORST, job, newest, ranks, step_seconds};
use crate::layout::Layout;
use crate::panel::{Unit, time_series};
use crate::query::{Expr, Series};

const TOTAL: &str = of::SYNC_KINDS[0];
const EXPOSED: &str = of::SYNC_KINDS[1];
const STRAGGLER: &str = of::SYNC_KINDS[2];
/// A rank's compute phases: data, forward and backward pass.
const COMPUTE: [&str; 3] = [of::STEP_PHASES[0], of::STEP_PHASES[1], of::STEP_PHASES[2]];

const RANK: [&str; 3] = [of::LABEL_NAMESPACE, of::LABEL_JOB_NAME, of::LABEL_RANK];

pub(super) fn rows(layout: Layout) -> Layout {
    safety(slowness(sync(layout)))
}

fn sync_seconds(kind: &str) -> Series {
    Series::of(of::SYNC_SECONDS_TOTAL).with(of::LABEL_KIND, kind)
}

/// By rank, with its node.
fn with_node(expression: Expr) -> Expr {
    let node = Expr::from(ranks(Series::of(of::RANK_INFO))).first_by(&RANK);
    expression.grouped().labeled(&RANK, of::LABEL_NODE, node)
}

const RANK_ON_NODE: &str = "rank {{rank}} on {{node}}";

fn sync(layout: Layout) -> Layout {
    let share = |kind| {
        let all = job(step_seconds()).rate().sum();
        job(sync_seconds(kind)).rate().sum().over(all)
    };
    let waits = Series::of(of::SYNC_SECONDS_TOTAL).matching(of::LABEL_KIND, &[EXPOSED, STRAGGLER].join("|"));
    let all = job(step_seconds()).rate().sum();
    let by_operation = job(waits).rate().sum_by(&[of::LABEL_OPERATION]).over_all(all);
    let bytes = ranks(Series::of(of::SYNC_BYTES_TOTAL))
        .rate()
        .sum_by(&[of::LABEL_OPERATION]);
    let total = job(sync_seconds(TOTAL)).rate().sum();
    let hidden = job(sync_seconds(EXPOSED))
        .rate()
        .sum()
        .over(total)
        .grouped()
        .complement();
    layout.heading("What does synchronization cost?").line(
        8,
        [
            time_series(
                9,
                "Share of step time spent waiting",
                Unit::Share,
                "exposed: waiting for communication that computation does not hide; \
                 straggler: waiting for slower ranks. If both are above the line for half an hour, see \
                 ViTSyncShareHigh in docs/operations.md.",
            )
            .query(share(EXPOSED), EXPOSED)
            .query(share(STRAGGLER), STRAGGLER)
            .stacked()
            .threshold(0.4, "dark-red")
            .reaches(0.5)
            .colors([(EXPOSED, "orange"), (STRAGGLER, "red")]),
            time_series(
                5,
                "Share of step time, by operation",
                Unit::Share,
                "all_reduce: activations, and gradients at parallelism.zeroStage 0 or between nodes with shardWithinNode; reduce_scatter: gradients at the \
                 other stages; all_gather: weights at those; all_to_all: activations with parallelism.sequence.",
            )
            .query(by_operation, "{{operation}}")
            .stacked(),
            time_series(
                5,
                "Communication hidden",
                Unit::Share,
                "Share of communication that overlapped with computation, so that no step waited for it. More \
                 images per rank hide more of it.",
            )
            .query(hidden, "hidden")
            .up_to_one()
            .color("hidden", "green"),
            time_series(
                5,
                "Bytes reduced, gathered and exchanged",
                Unit::BytesPerSecond,
                "Gradients, weights and activations of all chosen ranks. parallelism.compressGradients: \
                 bf16 halves the gradients.",
            )
            .query(bytes, "{{operation}}"),
        ],
    )
}

fn slowness(layout: Layout) -> Layout {
    let compute = |series: Series| {
        let parts = COMPUTE.join("|");
        ranks(series)
            .matching(of::LABEL_PHASE, &parts)
            .rate()
            .sum_by(&RANK)
    };
    let steps = ranks(Series::count_of(of::STEP_SECONDS)).with(of::LABEL_PHASE, COMPUTE[0]);
    let compute = compute(step_seconds()).over(steps.rate().sum_by(&RANK));
    let waits = ranks(sync_seconds(STRAGGLER))
        .rate()
        .sum_by(&RANK)
        .over(ranks(step_seconds()).rate().sum_by(&RANK));
    let saved = ranks(Series::of(of::RANK_SLOWDOWN_SECONDS_TOTAL))
        .rate()
        .sum_by(&RANK)
        .over(ranks(step_seconds()).rate().sum_by(&RANK));
    let named = Expr::from(job(Series::of(operator::STRAGGLER_SLOWDOWN_RATIO)))
        .max_by(&[operator::LABEL_RANK, operator::LABEL_NODE]);
    layout
        .heading("Who is slow?")
        .line(
            8,
            [
                time_series(
                    8,
                    "Compute time of a step, by rank",
                    Unit::Seconds,
                    "Data, forward and backward pass, without waiting. The others wait for the rank that \
                 stays above them.",
                )
                .query(with_node(compute.largest(WORST)), RANK_ON_NODE),
                time_series(
                    8,
                    "Waiting for slower ranks, by rank",
                    Unit::Share,
                    "Share of step time that a rank waits for others. The slow rank waits \
                 least.",
                )
                .query(with_node(waits.smallest(WORST)), RANK_ON_NODE),
                time_series(
                    8,
                    "Stragglers",
                    Unit::Times,
                    "Ranks in status.stragglers: compute time over the \
                 median of the other ranks. See ViTStraggler in docs/operations.md.",
                )
                .query(named, RANK_ON_NODE)
                .threshold(1.33, "red")
                .or_else("no straggler"),
            ],
        )
        .line(
            7,
            [
                time_series(
                    12,
                    "Cost of slow ranks",
                    Unit::Times,
                    "Step time over the step time if every rank computed as fast as the median one: 1 without \
                 slower ranks.",
                )
                .query(
                    newest(of::JOB_SLOWDOWN_RATIO),
                    "slowdown",
                ),
                time_series(
                    12,
                    "Step time saved without a rank",
                    Unit::Share,
                    "Share of a step saved without this rank: its compute time beyond that of \
                 the next slowest. Removing one of two equally slow ranks saves nothing.",
                )
                .query(with_node(saved.largest(WORST)), RANK_ON_NODE),
            ],
        )
}

fn safety(layout: Layout) -> Layout {
    let phases = [of::LABEL_PHASE];
    let mean = Expr::from(job(Series::of(of::CHECKPOINT_SECONDS_TOTAL)))
        .sum_by(&phases)
        .over_all(Expr::from(job(Series::of(of::CHECKPOINTS_TOTAL))).sum());
    let bytes = Expr::from(job(Series::of(of::CHECKPOINT_BYTES_TOTAL)))
        .sum()
        .over(Expr::from(job(Series::of(of::CHECKPOINTS_TOTAL))).sum());
    let parts = Expr::from(job(Series::of(operator::JOB_TIME_SPENT_SECONDS))).max_by(&[operator::LABEL_PART]);
    let lost = [
        time_series(
            16,
            "Time by activity",
            Unit::Seconds,
            "Since the first GPUs, over all attempts. useful: optimizer steps; repeated: steps repeated after a \
             restart; queue: waiting for GPUs; start: until a gang trains; restart: from a failure until its pods \
             are gone.",
        )
        .query(parts, "{{part}}")
        .stacked(),
        time_series(
            8,
            "Effective training time",
            Unit::Share,
            "Share of useful steps in the time since the first GPUs.",
        )
        .query(newest(operator::JOB_EFFECTIVE_TIME_RATIO), "effective")
        .up_to_one()
        .color("effective", "green"),
    ];
    layout
        .heading("Is it safe?")
        .line(
            8,
            [
                time_series(
                    8,
                    "Steps done and saved",
                    Unit::Count,
                    "A failure now would lose the steps between the lines. A step back is a new \
                 attempt that resumes from the checkpoint.",
                )
                .query(newest(of::STEP), "done")
                .query(newest(of::CHECKPOINT_STEP), "saved")
                .colors([("done", "blue"), ("saved", "green")]),
                time_series(
                    8,
                    "Time and size of a checkpoint",
                    Unit::Seconds,
                    "Mean over this attempt. Training pauses only for the snapshot and continues \
                 during the write.",
                )
                .query(mean, "{{phase}}")
                .query(bytes, "size")
                .on_the_right("size", Unit::Bytes)
                .colors([
                    (of::CHECKPOINT_PHASES[0], "orange"),
                    (of::CHECKPOINT_PHASES[1], "blue"),
                    ("size", "text"),
                ]),
                time_series(
                    8,
                    "Attempts and restarts",
                    Unit::Count,
                    "attempt counts gangs: it increases with every restart, resume and change of size. \
                 restarts counts those after a failure; status.lastFailure has the cause.",
                )
                .query(newest(operator::JOB_ATTEMPT), "attempt")
                .query(newest(operator::JOB_RESTARTS), "restarts")
                .steps()
                .colors([("attempt", "blue"), ("restarts", "orange")]),
            ],
        )
        .line(7, lost)
}
