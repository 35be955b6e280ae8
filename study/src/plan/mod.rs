//! Turns a study's manifest into points, and into the runs that measure them.

mod check;
mod job;
mod key;

use std::time::Duration;

use contract::{Measurement, RunConfig};
use crds::ViTTrainingJobSpec;
use crds::spec::Homogeneity;
use crds::study::{GlobalBatch, Mode, Sweep, Variant, ViTScalingStudySpec};
use serde::Serialize;
use serde_json::{Value, json};

use check::check;

/// All points and runs of a study.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// In the order of the manifest.
    pub points: Vec<Point>,
    /// Equal points of several sweeps share a run.
    pub runs: Vec<Run>,
    /// How often each run is repeated.
    pub repetitions: u32,
    /// Steps at the start of a run that are excluded from times.
    pub warmup_steps: u32,
    /// How often a run is retried after a transient failure.
    pub retries: u32,
    /// How long a run may last.
    pub timeout: Duration,
}

/// A point of a sweep.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Point {
    /// Name of the sweep.
    pub sweep: String,
    /// What the sweep varies.
    pub mode: Mode,
    /// Number of ranks.
    pub ranks: u32,
    /// Images of a rank's micro-batch.
    pub micro_batch_size: u32,
    /// Micro-batches per step.
    pub gradient_accumulation_steps: u32,
    /// Images per step.
    pub global_batch_size: u64,
    /// Name of the variant, if the sweep has variants.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub variant: Option<String>,
    /// Speed of each rank, if slower devices are emulated.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub speeds: Vec<f64>,
    /// Most GPUs that it uses per node; its run, which other points may share, may need fewer.
    #[serde(skip)]
    pub gpus_per_node: i32,
    /// Images of a rank's micro-batch on the sweep's fewest ranks: smaller on more ranks with
    /// `globalBatch: Fixed`.
    #[serde(skip)]
    pub first_micro_batch_size: u32,
    /// Index of its run in [`Plan::runs`].
    #[serde(skip)]
    pub run: usize,
}

/// A job to train and measure.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// Identifies the job: equal jobs have equal keys in every study.
    pub key: String,
    /// Label for people: sweep, ranks and batch of its first point.
    pub label: String,
    /// The job of the first repetition.
    pub spec: ViTTrainingJobSpec,
    /// Speed of each rank, if slower devices are emulated.
    pub speeds: Vec<f64>,
    /// Ranks of a full node (`workers.gpusPerNode`). A run of fewer ranks has one smaller node.
    pub gpus_per_node: i32,
    /// The trainer's configuration of the first job.
    pub config: RunConfig,
}

/// Why a study cannot run: every violated rule.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{}", .0.join("; "))]
pub struct InvalidStudy(pub Vec<String>);

/// A point's values from its sweep's lists; `None` keeps the template's.
#[derive(Clone, Copy, Debug, Default)]
struct Choice<'a> {
    ranks: Option<i32>,
    micro_batch_size: Option<i32>,
    accumulation: Option<i32>,
    variant: Option<&'a Variant>,
}

/// Expands a study into its points and the runs that they need.
///
/// # Errors
/// All violated rules.
pub fn plan(study: &ViTScalingStudySpec) -> Result<Plan, InvalidStudy> {
    let mut problems: Vec<String> = check(study).iter().map(|error| format!("spec.{error}")).collect();
    let mut plan = Plan {
        points: vec![],
        runs: vec![],
        repetitions: count(study.measure.repetitions),
        warmup_steps: count(study.measure.warmup_steps),
        retries: count(study.measure.retries),
        timeout: Duration::from_secs(count(study.measure.timeout_seconds).into()),
    };
    if problems.is_empty() {
        for sweep in &study.sweeps {
            // Only the first error of a sweep: the other points often have the same one.
            let added = choices(sweep)
                .into_iter()
                .try_for_each(|choice| plan.add(study, sweep, choice));
            problems.extend(added.and_then(|()| plan.check_variants(sweep)).err());
        }
    }
    if problems.is_empty() {
        Ok(plan)
    } else {
        Err(InvalidStudy(problems))
    }
}

