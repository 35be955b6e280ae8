//! Predictions for numbers of ranks that a study did not measure.

use std::collections::BTreeSet;

use contract::Measurement;
use crds::study::Predict;
use indexmap::IndexMap;
use serde::Serialize;
use study::{Plan, Spread};

use crate::model::{CostModel, Sizes, Step};

/// Measurements or failures by index in [`Plan::runs`] and by repetition.
type Measured = [Vec<Result<Measurement, String>>];

/// Predicting other numbers of ranks needs this many different numbers above 1.
const LEAST_RANKS: usize = 2;
/// A model needs this many points.
const LEAST_POINTS: usize = 3;

/// Model and predictions of one job, measured at points that differ only by ranks and batch.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Forecast {
    /// Names of its variants, or "the template".
    pub name: String,
    /// Number of points that the model was fitted to.
    pub points: usize,
    /// The fitted cost model.
    pub model: CostModel,
    /// The baseline: a step with as many images lasts as long on any number of ranks.
    pub constant: CostModel,
    /// Each point, predicted from the others.
    pub held_out: Vec<HeldOut>,
    /// The points on the most ranks, predicted from those on fewer.
    pub largest: Vec<HeldOut>,
    /// Whether enough numbers of ranks were measured to predict others.
    pub is_predictable: bool,
    /// Predictions for the study's `predict`, with the batch that was measured on the most numbers of
    /// ranks.
    pub predictions: Vec<Prediction>,
}

/// A measured step, and its prediction by a model without it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HeldOut {
    /// Its ranks and batch.
    #[serde(flatten)]
    pub sizes: Sizes,
    /// Measured seconds.
    pub measured: f64,
    /// Seconds by the model.
    pub predicted: f64,
    /// Seconds by the baseline.
    pub constant: f64,
}

impl HeldOut {
    /// `None` if the other steps are too few, or none of them has several ranks, but this one has.
    fn new(step: &Step, others: &[Step]) -> Option<Self> {
        let have_several = others.iter().any(|other| other.sizes.ranks > 1);
        if others.len() < LEAST_POINTS || (step.sizes.ranks > 1 && !have_several) {
            return None;
        }
        Some(Self {
            sizes: step.sizes,
            measured: step.seconds,
            predicted: CostModel::fit(others)?.seconds(&step.sizes),
            constant: CostModel::constant(others)?.seconds(&step.sizes),
        })
    }

    /// Relative error of the model; above 0 if the prediction is too long.
    pub fn error(&self) -> f64 {
        self.predicted / self.measured - 1.0
    }

    /// Relative error of the baseline.
    pub fn constant_error(&self) -> f64 {
        self.constant / self.measured - 1.0
    }
}

/// Mean absolute relative errors of predicted points.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Errors {
    /// Of the model.
    pub model: f64,
    /// Of the baseline.
    pub constant: f64,
}

impl Errors {
    /// `None` without points.
    pub fn of(points: &[HeldOut]) -> Option<Self> {
        let mean = |error: fn(&HeldOut) -> f64| {
            points.iter().map(|point| error(point).abs()).sum::<f64>() / points.len() as f64
        };
        (!points.is_empty()).then(|| Self {
            model: mean(HeldOut::error),
            constant: mean(HeldOut::constant_error),
        })
    }

    /// 1 for a model without errors; 0 or less for one that predicts no better than the baseline.
    pub fn skill(&self) -> f64 {
        1.0 - self.model / self.constant
    }
}

/// A step that was not measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Prediction {
    /// Its ranks and batch.
    #[serde(flatten)]
    pub sizes: Sizes,
    /// Seconds by the model.
    pub step_seconds: f64,
    /// Seconds by the baseline.
    pub constant_step_seconds: f64,
    /// Training images per second by the model.
    pub images_per_second: f64,
    /// Images per second and rank, relative to a single rank, by the model.
    pub efficiency: f64,
}

/// Points that differ only by ranks, batch and data.
#[derive(Default)]
struct Job<'a> {
    variants: Vec<&'a str>,
    /// Indices in [`Plan::runs`]: points may share one.
    runs: BTreeSet<usize>,
    /// Measured seconds of a step.
    steps: IndexMap<Sizes, Vec<f64>>,
}

