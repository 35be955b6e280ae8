//! The charts of a sweep.

use crds::study::Mode;
use study::{Measured, MeasuredEpoch, PointResult, Spread};

use super::charts::{Axes, MOST_SERIES, Picture, Series, Stack, medians, stacks};

/// A chart with title and caption.
pub(super) struct Figure {
    pub(super) title: String,
    /// How to read it.
    pub(super) caption: String,
    pub(super) picture: Picture,
}

impl Figure {
    /// Charts of the series with any values: several charts if there are more series than colors.
    pub(super) fn from_medians(
        title: &str,
        caption: &str,
        axes: &Axes<'_>,
        mut series: Vec<Series<Spread>>,
        ideal: Option<&[f64]>,
    ) -> Vec<Self> {
        series.retain(|series| series.values.iter().any(Option::is_some));
        let pictures = series.len().div_ceil(MOST_SERIES).max(1);
        let of_picture = series.chunks(series.len().div_ceil(pictures).max(1));
        let figure = |(number, series): (usize, &[Series<Spread>])| Self {
            title: match pictures {
                1 => title.to_owned(),
                _ => format!("{title} ({} of {pictures})", number + 1),
            },
            caption: caption.to_owned(),
            picture: medians(axes, series, ideal),
        };
        of_picture.enumerate().map(figure).collect()
    }
}

/// Parts of an epoch's seconds, from the bottom, with their colors.
const PARTS: [(&str, (u8, u8, u8)); 4] = [
    ("compute", (86, 130, 180)),
    ("exposed communication", (213, 74, 60)),
    ("waiting for slower ranks", (240, 170, 60)),
    ("unattributed", (170, 175, 182)),
];
/// The points of each sweep.
pub(super) fn sweeps(points: &[PointResult]) -> impl Iterator<Item = &[PointResult]> {
    points.chunk_by(|left, right| left.point.sweep == right.point.sweep)
}

/// The points of a sweep as a grid: the varied value along the axis, the rest as series.
struct Grid<'a> {
    mode: Mode,
    axis: &'static str,
    categories: Vec<String>,
    series: Vec<(String, Vec<Option<&'a PointResult>>)>,
}

impl<'a> Grid<'a> {
    fn new(points: &'a [PointResult]) -> Self {
        let mode = points[0].point.mode;
        let axis = match mode {
            Mode::Strong | Mode::Weak => "ranks",
            Mode::Batch => "images per micro-batch",
            Mode::Accumulation => "micro-batches per step",
            Mode::Variants => "",
        };
        let category = |point: &PointResult| match mode {
            Mode::Strong | Mode::Weak => point.point.ranks.to_string(),
            Mode::Batch => point.point.micro_batch_size.to_string(),
            Mode::Accumulation => point.point.gradient_accumulation_steps.to_string(),
            Mode::Variants => point.point.variant.clone().unwrap_or_default(),
        };
        let names = Names::new(points, Some(mode));
        let mut grid = Self {
            mode,
            axis,
            categories: vec![],
            series: vec![],
        };
        for point in points {
            let category = category(point);
            if !grid.categories.contains(&category) {
                grid.categories.push(category);
            }
        }
        if mode != Mode::Variants {
            grid.categories
                .sort_by_key(|number| number.parse::<u32>().unwrap_or(u32::MAX));
        }
        for point in points {
            let name = names.of(point);
            let place = grid
                .categories
                .iter()
                .position(|known| *known == category(point))
                .unwrap_or(0);
            let known = grid.series.iter().position(|(known, _)| *known == name);
            let row = known.unwrap_or_else(|| {
                grid.series.push((name, vec![None; grid.categories.len()]));
                grid.series.len() - 1
            });
            grid.series[row].1[place] = Some(point);
        }
        grid
    }

    fn is_over_ranks(&self) -> bool {
        matches!(self.mode, Mode::Strong | Mode::Weak)
    }

    /// The categories of a sweep over ranks, as numbers.
    fn ranks(&self) -> Vec<f64> {
        self.categories
            .iter()
            .filter_map(|ranks| ranks.parse().ok())
            .collect()
    }

    fn axes<'b>(&'b self, y: &'b str) -> Axes<'b> {
        Axes {
            categories: &self.categories,
            x: self.axis,
            y,
            are_ordered: self.mode != Mode::Variants,
        }
    }