impl Plan {
    /// Duration of training all runs one after the other, if ranks scale ideally, without starts and
    /// evaluations. `images_per_second` is the rate of one rank with the first run's model.
    /// `train_images` is the size of the data set, by default that of its format. `None` if it is
    /// unknown.
    pub fn duration(&self, images_per_second: f64, train_images: Option<u64>) -> Option<Duration> {
        let reference = self.runs.first()?.config.model.flops_per_image();
        let seconds = self.runs.iter().map(|run| {
            let config = &run.config;
            let images = train_images.or_else(|| config.data.known_images())? as f64 * config.data.fraction;
            let rate = images_per_second * reference / config.model.flops_per_image();
            Some(f64::from(config.training.epochs) * images / rate / f64::from(config.world_size()))
        });
        let once: f64 = seconds.sum::<Option<f64>>()?;
        Duration::try_from_secs_f64(once * f64::from(self.repetitions)).ok()
    }

    /// Refuses a variant with the same jobs as another: the report would repeat its numbers.
    fn check_variants(&self, sweep: &Sweep) -> Result<(), String> {
        let runs = |variant: &Variant| -> Vec<usize> {
            let of_variant = self.points.iter().filter(|point| {
                point.sweep == sweep.name && point.variant.as_deref() == Some(variant.name.as_str())
            });
            of_variant.map(|point| point.run).collect()
        };
        for (place, variant) in sweep.variants.iter().enumerate() {
            let own = runs(variant);
            if let Some(same) = sweep.variants[..place].iter().find(|other| runs(other) == own) {
                return Err(format!(
                    "spec.sweeps[{}].variants[{}] is the same job as variant {:?} at every point: variants must differ",
                    sweep.name, variant.name, same.name
                ));
            }
        }
        Ok(())
    }

    fn add(&mut self, study: &ViTScalingStudySpec, sweep: &Sweep, choice: Choice<'_>) -> Result<(), String> {
        let refused = |reason: String| {
            let (sweep, point) = (&sweep.name, choice.words());
            format!("the point {point} of spec.sweeps[{sweep}] is not a valid job: {reason}")
        };
        let run = job::run(study, sweep, choice).map_err(refused)?;
        let config = &run.config;
        let point = Point {
            sweep: sweep.name.clone(),
            mode: sweep.mode,
            ranks: config.world_size(),
            micro_batch_size: config.training.micro_batch_size,
            gradient_accumulation_steps: config.training.gradient_accumulation_steps,
            global_batch_size: config.global_batch_size(),
            variant: choice.variant.map(|variant| variant.name.clone()),
            speeds: run.speeds.clone(),
            gpus_per_node: run.gpus_per_node,
            first_micro_batch_size: match sweep.global_batch {
                GlobalBatch::Grows => config.training.micro_batch_size,
                GlobalBatch::Fixed => {
                    config.training.micro_batch_size * config.world_size() / job::fewest(sweep)
                }
            },
            run: 0,
        };
        let known = self.runs.iter().position(|known| known.key == run.key);
        let run = known.unwrap_or_else(|| {
            let label = point.label();
            self.runs.push(Run { label, ..run });
            self.runs.len() - 1
        });
        self.points.push(Point { run, ..point });
        Ok(())
    }
}

impl Run {
    /// The job of a repetition, counted from 0. Each has its own seed.
    pub fn job(&self, repetition: u32) -> ViTTrainingJobSpec {
        let mut spec = self.spec.clone();
        spec.training.seed += u64::from(repetition);
        spec
    }

    /// How a measurement differs from this run, if it does.
    pub fn mismatch(&self, found: &Measurement) -> Option<String> {
        let sizes = |ranks: u32, images: u64| format!("{ranks} ranks with {images} images a step");
        let wanted = sizes(self.config.world_size(), self.config.global_batch_size());
        let found = sizes(found.world_size, found.global_batch_size);
        (found != wanted).then(|| format!("it trained on {found} instead of {wanted}"))
    }

    /// Identifies a point's job without its ranks, batch, amount of data, and what does not change a
    /// step's time. `gpusPerNode` stays: the network between nodes differs from that within one.
    pub fn job_key(&self, point: &Point) -> String {
        let mut spec = serde_json::to_value(&self.spec).unwrap_or_default();
        for field in [
            "/workers/nodes",
            "/workers/gpusPerNode",
            "/training/microBatchSize",
            "/training/gradientAccumulationSteps",
            "/training/optimizer/learningRate",
            "/training/learningRateScaling",
            "/training/schedule",
            "/data/fraction",
            "/data/syntheticImages",
        ] {
            if let Some((object, field)) = field.rsplit_once('/')
                && let Some(object) = spec.pointer_mut(object).and_then(Value::as_object_mut)
            {
                object.remove(field);
            }
        }
        json!([spec, point.gpus_per_node, self.speeds.first()]).to_string()
    }

