//! One training job: from whether it gets on to whether it is safe.

use contract::metrics as of;
use vit_operator::metric_names as operator;

use crate::panel::{Layout, Unit, bar_gauge, stat, time_series};
use crate::query::{Expr, Series};
use crate::schema::{
    Annotation, AnnotationTarget, Choice, CursorSync, Dashboard, DashboardLink, DataSource,
    DataSourceVariable, List, QueryVariable, SchemaVersion, TimeRange, Variable, VariableQuery,
};

/// Its uid, by which the other dashboard leads to it.
pub(crate) const UID: &str = "vit-training-job";
/// The tag of all dashboards, by which they find one another.
const TAG: &str = "vit-operator";

/// The colours of the parts of a step, in the order of [`of::STEP_PHASES`].
const PART_COLORS: [&str; 6] = ["purple", "green", "dark-green", "orange", "red", "blue"];
const TOTAL: &str = of::SYNC_KINDS[0];
const EXPOSED: &str = of::SYNC_KINDS[1];
const STRAGGLER: &str = of::SYNC_KINDS[2];
/// What a rank computes by itself: data, forward and backward pass.
const COMPUTE: [&str; 3] = [of::STEP_PHASES[0], of::STEP_PHASES[1], of::STEP_PHASES[2]];

/// How closely marks tell when an attempt began. What has changed since one step ago is one mark, however often it is scraped.
const ATTEMPT_MARKS_STEP: &str = "15s";

const RANK: [&str; 3] = [of::LABEL_NAMESPACE, of::LABEL_JOB_NAME, of::LABEL_RANK];

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
        panels: safety(slowness(sync(speed(progress(Layout::default()))))).panels(),
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

fn sync_seconds(kind: &str) -> Series {
    Series::of(of::SYNC_SECONDS_TOTAL).with(of::LABEL_KIND, kind)
}

fn step_seconds() -> Series {
    Series::sum_of(of::STEP_SECONDS)
}

/// By rank, with its node.
fn with_node(expression: Expr) -> Expr {
    let node = Expr::from(ranks(Series::of(of::RANK_INFO))).first_by(&RANK);
    expression.labelled(&RANK, of::LABEL_NODE, node)
}

const RANK_ON_NODE: &str = "rank {{rank}} on {{node}}";

fn progress(layout: Layout) -> Layout {
    let remaining = newest(of::RUN_STEPS).minus(newest(of::STEP)).grouped();
    let pace = job(Series::of(of::STEP)).deriv().max();
    layout
        .heading("Is it getting on?")
        .line(
            5,
            [
                (
                    5,
                    bar_gauge("Progress", "Optimizer steps done, of those of the whole run.")
                        .query(newest(of::STEP).over(newest(of::RUN_STEPS)), "done")
                        .decimals(1)
                        .base_color("blue"),
                ),
                (
                    4,
                    stat("Epochs done", Unit::Count, "Epochs finished.")
                        .query(newest(of::EPOCH), "epochs")
                        .base_color("blue"),
                ),
                (
                    5,
                    stat(
                        "Time left",
                        Unit::Seconds,
                        "Steps that are left at the present pace, evaluations and checkpoints included.",
                    )
                    .query(remaining.over(pace), "left")
                    .decimals(0)
                    .base_color("text"),
                ),
                (
                    5,
                    stat(
                        "Held-out accuracy",
                        Unit::Share,
                        "Share of held-out images classified right at the last evaluation.",
                    )
                    .query(validation(), "held out")
                    .decimals(1),
                ),
                (
                    5,
                    stat(
                        "Steps at risk",
                        Unit::Count,
                        "Steps since the newest complete checkpoint: what a failure now would cost. See ViTCheckpointOverdue \
                         in docs/operations.md.",
                    )
                    .query(newest(of::STEP).minus(newest(of::CHECKPOINT_STEP)), "steps")
                    .base_color("text"),
                ),
            ],
        )
        .line(
            8,
            [
                (
                    8,
                    time_series("Loss", Unit::Count, "Training loss of the last step, mean over all ranks.")
                        .query(newest(of::LOSS), "loss")
                        .decimals(3)
                        .color("loss", "blue"),
                ),
                (
                    8,
                    time_series(
                        "Accuracy",
                        Unit::Share,
                        "Share of images classified right: of the running epoch's training images (train), of the held-out \
                         ones at the last evaluation (validation), and of those by the averaged weights (validation_ema).",
                    )
                    .query(
                        Expr::from(job(Series::of(of::ACCURACY_RATIO))).max_by(&[of::LABEL_SPLIT]),
                        "{{split}}",
                    )
                    .up_to_one()
                    .colors([
                        (of::SPLIT_TRAIN, "light-blue"),
                        (of::SPLIT_VALIDATION, "green"),
                        (of::SPLIT_VALIDATION_EMA, "purple"),
                    ]),
                ),
                (
                    8,
                    time_series(
                        "Learning rate and skipped steps",
                        Unit::Scientific,
                        "Learning rate of the last step; on the right, steps so far that changed no weight because gradients \
                         overflowed fp16.",
                    )
                    .query(newest(of::LEARNING_RATE), "learning rate")
                    .query(newest(of::SKIPPED_STEPS), "skipped steps")
                    .on_the_right("skipped steps", Unit::Count)
                    .colors([("learning rate", "blue"), ("skipped steps", "orange")]),
                ),
            ],
        )
}