/// Forecasts of each job with equally fast ranks that was measured at enough points.
pub fn forecasts(plan: &Plan, measured: &Measured, predict: &Predict) -> Vec<Forecast> {
    let mut jobs: IndexMap<String, Job<'_>> = IndexMap::new();
    for point in &plan.points {
        let run = &plan.runs[point.run];
        let repetitions = measured[point.run].iter().flatten();
        let seconds: Vec<f64> = repetitions.map(|found| found.step_seconds).collect();
        if !run.follows_the_model() || seconds.is_empty() {
            continue;
        }
        let job = jobs.entry(run.job_key(point)).or_default();
        if let Some(variant) = &point.variant
            && !job.variants.contains(&variant.as_str())
        {
            job.variants.push(variant);
        }
        if job.runs.insert(point.run) {
            let sizes = Sizes {
                ranks: point.ranks,
                micro_batch_size: point.micro_batch_size,
                gradient_accumulation_steps: point.gradient_accumulation_steps,
            };
            job.steps.entry(sizes).or_default().extend(seconds);
        }
    }
    let jobs = jobs.into_values();
    jobs.filter_map(|job| forecast(&job, predict)).collect()
}

fn forecast(job: &Job<'_>, predict: &Predict) -> Option<Forecast> {
    let medians = job.steps.iter().filter_map(|(sizes, seconds)| {
        let seconds = Spread::of(seconds.iter().copied())?.median;
        Some(Step {
            sizes: *sizes,
            seconds,
        })
    });
    let steps: Vec<Step> = medians.collect();
    if steps.len() < LEAST_POINTS {
        return None;
    }
    let (model, constant) = (CostModel::fit(&steps)?, CostModel::constant(&steps)?);
    let ranks: BTreeSet<u32> = steps.iter().map(|step| step.sizes.ranks).collect();
    let is_predictable = ranks.range(2..).count() >= LEAST_RANKS;
    let batch = batch(&steps)?;
    let prediction = |ranks: u32| {
        let sizes = Sizes { ranks, ..batch };
        let step_seconds = model.seconds(&sizes);
        Prediction {
            sizes,
            step_seconds,
            constant_step_seconds: constant.seconds(&sizes),
            images_per_second: f64::from(ranks) * f64::from(sizes.images()) / step_seconds,
            efficiency: model.seconds(&Sizes { ranks: 1, ..batch }) / step_seconds,
        }
    };
    let ranks = predict.ranks.iter().filter(|_| is_predictable);
    Some(Forecast {
        name: if job.variants.is_empty() {
            "the template".into()
        } else {
            job.variants.join(", ")
        },
        points: steps.len(),
        model,
        constant,
        held_out: held_out(&steps),
        largest: largest(&steps),
        is_predictable,
        predictions: ranks
            .filter_map(|ranks| u32::try_from(*ranks).ok())
            .map(prediction)
            .collect(),
    })
}

/// The batch that was measured on the most numbers of ranks; of several, the smallest.
fn batch(steps: &[Step]) -> Option<Sizes> {
    let of = |sizes: &Sizes| (sizes.micro_batch_size, sizes.gradient_accumulation_steps);
    let measured = |batch: &Sizes| steps.iter().filter(|step| of(&step.sizes) == of(batch)).count();
    let batches = steps.iter().map(|step| step.sizes);
    batches.min_by_key(|batch| (usize::MAX - measured(batch), batch.images(), of(batch)))
}

/// Each step, predicted from the others.
fn held_out(steps: &[Step]) -> Vec<HeldOut> {
    let without = |place: usize| {
        let mut others = steps.to_vec();
        let step = others.remove(place);
        HeldOut::new(&step, &others)
    };
    (0..steps.len()).filter_map(without).collect()
}