    fn values<T>(&self, value: impl Fn(&Measured) -> Option<T>) -> Vec<Series<T>> {
        let of = |(name, points): &(String, Vec<Option<&PointResult>>)| Series {
            name: name.clone(),
            values: points
                .iter()
                .map(|point| point.and_then(|point| value(point.measured.as_ref()?)))
                .collect(),
        };
        self.series.iter().map(of).collect()
    }
}

/// What names a point within its sweep: variant, ranks, micro-batch and accumulation.
fn properties(point: &PointResult) -> [String; 4] {
    let of = &point.point;
    [
        of.variant.clone().unwrap_or_default(),
        counted(of.ranks),
        format!("micro-batches of {}", of.first_micro_batch_size),
        match of.gradient_accumulation_steps {
            1 => "1 micro-batch per step".into(),
            many => format!("{many} micro-batches per step"),
        },
    ]
}

pub(super) fn counted(ranks: u32) -> String {
    if ranks == 1 {
        "1 rank".into()
    } else {
        format!("{ranks} ranks")
    }
}

/// The [`properties`] that name a sweep's series: those that differ, except the axis.
pub(super) struct Names(Vec<usize>);

impl Names {
    /// `mode` is the sweep's, which makes its axis; without it each point is a series.
    pub(super) fn new(points: &[PointResult], mode: Option<Mode>) -> Self {
        let axis = mode.map(|mode| match mode {
            Mode::Variants => 0,
            Mode::Strong | Mode::Weak => 1,
            Mode::Batch => 2,
            Mode::Accumulation => 3,
        });
        let first = properties(&points[0]);
        let differs = |place: &usize| {
            let mut points = points.iter();
            Some(*place) != axis && points.any(|point| properties(point)[*place] != first[*place])
        };
        Self((0..first.len()).filter(differs).collect())
    }

    /// Whether there are several series.
    pub(super) fn tell_apart(&self) -> bool {
        !self.0.is_empty()
    }

    pub(super) fn of(&self, point: &PointResult) -> String {
        let properties = properties(point);
        let words: Vec<&str> = self.0.iter().map(|place| properties[*place].as_str()).collect();
        if words.is_empty() {
            "measured".into()
        } else {
            words.join(", ")
        }
    }
}

/// The charts of a sweep; none if nothing was measured.
pub(super) fn figures(points: &[PointResult]) -> Vec<Figure> {
    if points.iter().all(|point| point.measured.is_none()) {
        return vec![];
    }
    let grid = Grid::new(points);
    let mut figures = vec![parts(&grid)];
    figures.extend(rates(&grid));
    if grid.is_over_ranks() {
        figures.extend(speedups(&grid));
    }
    if grid.is_over_ranks() || grid.mode == Mode::Variants {
        figures.extend(operations(&grid));
    }
    figures.extend(accuracies(&grid));
    figures.extend(courses(points));
    figures
}

/// Seconds of a step's [`PARTS`]: of the mean rank if `all_ranks`, otherwise of rank 0. Both have the
/// same sum: every rank waits for the slowest.
fn parts_of_step(measured: &Measured, all_ranks: bool) -> [f64; 4] {
    let own = measured.compute_seconds.median;
    let slowest = own + measured.straggler_seconds.median;
    let compute = match measured.mean_compute_seconds {
        Some(mean) if all_ranks => (mean.median + measured.optimizer_seconds.median).min(slowest),
        _ => own,
    };
    let [exposed, unattributed] = [measured.exposed_seconds, measured.unattributed_seconds];
    [compute, exposed.median, slowest - compute, unattributed.median]
}

fn parts(grid: &Grid<'_>) -> Figure {
    let points = || grid.series.iter().flat_map(|(_, points)| points.iter().flatten());
    let all_ranks = points().all(|point| {
        let measured = point.measured.as_ref();
        point.point.ranks == 1 || measured.is_none_or(|measured| measured.mean_compute_seconds.is_some())
    });
    // Per epoch, because steps are not comparable if batches differ.
    let series = grid.values(|measured| {
        let steps = measured.epoch_seconds.median / measured.step_seconds.median;
        Some(Stack {
            parts: parts_of_step(measured, all_ranks).map(|part| part * steps),
            whole: measured.epoch_seconds,
        })
    });
    let names: Vec<&str> = series.iter().map(|series| series.name.as_str()).collect();
    let beside = match names[..] {
        [_] => String::new(),
        _ => format!(" Bars at each position, from the left: {}.", names.join("; ")),
    };
    Figure {
        title: "Where an epoch's seconds go".into(),
        caption: format!(
            "{}, after the warm-up. Whiskers: range of the whole epoch.{beside}",
            if all_ranks { "Mean of all ranks" } else { "Rank 0" }
        ),
        picture: stacks(&grid.axes("seconds per epoch"), &series, PARTS),
    }
}

