//! Tables of points.

use std::fmt::Write as _;

use study::{Measured, PointResult, Spread};

use super::notes::notes;
use super::{Report, figures, models};

/// A value of a point.
pub(super) struct Column {
    /// Name in the CSV.
    key: &'static str,
    /// Title in other tables, with the unit.
    pub(super) title: &'static str,
    /// Factor from the CSV's unit to the title's.
    scale: f64,
    /// Decimal places in other tables.
    digits: usize,
    value: fn(&Measured) -> Option<Spread>,
}

const COLUMNS: [Column; 28] = [
    Column {
        key: "imagesPerSecond",
        title: "images/s",
        scale: 1.0,
        digits: 1,
        value: |m| Some(m.images_per_second),
    },
    Column {
        key: "flopsPerRank",
        title: "TFLOP/s per rank",
        scale: 1e-12,
        digits: 2,
        value: |m| Some(m.flops_per_rank),
    },
    Column {
        key: "mfu",
        title: "MFU, %",
        scale: 1e2,
        digits: 1,
        value: |m| m.mfu,
    },
    Column {
        key: "stepSeconds",
        title: "step, ms",
        scale: 1e3,
        digits: 1,
        value: |m| Some(m.step_seconds),
    },
    Column {
        key: "computeSeconds",
        title: "compute, ms",
        scale: 1e3,
        digits: 1,
        value: |m| m.if_attributed(m.compute_seconds),
    },
    Column {
        key: "meanComputeSeconds",
        title: "compute, mean rank, ms",
        scale: 1e3,
        digits: 1,
        value: |m| m.mean_compute_seconds,
    },
    Column {
        key: "slowestComputeSeconds",
        title: "compute, slowest rank, ms",
        scale: 1e3,
        digits: 1,
        value: |m| m.slowest_compute_seconds,
    },
    Column {
        key: "dataSeconds",
        title: "data, ms",
        scale: 1e3,
        digits: 1,
        value: |m| m.if_attributed(m.data_seconds),
    },
    Column {
        key: "forwardSeconds",
        title: "forward, ms",
        scale: 1e3,
        digits: 1,
        value: |m| m.if_attributed(m.forward_seconds),
    },
    Column {
        key: "backwardSeconds",
        title: "backward, ms",
        scale: 1e3,
        digits: 1,
        value: |m| m.if_attributed(m.backward_seconds),
    },
    Column {
        key: "optimizerSeconds",
        title: "optimizer, ms",
        scale: 1e3,
        digits: 1,
        value: |m| m.if_attributed(m.optimizer_seconds),
    },
    Column {
        key: "exposedSeconds",
        title: "exposed, ms",
        scale: 1e3,
        digits: 1,
        value: |m| m.if_attributed(m.exposed_seconds),
    },
    Column {
        key: "stragglerSeconds",
        title: "straggler, ms",
        scale: 1e3,
        digits: 1,
        value: |m| m.if_attributed(m.straggler_seconds),
    },
    Column {
        key: "communicationSeconds",
        title: "communication, ms",
        scale: 1e3,
        digits: 1,
        value: |m| m.if_attributed(m.communication_seconds),
    },
    Column {
        key: "epochSeconds",
        title: "epoch, s",
        scale: 1.0,
        digits: 2,
        value: |m| Some(m.epoch_seconds),
    },
    Column {
        key: "meanEpochSeconds",
        title: "epoch with warm-up, s",
        scale: 1.0,
        digits: 2,
        value: |m| Some(m.mean_epoch_seconds),
    },
    Column {
        key: "efficiency",
        title: "efficiency, %",
        scale: 1e2,
        digits: 1,
        value: |m| m.efficiency,
    },
    Column {
        key: "fixedBatchImagesPerSecond",
        title: "images/s, fixed batch",
        scale: 1.0,
        digits: 1,
        value: |m| m.fixed_batch_images_per_second,
    },
    Column {
        key: "rankHoursPerMillionImages",
        title: "rank-hours per million images",
        scale: 1.0,
        digits: 3,
        value: |m| Some(m.rank_hours_per_million_images),
    },
    Column {
        key: "trainLoss",
        title: "train loss",
        scale: 1.0,
        digits: 3,
        value: |m| Some(m.epochs.last()?.loss),
    },
    Column {
        key: "trainAccuracy",
        title: "train accuracy, %",
        scale: 1e2,
        digits: 1,
        value: |m| Some(m.train_accuracy),
    },
    Column {
        key: "validationAccuracy",
        title: "held-out accuracy, %",
        scale: 1e2,
        digits: 1,
        value: |m| m.validation_accuracy,
    },
    Column {
        key: "memoryBytes",
        title: "memory, MB",
        scale: 1e-6,
        digits: 0,
        value: |m| m.memory_bytes,
    },
    Column {
        key: "gpuUtilization",
        title: "GPU load, %",
        scale: 1e2,
        digits: 0,
        value: |m| m.gpu.as_ref()?.utilization,
    },
    Column {
        key: "gpuMemoryUsedBytes",
        title: "GPU memory, MB",
        scale: 1e-6,
        digits: 0,
        value: |m| m.gpu.as_ref()?.memory_used_bytes,
    },
    Column {
        key: "gpuTemperatureCelsius",
        title: "GPU, °C",
        scale: 1.0,
        digits: 0,
        value: |m| m.gpu.as_ref()?.temperature_celsius,
    },
    Column {
        key: "gpuPowerWatts",
        title: "GPU, W",
        scale: 1.0,
        digits: 0,
        value: |m| m.gpu.as_ref()?.power_watts,
    },
    Column {
        key: "gpuThrottled",
        title: "GPU throttled, %",
        scale: 1e2,
        digits: 0,
        value: |m| m.gpu.as_ref()?.throttled,
    },
];

