//! Predictions for points that a study did not measure.

use contract::Measurement;
use crds::study::Predict;
use indexmap::IndexMap;
use serde::Serialize;
use study::{Plan, Run, Spread, rank_hours_per_million_images};

use crate::model::{CostModel, Parts, Sample, Traffic};

/// Measurements or failures by index in [`Plan::runs`] and by repetition.
type Measured = [Vec<Result<Measurement, String>>];

/// Bootstrap samples for the range of a prediction.
const DRAWS: usize = 200;
/// Share of the draws below the range, and above it.
const OUTSIDE: f64 = 0.05;
/// A batch is large enough if doubling it gains less than this share in images per second.
const LEAST_GAIN: f64 = 0.05;
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
    /// Predicted images per micro-batch.
    pub micro_batch_size: u32,
    /// Predicted micro-batches per step.
    pub gradient_accumulation_steps: u32,
    /// Fewest measured ranks.
    pub fewest_ranks: u32,
    /// Whether enough numbers of ranks were measured to predict others.
    pub is_predictable: bool,
    /// The fitted cost model.
    pub model: CostModel,
    /// Whether a rank's traffic is known; otherwise other links are not predicted.
    pub knows_traffic: bool,
    /// Each point, predicted by a model fitted to the others.
    pub held_out: Vec<HeldOut>,
    /// Errors of these predictions; `None` without any.
    pub skill: Option<Skill>,
    /// By ranks, the micro-batch from which doubling gains little.
    pub enough_images: Vec<EnoughImages>,
    /// Predictions for the study's `predict`.
    pub predictions: Vec<Prediction>,
}

/// A point, and its prediction by a model without it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HeldOut {
    /// Number of ranks.
    pub ranks: u32,
    /// Images per micro-batch.
    pub micro_batch_size: u32,
    /// Micro-batches per step.
    pub gradient_accumulation_steps: u32,
    /// Measured seconds of a step.
    pub measured: f64,
    /// Predicted seconds of a step.
    pub predicted: f64,
    /// Prediction of the baseline: a step with as many images lasts as long on any number of ranks.
    pub constant: f64,
}

impl HeldOut {
    /// Relative error; above 0 if the prediction is too long.
    pub fn error(&self) -> f64 {
        self.predicted / self.measured - 1.0
    }

    /// Relative error of the baseline.
    pub fn constant_error(&self) -> f64 {
        self.constant / self.measured - 1.0
    }
}

/// Mean absolute relative errors of held-out points.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Skill {
    /// Of the model.
    pub error: f64,
    /// Of the baseline.
    pub constant_error: f64,
}

impl Skill {
    fn of(points: &[HeldOut]) -> Option<Self> {
        let mean = |error: fn(&HeldOut) -> f64| {
            points.iter().map(|point| error(point).abs()).sum::<f64>() / points.len() as f64
        };
        (!points.is_empty()).then(|| Self {
            error: mean(HeldOut::error),
            constant_error: mean(HeldOut::constant_error),
        })
    }

    /// 1 for a model without errors; 0 or less for one that predicts no better than the baseline.
    pub fn score(&self) -> f64 {
        1.0 - self.error / self.constant_error
    }
}

/// A micro-batch from which doubling gains little.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EnoughImages {
    /// Number of ranks.
    pub ranks: u32,
    /// Images per micro-batch, with the fewest measured micro-batches per step.
    pub micro_batch_size: u32,
    /// Whether such large micro-batches were measured; otherwise the model extrapolates.
    pub is_measured: bool,
}

/// A step that was not measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Prediction {
    /// Number of ranks.
    pub ranks: u32,
    /// Images per micro-batch.
    pub micro_batch_size: u32,
    /// Micro-batches per step.
    pub gradient_accumulation_steps: u32,
    /// Seconds of a step by part.
    pub parts: Parts,
    /// Seconds of a step by the model, with the range of 90 % of the bootstrapped models.
    pub step_seconds: Spread,
    /// Training images per second.
    pub images_per_second: f64,
    /// Images per second and rank, relative to a single rank.
    pub efficiency: f64,
    /// Hours of all ranks together to train on a million images.
    pub rank_hours_per_million_images: f64,
}

/// Measurements of a job with one rank count and one batch, from runs that differ only by data.
struct Group<'a> {
    runs: Vec<&'a Run>,
    measured: Vec<&'a Measurement>,
    /// A rank's traffic per step; [`Traffic::UNIT`] if unknown for the job.
    traffic: Traffic,
}