    /// Whether the cost model applies: all ranks are equally fast and exchange only gradients and
    /// weights, whose size does not depend on the images. A gang that may mix GPUs counts as mixed.
    pub fn follows_the_model(&self) -> bool {
        let parallelism = &self.config.parallelism;
        are_equal(&self.speeds)
            && self.spec.placement.homogeneity == Homogeneity::Required
            && parallelism.ranks_per_replica() == 1
            && !parallelism.shard_within_node
    }
}

/// Whether all speeds are equal.
pub fn are_equal(speeds: &[f64]) -> bool {
    speeds.iter().all(|speed| speed.total_cmp(&speeds[0]).is_eq())
}

impl Point {
    /// Sweep, ranks, batch and variant, as a valid folder name.
    fn label(&self) -> String {
        let mut label = format!("{}-r{}-b{}", self.sweep, self.ranks, self.micro_batch_size);
        if self.gradient_accumulation_steps > 1 {
            label += &format!("x{}", self.gradient_accumulation_steps);
        }
        if let Some(variant) = &self.variant {
            label += &format!("-{variant}");
        }
        label
            .replace(|letter: char| !letter.is_ascii_alphanumeric(), "-")
            .to_lowercase()
    }
}

impl Choice<'_> {
    fn words(&self) -> String {
        let number = |what: &str, number: Option<i32>| number.map(|number| format!("{what} {number}"));
        let words = [
            number("ranks", self.ranks),
            number("microBatchSize", self.micro_batch_size),
            number("gradientAccumulationSteps", self.accumulation),
            self.variant.map(|variant| format!("variant {:?}", variant.name)),
        ];
        let words: Vec<String> = words.into_iter().flatten().collect();
        if words.is_empty() {
            "of the template".into()
        } else {
            words.join(", ")
        }
    }
}

/// Every combination of a sweep's lists, the first list changing slowest.
fn choices(sweep: &Sweep) -> Vec<Choice<'_>> {
    fn or_none<T>(list: &[T]) -> Vec<Option<&T>> {
        if list.is_empty() {
            vec![None]
        } else {
            list.iter().map(Some).collect()
        }
    }
    let mut choices = Vec::new();
    for variant in or_none(&sweep.variants) {
        for ranks in or_none(&sweep.ranks) {
            for micro_batch_size in or_none(&sweep.micro_batch_size) {
                for accumulation in or_none(&sweep.gradient_accumulation_steps) {
                    choices.push(Choice {
                        ranks: ranks.copied(),
                        micro_batch_size: micro_batch_size.copied(),
                        accumulation: accumulation.copied(),
                        variant,
                    });
                }
            }
        }
    }
    choices
}

