//! Tables of points.

use std::fmt::Write as _;

use study::{PointResult, Spread};

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
}

const fn column(key: &'static str, title: &'static str, scale: f64, digits: usize) -> Column {
    Column {
        key,
        title,
        scale,
        digits,
    }
}

const COLUMNS: [Column; 28] = [
    column("imagesPerSecond", "images/s", 1.0, 1),
    column("flopsPerRank", "TFLOP/s per rank", 1e-12, 3),
    column("mfu", "MFU, %", 1e2, 1),
    column("stepSeconds", "step, ms", 1e3, 1),
    column("computeSeconds", "compute, ms", 1e3, 1),
    column("meanComputeSeconds", "compute, mean rank, ms", 1e3, 1),
    column("slowestComputeSeconds", "compute, slowest rank, ms", 1e3, 1),
    column("dataSeconds", "data, ms", 1e3, 1),
    column("forwardSeconds", "forward, ms", 1e3, 1),
    column("backwardSeconds", "backward, ms", 1e3, 1),
    column("optimizerSeconds", "optimizer, ms", 1e3, 1),
    column("exposedSeconds", "exposed, ms", 1e3, 1),
    column("stragglerSeconds", "straggler, ms", 1e3, 1),
    column("communicationSeconds", "communication, ms", 1e3, 1),
    column("epochSeconds", "epoch, s", 1.0, 2),
    column("meanEpochSeconds", "epoch with warm-up, s", 1.0, 2),
    column("efficiency", "efficiency, %", 1e2, 1),
    column("fixedBatchImagesPerSecond", "images/s, fixed batch", 1.0, 1),
    column(
        "rankHoursPerMillionImages",
        "rank-hours per million images",
        1.0,
        3,
    ),
    column("trainLoss", "train loss", 1.0, 3),
    column("trainAccuracy", "train accuracy, %", 1e2, 1),
    column("validationAccuracy", "held-out accuracy, %", 1e2, 1),
    column("memoryBytes", "memory, MB", 1e-6, 0),
    column("gpuUtilization", "GPU load, %", 1e2, 0),
    column("gpuMemoryUsedBytes", "GPU memory, MB", 1e-6, 0),
    column("gpuTemperatureCelsius", "GPU, °C", 1.0, 0),
    column("gpuPowerWatts", "GPU, W", 1.0, 0),
    column("gpuThrottled", "GPU throttled, %", 1e2, 0),
];

/// The columns for which any of these points has a value.
pub(super) fn columns(points: &[PointResult]) -> Vec<&'static Column> {
    let columns = COLUMNS.iter();
    columns
        .filter(|column| points.iter().any(|point| column.value(point).is_some()))
        .collect()
}

impl Column {
    fn value(&self, point: &PointResult) -> Option<Spread> {
        let m = point.measured.as_ref()?;
        match self.key {
            "imagesPerSecond" => Some(m.images_per_second),
            "flopsPerRank" => Some(m.flops_per_rank),
            "mfu" => m.mfu,
            "stepSeconds" => Some(m.step_seconds),
            "computeSeconds" => m.if_attributed(m.compute_seconds),
            "meanComputeSeconds" => m.mean_compute_seconds,
            "slowestComputeSeconds" => m.slowest_compute_seconds,
            "dataSeconds" => m.if_attributed(m.data_seconds),
            "forwardSeconds" => m.if_attributed(m.forward_seconds),
            "backwardSeconds" => m.if_attributed(m.backward_seconds),
            "optimizerSeconds" => m.if_attributed(m.optimizer_seconds),
            "exposedSeconds" => m.if_attributed(m.exposed_seconds),
            "stragglerSeconds" => m.if_attributed(m.straggler_seconds),
            "communicationSeconds" => m.if_attributed(m.communication_seconds),
            "epochSeconds" => Some(m.epoch_seconds),
            "meanEpochSeconds" => Some(m.mean_epoch_seconds),
            "efficiency" => m.efficiency,
            "fixedBatchImagesPerSecond" => m.fixed_batch_images_per_second,
            "rankHoursPerMillionImages" => Some(m.rank_hours_per_million_images),
            "trainLoss" => Some(m.epochs.last()?.loss),
            "trainAccuracy" => Some(m.train_accuracy),
            "validationAccuracy" => m.validation_accuracy,
            "memoryBytes" => m.memory_bytes,
            "gpuUtilization" => m.gpu.as_ref()?.utilization,
            "gpuMemoryUsedBytes" => m.gpu.as_ref()?.memory_used_bytes,
            "gpuTemperatureCelsius" => m.gpu.as_ref()?.temperature_celsius,
            "gpuPowerWatts" => m.gpu.as_ref()?.power_watts,
            "gpuThrottled" => m.gpu.as_ref()?.throttled,
            key => unreachable!("{key} is not a column"),
        }
    }

    /// The median, with minimum and maximum if they differ.
    pub(super) fn text(&self, point: &PointResult) -> String {
        match self.parts(point) {
            (median, Some(spread)) => format!("{median} ({spread})"),
            (median, None) => median,
        }
    }

    /// The median; minimum and maximum if they differ.
    pub(super) fn parts(&self, point: &PointResult) -> (String, Option<String>) {
        let Some(spread) = self.value(point) else {
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
    let place_titles =
        "sweep,ranks,microBatchSize,gradientAccumulationSteps,globalBatchSize,variant,repetitions,failed";
    let titles = COLUMNS
        .iter()
        .flat_map(|column| ["", "Least", "Most"].map(|suffix| format!("{}{suffix}", column.key)));
    let mut rows: Vec<Vec<String>> = vec![place_titles.split(',').map(str::to_owned).chain(titles).collect()];
    for point in points {
        let values = COLUMNS.iter().flat_map(|column| {
            let spread = column.value(point);
            [|s: Spread| s.median, |s: Spread| s.least, |s: Spread| s.most]
                .map(|part| spread.map(|spread| part(spread).to_string()).unwrap_or_default())
        });
        let mut row = vec![point.point.sweep.clone()];
        row.extend(place(point).map(|(_, value)| value));
        row.push(point.failures.len().to_string());
        row.extend(values);
        rows.push(row);
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
