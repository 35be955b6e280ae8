//! Which pictures a sweep gets.

use crds::study::Mode;

use super::charts::{Axes, MOST_LINES, Picture, Series, lines, stacks};
use crate::results::{Measured, PointResult, Spread};

/// A picture with its heading.
pub(super) struct Figure {
    pub(super) title: String,
    /// What to see in it.
    pub(super) caption: String,
    pub(super) picture: Picture,
}

impl Figure {
    /// Of lines, as many as can be told apart.
    pub(super) fn of_lines(
        title: impl Into<String>,
        mut caption: String,
        axes: &Axes<'_>,
        mut series: Vec<Series<Spread>>,
        ideal: Option<&[f64]>,
    ) -> Self {
        if series.len() > MOST_LINES {
            caption += &format!(" The first {MOST_LINES} of {} lines.", series.len());
            series.truncate(MOST_LINES);
        }
        Self {
            title: title.into(),
            caption,
            picture: lines(axes, &series, ideal),
        }
    }
}

/// Parts of an epoch's seconds, from the bottom, with their colours.
const PARTS: [(&str, (u8, u8, u8)); 4] = [
    ("compute", (86, 130, 180)),
    ("exposed communication", (213, 74, 60)),
    ("waiting for slower ranks", (240, 170, 60)),
    ("not told apart", (170, 175, 182)),
];
/// The points of each sweep.
pub(super) fn sweeps(points: &[PointResult]) -> impl Iterator<Item = &[PointResult]> {
    points.chunk_by(|left, right| left.point.sweep == right.point.sweep)
}

/// The points of a sweep as a grid: along the axis what the sweep is about, the rest as series.
struct Grid<'a> {
    axis: &'static str,
    categories: Vec<String>,
    series: Vec<(String, Vec<Option<&'a PointResult>>)>,
}