fn count(value: i32) -> u32 {
    u32::try_from(value).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const EXAMPLE: &str = include_str!("../../../examples/studies/digits.yaml");

    /// The example's template with other sweeps.
    fn planned(sweeps: &str) -> Result<Plan, InvalidStudy> {
        let mut study: crds::ViTScalingStudy = serde_saphyr::from_str(EXAMPLE).expect("a study");
        study.spec.sweeps = serde_saphyr::from_str(sweeps).expect("sweeps");
        plan(&study.spec)
    }

    fn message(sweeps: &str) -> String {
        planned(sweeps).expect_err("refused").to_string()
    }

    /// Ranks, micro-batch and global batch of each point.
    fn sizes(plan: &Plan) -> Vec<(u32, u32, u64)> {
        let size = |point: &Point| (point.ranks, point.micro_batch_size, point.global_batch_size);
        plan.points.iter().map(size).collect()
    }

    #[test]
    fn more_ranks_take_more_images_or_share_those_of_the_fewest() {
        let grows = planned("[{name: s, mode: Strong, ranks: [1, 2, 4]}]").expect("a plan");
        assert_eq!(sizes(&grows), [(1, 16, 16), (2, 16, 32), (4, 16, 64)]);
        let fixed = planned("[{name: s, mode: Strong, ranks: [2, 4], globalBatch: Fixed}]").expect("a plan");
        assert_eq!(sizes(&fixed), [(2, 16, 32), (4, 8, 32)]);
        assert_eq!(fixed.points[1].first_micro_batch_size, 16);
    }

    #[test]
    fn ranks_fill_nodes_and_data_grow_with_them() {
        let nodes = "variants: [{name: two a node, spec: {workers: {gpusPerNode: 2}}}]";
        let weak = planned(&format!(
            "[{{name: w, mode: Weak, ranks: [1, 2, 4], fractionPerRank: 0.25, {nodes}}}]"
        ))
        .expect("a plan");
        let shape = |run: &Run| {
            (
                run.config.nodes,
                run.config.ranks_per_node,
                run.config.data.fraction,
            )
        };
        let shapes: Vec<_> = weak.runs.iter().map(shape).collect();
        assert_eq!(shapes, [(1, 1, 0.25), (1, 2, 0.5), (2, 2, 1.0)]);
        let uneven = message(&format!("[{{name: s, mode: Strong, ranks: [1, 3], {nodes}}}]"));
        assert!(
            uneven.ends_with("3 ranks do not fill whole nodes: workers.gpusPerNode is 2"),
            "{uneven}"
        );
        let many = message("[{name: w, mode: Weak, ranks: [1, 5], fractionPerRank: 0.25}]");
        assert!(many.contains("the point ranks 5 of spec.sweeps[w]"), "{many}");
        assert!(
            many.ends_with("5 ranks would need 1.250 times the available images"),
            "{many}"
        );
    }

    #[test]
    fn points_that_are_the_same_share_a_run_and_repetitions_differ_by_seed() {
        let plan = planned(
            "[{name: s, mode: Strong, ranks: [1, 2]}, {name: b, mode: Batch, ranks: [2], microBatchSize: [8, 16]}]",
        )
        .expect("a plan");
        let runs: Vec<usize> = plan.points.iter().map(|point| point.run).collect();
        assert_eq!(runs, [0, 1, 2, 1]);
        let seeds: Vec<u64> = (0..3)
            .map(|repetition| plan.runs[0].job(repetition).training.seed)
            .collect();
        assert_eq!(seeds, [0, 1, 2]);
        assert_eq!(plan.runs[0].spec.training.epochs, 3, "measure.epochs");
        let keys: BTreeSet<&str> = plan.runs.iter().map(|run| run.key.as_str()).collect();
        assert_eq!(keys.len(), plan.runs.len());
    }

    #[test]
    fn variants_may_be_the_same_job_at_some_of_their_points() {
        let plan = planned(
            "[{name: s, mode: Strong, ranks: [1, 2], variants: [{name: one a node}, \
             {name: two a node, spec: {workers: {gpusPerNode: 2}}}]}]",
        )
        .expect("a plan");
        let runs: Vec<usize> = plan.points.iter().map(|point| point.run).collect();
        assert_eq!(runs, [0, 1, 0, 2], "a single rank is the same on any node");
        let same = message(
            "[{name: s, mode: Strong, ranks: [1, 2], variants: [{name: a, speeds: [0.5]}, {name: b, speeds: [0.5, 0.5, 0.1]}]}]",
        );
        assert!(
            same.contains("variants[b] is the same job as variant \"a\" at every point"),
            "{same}"
        );
    }

    #[test]
    fn a_study_lasts_as_long_as_its_runs_one_after_the_other() {
        let mut plan =
            planned("[{name: w, mode: Weak, ranks: [1, 2], fractionPerRank: 0.5}]").expect("a plan");
        // Three repetitions of three epochs: 720 and 1,440 images on one and two ranks at 10 images/s.
        let seconds = |plan: &Plan, images| plan.duration(10.0, images).map(|duration| duration.as_secs());
        assert_eq!(seconds(&plan, Some(1440)), Some(3 * 3 * (72 + 72)));
        assert_eq!(
            seconds(&plan, None),
            Some(3 * 3 * (2500 + 2500)),
            "CIFAR has 50,000 images"
        );
        plan.runs[1].config.model.depth *= 2;
        assert!(seconds(&plan, Some(1440)) > Some(3 * 3 * (72 + 130)));
        plan.runs[1].config.data.format = contract::DataFormat::ImageFolder;
        assert_eq!(seconds(&plan, None), None);
    }

    #[test]
    fn the_published_study_lasts_days() {
        let manifest = include_str!("../../../examples/studies/arxiv-2602-21081.yaml");
        let study: crds::ViTScalingStudy = serde_saphyr::from_str(manifest).expect("a study");
        let plan = plan(&study.spec).expect("a plan");
        // A T4 trains 27.6 images/s in fp32.
        let seconds = plan.duration(27.6, None).expect("CIFAR").as_secs();
        assert_eq!(
            (plan.runs.len(), seconds / 3600),
            (87, 244),
            "docs/reference/studies.md"
        );
    }

    /// Runs are stored as JSON and later compared with the plan's.
    #[test]
    fn a_run_is_the_same_once_it_was_written_and_read() {
        let plan =
            planned("[{name: w, mode: Weak, ranks: [1, 2, 3], fractionPerRank: 0.15}]").expect("a plan");
        assert!(
            plan.runs
                .iter()
                .any(|run| run.spec.data.fraction.to_string().len() > 10)
        );
        for run in &plan.runs {
            let written = serde_json::to_string(&run.job(0)).expect("serializes");
            let read: ViTTrainingJobSpec = serde_json::from_str(&written).expect("reads");
            assert_eq!(read, run.job(0));
        }
    }

    #[test]
    fn a_variant_changes_whatever_it_names_and_its_last_speed_is_of_all_further_ranks() {
        let plan = planned(
            "[{name: v, mode: Variants, ranks: [3], variants: [{name: plain}, \
             {name: Half Precision, speeds: [0.5, 0.25], without: [training.schedule], spec: {training: {precision: bf16}}}]}]",
        )
        .expect("a plan");
        let [plain, half] = &plan.runs[..] else {
            panic!("{:?}", plan.runs)
        };
        assert_eq!(
            (plain.label.as_str(), half.label.as_str()),
            ("v-r3-b16-plain", "v-r3-b16-half-precision")
        );
        assert_eq!(
            (plain.speeds.len(), &half.speeds[..]),
            (0, &[0.5, 0.25, 0.25][..])
        );
        assert_eq!(half.config.training.precision, contract::Precision::Bf16);
        let schedule = |run: &Run| run.spec.training.schedule.clone();
        assert_ne!(schedule(plain), crds::spec::Schedule::default());
        assert_eq!(
            schedule(half),
            crds::spec::Schedule::default(),
            "the template's schedule is removed"
        );
    }

    /// A field, and a part of the error that it causes.
    const REFUSED: &str = r#"
sweeps = []
  spec.sweeps is empty: must have at least one sweep
sweeps = [{name: s, mode: Strong, ranks: [2]}]
  spec.sweeps[s].ranks is a list of 1: mode Strong needs at least two values
sweeps = [{name: s, mode: Batch, microBatchSize: [8, 8]}]
  spec.sweeps[s].microBatchSize is 8 twice: values must differ
sweeps = [{name: s, mode: Strong, ranks: [0, 1]}]
  spec.sweeps[s].ranks[0] is 0: must be at least 1
sweeps = [{name: s, mode: Weak, ranks: [1, 2]}]
  spec.sweeps[s].fractionPerRank is missing: must be given with mode Weak, and with no other
sweeps = [{name: s, mode: Batch, microBatchSize: [8, 16], globalBatch: Fixed}]
  spec.sweeps[s].globalBatch is Fixed: needs ranks to divide the images among
sweeps = [{name: s, mode: Strong, ranks: [1, 3], globalBatch: Fixed}]
  the micro-batches of 1 ranks have 16 images together: must be a multiple of 3 ranks
sweeps = [{name: s, mode: Strong, ranks: [1, 2]}, {name: s, mode: Strong, ranks: [1, 2]}]
  spec.sweeps is "s" twice: names must differ
sweeps = [{name: s, mode: Variants, variants: [{name: a}, {name: a, speeds: [2.0]}]}]
  spec.sweeps[s].variants[a].speeds[0] is 2.0: must be at most 1
sweeps = [{name: s, mode: Variants, variants: [{name: a}, {name: b, spec: {external: {command: []}}}]}]
  the point variant "b" of spec.sweeps[s] is not a valid job: spec.external.command is empty: must name a program
sweeps = [{name: s, mode: Variants, variants: [{name: a}, {name: b, speeds: [0.5], spec: {external: {command: [x]}}}]}]
  the point variant "b" of spec.sweeps[s] is not a valid job: speeds are set with external: an external trainer cannot be slowed down
sweeps = [{name: s, mode: Variants, variants: [{name: a}, {name: b, spec: 3}]}]
  spec.sweeps[s].variants.spec is 3: must be fields of a ViTTrainingJob's spec
sweeps = [{name: ../s, mode: Strong, ranks: [1, 2]}]
  spec.sweeps is "../s": names must have 1 to 40 lowercase letters, digits and inner hyphens
sweeps = [{name: s, mode: Variants, variants: [{name: a}, {name: b, spec: {training: 5}}]}]
  invalid type
sweeps = [{name: s, mode: Strong, ranks: [1, 2], variants: [{name: b, spec: {workers: cpu}}]}]
  invalid type
sweeps = [{name: s, mode: Strong, ranks: [1, 2], variants: [{name: b, spec: {workers: {gpusPerNode: 0}}}]}]
  workers.gpusPerNode is 0: must be at least 1
sweeps = [{name: s, mode: Variants, variants: [{name: a}, {name: b, spec: {training: {seed: 9223372036854775806}}}]}]
  training.seed is 9223372036854775806: leaves no room for 3 repetitions, each with its own seed
sweeps = [{name: s, mode: Variants, variants: [{name: a}, {name: b, spec: {elastic: {minNodes: 1}}}]}]
  elastic is set: a point has a fixed number of ranks, remove it
sweeps = [{name: s, mode: Variants, variants: [{name: a}, {name: b, spec: {parallelism: {strategy: Auto}}}]}]
  parallelism.strategy is Auto: a point needs a fixed strategy, make each one a variant
sweeps = [{name: s, mode: Variants, variants: [{name: a}, {name: b, spec: {training: {schedule: null}}}]}]
  spec.sweeps[s].variants[b].spec.training.schedule is null: must have a value; to remove the template's field, list training.schedule in without
sweeps = [{name: s, mode: Variants, variants: [{name: a}, {name: b, spec: {training: {}}}]}]
  spec.sweeps[s].variants[b] is the same job as variant "a" at every point: variants must differ
sweeps = [{name: s, mode: Variants, variants: [{name: a}, {name: b, without: [training.shedule]}]}]
  is not a valid job: without names training.shedule: the template's spec has no such field
sweeps = [{name: s, mode: Variants, variants: [{name: a}, {name: b, without: [model.heads.training]}]}]
  is not a valid job: without names model.heads.training: the template's spec has no such field
sweeps = [{name: s, mode: Variants, variants: [{name: a}, {name: b, spec: {model: {heads: 5}}}]}]
  the point variant "b" of spec.sweeps[s] is not a valid job: spec.model.hiddenSize is 96: must be a multiple of model.heads (5)
sweeps = [{name: s, mode: Variants, variants: [{name: a}, {name: b, spec: {training: {epoch: 5}}}]}]
  unknown field `epoch`
sweeps = [{name: s, mode: Variants, variants: [{name: a}, {name: b, speeds: [0.5], spec: {workers: {device: auto}}}]}]
  speeds need workers.device cpu: slower GPUs cannot be emulated
measure.epochs = 0
  spec.measure.epochs is 0: must be at least 1
measure.repetitions = 101
  spec.measure.repetitions is 101: must be at most 100
predict.ranks = [2, 0]
  spec.predict.ranks[1] is 0: must be at least 1
predict.ranks = [2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2]
  spec.predict.ranks is a list of 33: must have at most 32
template.spec.training.epochs = 0
  spec.template.spec.training.epochs is 0: must be at least 1
sweeps = [{name: v, mode: Variants, variants: [{name: a}, {name: ''}]}]
  spec.sweeps[v].variants.name is "": must have 1 to 40 characters
"#;

    #[test]
    fn what_cannot_be_measured_is_named() {
        let lines: Vec<&str> = REFUSED.trim().lines().collect();
        for case in lines.chunks(2) {
            let (path, value) = case[0].split_once(" = ").expect("a field and its value");
            let mut study: Value = serde_saphyr::from_str(EXAMPLE).expect("a study");
            let spec = &mut study["spec"];
            let place = path.split('.').fold(spec, |place, key| &mut place[key]);
            *place = serde_saphyr::from_str(value).expect("YAML");
            let study: crds::ViTScalingStudy = serde_json::from_value(study).expect("a study");
            let message = plan(&study.spec).expect_err(case[0]).to_string();
            assert!(message.contains(case[1].trim_start()), "{case:#?}: {message}");
        }
    }

    #[test]
    fn the_points_of_all_sweeps_together_are_bounded() {
        let sweeps = |last: i32| {
            let [first, values] = [16, 32].map(|last| (1..=last).collect::<Vec<i32>>());
            let rest: Vec<i32> = (1..=last).collect();
            let lists = |rest| {
                format!("mode: Batch, microBatchSize: {values:?}, gradientAccumulationSteps: {rest:?}")
            };
            format!("[{{name: a, {}}}, {{name: b, {}}}]", lists(&first), lists(&rest))
        };
        let refused = "spec.sweeps is 1024 points in total: must be at most 1000";
        assert_eq!(message(&sweeps(16)), refused);
        assert_eq!(planned(&sweeps(15)).expect("a plan").points.len(), 992);
    }
}
