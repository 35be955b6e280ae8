//! A study's results: each point's medians over its repetitions.

use contract::gpu::peak_flops;
use contract::{Epoch, GpuUse, Measurement};
use crds::spec::Homogeneity;
use crds::study::Mode;
use serde::{Serialize, Serializer};

use crate::plan::{Plan, Point, Run};

/// Results of all points.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Results {
    /// In the order of the manifest.
    pub points: Vec<PointResult>,
}

/// Result of a point.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PointResult {
    /// The point.
    #[serde(flatten)]
    pub point: Point,
    /// Key of its run.
    pub run: String,
    /// Number of measured repetitions.
    pub repetitions: usize,
    /// Failures of the other repetitions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<String>,
    /// Medians; `None` without measured repetitions.
    #[serde(flatten)]
    pub measured: Option<Measured>,
}

/// Medians over repetitions.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Measured {
    /// Training images per second over all ranks, after the warm-up.
    pub images_per_second: Spread,
    /// Floating-point operations of the model per second and rank; recomputation does not count.
    pub flops_per_rank: Spread,
    /// Their share of the GPU's dense half-precision peak, 0..1, if all GPUs are the same known
    /// product.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mfu: Option<Spread>,
    /// Seconds of a step, after the warm-up.
    pub step_seconds: Spread,
    /// Seconds of a step in which rank 0 computed: the sum of the next four.
    pub compute_seconds: Spread,
    /// The mean rank's compute seconds of a step until its last gradient, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean_compute_seconds: Option<Spread>,
    /// The same of each step's slowest rank.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slowest_compute_seconds: Option<Spread>,
    /// Seconds until rank 0's images were ready.
    pub data_seconds: Spread,
    /// Seconds of its forward pass.
    pub forward_seconds: Spread,
    /// Seconds of its backward pass, without waiting.
    pub backward_seconds: Spread,
    /// Seconds of its optimizer, and of the host between steps.
    pub optimizer_seconds: Spread,
    /// Seconds of a step in which it waited for collectives that every rank had started.
    pub exposed_seconds: Spread,
    /// Seconds of a step in which it waited for other ranks.
    pub straggler_seconds: Spread,
    /// Seconds of a step that an external trainer does not break down.
    pub unattributed_seconds: Spread,
    /// Seconds of a step in which collectives ran, hidden or not.
    pub communication_seconds: Spread,
    /// Seconds of an epoch, after the warm-up.
    pub epoch_seconds: Spread,
    /// Mean seconds of all epochs, including the first.
    pub mean_epoch_seconds: Spread,
    /// Of the last epoch, 0..1.
    pub train_accuracy: Spread,
    /// After the last epoch, 0..1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub validation_accuracy: Option<Spread>,
    /// Peak memory of rank 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<Spread>,
    /// The driver's readings of rank 0's GPU, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<MeasuredGpu>,
    /// Each epoch, the first with its warm-up.
    pub epochs: Vec<MeasuredEpoch>,
    /// Images/s divided by the median of the series' fewest ranks, times that number of ranks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speedup: Option<Spread>,
    /// Speedup per rank; 1 is ideal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub efficiency: Option<Spread>,
    /// If the global batch grows with the ranks: images/s of the same job and ranks with the global
    /// batch of the series' fewest ranks, if measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fixed_batch_images_per_second: Option<Spread>,
    /// Hours of all ranks together to train on a million images.
    pub rank_hours_per_million_images: Spread,
}

/// Result of an epoch.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MeasuredEpoch {
    /// Seconds of its steps.
    pub seconds: Spread,
    /// Mean training loss.
    pub loss: Spread,
    /// On its training images, while the model trained on them, 0..1.
    pub train_accuracy: Spread,
    /// On held-out images after it, 0..1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub validation_accuracy: Option<Spread>,
}

/// The driver's readings of rank 0's GPU, see [`contract::GpuUse`].
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MeasuredGpu {
    /// Share of time in which any kernel ran, 0..1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub utilization: Option<Spread>,
    /// Peak memory of all processes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_used_bytes: Option<Spread>,
    /// Highest temperature.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature_celsius: Option<Spread>,
    /// Mean power of the board.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power_watts: Option<Spread>,
    /// Share of readings with reduced clocks, 0..1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub throttled: Option<Spread>,
}

/// A value over repetitions.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// The middle value, or the mean of the two middle ones.
    #[serde(serialize_with = "six_digits")]
    pub median: f64,
    /// The minimum.
    #[serde(serialize_with = "six_digits")]
    pub least: f64,
    /// The maximum.
    #[serde(serialize_with = "six_digits")]
    pub most: f64,
}