/// Forecasts of each job with equally fast ranks that was measured at enough points.
pub fn forecasts(plan: &Plan, measured: &Measured, predict: &Predict) -> Vec<Forecast> {
    let mut jobs: IndexMap<String, Job<'_>> = IndexMap::new();
    for point in &plan.points {
        let run = &plan.runs[point.run];
        let measured: Vec<&Measurement> = measured[point.run]
            .iter()
            .filter_map(|found| found.as_ref().ok())
            .collect();
        if run.follows_the_model() && !measured.is_empty() {
            let job = jobs.entry(run.job_key(point)).or_default();
            job.add(point.variant.as_deref(), run, measured);
        }
    }
    jobs.into_values()
        .filter(|job| job.groups.len() >= LEAST_POINTS)
        .filter_map(|job| forecast(plan, job, predict))
        .collect()
}

/// Points that differ only by ranks and batch.
#[derive(Default)]
struct Job<'a> {
    variants: Vec<&'a str>,
    groups: Vec<Group<'a>>,
}

impl<'a> Job<'a> {
    /// Adds a point. Other points may share its run.
    fn add(&mut self, variant: Option<&'a str>, run: &'a Run, measured: Vec<&'a Measurement>) {
        if let Some(variant) = variant.filter(|variant| !self.variants.contains(variant)) {
            self.variants.push(variant);
        }
        let same = self
            .groups
            .iter_mut()
            .find(|group| sizes(group.runs[0]) == sizes(run));
        match same {
            Some(group) if group.runs.iter().any(|known| known.key == run.key) => {}
            Some(group) => {
                group.runs.push(run);
                group.measured.extend(measured);
            }
            None => self.groups.push(Group {
                runs: vec![run],
                measured,
                traffic: Traffic::UNIT,
            }),
        }
    }

    fn name(&self) -> String {
        if self.variants.is_empty() {
            "the template".into()
        } else {
            self.variants.join(", ")
        }
    }
}

/// Ranks, images per micro-batch, and micro-batches per step.
fn sizes(run: &Run) -> [u32; 3] {
    let training = &run.config.training;
    [
        run.config.world_size(),
        training.micro_batch_size,
        training.gradient_accumulation_steps,
    ]
}

fn forecast(plan: &Plan, job: Job<'_>, predict: &Predict) -> Option<Forecast> {
    let name = job.name();
    let mut groups = job.groups;
    let knows_traffic = groups
        .iter()
        .filter(|group| sizes(group.runs[0])[0] > 1)
        .all(|group| group.measured_traffic().is_some());
    if knows_traffic {
        for group in &mut groups {
            group.traffic = group.measured_traffic().unwrap_or_default();
        }
    }
    let samples: Vec<Sample> = groups.iter().map(Group::median).collect();
    let model = CostModel::fit(&samples)?;
    let drawn = drawn_models(&groups);
    let mut ranks: Vec<u32> = samples.iter().map(|sample| sample.ranks).collect();
    ranks.sort_unstable();
    ranks.dedup();
    // Fewer micro-batches were not measured.
    let accumulation = samples
        .iter()
        .map(|sample| sample.accumulation)
        .min()
        .unwrap_or(1);
    let enough = ranks.iter().filter_map(|ranks| {
        let micro_batch_size = model.enough_images(*ranks, accumulation, LEAST_GAIN)?;
        let of_ranks = samples.iter().filter(|sample| sample.ranks == *ranks);
        let largest = of_ranks.map(|sample| sample.micro_batch).max().unwrap_or(0);
        Some(EnoughImages {
            ranks: *ranks,
            micro_batch_size,
            is_measured: micro_batch_size <= largest,
        })
    });
    let held_out = held_out(&samples);
    // A single number of ranks does not separate latency from bandwidth.
    let is_predictable = ranks.iter().filter(|ranks| **ranks > 1).count() >= LEAST_RANKS;
    Some(Forecast {
        name,
        micro_batch_size: plan.micro_batch_size,
        gradient_accumulation_steps: plan.gradient_accumulation_steps,
        fewest_ranks: ranks[0],
        is_predictable,
        points: samples.len(),
        knows_traffic,
        skill: Skill::of(&held_out),
        held_out,
        enough_images: enough.collect(),
        predictions: if is_predictable {
            predictions(plan, &model, &drawn, predict)
        } else {
            vec![]
        },
        model,
    })
}