/// The steps on the most ranks, predicted from those on fewer.
fn largest(steps: &[Step]) -> Vec<HeldOut> {
    let most = steps.iter().map(|step| step.sizes.ranks).max();
    let (large, small): (Vec<Step>, Vec<Step>) =
        steps.iter().partition(|step| Some(step.sizes.ranks) == most);
    let large = large.iter();
    large.filter_map(|step| HeldOut::new(step, &small)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{measurement, plan};

    /// Forecasts of a study whose steps last 10 ms, 1 ms per image, and 2 ms per doubling of the ranks.
    fn found(sweeps: &str, predict: &str) -> Vec<Forecast> {
        let plan = plan(sweeps);
        let run = |run: &study::Run| {
            let ranks = f64::from(run.config.world_size());
            let images = f64::from(run.config.training.micro_batch_size);
            let step_seconds = 0.01 + 0.001 * images + 0.002 * ranks.log2();
            vec![Ok(Measurement {
                step_seconds,
                ..measurement(1.0)
            })]
        };
        let measured: Vec<_> = plan.runs.iter().map(run).collect();
        forecasts(&plan, &measured, &serde_saphyr::from_str(predict).expect("ranks"))
    }

    /// Name and points of each forecast.
    fn jobs(sweeps: &str) -> Vec<(String, usize)> {
        let found = found(sweeps, "{}").into_iter();
        found.map(|forecast| (forecast.name, forecast.points)).collect()
    }

    /// Steps of arXiv 2602.21081, from seconds per epoch of 50,000 images.
    fn published(images: u32, ranks: &[u32], seconds: &[f64]) -> Vec<Step> {
        let step = |(ranks, seconds): (&u32, &f64)| Step {
            sizes: Sizes {
                ranks: *ranks,
                micro_batch_size: images,
                gradient_accumulation_steps: 1,
            },
            seconds: seconds * f64::from(ranks * images) / 50_000.0,
        };
        ranks.iter().zip(seconds).map(step).collect()
    }

    #[test]
    fn the_published_study_shows_the_skill_of_the_model() {
        let node = [1, 2, 3, 4, 5, 6, 7, 8];
        let batches = [
            (16, [276.31, 232.61]),
            (32, [212.21, 152.21]),
            (64, [171.17, 115.02]),
            (128, [149.08, 92.80]),
            (256, [142.34, 86.57]),
        ];
        let figure_6 = batches.map(|(images, seconds)| published(images, &[1, 2], &seconds));
        // Only speedups are published.
        let figure_12 = [1.0, 1.74, 2.25, 3.39, 4.23, 5.19, 5.80, 5.91].map(f64::recip);
        let figures = [
            figure_6.concat(),
            published(
                64,
                &node,
                &[1817.65, 941.87, 621.72, 489.64, 369.95, 302.29, 288.47, 234.21],
            ),
            published(16, &node, &figure_12),
            // The value of one rank is from CIFAR-10, the others from CIFAR-100.
            published(
                64,
                &[1, 2, 4, 8, 16, 32],
                &[1817.65, 869.35, 482.73, 238.07, 122.50, 61.32],
            ),
            // Figure 13 shows its speedups.
            published(
                64,
                &node,
                &[1813.44, 892.16, 633.87, 465.29, 374.57, 307.70, 271.12, 244.88],
            ),
        ];
        let errors = |points: &[HeldOut]| {
            let errors = Errors::of(points)?;
            let percent = |share: f64| (share * 1e3).round() / 10.0;
            Some((percent(errors.model), percent(errors.constant)))
        };
        let each: Vec<_> = figures.iter().map(|steps| errors(&held_out(steps))).collect();
        let most: Vec<_> = figures.iter().map(|steps| errors(&largest(steps))).collect();
        let all = |of: fn(&[Step]) -> Vec<HeldOut>, figures: &[Vec<Step>]| -> f64 {
            let points: Vec<HeldOut> = figures.iter().flat_map(|steps| of(steps)).collect();
            Errors::of(&points).expect("points").skill()
        };
        let skills = [
            all(held_out, &figures),
            all(held_out, &figures[1..]),
            all(largest, &figures),
        ];
        assert_eq!(
            each,
            [(4.1, 19.9), (3.5, 3.0), (7.5, 7.2), (3.1, 4.8), (2.2, 2.5)].map(Some)
        );
        let expected = [(2.5, 0.4), (8.3, 14.5), (2.2, 5.1), (3.6, 5.5)].map(Some);
        // Figure 6 has at most two ranks.
        assert_eq!((most[0], &most[1..]), (None, &expected[..]));
        for (skill, expected) in skills.iter().zip([0.50, 0.05, 0.35]) {
            assert!((skill - expected).abs() < 0.005, "{skills:?}");
        }
    }

    #[test]
    fn a_step_that_follows_the_model_is_predicted_exactly() {
        let found = found(
            "[{name: s, mode: Strong, ranks: [1, 2, 4], microBatchSize: [8]}, \
             {name: b, mode: Batch, ranks: [1, 2], microBatchSize: [4, 64]}]",
            "{ranks: [1, 16]}",
        );
        let [forecast] = &found[..] else {
            panic!("{found:?}")
        };
        assert_eq!((forecast.points, forecast.name.as_str()), (7, "the template"));
        assert_eq!((forecast.held_out.len(), forecast.largest.len()), (7, 1));
        for point in forecast.held_out.iter().chain(&forecast.largest) {
            assert!(point.error().abs() < 1e-6, "{point:?}");
        }
        // With 8 images, which were measured on three numbers of ranks. The template has 16.
        let [one, last] = &forecast.predictions[..] else {
            panic!("{forecast:?}")
        };
        assert!(
            (one.step_seconds - 0.018).abs() < 1e-6 && (one.efficiency - 1.0).abs() < 1e-6,
            "{one:?}"
        );
        assert!((last.step_seconds - 0.026).abs() < 1e-6, "{last:?}");
        assert!(
            (last.images_per_second - 16.0 * 8.0 / 0.026).abs() < 1e-2,
            "{last:?}"
        );
        assert!((last.efficiency - 18.0 / 26.0).abs() < 1e-6, "{last:?}");
        assert!(
            (last.constant_step_seconds - one.constant_step_seconds).abs() < 1e-9,
            "{last:?}"
        );
    }

    #[test]
    fn a_run_that_variants_share_is_in_the_model_of_each() {
        let found = jobs(
            "[{name: s, mode: Strong, ranks: [1, 2, 4], variants: [{name: one a node}, \
             {name: two a node, spec: {workers: {gpusPerNode: 2}}}]}]",
        );
        assert_eq!(found, [("one a node".into(), 3), ("two a node".into(), 3)]);
    }

    #[test]
    fn jobs_that_differ_by_more_than_ranks_batch_and_data_have_separate_models() {
        let found = jobs(
            "[{name: s, mode: Strong, ranks: [1, 2, 4], variants: [{name: a}, {name: b, spec: {training: {precision: bf16}}}, \
             {name: linear, spec: {training: {learningRateScaling: {rule: linear, referenceBatchSize: 64}}}}, \
             {name: uneven, speeds: [1.0, 0.5]}, {name: mixed, spec: {placement: {homogeneity: Preferred}}}]}]",
        );
        assert_eq!(found, [("a, linear".into(), 3), ("b".into(), 3)]);
        let of_data = "[{name: s, mode: Strong, ranks: [1, 2, 4]}, \
             {name: w, mode: Weak, ranks: [1, 2, 4], fractionPerRank: 0.125}]";
        assert_eq!(jobs(of_data), [("the template".into(), 3)]);
        let of_nodes = "[{name: s, mode: Strong, ranks: [2, 4, 8], variants: [{name: many}, \
             {name: few, spec: {workers: {gpusPerNode: 8}}}]}]";
        assert_eq!(jobs(of_nodes), [("many".into(), 3), ("few".into(), 3)]);
        let few = "[{name: s, mode: Strong, ranks: [1, 2]}]";
        assert_eq!(jobs(few), []);
    }

    #[test]
    fn jobs_that_exchange_activations_have_no_model() {
        let found = jobs(
            "[{name: s, mode: Strong, ranks: [2, 4, 8], variants: [{name: whole}, \
             {name: sharded, spec: {model: {heads: 2}, parallelism: {tensor: 2, acrossNodes: true}}}]}]",
        );
        assert_eq!(found, [("whole".into(), 3)]);
    }

    #[test]
    fn ranks_are_predicted_only_from_several_numbers_of_them() {
        let batches = "[{name: b, mode: Batch, ranks: [2], microBatchSize: [4, 16, 64]}]";
        let found = found(batches, "{ranks: [1, 64]}");
        assert!(!found[0].is_predictable && found[0].predictions.is_empty());
    }
}
