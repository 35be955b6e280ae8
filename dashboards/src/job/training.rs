//! Progress and speed of training.

use contract::metrics as of;

use super::{WORST, job, newest, ranks, step_seconds};
use crate::layout::Layout;
use crate::panel::{Builder, Unit, bar_gauge, stat, time_series};
use crate::query::{Expr, Series};

/// The colors of the parts of a step, in the order of [`of::STEP_PHASES`].
const PART_COLORS: [&str; 6] = ["purple", "green", "dark-green", "orange", "red", "blue"];

pub(super) fn rows(layout: Layout) -> Layout {
    speed(progress(layout))
}

fn progress(layout: Layout) -> Layout {
    let remaining = newest(of::RUN_STEPS).minus(newest(of::STEP)).grouped();
    let pace = job(Series::of(of::STEP)).deriv().max();
    layout
        .heading("Is it making progress?")
        .line(
            5,
            [
                bar_gauge(
                    5,
                    "Progress",
                    "Optimizer steps done, as a share of the whole run.",
                )
                .query(newest(of::STEP).over(newest(of::RUN_STEPS)), "done")
                .decimals(1)
                .base_color("blue"),
                stat(4, "Epochs done", Unit::Count, "Epochs finished.")
                    .query(newest(of::EPOCH), "epochs")
                    .base_color("blue"),
                stat(
                    5,
                    "Time left",
                    Unit::Seconds,
                    "Remaining steps at the current pace, including evaluations and checkpoints.",
                )
                .query(remaining.over(pace), "left")
                .decimals(0)
                .base_color("text"),
                stat(
                    5,
                    "Held-out accuracy",
                    Unit::Share,
                    "Share of held-out images classified right at the last evaluation.",
                )
                .query(validation(), "held out")
                .decimals(1),
                stat(
                    5,
                    "Steps at risk",
                    Unit::Count,
                    "Steps since the newest complete checkpoint, which a failure now would lose. See \
                     ViTCheckpointOverdue in docs/operations.md.",
                )
                .query(newest(of::STEP).minus(newest(of::CHECKPOINT_STEP)), "steps")
                .base_color("text"),
            ],
        )
        .line(
            8,
            [
                time_series(
                    8,
                    "Loss",
                    Unit::Count,
                    "Training loss of the last step, mean over all ranks.",
                )
                .query(newest(of::LOSS), "loss")
                .decimals(3)
                .color("loss", "blue"),
                time_series(
                    8,
                    "Accuracy",
                    Unit::Share,
                    "Share of images classified right: training images of the current epoch \
                     (train), and held-out images at the last evaluation (validation, \
                     validation_ema with averaged weights). If images may show several \
                     classes, also the mean average precision (mAP).",
                )
                .query(
                    Expr::from(job(Series::of(of::ACCURACY_RATIO))).max_by(&[of::LABEL_SPLIT]),
                    "{{split}}",
                )
                .query(
                    Expr::from(job(Series::of(of::MEAN_AVERAGE_PRECISION_RATIO))).max(),
                    "mAP",
                )
                .up_to_one()
                .colors([
                    ("mAP", "orange"),
                    (of::SPLIT_TRAIN, "light-blue"),
                    (of::SPLIT_VALIDATION, "green"),
                    (of::SPLIT_VALIDATION_EMA, "purple"),
                ]),
                time_series(
                    8,
                    "Learning rate and skipped steps",
                    Unit::Scientific,
                    "Learning rate of the last step; on the right, steps skipped so far \
                     because gradients overflowed fp16.",
                )
                .query(newest(of::LEARNING_RATE), "learning rate")
                .query(newest(of::SKIPPED_STEPS), "skipped steps")
                .on_the_right("skipped steps", Unit::Count)
                .colors([("learning rate", "blue"), ("skipped steps", "orange")]),
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
                time_series(
                    6,
                    "Images per second",
                    Unit::ImagesPerSecond,
                    "Training images over all ranks.",
                )
                .query(images(job).sum(), "all ranks")
                .color("all ranks", "green"),
                time_series(
                    6,
                    "Images per second, by rank",
                    Unit::ImagesPerSecond,
                    "Unless training.balance is Weighted, ranks have equal shares of a step, \
                     so one slow rank lowers all lines; see Compute time of a step, by rank.",
                )
                .query(
                    images(ranks).sum_by(&[of::LABEL_RANK]).smallest(WORST),
                    "rank {{rank}}",
                ),
                time_series(
                    12,
                    "Parts of a step",
                    Unit::Seconds,
                    "Mean time of the chosen ranks' optimizer steps, by part. \
                     sync_exposed: waiting for communication after every rank had its gradients; \
                     sync_straggler: waiting for the last rank's.",
                )
                .query(mean_part, "{{phase}}")
                .stacked()
                .colors(of::STEP_PHASES.into_iter().zip(PART_COLORS)),
            ],
        )
        .line(
            7,
            [
                time_series(
                    6,
                    "Model FLOP/s",
                    Unit::Flops,
                    "Floating-point operations that the model needs for the images trained on, \
                     forward and backward pass, over all ranks. Recomputation does not count.",
                )
                .query(achieved.clone(), "all ranks")
                .color("all ranks", "green"),
                time_series(
                    6,
                    "Model FLOPs utilization",
                    Unit::Share,
                    "GPU only. Model FLOP/s over the GPUs' dense half-precision peak, for any \
                     precision of the job. Absent on CPUs, and if the trainer does not know the \
                     peak of the GPU's product.",
                )
                .query(achieved.over(peak), "utilization")
                .or_else("no GPU of a known product")
                .up_to_one()
                .color("utilization", "green"),
                time_series(
                    6,
                    "GPU memory",
                    Unit::Bytes,
                    "GPU only. Memory of a rank's GPU in use by all processes, including CUDA and \
                     fragmentation, and the peak of the rank's tensors so far.",
                )
                .query(
                    Expr::from(ranks(Series::of(of::DEVICE_MEMORY_USED_BYTES)))
                        .max_by(&[of::LABEL_RANK])
                        .largest(WORST),
                    "rank {{rank}}: in use",
                )
                .query(
                    Expr::from(ranks(Series::of(of::DEVICE_MEMORY_PEAK_BYTES)))
                        .max_by(&[of::LABEL_RANK])
                        .largest(WORST),
                    "rank {{rank}}: tensors, peak",
                )
                .or_else("no GPU"),
                time_series(
                    6,
                    "Host memory",
                    Unit::Bytes,
                    "Resident memory of each rank's process, without GPU memory.",
                )
                .query(
                    Expr::from(ranks(Series::of(of::PROCESS_RESIDENT_MEMORY_BYTES)))
                        .max_by(&[of::LABEL_RANK])
                        .largest(WORST),
                    "rank {{rank}}",
                ),
            ],
        )
        .line(7, gpus())
}