/// The columns for which any of these points has a value.
pub(super) fn columns(points: &[PointResult]) -> Vec<&'static Column> {
    let has_value = |column: &Column| {
        points
            .iter()
            .filter_map(|point| point.measured.as_ref())
            .any(|measured| (column.value)(measured).is_some())
    };
    COLUMNS.iter().filter(|column| has_value(column)).collect()
}

impl Column {
    /// The median, with minimum and maximum if they differ.
    pub(super) fn text(&self, point: &PointResult) -> String {
        match self.parts(point) {
            (median, Some(spread)) => format!("{median} ({spread})"),
            (median, None) => median,
        }
    }

    /// The median; minimum and maximum if they differ.
    pub(super) fn parts(&self, point: &PointResult) -> (String, Option<String>) {
        let Some(spread) = point.measured.as_ref().and_then(self.value) else {
            return (String::new(), None);
        };
        let number = |value: f64| format!("{:.*}", self.digits, value * self.scale);
        let [median, least, most] = [spread.median, spread.least, spread.most].map(number);
        let spread = (least != most).then(|| format!("{least} to {most}"));
        (median, spread)
    }
}

/// Columns that identify a point, and its number of repetitions.
pub(super) fn place(point: &PointResult) -> [(&'static str, String); 6] {
    let of = &point.point;
    [
        ("ranks", of.ranks.to_string()),
        ("micro-batch", of.micro_batch_size.to_string()),
        ("accumulation", of.gradient_accumulation_steps.to_string()),
        ("global batch", of.global_batch_size.to_string()),
        ("variant", of.variant.clone().unwrap_or_default()),
        ("repetitions", point.repetitions.to_string()),
    ]
}

/// The columns that identify a point, as text.
pub(super) fn words(point: &PointResult) -> String {
    let named = place(point)
        .into_iter()
        .filter(|(name, value)| *name != "repetitions" && !value.is_empty());
    named
        .map(|(name, value)| format!("{name} {value}"))
        .collect::<Vec<_>>()
        .join(", ")
}

pub(super) fn csv(points: &[PointResult]) -> String {
    let mut writer = csv::Writer::from_writer(Vec::new());
    let mut rows = vec![
        [
            "sweep",
            "ranks",
            "microBatchSize",
            "gradientAccumulationSteps",
            "globalBatchSize",
            "variant",
            "repetitions",
            "failed",
        ]
        .into_iter()
        .map(str::to_owned)
        .chain(
            COLUMNS
                .iter()
                .flat_map(|column| ["", "Least", "Most"].map(|suffix| format!("{}{suffix}", column.key))),
        )
        .collect::<Vec<_>>(),
    ];
    for point in points {
        let place = place(point).map(|(_, value)| value);
        let values = COLUMNS.iter().flat_map(|column| {
            let spread = point.measured.as_ref().and_then(column.value);
            [|s: Spread| s.median, |s: Spread| s.least, |s: Spread| s.most]
                .map(|part| spread.map(|spread| part(spread).to_string()).unwrap_or_default())
        });
        let row = [point.point.sweep.clone()]
            .into_iter()
            .chain(place)
            .chain([point.failures.len().to_string()]);
        rows.push(row.chain(values).collect());
    }
    for row in rows {
        writer.write_record(row).expect("writes to memory");
    }
    let bytes = writer.into_inner().expect("writes to memory");
    String::from_utf8(bytes).expect("of strings")
}

/// A row of a table.
fn markdown_row(cells: &[String]) -> String {
    let cells: Vec<String> = cells
        .iter()
        .map(|cell| one_line(&cell.replace('|', "\\|")))
        .collect();
    format!("| {} |\n", cells.join(" | "))
}

/// Joins the lines of names.
fn one_line(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}

pub(super) fn markdown(report: &Report) -> String {
    let mut text = format!("# {}\n\n", report.subject.name);
    for (name, value) in &report.subject.circumstances {
        let _ = writeln!(text, "- {name}: {value}");
    }
    for points in figures::sweeps(&report.results.points) {
        let _ = writeln!(text, "\n## {}\n", points[0].point.sweep);
        for note in notes(points) {
            let _ = writeln!(text, "> {note}\n");
        }
        let columns = columns(points);
        let titles = place(&points[0]).map(|(title, _)| title);
        let titles: Vec<&str> = titles
            .into_iter()
            .chain(columns.iter().map(|column| column.title))
            .collect();
        let _ = writeln!(
            text,
            "| {} |\n|{}",
            titles.join(" | "),
            " --- |".repeat(titles.len())
        );
        for point in points {
            let place = place(point).map(|(_, value)| value).into_iter();
            let cells: Vec<String> = place
                .chain(columns.iter().map(|column| column.text(point)))
                .collect();
            text += &markdown_row(&cells);
        }
        for point in points.iter().filter(|point| !point.failures.is_empty()) {
            let failed = format!("{}: {}", words(point), point.failures.join("; "));
            let _ = writeln!(text, "\n{}", one_line(&failed));
        }
    }
    for forecast in &report.forecasts {
        let _ = writeln!(
            text,
            "\n## Cost model: {}\n\n{}",
            one_line(&forecast.name),
            models::costs(forecast)
        );
        for sentence in models::findings(forecast) {
            let _ = writeln!(text, "{sentence}");
        }
        for table in models::tables(forecast) {
            let _ = writeln!(
                text,
                "\n{}\n\n| {} |\n|{}",
                table.title,
                table.titles.join(" | "),
                " --- |".repeat(table.titles.len())
            );
            for row in table.rows {
                text += &markdown_row(&row);
            }
        }
    }
    text
}