fn rates(grid: &Grid<'_>) -> Vec<Figure> {
    let series = grid.values(|measured| Some(measured.images_per_second));
    let ideal = grid.is_over_ranks().then(|| ideal(grid, &series)).flatten();
    let caption = match &ideal {
        Some(_) => {
            "Training images per second over all ranks, after the warm-up. Dashed: ideal scaling from the fewest ranks."
        }
        None => "Training images per second over all ranks, after the warm-up.",
    };
    let axes = grid.axes("images per second");
    Figure::from_medians("Throughput", caption, &axes, series, ideal.as_deref())
}

/// Throughput under ideal scaling; only for a single series, because each has a different ideal.
fn ideal(grid: &Grid<'_>, series: &[Series<Spread>]) -> Option<Vec<f64>> {
    let [only] = series else { return None };
    let first = only.values.first().copied().flatten()?;
    let ranks = grid.ranks();
    Some(
        ranks
            .iter()
            .map(|count| first.median * count / ranks[0])
            .collect(),
    )
}

fn speedups(grid: &Grid<'_>) -> Vec<Figure> {
    let series = grid.values(|measured| measured.speedup);
    let title = match grid.mode {
        Mode::Weak => "Speedup with growing data",
        _ => "Speedup",
    };
    let caption = "Images per second over the median of the fewest ranks, times that number of ranks. Dashed: ideal scaling.";
    Figure::from_medians(title, caption, &grid.axes("speedup"), series, Some(&grid.ranks()))
}

fn operations(grid: &Grid<'_>) -> Vec<Figure> {
    let points = grid.series.iter().flat_map(|(_, points)| points.iter().flatten());
    let rates = points.filter_map(|point| Some(point.measured.as_ref()?.flops_per_rank.most));
    // CPUs are slow.
    let (unit, scale) = match rates.fold(0.0, f64::max) {
        most if most < 1e11 => ("GFLOP/s", 1e-9),
        _ => ("TFLOP/s", 1e-12),
    };
    let series = grid.values(|measured| Some(measured.flops_per_rank.times(scale)));
    let caption = "Floating-point operations of the model, without recomputation.";
    Figure::from_medians(
        &format!("{unit} per rank"),
        caption,
        &grid.axes(unit),
        series,
        None,
    )
}

fn percent(share: Spread) -> Spread {
    share.times(100.0)
}

fn accuracies(grid: &Grid<'_>) -> Vec<Figure> {
    let named = |what: &str, series: Vec<Series<Spread>>| {
        let named = series.into_iter().map(|series| Series {
            name: format!("{what}, {}", series.name),
            ..series
        });
        named.collect::<Vec<_>>()
    };
    let mut series = named(
        "held out",
        grid.values(|measured| measured.validation_accuracy.map(percent)),
    );
    series.extend(named(
        "train",
        grid.values(|measured| Some(percent(measured.train_accuracy))),
    ));
    let caption = "Held out: on images that are not trained on. Train: on the last epoch's images while the model trained on \
                   them, as many studies report it.";
    let axes = grid.axes("percent");
    Figure::from_medians("Accuracy after the last epoch", caption, &axes, series, None)
}

