//! Whether training gets on, and how fast.

use contract::metrics as of;

use super::{job, newest, ranks, step_seconds};
use crate::layout::Layout;
use crate::panel::{Builder, Unit, bar_gauge, stat, time_series};
use crate::query::{Expr, Series};

/// The colours of the parts of a step, in the order of [`of::STEP_PHASES`].
const PART_COLORS: [&str; 6] = ["purple", "green", "dark-green", "orange", "red", "blue"];

pub(super) fn rows(layout: Layout) -> Layout {
    speed(progress(layout))
}

fn progress(layout: Layout) -> Layout {
    let remaining = newest(of::RUN_STEPS).minus(newest(of::STEP)).grouped();
    let pace = job(Series::of(of::STEP)).deriv().max();
    layout
        .heading("Is it getting on?")
        .line(
            5,
            [
                bar_gauge(5, "Progress", "Optimizer steps done, of those of the whole run.")
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
                    "Steps that are left at the present pace, evaluations and checkpoints included.",
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
                    "Steps since the newest complete checkpoint: what a failure now would cost. See \
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
                    "Share of images classified right: of the running epoch's training images \
                     (train), of the held-out ones at the last evaluation (validation), and of \
                     those by the averaged weights (validation_ema). Where images may show several \
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
                    "Learning rate of the last step; on the right, steps so far that changed no \
                     weight because gradients overflowed fp16.",
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
                    "Unless training.balance is Weighted every rank takes the same share of a step, \
                     so that all lines fall where one rank is slow: who it is, its compute time tells.",
                )
                .query(images(ranks).sum_by(&[of::LABEL_RANK]), "rank {{rank}}"),
                time_series(
                    12,
                    "Parts of a step",
                    Unit::Seconds,
                    "Mean time of an optimizer step of the chosen ranks, by what it goes into. \
                     sync_exposed is waiting for communication after every rank had its gradients, \
                     sync_straggler waiting for the last rank's.",
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
                     forward and backward pass, over all ranks. What is recomputed does not count.",
                )
                .query(achieved.clone(), "all ranks")
                .color("all ranks", "green"),
                time_series(
                    6,
                    "Model FLOPs utilisation",
                    Unit::Share,
                    "GPU only. Model FLOP/s over the dense half-precision peak of the GPUs, whatever \
                     the precision of the job. Absent on CPUs, and where the trainer does not know the \
                     peak of the GPU's product.",
                )
                .query(achieved.over(peak), "utilisation")
                .or_else("no GPU of a known product")
                .up_to_one()
                .color("utilisation", "green"),
                time_series(
                    6,
                    "GPU memory",
                    Unit::Bytes,
                    "GPU only. Memory in use on a rank's GPU by all processes, with what CUDA itself and \
                     fragments take, and the most that tensors of the rank have taken at once so far.",
                )
                .query(
                    Expr::from(ranks(Series::of(of::DEVICE_MEMORY_USED_BYTES))).max_by(&[of::LABEL_RANK]),
                    "rank {{rank}}: in use",
                )
                .query(
                    Expr::from(ranks(Series::of(of::DEVICE_MEMORY_PEAK_BYTES))).max_by(&[of::LABEL_RANK]),
                    "rank {{rank}}: tensors, most so far",
                )
                .or_else("no GPU"),
                time_series(
                    6,
                    "Host memory",
                    Unit::Bytes,
                    "Resident memory of each rank's process, GPU memory left out.",
                )
                .query(
                    Expr::from(ranks(Series::of(of::PROCESS_RESIDENT_MEMORY_BYTES)))
                        .max_by(&[of::LABEL_RANK]),
                    "rank {{rank}}",
                ),
            ],
        )
        .line(7, gpus())
}

/// What the driver tells of the ranks' GPUs. A job without GPUs has none of it.
fn gpus() -> [Builder; 4] {
    let of_rank = |title, unit, description, name| {
        let by_rank = Expr::from(ranks(Series::of(name))).max_by(&[of::LABEL_RANK]);
        time_series(6, title, unit, description)
            .query(by_rank, "rank {{rank}}")
            .or_else("no GPU")
    };
    let reasons = Expr::from(ranks(Series::of(of::DEVICE_THROTTLED))).sum_by(&[of::LABEL_REASON]);
    [
        of_rank(
            "GPU load",
            Unit::Share,
            "GPU only. Share of time in which some kernel ran, however little of the GPU it used: see \
             Model FLOPs utilisation for that.",
            of::DEVICE_UTILIZATION_RATIO,
        )
        .up_to_one(),
        of_rank(
            "GPU power",
            Unit::Watts,
            "GPU only. What the board of a rank's GPU draws.",
            of::DEVICE_POWER_WATTS,
        ),
        of_rank(
            "GPU temperature",
            Unit::Celsius,
            "GPU only. A rank whose GPU is hotter than the others' is likely to be throttled first.",
            of::DEVICE_TEMPERATURE_CELSIUS,
        ),
        time_series(
            6,
            "GPUs throttled",
            Unit::Count,
            "GPU only. GPUs of the chosen ranks whose clocks are held down: by the power limit \
             (power_cap), the machine's power supply (power_brake), heat (thermal), or the hardware \
             for another reason. A GPU at its power limit is at full work; one that is too hot needs \
             cooling.",
        )
        .query(reasons, "{{reason}}")
        .or_else("no GPU"),
    ]
}