fn validation() -> Expr {
    Expr::from(job(Series::of(of::ACCURACY_RATIO)).with(of::LABEL_SPLIT, of::SPLIT_VALIDATION)).max()
}

fn speed(layout: Layout) -> Layout {
    let images = |of_those: fn(Series) -> Series| of_those(Series::of(of::IMAGES_TOTAL)).rate();
    let achieved = images(job)
        .times(job(Series::of(of::MODEL_FLOPS_PER_IMAGE)).into())
        .sum();
    let peak = Expr::from(job(Series::of(of::DEVICE_PEAK_FLOPS))).sum();
    let parts = [of::LABEL_PHASE];
    let mean_part = ranks(step_seconds())
        .rate()
        .sum_by(&parts)
        .over(ranks(Series::count_of(of::STEP_SECONDS)).rate().sum_by(&parts));
    layout
        .heading("How fast is it?")
        .line(
            8,
            [
                (
                    6,
                    time_series(
                        "Images per second",
                        Unit::ImagesPerSecond,
                        "Training images over all ranks.",
                    )
                    .query(images(job).sum(), "all ranks")
                    .color("all ranks", "green"),
                ),
                (
                    6,
                    time_series(
                        "Images per second, by rank",
                        Unit::ImagesPerSecond,
                        "Every rank takes the same share of a step, so that all lines fall where one rank is slow: who it is, \
                         its compute time tells.",
                    )
                    .query(images(ranks).sum_by(&[of::LABEL_RANK]), "rank {{rank}}"),
                ),
                (
                    12,
                    time_series(
                        "Parts of a step",
                        Unit::Seconds,
                        "Mean time of an optimizer step of the chosen ranks, by what it goes into. sync_exposed is waiting for \
                         communication after every rank had its gradients, sync_straggler waiting for the last rank's.",
                    )
                    .query(mean_part, "{{phase}}")
                    .stacked()
                    .colors(of::STEP_PHASES.into_iter().zip(PART_COLORS)),
                ),
            ],
        )
        .line(
            7,
            [
                (
                    6,
                    time_series(
                        "Model FLOP/s",
                        Unit::Flops,
                        "Floating-point operations that the model needs for the images trained on, forward and backward pass, \
                         over all ranks. What is recomputed does not count.",
                    )
                    .query(achieved.clone(), "all ranks")
                    .color("all ranks", "green"),
                ),
                (
                    6,
                    time_series(
                        "Model FLOPs utilisation",
                        Unit::Share,
                        "GPU only. Model FLOP/s over the dense bf16 peak of the GPUs, whatever the precision of the job. Absent on \
                         CPUs, and where the trainer does not know the peak of the GPU's product.",
                    )
                    .query(achieved.over(peak), "utilisation")
                    .or_else("no GPU of a known product")
                    .up_to_one()
                    .color("utilisation", "green"),
                ),
                (
                    6,
                    time_series(
                        "GPU memory, most so far",
                        Unit::Bytes,
                        "GPU only. Most memory that tensors of a rank have taken at once. What CUDA itself and fragments take comes \
                         on top.",
                    )
                    .query(
                        Expr::from(ranks(Series::of(of::DEVICE_MEMORY_PEAK_BYTES))).max_by(&[of::LABEL_RANK]),
                        "rank {{rank}}",
                    )
                    .or_else("no GPU"),
                ),
                (
                    6,
                    time_series(
                        "Host memory",
                        Unit::Bytes,
                        "Resident memory of each rank's process, GPU memory left out.",
                    )
                    .query(
                        Expr::from(ranks(Series::of(of::PROCESS_RESIDENT_MEMORY_BYTES)))
                            .max_by(&[of::LABEL_RANK]),
                        "rank {{rank}}",
                    ),
                ),
            ],
        )
}