/// Accuracy and loss over the epochs.
fn courses(points: &[PointResult]) -> Vec<Figure> {
    let mut measured: Vec<(&PointResult, &Measured)> = points
        .iter()
        .filter_map(|point| Some((point, point.measured.as_ref()?)))
        .collect();
    let epochs = measured.iter().map(|(_, measured)| measured.epochs.len());
    let epochs = epochs.max().unwrap_or(0);
    if epochs < 2 {
        return vec![];
    }
    let mut left_out = "";
    let fewest = points.iter().map(|point| point.point.ranks).min().unwrap_or(1);
    if measured.len() > MOST_SERIES && matches!(points[0].point.mode, Mode::Strong | Mode::Weak) {
        // One picture can compare variants.
        let is_doubled = |ranks: u32| ranks.is_multiple_of(fewest) && (ranks / fewest).is_power_of_two();
        measured.retain(|(point, _)| is_doubled(point.point.ranks));
        measured.sort_by_key(|(point, _)| point.point.ranks);
        left_out = " Only doubled numbers of ranks: report.json has all.";
    }
    let names = Names::new(points, None);
    let categories: Vec<String> = (1..=epochs).map(|epoch| epoch.to_string()).collect();
    let of = |title: &str, caption: &str, y: &str, value: fn(&MeasuredEpoch) -> Option<Spread>| {
        let axes = Axes {
            categories: &categories,
            x: "epoch",
            y,
            are_ordered: true,
        };
        let lines = measured.iter().map(|(point, measured)| Series {
            name: names.of(point),
            values: (0..epochs)
                .map(|epoch| value(measured.epochs.get(epoch)?))
                .collect(),
        });
        let caption = format!("{caption}{left_out}");
        Figure::from_medians(title, &caption, &axes, lines.collect(), None)
    };
    [
        of(
            "Held-out accuracy over epochs",
            "On images that are not trained on, after each epoch.",
            "percent",
            |epoch| epoch.validation_accuracy.map(percent),
        ),
        of(
            "Training accuracy over epochs",
            "On each epoch's images while the model trained on them.",
            "percent",
            |epoch| Some(percent(epoch.train_accuracy)),
        ),
        of(
            "Training loss over epochs",
            "Mean of each epoch.",
            "loss",
            |epoch| Some(epoch.loss),
        ),
    ]
    .into_iter()
    .flatten()
    .collect()
}

#[cfg(test)]
mod tests {
    use contract::{Measurement, RankSeconds};
    use study::Results;

    use super::*;
    use crate::fixtures::{measurement, plan};

    #[test]
    fn ranks_wait_for_rank_0_if_it_is_the_slowest() {
        let plan = plan("[{name: s, mode: Strong, ranks: [1, 2]}]");
        let slow = Measurement {
            ranks: Some(RankSeconds {
                mean_compute_seconds: 0.18,
                slowest_compute_seconds: 0.24,
            }),
            ..measurement(100.0)
        };
        let measured = [vec![Ok(measurement(100.0))], vec![Ok(slow)]];
        let points = Results::new(&plan, &measured).points;
        let of = |all_ranks| parts_of_step(points[1].measured.as_ref().expect("measured"), all_ranks);
        // A step lasts 320 ms; rank 0 computes for 240 ms.
        for (found, expected) in [
            (of(false), [0.24, 0.08, 0.0, 0.0]),
            (of(true), [0.18, 0.08, 0.06, 0.0]),
        ] {
            let is_close = found
                .iter()
                .zip(expected)
                .all(|(found, expected)| (found - expected).abs() < 1e-9);
            assert!(is_close, "{found:?}");
        }
        let caption = |points: &[PointResult]| parts(&Grid::new(points)).caption;
        assert!(caption(&points).starts_with("Mean of all ranks"));
        let unknown = [vec![Ok(measurement(100.0))], vec![Ok(measurement(100.0))]];
        assert!(caption(&Results::new(&plan, &unknown).points).starts_with("Rank 0"));
    }

    #[test]
    fn variants_on_many_ranks_meet_in_one_picture_of_each_kind() {
        let figures = |ranks: &str| {
            let plan = plan(&format!(
                "[{{name: s, mode: Strong, ranks: {ranks}, variants: [{{name: a}}, \
                 {{name: b, spec: {{training: {{precision: bf16}}}}}}]}}]"
            ));
            let measured = vec![vec![Ok(measurement(100.0))]; plan.runs.len()];
            courses(&Results::new(&plan, &measured).points)
        };
        let names = |figure: &Figure| -> Vec<String> {
            let legend = figure.picture.legend.iter();
            legend.map(|(_, name)| name.clone()).collect()
        };
        let all = figures("[1, 2, 3, 4]");
        assert_eq!((all.len(), names(&all[2]).len()), (3, 8));
        let some = figures("[1, 2, 3, 4, 5, 6, 7, 8]");
        let expected = ["1 rank", "2 ranks", "4 ranks", "8 ranks"];
        let expected = expected.map(|ranks| ["a", "b"].map(|variant| format!("{variant}, {ranks}")));
        assert_eq!((some.len(), names(&some[2])), (3, expected.concat()));
        assert!(some[2].caption.ends_with("report.json has all."));
    }
}