/// No measurement is more precise.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn six_digits<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(format!("{value:.5e}").parse().unwrap_or(*value))
}

impl Spread {
    /// Scales it by a factor of at least 0.
    #[must_use]
    pub fn times(self, factor: f64) -> Self {
        Self {
            median: self.median * factor,
            least: self.least * factor,
            most: self.most * factor,
        }
    }

    /// The spread of values; `None` without any.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
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
    /// `measured` has the measurement or failure of each repetition, by index in [`Plan::runs`].
    pub fn new(plan: &Plan, measured: &[Vec<Result<Measurement, String>>]) -> Self {
        let mut results = Self {
            points: plan
                .points
                .iter()
                .map(|point| PointResult::new(point, &plan.runs[point.run], &measured[point.run]))
                .collect(),
        };
        results.compare(plan);
        results
    }

    /// Compares each point of a sweep over ranks with its series' point on the fewest ranks, and
    /// with the same job with that point's global batch.
    fn compare(&mut self, plan: &Plan) {
        let rate = |point: &PointResult| Some(point.measured.as_ref()?.images_per_second);
        let rates: Vec<Option<Spread>> = self.points.iter().map(rate).collect();
        let jobs: Vec<String> = self
            .points
            .iter()
            .map(|point| plan.runs[point.point.run].job_key(&point.point))
            .collect();
        for place in 0..self.points.len() {
            let point = &self.points[place].point;
            let of_series =
                (0..self.points.len()).filter(|other| point.is_of_series(&self.points[*other].point));
            let Some(first) = of_series.min_by_key(|other| self.points[*other].point.ranks) else {
                continue;
            };
            let fewest = f64::from(self.points[first].point.ranks);
            let (ranks, batch) = (point.ranks, self.points[first].point.global_batch_size);
            let grows = point.mode == Mode::Strong && point.global_batch_size != batch;
            let with_batch = |other: usize| {
                let with = &self.points[other].point;
                let is_it = jobs[other] == jobs[place]
                    && with.speeds == point.speeds
                    && with.gradient_accumulation_steps == point.gradient_accumulation_steps
                    && (with.ranks, with.global_batch_size) == (ranks, batch);
                rates[other].filter(|_| is_it)
            };
            let fixed = grows
                .then(|| (0..self.points.len()).find_map(with_batch))
                .flatten();
            let Some(measured) = &mut self.points[place].measured else {
                continue;
            };
            measured.fixed_batch_images_per_second = fixed;
            if let (Some(own), Some(base)) = (rates[place], rates[first]) {
                let speedup = own.times(fewest / base.median);
                measured.speedup = Some(speedup);
                measured.efficiency = Some(speedup.times(f64::from(ranks).recip()));
            }
        }
    }
}

impl Point {
    /// Whether both points belong to a sweep over ranks and differ only by ranks.
    pub fn is_of_series(&self, other: &Self) -> bool {
        let over_ranks = matches!(self.mode, Mode::Strong | Mode::Weak);
        over_ranks
            && self.sweep == other.sweep
            && self.variant == other.variant
            && self.gradient_accumulation_steps == other.gradient_accumulation_steps
            && self.first_micro_batch_size == other.first_micro_batch_size
    }
}

impl PointResult {
    fn new(point: &Point, run: &Run, repetitions: &[Result<Measurement, String>]) -> Self {
        let measured: Vec<&Measurement> = repetitions
            .iter()
            .filter_map(|found| found.as_ref().ok())
            .collect();
        let failures = repetitions
            .iter()
            .filter_map(|found| found.as_ref().err().cloned());
        Self {
            point: point.clone(),
            run: run.key.clone(),
            repetitions: measured.len(),
            failures: failures.collect(),
            measured: Measured::of(run, &measured),
        }
    }
}

impl Measured {
    /// A part of a step; `None` if the trainer leaves too much of the step unattributed.
    pub fn if_attributed(&self, part: Spread) -> Option<Spread> {
        Measurement::phases_cover(self.unattributed_seconds.median, self.step_seconds.median).then_some(part)
    }