fn sync(layout: Layout) -> Layout {
    let share = |kind| {
        let all = job(step_seconds()).rate().sum();
        job(sync_seconds(kind)).rate().sum().over(all)
    };
    let total = job(sync_seconds(TOTAL)).rate().sum();
    let hidden = job(sync_seconds(EXPOSED))
        .rate()
        .sum()
        .over(total)
        .grouped()
        .complement();
    layout.heading("What does synchronisation cost?").line(
        8,
        [
            (
                10,
                time_series(
                    "Share of step time spent waiting",
                    Unit::Share,
                    "exposed: waiting for communication that the backward pass does not hide. straggler: waiting for slower ranks. \
                     Above the line together for half an hour: see ViTSyncShareHigh in docs/operations.md.",
                )
                .query(share(EXPOSED), EXPOSED)
                .query(share(STRAGGLER), STRAGGLER)
                .stacked()
                .threshold(0.4, "dark-red")
                .reaches(0.5)
                .colors([(EXPOSED, "orange"), (STRAGGLER, "red")]),
            ),
            (
                7,
                time_series(
                    "Communication hidden behind the backward pass",
                    Unit::Share,
                    "Share of all-reduce time that no step waited for. More images a rank, or fewer and larger buckets, hide \
                     more of it.",
                )
                .query(hidden, "hidden")
                .up_to_one()
                .color("hidden", "green"),
            ),
            (
                7,
                time_series(
                    "Gradients handed to all-reduce",
                    Unit::BytesPerSecond,
                    "By rank. parallelism.compressGradients: bf16 halves it.",
                )
                .query(
                    ranks(Series::of(of::SYNC_BYTES_TOTAL)).rate().sum_by(&[of::LABEL_RANK]),
                    "rank {{rank}}",
                ),
            ),
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
    let named = Expr::from(job(Series::of(operator::STRAGGLER_SLOWDOWN_RATIO)))
        .max_by(&[operator::LABEL_RANK, operator::LABEL_NODE]);
    layout.heading("Who is slow?").line(
        8,
        [
            (
                8,
                time_series(
                    "Compute time of a step, by rank",
                    Unit::Seconds,
                    "Data, forward and backward pass, and no waiting. The rank that stays above the others is the one that they \
                     wait for.",
                )
                .query(with_node(compute), RANK_ON_NODE),
            ),
            (
                8,
                time_series(
                    "Waiting for slower ranks, by rank",
                    Unit::Share,
                    "Share of step time that a rank waits for others: the one that waits least is the slow one.",
                )
                .query(with_node(waits), RANK_ON_NODE),
            ),
            (
                8,
                time_series(
                    "Stragglers",
                    Unit::Times,
                    "Ranks that the operator has named in status.stragglers: compute time over the median of the other ranks. \
                     See ViTStraggler in docs/operations.md.",
                )
                .query(named, RANK_ON_NODE)
                .threshold(1.33, "red")
                .or_else("no rank stays slower"),
            ),
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
    layout.heading("Is it safe?").line(
        8,
        [
            (
                8,
                time_series(
                    "Steps done and saved",
                    Unit::Count,
                    "What lies between the lines is lost if the job fails now. A step back is a new attempt that continues from \
                     the checkpoint.",
                )
                .query(newest(of::STEP), "done")
                .query(newest(of::CHECKPOINT_STEP), "saved")
                .colors([("done", "blue"), ("saved", "green")]),
            ),
            (
                8,
                time_series(
                    "Time and size of a checkpoint",
                    Unit::Seconds,
                    "Mean over this attempt. Training stands still for the snapshot alone; it goes on during the write.",
                )
                .query(mean, "{{phase}}")
                .query(bytes, "size")
                .on_the_right("size", Unit::Bytes)
                .colors([
                    (of::CHECKPOINT_PHASES[0], "orange"),
                    (of::CHECKPOINT_PHASES[1], "blue"),
                    ("size", "text"),
                ]),
            ),
            (
                8,
                time_series(
                    "Attempts and restarts",
                    Unit::Count,
                    "attempt counts gangs: it rises at every restart, resume and change of size. restarts counts those after a \
                     failure. Why: status.lastFailure of the job.",
                )
                .query(newest(operator::JOB_ATTEMPT), "attempt")
                .query(newest(operator::JOB_RESTARTS), "restarts")
                .steps()
                .colors([("attempt", "blue"), ("restarts", "orange")]),
            ),
        ],
    )
}