impl Group<'_> {
    /// A rank's traffic per step, if known. It is unknown for sharded jobs on CPUs, where Gloo
    /// reduces whole gradients.
    fn measured_traffic(&self) -> Option<Traffic> {
        let is_sharded = self.runs[0].config.parallelism.zero_stage > 0;
        let traffic = |run: &&Measurement| {
            if is_sharded && run.device.is_none() {
                return None;
            }
            Some(Traffic {
                all_reduces: run.all_reduces?,
                bytes: run.communication_bytes,
            })
        };
        self.measured.iter().find_map(traffic)
    }

    /// A sample of a step's time and parts; without parts if they do not add up to nearly the step.
    fn sample(&self, seconds: f64, parts: Parts) -> Sample {
        let [ranks, micro_batch, accumulation] = sizes(self.runs[0]);
        let on_machine = self.measured.iter().find_map(|run| run.ranks_on_machine);
        Sample {
            ranks,
            // If unknown, each node counts as a machine.
            ranks_on_machine: on_machine.unwrap_or(self.runs[0].config.ranks_per_node),
            micro_batch,
            accumulation,
            seconds,
            parts: Measurement::phases_cover(seconds - parts.step(), seconds).then_some(parts),
            traffic: self.traffic,
        }
    }

    fn of(&self, measured: &Measurement) -> Sample {
        self.sample(
            measured.step_seconds,
            Parts {
                compute: measured.phases.compute(),
                exposed: measured.phases.sync_exposed,
                straggler: measured.phases.sync_straggler,
                communication: measured.communication_seconds,
            },
        )
    }

    /// Medians over its repetitions.
    fn median(&self) -> Sample {
        let over = |value: &dyn Fn(&Measurement) -> f64| {
            Spread::of(self.measured.iter().map(|run| value(run))).map_or(0.0, |spread| spread.median)
        };
        self.sample(
            over(&|run| run.step_seconds),
            Parts {
                compute: over(&|run| run.phases.compute()),
                exposed: over(&|run| run.phases.sync_exposed),
                straggler: over(&|run| run.phases.sync_straggler),
                communication: over(&|run| run.communication_seconds),
            },
        )
    }
}

/// Each sample, predicted by a model of the others. The only sample with several ranks is skipped.
fn held_out(samples: &[Sample]) -> Vec<HeldOut> {
    let of = |(place, sample): (usize, &Sample)| {
        let mut others = samples.to_vec();
        others.remove(place);
        let several = |sample: &Sample| sample.ranks > 1;
        if others.len() < LEAST_POINTS || (several(sample) && !others.iter().any(several)) {
            return None;
        }
        let model = CostModel {
            ranks_on_machine: sample.ranks_on_machine,
            ..CostModel::fit(&others)?
        };
        let step = model.step(sample.ranks, sample.micro_batch, sample.accumulation);
        Some(HeldOut {
            ranks: sample.ranks,
            micro_batch_size: sample.micro_batch,
            gradient_accumulation_steps: sample.accumulation,
            measured: sample.seconds,
            predicted: step.step(),
            constant: CostModel::constant(&others)?
                .step(sample.ranks, sample.micro_batch, sample.accumulation)
                .step(),
        })
    };
    samples.iter().enumerate().filter_map(of).collect()
}