    fn of(run: &Run, runs: &[&Measurement]) -> Option<Self> {
        let flops = run.config.model.flops_per_image() / f64::from(run.config.world_size());
        let is_uniform = run.spec.placement.homogeneity == Homogeneity::Required;
        let mfu =
            |run: &&&Measurement| Some(run.images_per_second * flops / peak_flops(run.device.as_ref()?)?);
        let over = |value: fn(&Measurement) -> f64| Spread::of(runs.iter().map(|run| value(run)));
        let known =
            |value: fn(&Measurement) -> Option<f64>| Spread::of(runs.iter().filter_map(|run| value(run)));
        Some(Self {
            images_per_second: over(|run| run.images_per_second)?,
            flops_per_rank: over(|run| run.images_per_second)?.times(flops),
            mfu: Spread::of(runs.iter().filter(|_| is_uniform).filter_map(|run| mfu(&run))),
            step_seconds: over(|run| run.step_seconds)?,
            compute_seconds: over(|run| run.phases.compute())?,
            mean_compute_seconds: known(|run| Some(run.ranks?.mean_compute_seconds)),
            slowest_compute_seconds: known(|run| Some(run.ranks?.slowest_compute_seconds)),
            data_seconds: over(|run| run.phases.data)?,
            forward_seconds: over(|run| run.phases.forward)?,
            backward_seconds: over(|run| run.phases.backward)?,
            optimizer_seconds: over(|run| run.phases.optimizer)?,
            exposed_seconds: over(|run| run.phases.sync_exposed)?,
            straggler_seconds: over(|run| run.phases.sync_straggler)?,
            unattributed_seconds: over(Measurement::unattributed_seconds)?,
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
            fixed_batch_images_per_second: None,
            rank_hours_per_million_images: over(|run| {
                rank_hours_per_million_images(run.world_size, run.images_per_second)
            })?,
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

/// Hours of `ranks` ranks together to train on a million images at `images_per_second`.
fn rank_hours_per_million_images(ranks: u32, images_per_second: f64) -> f64 {
    f64::from(ranks) * 1e6 / images_per_second / 3600.0
}

/// Each epoch's spreads over the runs.
fn epochs(runs: &[&Measurement]) -> Vec<MeasuredEpoch> {
    let count = runs.iter().map(|run| run.epochs.len()).max().unwrap_or(0);
    let epoch = |epoch: usize| {
        let of_runs = || runs.iter().filter_map(move |run| run.epochs.get(epoch));
        let over = |value: fn(&Epoch) -> f64| Spread::of(of_runs().map(value));
        Some(MeasuredEpoch {
            seconds: over(|epoch| epoch.seconds)?,
            loss: over(|epoch| epoch.loss)?,
            train_accuracy: over(|epoch| epoch.train_accuracy)?,
            validation_accuracy: Spread::of(of_runs().filter_map(|epoch| epoch.validation_accuracy)),
        })
    };
    (0..count).filter_map(epoch).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{measurement, plan};

    /// Results of runs that train at these rates, or fail without one.
    fn results(plan: &Plan, rates: &[&[Option<f64>]]) -> Vec<PointResult> {
        let run = |rate: &Option<f64>| rate.map(measurement).ok_or("it broke".to_owned());
        let measured: Vec<_> = rates
            .iter()
            .map(|rates| rates.iter().map(run).collect())
            .collect();
        Results::new(plan, &measured).points
    }

    /// Results of runs, each 100 images/s faster than the one before.
    fn rising(sweeps: &str) -> Vec<PointResult> {
        let plan = plan(sweeps);
        let rates: Vec<[Option<f64>; 1]> = (1..=plan.runs.len())
            .map(|run| [Some(100.0 * run as f64)])
            .collect();
        results(&plan, &rates.iter().map(|rate| &rate[..]).collect::<Vec<_>>())
    }

    fn median(point: &PointResult, value: fn(&Measured) -> Option<Spread>) -> Option<f64> {
        Some(value(point.measured.as_ref()?)?.median)
    }

    #[test]
    fn a_point_has_the_median_of_its_repetitions_and_how_far_they_spread() {
        let plan = plan("[{name: s, mode: Strong, ranks: [1, 2]}]");
        let rates: [&[_]; 2] = [&[100.0, 80.0, 400.0].map(Some), &[150.0, 170.0].map(Some)];
        let points = results(&plan, &rates);
        let spread = |place: usize, value: fn(&Measured) -> Option<Spread>| {
            let spread = value(points[place].measured.as_ref()?)?;
            Some([spread.least, spread.median, spread.most])
        };
        let rate = |place| spread(place, |measured| Some(measured.images_per_second));
        assert_eq!(
            (rate(0), rate(1)),
            (Some([80.0, 100.0, 400.0]), Some([150.0, 160.0, 170.0]))
        );
        // Relative to the median of the fewest ranks: 150 to 170 are 1.5 to 1.7 times 100.
        let efficiency = |place| spread(place, |measured| measured.efficiency);
        assert_eq!(
            (efficiency(0), efficiency(1)),
            (Some([0.8, 1.0, 4.0]), Some([0.75, 0.8, 0.85]))
        );
        let hours_at = |rate: f64| 2.0 * 1e6 / rate / 3600.0;
        let expected = f64::midpoint(hours_at(150.0), hours_at(170.0));
        let hours = median(&points[1], |measured| {
            Some(measured.rank_hours_per_million_images)
        });
        assert!((hours.expect("measured") - expected).abs() < 1e-9);
    }

    #[test]
    fn a_growing_batch_has_the_fixed_one_beside_it() {
        let points = rising(
            "[{name: grows, mode: Strong, ranks: [1, 2], microBatchSize: [8]}, \
             {name: fixed, mode: Strong, ranks: [1, 2], microBatchSize: [8], globalBatch: Fixed}, \
             {name: half, mode: Strong, ranks: [1, 2], microBatchSize: [8], globalBatch: Fixed, \
              variants: [{name: bf16, spec: {training: {precision: bf16}}}]}, \
             {name: unlike, mode: Strong, ranks: [1, 2], microBatchSize: [8], variants: [{name: u, speeds: [1, 0.3]}]}, \
             {name: like, mode: Strong, ranks: [1, 2], microBatchSize: [8], globalBatch: Fixed, variants: [{name: l, speeds: [1]}]}, \
             {name: split, mode: Batch, ranks: [2], microBatchSize: [2, 4], gradientAccumulationSteps: [2]}]",
        );
        let found = points
            .iter()
            .map(|point| median(point, |measured| measured.fixed_batch_images_per_second));
        let of_two = points
            .iter()
            .find(|point| (point.point.sweep.as_str(), point.point.ranks) == ("fixed", 2))
            .and_then(|point| median(point, |measured| Some(measured.images_per_second)));
        assert!(of_two.is_some());
        let mut expected = vec![None; points.len()];
        expected[1] = of_two;
        let reason = "the same job with the same speeds and accumulation";
        assert_eq!(found.collect::<Vec<_>>(), expected, "{reason}");
    }

    #[test]
    fn a_run_that_failed_gives_no_number() {
        let plan = plan("[{name: s, mode: Strong, ranks: [1, 2, 4]}]");
        let points = results(
            &plan,
            &[&[None, None], &[None, Some(50.0)], &[Some(90.0), Some(110.0)]],
        );
        let counts = points
            .iter()
            .map(|point| (point.repetitions, point.failures.len()));
        assert_eq!(counts.collect::<Vec<_>>(), [(0, 2), (1, 1), (2, 0)]);
        assert_eq!(points[0].measured, None);
        // Without the run on the fewest ranks there is no base: the next one does not replace it.
        assert_eq!(points[2].measured.as_ref().expect("measured").speedup, None);
    }

    #[test]
    fn only_points_that_differ_by_ranks_alone_are_compared() {
        let points = rising(
            "[{name: s, mode: Strong, ranks: [1, 2], microBatchSize: [16, 32], globalBatch: Fixed}, \
             {name: b, mode: Batch, microBatchSize: [8, 16]}]",
        );
        // Micro-batches of 16 and 32 on one rank, 8 and 16 on two: compared by equal global batch.
        let found: Vec<_> = points
            .iter()
            .map(|point| median(point, |measured| measured.speedup))
            .collect();
        assert_eq!(found, [Some(1.0), Some(1.0), Some(3.0), Some(2.0), None, None]);
    }

    #[test]
    fn operations_are_a_share_of_the_peak_of_a_known_product_in_a_uniform_gang() {
        let plan = plan(
            "[{name: s, mode: Variants, ranks: [2], variants: [{name: a}, \
             {name: mixed, spec: {placement: {homogeneity: Preferred}}}]}]",
        );
        let on = |device: Option<&str>| {
            let device = device.map(str::to_owned);
            vec![Ok(Measurement {
                device,
                ..measurement(100.0)
            })]
        };
        let found = |device| {
            let points = Results::new(&plan, &[on(device), on(device)]).points;
            let measured = points.into_iter().filter_map(|point| point.measured);
            let found = measured.map(|measured| (measured.flops_per_rank.median, measured.mfu));
            found.collect::<Vec<_>>()
        };
        // 50 images/s per rank.
        let flops = 50.0 * plan.runs[0].config.model.flops_per_image();
        let [(per_rank, Some(mfu)), (_, None)] = found(Some("Tesla T4"))[..] else {
            panic!("{:?}", found(Some("Tesla T4")))
        };
        assert!((per_rank / flops - 1.0).abs() < 1e-12, "{per_rank}");
        assert!((mfu.median * 65e12 / flops - 1.0).abs() < 1e-12, "{mfu:?}");
        assert!(
            found(Some("GeForce RTX 3070"))
                .iter()
                .all(|(_, mfu)| mfu.is_none())
        );
        assert!(found(None).iter().all(|(_, mfu)| mfu.is_none()));
    }
}