impl<'a> Grid<'a> {
    fn new(points: &'a [PointResult]) -> Self {
        let mode = points[0].point.mode;
        let axis = match mode {
            Mode::Strong | Mode::Weak => "ranks",
            Mode::Batch => "images of a micro-batch",
            Mode::Accumulation => "micro-batches of a step",
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

    /// The categories of a sweep over ranks.
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

/// Something that tells points apart.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Difference {
    Variant,
    Ranks,
    MicroBatch,
    Accumulation,
}

impl Difference {
    fn of(self, point: &PointResult) -> String {
        let of = &point.point;
        match self {
            Self::Variant => of.variant.clone().unwrap_or_default(),
            Self::Ranks => counted(of.ranks),
            Self::MicroBatch => format!("micro-batches of {}", of.first_micro_batch_size),
            Self::Accumulation => format!("{} micro-batches a step", of.gradient_accumulation_steps),
        }
    }
}

pub(super) fn counted(ranks: u32) -> String {
    if ranks == 1 {
        "1 rank".into()
    } else {
        format!("{ranks} ranks")
    }
}

/// What tells a sweep's series apart: whatever differs but what is along the axis.
struct Names(Vec<Difference>);

impl Names {
    /// Of points of a sweep that is about `mode`; of each point alone without.
    fn new(points: &[PointResult], mode: Option<Mode>) -> Self {
        let axis = mode.map(|mode| match mode {
            Mode::Strong | Mode::Weak => Difference::Ranks,
            Mode::Batch => Difference::MicroBatch,
            Mode::Accumulation => Difference::Accumulation,
            Mode::Variants => Difference::Variant,
        });
        let all = [
            Difference::Variant,
            Difference::Ranks,
            Difference::MicroBatch,
            Difference::Accumulation,
        ];
        let differs = |difference: &Difference| {
            Some(*difference) != axis
                && points
                    .iter()
                    .any(|point| difference.of(point) != difference.of(&points[0]))
        };
        Self(all.into_iter().filter(differs).collect())
    }

    fn of(&self, point: &PointResult) -> String {
        let words: Vec<String> = self.0.iter().map(|difference| difference.of(point)).collect();
        if words.is_empty() {
            "measured".into()
        } else {
            words.join(", ")
        }
    }
}

/// The pictures of a sweep; none where nothing was measured.
pub(super) fn figures(points: &[PointResult]) -> Vec<Figure> {
    if points.iter().all(|point| point.measured.is_none()) {
        return vec![];
    }
    let grid = Grid::new(points);
    let mut figures = vec![parts(&grid)];
    let mode = points[0].point.mode;
    figures.push(rates(&grid, mode));
    if matches!(mode, Mode::Strong | Mode::Weak) {
        figures.push(speedups(&grid, points));
    }
    if mode == Mode::Variants {
        figures.extend(memory(&grid));
    }
    figures.push(accuracies(&grid));
    figures.extend(courses(points));
    figures
}

fn parts(grid: &Grid<'_>) -> Figure {
    // Per epoch: where batches differ, so do steps.
    let series = grid.values(|measured| {
        let steps = measured.epoch_seconds.median / measured.step_seconds.median;
        let parts = [
            measured.compute_seconds,
            measured.exposed_seconds,
            measured.straggler_seconds,
            measured.untold_seconds,
        ];
        Some(parts.map(|part| part.median * steps))
    });
    let names: Vec<&str> = series.iter().map(|series| series.name.as_str()).collect();
    let beside = match names[..] {
        [_] => String::new(),
        _ => format!(" Bars of a place, from the left: {}.", names.join("; ")),
    };
    Figure {
        title: "Where an epoch's seconds go".into(),
        caption: format!("Of rank 0, after the warm-up.{beside}"),
        picture: stacks(&grid.axes("seconds per epoch"), &series, PARTS),
    }
}

fn rates(grid: &Grid<'_>, mode: Mode) -> Figure {
    let series = grid.values(|measured| Some(measured.images_per_second));
    let ideal = matches!(mode, Mode::Strong | Mode::Weak)
        .then(|| ideal(grid, &series))
        .flatten();
    let caption = match &ideal {
        Some(_) => {
            "Training images a second over all ranks, after the warm-up. Dashed: the fewest ranks' rate, multiplied."
        }
        None => "Training images a second over all ranks, after the warm-up.",
    };
    let axes = grid.axes("images per second");
    Figure::of_lines("Throughput", caption.into(), &axes, series, ideal.as_deref())
}

/// Throughput if ranks did not slow each other down. Of a single series only: each has an ideal of its own.
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

fn speedups(grid: &Grid<'_>, points: &[PointResult]) -> Figure {
    let series = grid.values(|measured| measured.speedup.map(Spread::exact));
    let title = match points[0].point.mode {
        Mode::Weak => "Speedup, with data that grow",
        _ => "Speedup",
    };
    let caption = "Images a second over those of the fewest ranks, times their number. Dashed: what ranks reach that cost one \
                   another nothing.";
    Figure::of_lines(
        title,
        caption.into(),
        &grid.axes("speedup"),
        series,
        Some(&grid.ranks()),
    )
}

fn memory(grid: &Grid<'_>) -> Option<Figure> {
    let series = grid.values(|measured| measured.memory_bytes.map(|bytes| [bytes.median / 1e6]));
    series
        .iter()
        .any(|series| series.values.iter().any(Option::is_some))
        .then(|| Figure {
            title: "Memory".into(),
            caption: "The most that rank 0 took: tensors on its GPU, or its whole process on CPUs.".into(),
            picture: stacks(
                &grid.axes("megabytes"),
                &series,
                [("memory of rank 0", (110, 160, 110))],
            ),
        })
}

fn accuracies(grid: &Grid<'_>) -> Figure {
    let percent = |spread: Spread| Spread {
        median: spread.median * 100.0,
        least: spread.least * 100.0,
        most: spread.most * 100.0,
    };
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
    series.retain(|series| series.values.iter().any(Option::is_some));
    let caption = "Held out: of images that are not trained on. Train: of the last epoch's images while the model trained on \
                   them, which is what many studies report.";
    let axes = grid.axes("percent");
    Figure::of_lines(
        "Accuracy after the last epoch",
        caption.into(),
        &axes,
        series,
        None,
    )
}

/// Held-out accuracy over the epochs, or that on training images where there are none.
fn courses(points: &[PointResult]) -> Option<Figure> {
    let measured: Vec<(&PointResult, &Measured)> = points
        .iter()
        .filter_map(|point| Some((point, point.measured.as_ref()?)))
        .collect();
    let epochs = measured.iter().map(|(_, measured)| measured.epochs.len()).max()?;
    if epochs < 2 {
        return None;
    }
    let held_out = measured
        .iter()
        .all(|(_, measured)| measured.validation_accuracy.is_some());
    let names = Names::new(points, None);
    let series: Vec<Series<Spread>> = measured
        .iter()
        .map(|(point, measured)| Series {
            name: names.of(point),
            values: (0..epochs)
                .map(|epoch| {
                    let epoch = measured.epochs.get(epoch)?;
                    let accuracy = if held_out {
                        epoch.validation_accuracy?
                    } else {
                        epoch.train_accuracy
                    } * 100.0;
                    Some(Spread::exact(accuracy))
                })
                .collect(),
        })
        .collect();
    let categories: Vec<String> = (1..=epochs).map(|epoch| epoch.to_string()).collect();
    let title = if held_out {
        "Held-out accuracy over epochs"
    } else {
        "Accuracy on training images over epochs"
    };
    let axes = Axes {
        categories: &categories,
        x: "epoch",
        y: "percent",
    };
    Some(Figure::of_lines(title, "Medians.".into(), &axes, series, None))
}
