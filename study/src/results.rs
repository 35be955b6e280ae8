//! What a study measured: each point's medians over its repetitions.

use contract::{Epoch, GpuUse, Measurement};
use crds::study::Mode;
use serde::Serialize;

use crate::plan::{Plan, Point};

/// What all points measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Results {
    /// In the order of the manifest.
    pub points: Vec<PointResult>,
}

/// What a point measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PointResult {
    /// Which point it is.
    #[serde(flatten)]
    pub point: Point,
    /// Repetitions that were measured.
    pub repetitions: usize,
    /// What became of the others.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<String>,
    /// Of those that were measured; `None` where there are none.
    #[serde(flatten)]
    pub measured: Option<Measured>,
}

/// Medians over repetitions.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Measured {
    /// Training images a second over all ranks, after the warm-up.
    pub images_per_second: Spread,
    /// Seconds of a step, after the warm-up.
    pub step_seconds: Spread,
    /// Seconds of a step in which rank 0 computed: data, forward, backward, optimizer.
    pub compute_seconds: Spread,
    /// Seconds of a step in which it waited for collectives that every rank had begun.
    pub exposed_seconds: Spread,
    /// Seconds of a step in which it waited for other ranks.
    pub straggler_seconds: Spread,
    /// Seconds of a step of which another trainer does not tell where they went.
    pub untold_seconds: Spread,
    /// Seconds of a step in which collectives were under way, hidden or not.
    pub communication_seconds: Spread,
    /// Seconds of an epoch, after the warm-up.
    pub epoch_seconds: Spread,
    /// Mean seconds of all epochs, the first included.
    pub mean_epoch_seconds: Spread,
    /// Of the last epoch, 0..1.
    pub train_accuracy: Spread,
    /// After the last epoch, 0..1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub validation_accuracy: Option<Spread>,
    /// Most memory of rank 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<Spread>,
    /// What the driver told of rank 0's GPU, where it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<MeasuredGpu>,
    /// Medians of each epoch.
    pub epochs: Vec<Epoch>,
    /// Images/s divided by those of the series' fewest ranks, times that number of ranks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speedup: Option<f64>,
    /// The speedup of each rank, 0..1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub efficiency: Option<f64>,
}

/// What the driver told of rank 0's GPU, as [`contract::GpuUse`] has it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MeasuredGpu {
    /// Share of time in which some kernel ran, 0..1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub utilization: Option<Spread>,
    /// Most memory that all processes took.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_used_bytes: Option<Spread>,
    /// The highest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature_celsius: Option<Spread>,
    /// Of the board.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power_watts: Option<Spread>,
    /// Share of readings in which its clocks were held down, 0..1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub throttled: Option<Spread>,
}

/// A value over repetitions.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// The middle one, or the mean of the two in the middle.
    pub median: f64,
    /// The least.
    pub least: f64,
    /// The greatest.
    pub most: f64,
}

impl Spread {
    /// Of a single value.
    pub(crate) fn exact(value: f64) -> Self {
        Self {
            median: value,
            least: value,
            most: value,
        }
    }

    /// Of values, of which there must be some.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let (least, most) = (*values.first()?, *values.last()?);
        let middle = values.len() / 2;
        let median = if values.len() % 2 == 1 {
            values[middle]
        } else {
            f64::midpoint(values[middle - 1], values[middle])
        };
        Some(Self { median, least, most })
    }
}

impl Results {
    /// `measured` has for each of [`Plan::runs`] what its repetitions measured, or why they did not.
    pub fn new(plan: &Plan, measured: &[Vec<Result<Measurement, String>>]) -> Self {
        let mut results = Self {
            points: plan
                .points
                .iter()
                .map(|point| PointResult::new(point, &measured[point.run]))
                .collect(),
        };
        results.compare();
        results
    }