/// Bootstrapped models: each is fitted to one randomly drawn repetition per point.
fn drawn_models(groups: &[Group<'_>]) -> Vec<CostModel> {
    let mut random = fastrand::Rng::with_seed(0);
    let draw = |_| {
        let samples: Vec<Sample> = groups
            .iter()
            .map(|group| group.of(group.measured[random.usize(..group.measured.len())]))
            .collect();
        CostModel::fit(&samples)
    };
    (0..DRAWS).filter_map(draw).collect()
}

fn predictions(plan: &Plan, model: &CostModel, drawn: &[CostModel], predict: &Predict) -> Vec<Prediction> {
    let (micro_batch_size, accumulation) = (plan.micro_batch_size, plan.gradient_accumulation_steps);
    let one = model.images_per_second(1, micro_batch_size, accumulation);
    let ranks = predict
        .ranks
        .iter()
        .filter_map(|ranks| u32::try_from(*ranks).ok());
    let prediction = |ranks| {
        let parts = model.step(ranks, micro_batch_size, accumulation);
        let mut drawn: Vec<f64> = drawn
            .iter()
            .map(|model| model.step(ranks, micro_batch_size, accumulation).step())
            .collect();
        drawn.sort_by(f64::total_cmp);
        let at = |share: f64| {
            drawn
                .get((share * drawn.len() as f64) as usize)
                .copied()
                .unwrap_or(parts.step())
        };
        let rate = model.images_per_second(ranks, micro_batch_size, accumulation);
        Prediction {
            ranks,
            micro_batch_size,
            gradient_accumulation_steps: accumulation,
            parts,
            step_seconds: Spread {
                median: parts.step(),
                least: at(OUTSIDE),
                most: at(1.0 - OUTSIDE),
            },
            images_per_second: rate,
            efficiency: rate / one / f64::from(ranks),
            rank_hours_per_million_images: rank_hours_per_million_images(ranks, rate),
        }
    };
    ranks.map(prediction).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{measurement, plan};

    /// A run whose step lasts 10 ms, plus 1 ms per image and 2 ms per doubling of the ranks, times
    /// `factor`.
    fn run(run: &Run, factor: f64) -> Measurement {
        let ranks = f64::from(run.config.world_size());
        let images = f64::from(run.config.training.micro_batch_size);
        let (compute, exposed) = (factor * (0.01 + 0.001 * images), factor * 0.002 * ranks.log2());
        let mut found = measurement(1.0);
        found.step_seconds = compute + exposed;
        found.phases = contract::PhaseSeconds {
            forward: compute,
            sync_exposed: exposed,
            ..contract::PhaseSeconds::default()
        };
        found.communication_seconds = exposed;
        found
    }

    fn predict(text: &str) -> Predict {
        serde_saphyr::from_str(text).expect("predictions")
    }

    /// Steps of arXiv 2602.21081 on T4 GPUs (figure 6: others), from seconds per epoch of 50,000 images.
    fn published(images: u32, ranks: &[u32], seconds: &[f64]) -> Vec<Sample> {
        let sample = |(ranks, seconds): (&u32, &f64)| Sample {
            ranks: *ranks,
            ranks_on_machine: 1,
            micro_batch: images,
            accumulation: 1,
            seconds: seconds * f64::from(ranks * images) / 50_000.0,
            parts: None,
            traffic: Traffic::UNIT,
        };
        ranks.iter().zip(seconds).map(sample).collect()
    }

    #[test]
    fn the_published_study_shows_the_skill_of_the_model() {
        let one_node = [1, 2, 3, 4, 5, 6, 7, 8];
        let batches = [
            (16, [276.31, 232.61]),
            (32, [212.21, 152.21]),
            (64, [171.17, 115.02]),
            (128, [149.08, 92.80]),
            (256, [142.34, 86.57]),
        ];
        let speedups = [1.0, 1.74, 2.25, 3.39, 4.23, 5.19, 5.80, 5.91];
        let figures = [
            batches
                .iter()
                .flat_map(|(images, seconds)| published(*images, &[1, 2], seconds))
                .collect(),
            published(
                64,
                &one_node,
                &[1817.65, 941.87, 621.72, 489.64, 369.95, 302.29, 288.47, 234.21],
            ),
            // Only speedups are published.
            published(16, &one_node, &speedups.map(f64::recip)),
            // The value of one rank is from CIFAR-10, the others from CIFAR-100.
            published(
                64,
                &[1, 2, 4, 8, 16, 32],
                &[1817.65, 869.35, 482.73, 238.07, 122.50, 61.32],
            ),
            // Its speedups are figure 13.
            published(
                64,
                &one_node,
                &[1813.44, 892.16, 633.87, 465.29, 374.57, 307.70, 271.12, 244.88],
            ),
        ];
        let percent = |share: f64| (share * 1e3).round() / 10.0;
        let errors = figures.each_ref().map(|samples| {
            let skill = Skill::of(&held_out(samples)).expect("points");
            (percent(skill.error), percent(skill.constant_error))
        });
        assert_eq!(
            errors,
            [(4.1, 19.9), (3.4, 3.0), (7.2, 7.2), (5.3, 4.8), (2.7, 2.5)]
        );
        let all: Vec<HeldOut> = figures.iter().flat_map(|samples| held_out(samples)).collect();
        let score = Skill::of(&all).expect("points").score();
        assert!((score - 0.458).abs() < 0.001, "{score}");
    }

    const SWEEPS: &str = "[{name: s, mode: Strong, ranks: [1, 2, 4]}, {name: b, mode: Batch, ranks: [1, 2], microBatchSize: [4, 64]}]";

    #[test]
    fn a_step_that_follows_the_model_is_predicted_exactly() {
        let plan = plan(SWEEPS);
        let measured: Vec<_> = plan
            .runs
            .iter()
            .map(|of| vec![Ok(run(of, 1.0)), Ok(run(of, 1.0))])
            .collect();
        let found = forecasts(&plan, &measured, &predict("{ranks: [1, 16]}"));
        let [forecast] = &found[..] else {
            panic!("{found:?}")
        };
        assert_eq!((forecast.points, forecast.name.as_str()), (7, "the template"));
        assert!(
            forecast.held_out.len() == 7 && forecast.held_out.iter().all(|point| point.error().abs() < 1e-6)
        );
        let seconds: Vec<f64> = forecast
            .predictions
            .iter()
            .map(|prediction| prediction.step_seconds.median)
            .collect();
        let expected = [0.026, 0.026 + 0.008];
        for (found, expected) in seconds.iter().zip(expected) {
            assert!((found - expected).abs() < 1e-5, "{seconds:?}");
        }
        let last = &forecast.predictions[1];
        assert!((last.efficiency - 26.0 / 34.0).abs() < 1e-6 && last.step_seconds.least > 0.0339);
        // 16 ranks train on 256 images in 34 ms: a million images need 2,125 rank-seconds.
        assert!(
            (last.rank_hours_per_million_images - 2125.0 / 3600.0).abs() < 1e-4,
            "{last:?}"
        );
        // 10 ms + 1 ms per image: 256 instead of 128 images gain 3.6 %.
        assert_eq!(
            forecast.enough_images[0],
            EnoughImages {
                ranks: 1,
                micro_batch_size: 128,
                is_measured: false
            }
        );
    }

    #[test]
    fn a_run_that_variants_share_is_in_the_model_of_each() {
        let plan = plan(
            "[{name: s, mode: Strong, ranks: [1, 2, 4], variants: [{name: one a node}, \
             {name: two a node, spec: {workers: {gpusPerNode: 2}}}]}]",
        );
        let measured: Vec<_> = plan.runs.iter().map(|of| vec![Ok(run(of, 1.0))]).collect();
        let found = forecasts(&plan, &measured, &Predict::default());
        let found: Vec<(&str, usize)> = found
            .iter()
            .map(|forecast| (forecast.name.as_str(), forecast.points))
            .collect();
        assert_eq!(found, [("one a node", 3), ("two a node", 3)]);
    }

    #[test]
    fn a_point_that_alone_has_the_most_ranks_is_predicted_with_all_of_them_on_its_machine() {
        let plan = plan(
            "[{name: s, mode: Strong, ranks: [1, 2, 4, 8]}, {name: b, mode: Batch, ranks: [1, 2], microBatchSize: [4, 64]}]",
        );
        // Each other rank on the machine adds half an image's cost per image.
        let on_one_machine = |of: &Run| {
            let (ranks, images) = (of.config.world_size(), of.config.training.micro_batch_size);
            let mut found = run(of, 1.0);
            let lost = 0.0005 * f64::from(images) * f64::from(ranks - 1);
            found.phases.forward += lost;
            found.step_seconds += lost;
            found.ranks_on_machine = Some(ranks);
            found
        };
        let measured: Vec<_> = plan.runs.iter().map(|of| vec![Ok(on_one_machine(of))]).collect();
        let found = forecasts(&plan, &measured, &predict("{ranks: [16]}"));
        let [forecast] = &found[..] else {
            panic!("{found:?}")
        };
        for point in &forecast.held_out {
            assert!(point.error().abs() < 1e-6, "{point:?}");
        }
        // No machine had more than 8 ranks.
        let images = f64::from(forecast.micro_batch_size);
        let compute = forecast.predictions[0].parts.compute;
        assert!(
            (compute - (0.01 + (0.001 + 0.0005 * 7.0) * images)).abs() < 1e-6,
            "{compute}"
        );

        // If the ranks on a machine are unknown, each node counts as a machine.
        let unknown: Vec<_> = plan.runs.iter().map(|of| vec![Ok(run(of, 1.0))]).collect();
        let found = forecasts(&plan, &unknown, &Predict::default());
        assert_eq!(found[0].model.ranks_on_machine, 1);
    }

    #[test]
    fn repetitions_that_differ_widen_what_is_told() {
        let plan = plan(SWEEPS);
        let measured: Vec<_> = plan
            .runs
            .iter()
            .map(|of| vec![Ok(run(of, 0.8)), Ok(run(of, 1.2))])
            .collect();
        let found = forecasts(&plan, &measured, &predict("{ranks: [16]}"));
        let step = found[0].predictions[0].step_seconds;
        assert!(
            step.least < 0.95 * step.median && step.most > 1.05 * step.median,
            "{step:?}"
        );
    }

    #[test]
    fn jobs_that_differ_by_more_than_ranks_and_batch_have_models_of_their_own() {
        let plan = plan(
            "[{name: s, mode: Strong, ranks: [1, 2, 4], variants: [{name: a}, {name: b, spec: {training: {precision: bf16}}}, \
             {name: uneven, speeds: [1.0, 0.5]}, {name: mixed, spec: {placement: {homogeneity: Preferred}}}]}]",
        );
        let measured: Vec<_> = plan.runs.iter().map(|of| vec![Ok(run(of, 1.0))]).collect();
        let names = |measured: &Measured| -> Vec<String> {
            forecasts(&plan, measured, &Predict::default())
                .into_iter()
                .map(|forecast| forecast.name)
                .collect()
        };
        assert_eq!(names(&measured), ["a", "b"]);
        let mut failed = measured;
        failed[0] = vec![Err("it broke".into())];
        assert_eq!(names(&failed), ["b"], "two points are too few");
    }

    #[test]
    fn jobs_that_exchange_activations_have_no_model() {
        let plan = plan(
            "[{name: s, mode: Strong, ranks: [2, 4, 8], variants: [{name: whole}, \
             {name: divided, spec: {model: {heads: 2}, parallelism: {tensor: 2, acrossNodes: true}}}]}]",
        );
        let measured: Vec<_> = plan.runs.iter().map(|of| vec![Ok(run(of, 1.0))]).collect();
        let found = forecasts(&plan, &measured, &Predict::default());
        let names: Vec<&str> = found.iter().map(|forecast| forecast.name.as_str()).collect();
        assert_eq!(names, ["whole"]);
    }

    #[test]
    fn what_is_measured_is_told_by_ranks() {
        let plan = plan(
            "[{name: s, mode: Strong, ranks: [1, 2, 4]}, {name: b, mode: Batch, ranks: [1], microBatchSize: [4, 256]}]",
        );
        let measured: Vec<_> = plan.runs.iter().map(|of| vec![Ok(run(of, 1.0))]).collect();
        let found = forecasts(&plan, &measured, &Predict::default());
        let told: Vec<bool> = found[0]
            .enough_images
            .iter()
            .map(|enough| enough.is_measured)
            .collect();
        assert_eq!(told, [true, false, false]);
    }

    #[test]
    fn ranks_are_predicted_only_from_several_numbers_of_them() {
        let plan = plan("[{name: b, mode: Batch, ranks: [2], microBatchSize: [4, 16, 64]}]");
        let measured: Vec<_> = plan.runs.iter().map(|of| vec![Ok(run(of, 1.0))]).collect();
        let found = forecasts(&plan, &measured, &predict("{ranks: [1, 64]}"));
        assert!(!found[0].is_predictable && found[0].predictions.is_empty());
    }

    #[test]
    fn runs_that_differ_by_their_data_are_one_point_and_nodes_make_another_job() {
        let of_data = plan(
            "[{name: s, mode: Strong, ranks: [1, 2, 4]}, {name: w, mode: Weak, ranks: [1, 2, 4], fractionPerRank: 0.125}]",
        );
        let measured: Vec<_> = of_data.runs.iter().map(|of| vec![Ok(run(of, 1.0))]).collect();
        let found = forecasts(&of_data, &measured, &Predict::default());
        assert_eq!((measured.len(), found.len(), found[0].points), (6, 1, 3));
        let of_nodes = plan(
            "[{name: s, mode: Strong, ranks: [2, 4, 8], variants: [{name: many}, {name: few, spec: {workers: {gpusPerNode: 8}}}]}]",
        );
        let measured: Vec<_> = of_nodes.runs.iter().map(|of| vec![Ok(run(of, 1.0))]).collect();
        let found = forecasts(&of_nodes, &measured, &Predict::default());
        let names: Vec<&str> = found.iter().map(|forecast| forecast.name.as_str()).collect();
        assert_eq!(names, ["many", "few"]);
    }
}