/// The driver's values for the ranks' GPUs. A job without GPUs has none.
fn gpus() -> [Builder; 4] {
    let of_rank = |title, unit, description, name, worst: fn(Expr, usize) -> Expr| {
        let by_rank = Expr::from(ranks(Series::of(name))).max_by(&[of::LABEL_RANK]);
        time_series(6, title, unit, description)
            .query(worst(by_rank, WORST), "rank {{rank}}")
            .or_else("no GPU")
    };
    let reasons = Expr::from(ranks(Series::of(of::DEVICE_THROTTLED))).sum_by(&[of::LABEL_REASON]);
    [
        of_rank(
            "GPU load",
            Unit::Share,
            "GPU only. Share of time in which some kernel ran, however little of the GPU it used: see \
             Model FLOPs utilization for that.",
            of::DEVICE_UTILIZATION_RATIO,
            Expr::smallest,
        )
        .up_to_one(),
        of_rank(
            "GPU power",
            Unit::Watts,
            "GPU only. Power draw of a rank's GPU board.",
            of::DEVICE_POWER_WATTS,
            Expr::largest,
        ),
        of_rank(
            "GPU temperature",
            Unit::Celsius,
            "GPU only. The hottest GPU is likely to be throttled first.",
            of::DEVICE_TEMPERATURE_CELSIUS,
            Expr::largest,
        ),
        time_series(
            6,
            "GPUs throttled",
            Unit::Count,
            "GPU only. GPUs of the chosen ranks with reduced clocks, because of the power limit \
             (power_cap), the machine's power supply (power_brake), heat (thermal), or the hardware \
             for another reason. A GPU at its power limit is fully used; one that is too hot needs \
             cooling.",
        )
        .query(reasons, "{{reason}}")
        .or_else("no GPU"),
    ]
}