    /// Compares each point of a sweep over ranks with the same on the fewest ranks.
    fn compare(&mut self) {
        let rates: Vec<Option<f64>> = self
            .points
            .iter()
            .map(|point| {
                point
                    .measured
                    .as_ref()
                    .map(|measured| measured.images_per_second.median)
            })
            .collect();
        for place in 0..self.points.len() {
            let point = &self.points[place].point;
            let of_series =
                (0..self.points.len()).filter(|other| point.is_of_series(&self.points[*other].point));
            let Some(first) = of_series.min_by_key(|other| self.points[*other].point.ranks) else {
                continue;
            };
            let fewest = f64::from(self.points[first].point.ranks);
            let ranks = f64::from(point.ranks);
            if let (Some(own), Some(base)) = (rates[place], rates[first])
                && let Some(measured) = &mut self.points[place].measured
            {
                measured.speedup = Some(own / base * fewest);
                measured.efficiency = Some(own / base * fewest / ranks);
            }
        }
    }
}

impl Point {
    /// Whether another point differs from this one by ranks alone, in a sweep that is about them.
    pub(crate) fn is_of_series(&self, other: &Self) -> bool {
        let over_ranks = matches!(self.mode, Mode::Strong | Mode::Weak);
        over_ranks
            && self.sweep == other.sweep
            && self.variant == other.variant
            && self.gradient_accumulation_steps == other.gradient_accumulation_steps
            && self.first_micro_batch_size == other.first_micro_batch_size
    }
}

impl PointResult {
    fn new(point: &Point, repetitions: &[Result<Measurement, String>]) -> Self {
        let measured: Vec<&Measurement> = repetitions
            .iter()
            .filter_map(|found| found.as_ref().ok())
            .collect();
        let failures = repetitions
            .iter()
            .filter_map(|found| found.as_ref().err().cloned());
        Self {
            point: point.clone(),
            repetitions: measured.len(),
            failures: failures.collect(),
            measured: Measured::of(&measured),
        }
    }
}

impl Measured {
    /// A part of a step; nothing where the trainer does not tell where much of it goes.
    pub fn told(&self, part: Spread) -> Option<Spread> {
        Measurement::are_told(self.untold_seconds.median, self.step_seconds.median).then_some(part)
    }

    fn of(runs: &[&Measurement]) -> Option<Self> {
        let over = |value: fn(&Measurement) -> f64| Spread::of(runs.iter().map(|run| value(run)));
        let known =
            |value: fn(&Measurement) -> Option<f64>| Spread::of(runs.iter().filter_map(|run| value(run)));
        Some(Self {
            images_per_second: over(|run| run.images_per_second)?,
            step_seconds: over(|run| run.step_seconds)?,
            compute_seconds: over(|run| run.phases.compute())?,
            exposed_seconds: over(|run| run.phases.sync_exposed)?,
            straggler_seconds: over(|run| run.phases.sync_straggler)?,
            untold_seconds: over(Measurement::untold_seconds)?,
            communication_seconds: over(|run| run.communication_seconds)?,
            epoch_seconds: over(Measurement::epoch_seconds)?,
            mean_epoch_seconds: over(Measurement::mean_epoch_seconds)?,
            train_accuracy: known(|run| run.epochs.last().map(|epoch| epoch.train_accuracy))?,
            validation_accuracy: known(|run| run.epochs.last().and_then(|epoch| epoch.validation_accuracy)),
            memory_bytes: known(|run| run.memory_bytes.map(|bytes| bytes as f64)),
            gpu: MeasuredGpu::of(runs),
            epochs: epochs(runs),
            speedup: None,
            efficiency: None,
        })
    }
}

impl MeasuredGpu {
    fn of(runs: &[&Measurement]) -> Option<Self> {
        let known = |value: fn(&GpuUse) -> Option<f64>| {
            Spread::of(runs.iter().filter_map(|run| value(run.gpu.as_ref()?)))
        };
        runs.iter().any(|run| run.gpu.is_some()).then(|| Self {
            utilization: known(|gpu| gpu.utilization),
            memory_used_bytes: known(|gpu| gpu.memory_used_bytes.map(|bytes| bytes as f64)),
            temperature_celsius: known(|gpu| gpu.temperature_celsius),
            power_watts: known(|gpu| gpu.power_watts),
            throttled: known(|gpu| gpu.throttled),
        })
    }
}

/// The median of each epoch over runs.
fn epochs(runs: &[&Measurement]) -> Vec<Epoch> {
    let count = runs.iter().map(|run| run.epochs.len()).max().unwrap_or(0);
    let median = |epoch: usize, value: fn(&Epoch) -> Option<f64>| {
        let values = runs
            .iter()
            .filter_map(|run| run.epochs.get(epoch).and_then(value));
        Spread::of(values).map(|spread| spread.median)
    };
    let epoch = |epoch| Epoch {
        seconds: median(epoch, |epoch| Some(epoch.seconds)).unwrap_or(0.0),
        loss: median(epoch, |epoch| Some(epoch.loss)).unwrap_or(0.0),
        train_accuracy: median(epoch, |epoch| Some(epoch.train_accuracy)).unwrap_or(0.0),
        validation_accuracy: median(epoch, |epoch| epoch.validation_accuracy),
    };
    (0..count).map(epoch).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{measurement, plan};

    #[test]
    fn a_point_has_the_median_of_its_repetitions_and_how_far_they_spread() {
        let plan = plan("[{name: s, mode: Strong, ranks: [1, 2]}]");
        let run = |rates: &[f64]| rates.iter().map(|rate| Ok(measurement(*rate))).collect();
        let results = Results::new(&plan, &[run(&[100.0, 80.0, 400.0]), run(&[150.0, 170.0])]);
        let rates: Vec<Spread> = results
            .points
            .iter()
            .map(|point| point.measured.as_ref().expect("measured").images_per_second)
            .collect();
        assert_eq!(
            rates,
            [
                Spread {
                    median: 100.0,
                    least: 80.0,
                    most: 400.0
                },
                Spread {
                    median: 160.0,
                    least: 150.0,
                    most: 170.0
                },
            ]
        );
        let second = results.points[1].measured.as_ref().expect("measured");
        assert_eq!((second.speedup, second.efficiency), (Some(1.6), Some(0.8)));
        let first = results.points[0].measured.as_ref().expect("measured");
        assert_eq!((first.speedup, first.efficiency), (Some(1.0), Some(1.0)));
    }

    #[test]
    fn a_run_that_failed_gives_no_number() {
        let plan = plan("[{name: s, mode: Strong, ranks: [1, 2, 4]}]");
        let failed = || Err("it broke".to_owned());
        let measured = [
            vec![failed(), failed()],
            vec![failed(), Ok(measurement(50.0))],
            vec![Ok(measurement(90.0)), Ok(measurement(110.0))],
        ];
        let results = Results::new(&plan, &measured);
        let [none, one, both] = &results.points[..] else {
            panic!("{:?}", results.points)
        };
        assert_eq!(
            (none.repetitions, none.failures.len(), &none.measured),
            (0, 2, &None)
        );
        assert_eq!((one.repetitions, one.failures.len()), (1, 1));
        // Nothing to compare with: that the fewest ranks' run failed does not make the next one the base.
        assert_eq!(both.measured.as_ref().expect("measured").speedup, None);
    }

    #[test]
    fn only_points_that_differ_by_ranks_alone_are_compared() {
        let plan = plan(
            "[{name: s, mode: Strong, ranks: [1, 2], microBatchSize: [16, 32], globalBatch: Fixed}, \
             {name: b, mode: Batch, microBatchSize: [8, 16]}]",
        );
        let measured: Vec<_> = (1..=plan.runs.len())
            .map(|run| vec![Ok(measurement(100.0 * run as f64))])
            .collect();
        let results = Results::new(&plan, &measured);
        // Micro-batches of 16 and 32 on one rank, then 8 and 16 on two: each is compared with the batch it divides.
        let found: Vec<_> = results
            .points
            .iter()
            .map(|point| {
                (
                    point.point.sweep.as_str(),
                    point.measured.as_ref().and_then(|measured| measured.speedup),
                )
            })
            .collect();
        assert_eq!(
            found,
            [
                ("s", Some(1.0)),
                ("s", Some(1.0)),
                ("s", Some(3.0)),
                ("s", Some(2.0)),
                ("b", None),
                ("b", None),
            ]
        );
    }
}
