//! From a study's manifest to its points, and to the runs that measure them.

use std::collections::BTreeSet;
use std::time::Duration;

use contract::{Device, RunConfig};
use crds::study::{GlobalBatch, Mode, Sweep, Variant, ViTScalingStudySpec};
use crds::{ViTTrainingJob, ViTTrainingJobSpec};
use serde::Serialize;
use serde_json::{Value, json};

/// Everything that a study trains.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// In the order of the manifest.
    pub points: Vec<Point>,
    /// Points that are the same, in several sweeps, share a run.
    pub runs: Vec<Run>,
    /// How often each run is repeated.
    pub repetitions: u32,
    /// Steps at the start of a run that times leave out.
    pub warmup_steps: u64,
    /// How long a run may take.
    pub timeout: Duration,
}

/// A place on a sweep.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Point {
    /// Name of the sweep.
    pub sweep: String,
    /// What the sweep is about.
    pub mode: Mode,
    /// Number of ranks.
    pub ranks: u32,
    /// Images of a rank's micro-batch.
    pub micro_batch_size: u32,
    /// Micro-batches of a step.
    pub gradient_accumulation_steps: u32,
    /// Images of a step.
    pub global_batch_size: u64,
    /// Name of the variant, where the sweep has some.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub variant: Option<String>,
    /// Speed of each rank, where slower devices are emulated.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub speeds: Vec<f64>,
    /// Images of a rank's micro-batch on the sweep's fewest ranks: with `globalBatch: Fixed` more ranks take fewer.
    #[serde(skip)]
    pub first_micro_batch_size: u32,
    /// Place of its run in [`Plan::runs`].
    #[serde(skip)]
    pub run: usize,
}

/// A job to train and measure.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// Tells it from all other runs: equal for equal jobs, whatever study they are in.
    pub key: String,
    /// A few words for people: sweep, ranks and batch of its first point.
    pub label: String,
    /// The job of each repetition, which differ by seed.
    pub jobs: Vec<ViTTrainingJobSpec>,
    /// Speed of each rank, where slower devices are emulated.
    pub speeds: Vec<f64>,
    /// The command of another trainer, where it is not vit-trainer that runs the job.
    pub external: Option<Vec<String>>,
    /// What the trainer makes of the first job.
    pub config: RunConfig,
}

/// Why a study cannot be run: every broken rule.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
pub struct InvalidStudy(pub Vec<Problem>);

/// A broken rule.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Problem {
    /// A field of the study.
    #[error("spec.{field} is {value}: {expected}")]
    Field {
        /// Its path.
        field: String,
        /// The value it has.
        value: String,
        /// What would be right.
        expected: String,
    },
    /// A point makes no job.
    #[error("the point {point} of spec.sweeps[{sweep}] makes no job: {reason}")]
    Point {
        /// Name of the sweep.
        sweep: String,
        /// Ranks, batch and variant.
        point: String,
        /// What is wrong with the job.
        reason: String,
    },
}

/// What a point takes from the lists of its sweep; `None` leaves the template's.
#[derive(Clone, Copy, Debug, Default)]
struct Choice<'a> {
    ranks: Option<i32>,
    micro_batch_size: Option<i32>,
    accumulation: Option<i32>,
    variant: Option<&'a Variant>,
}

/// The points of a study, and the runs that they need.
pub fn plan(study: &ViTScalingStudySpec) -> Result<Plan, InvalidStudy> {
    let mut problems = Vec::new();
    check(study, &mut problems);
    let mut plan = Plan {
        points: vec![],
        runs: vec![],
        repetitions: count(study.measure.repetitions),
        warmup_steps: u64::from(count(study.measure.warmup_steps)),
        timeout: Duration::from_secs(count(study.measure.timeout_seconds).into()),
    };
    if problems.is_empty() {
        for sweep in &study.sweeps {
            for choice in choices(sweep) {
                // What is wrong with one point of a sweep is often wrong with all.
                if let Err(problem) = plan.add(study, sweep, choice) {
                    problems.push(problem);
                    break;
                }
            }
        }
    }
    if problems.is_empty() {
        Ok(plan)
    } else {
        Err(InvalidStudy(problems))
    }
}

impl Plan {
    fn add(&mut self, study: &ViTScalingStudySpec, sweep: &Sweep, choice: Choice<'_>) -> Result<(), Problem> {
        let refused = |reason: String| Problem::Point {
            sweep: sweep.name.clone(),
            point: choice.words(),
            reason,
        };
        let spec = job(study, sweep, choice).map_err(refused)?;
        let config = config(&spec).map_err(refused)?;
        let speeds = speeds(choice.variant, &config).map_err(refused)?;
        let point = Point {
            sweep: sweep.name.clone(),
            mode: sweep.mode,
            ranks: config.world_size(),
            micro_batch_size: config.training.micro_batch_size,
            gradient_accumulation_steps: config.training.gradient_accumulation_steps,
            global_batch_size: config.global_batch_size(),
            variant: choice.variant.map(|variant| variant.name.clone()),
            speeds: speeds.clone(),
            first_micro_batch_size: match sweep.global_batch {
                GlobalBatch::Grows => config.training.micro_batch_size,
                GlobalBatch::Fixed => config.training.micro_batch_size * config.world_size() / fewest(sweep),
            },
            run: 0,
        };
        let external = choice.variant.and_then(|variant| variant.external.as_ref());
        let external = external.map(|external| external.command.clone());
        let key = key(&spec, &speeds, external.as_deref());
        let run = self
            .runs
            .iter()
            .position(|run| run.key == key)
            .unwrap_or_else(|| {
                self.runs.push(Run {
                    key,
                    label: point.label(),
                    jobs: (0..study.measure.repetitions)
                        .map(|repetition| seeded(&spec, repetition))
                        .collect(),
                    speeds,
                    external,
                    config,
                });
                self.runs.len() - 1
            });
        self.points.push(Point { run, ..point });
        Ok(())
    }
}

impl Run {
    /// Whether no rank is slower than another on purpose.
    pub(crate) fn has_like_ranks(&self) -> bool {
        are_alike(&self.speeds)
    }
}

/// Whether speeds are one and the same.
pub(crate) fn are_alike(speeds: &[f64]) -> bool {
    speeds.iter().all(|speed| speed.total_cmp(&speeds[0]).is_eq())
}

impl Point {
    /// What tells the point from others, in a few words.
    fn label(&self) -> String {
        let mut label = format!("{}-r{}-b{}", self.sweep, self.ranks, self.micro_batch_size);
        if self.gradient_accumulation_steps > 1 {
            label += &format!("x{}", self.gradient_accumulation_steps);
        }
        if let Some(variant) = &self.variant {
            let slug = variant.chars().map(|letter| {
                if letter.is_ascii_alphanumeric() {
                    letter
                } else {
                    '-'
                }
            });
            label.push('-');
            label.extend(slug.flat_map(char::to_lowercase));
        }
        label
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

/// What can be wrong without looking at a job.
fn check(study: &ViTScalingStudySpec, problems: &mut Vec<Problem>) {
    let mut refuse = |field: String, value: String, expected: &str| {
        let expected = expected.to_owned();
        problems.push(Problem::Field {
            field,
            value,
            expected,
        });
    };
    let measure = &study.measure;
    for (field, value, least) in [
        ("measure.epochs", measure.epochs, 1),
        ("measure.warmupSteps", measure.warmup_steps, 0),
        ("measure.repetitions", measure.repetitions, 1),
        ("measure.timeoutSeconds", measure.timeout_seconds, 1),
    ] {
        if value < least {
            refuse(
                field.into(),
                value.to_string(),
                &format!("must be at least {least}"),
            );
        }
    }
    if study.template.spec.elastic.is_some() {
        refuse(
            "template.spec.elastic".into(),
            "given".into(),
            "a point has one number of ranks: leave it out",
        );
    }
    if study.sweeps.is_empty() {
        refuse("sweeps".into(), "empty".into(), "must name what is measured");
    }
    let mut names = BTreeSet::new();
    for sweep in &study.sweeps {
        let field = |name: &str| format!("sweeps[{}].{name}", sweep.name);
        if !names.insert(&sweep.name) {
            refuse(
                "sweeps".into(),
                format!("{:?} twice", sweep.name),
                "names must differ",
            );
        }
        let (axis, values) = match sweep.mode {
            Mode::Strong | Mode::Weak => ("ranks", sweep.ranks.len()),
            Mode::Batch => ("microBatchSize", sweep.micro_batch_size.len()),
            Mode::Accumulation => (
                "gradientAccumulationSteps",
                sweep.gradient_accumulation_steps.len(),
            ),
            Mode::Variants => ("variants", sweep.variants.len()),
        };
        if values < 2 {
            refuse(
                field(axis),
                format!("a list of {values}"),
                &format!("mode {:?} needs at least two values", sweep.mode),
            );
        }
        if (sweep.mode == Mode::Weak) != sweep.fraction_per_rank.is_some() {
            let given = if sweep.fraction_per_rank.is_some() {
                "given"
            } else {
                "missing"
            };
            refuse(
                field("fractionPerRank"),
                given.into(),
                "must be given with mode Weak, and with no other",
            );
        }
        if sweep.global_batch == GlobalBatch::Fixed && sweep.ranks.is_empty() {
            refuse(
                field("globalBatch"),
                "Fixed".into(),
                "needs ranks to divide the images among",
            );
        }
        for (name, list) in [
            ("ranks", &sweep.ranks),
            ("microBatchSize", &sweep.micro_batch_size),
            ("gradientAccumulationSteps", &sweep.gradient_accumulation_steps),
        ] {
            let mut values = BTreeSet::new();
            for value in list {
                if *value < 1 {
                    refuse(field(name), value.to_string(), "must be at least 1");
                }
                if !values.insert(value) {
                    refuse(field(name), format!("{value} twice"), "values must differ");
                }
            }
        }
        let mut variants = BTreeSet::new();
        for variant in &sweep.variants {
            if !variant.spec.is_null() && !variant.spec.is_object() {
                refuse(
                    field("variants.spec"),
                    variant.spec.to_string(),
                    "must be fields of a ViTTrainingJob's spec",
                );
            }
            if let Some(external) = &variant.external {
                if external.command.is_empty() {
                    refuse(
                        field("variants.external.command"),
                        "empty".into(),
                        "must name a program",
                    );
                }
                if !variant.speeds.is_empty() {
                    refuse(
                        field("variants.speeds"),
                        "given".into(),
                        "another trainer cannot be slowed: leave speeds or external out",
                    );
                }
            }
            if !variants.insert(&variant.name) {
                refuse(
                    field("variants"),
                    format!("{:?} twice", variant.name),
                    "names must differ",
                );
            }
            if let Some(speed) = variant.speeds.iter().find(|speed| !(1e-4..=1.0).contains(*speed)) {
                refuse(
                    field("variants.speeds"),
                    speed.to_string(),
                    "must be between 0.0001 and 1, the speed of the machine",
                );
            }
        }
    }
}

/// Every combination of what a sweep's lists name, the first list changing slowest.
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

/// The job of a point.
fn job(study: &ViTScalingStudySpec, sweep: &Sweep, choice: Choice<'_>) -> Result<ViTTrainingJobSpec, String> {
    let mut spec = serde_json::to_value(&study.template.spec).map_err(|error| error.to_string())?;
    if let Some(patch) = choice
        .variant
        .map(|variant| &variant.spec)
        .filter(|patch| !patch.is_null())
    {
        json_patch::merge(&mut spec, patch);
    }
    let number = |spec: &Value, section: &str, field: &str| spec[section][field].as_i64().unwrap_or(1);
    spec["training"]["epochs"] = json!(study.measure.epochs);
    if let Some(accumulation) = choice.accumulation {
        spec["training"]["gradientAccumulationSteps"] = json!(accumulation);
    }
    if let Some(images) = choice.micro_batch_size {
        spec["training"]["microBatchSize"] = json!(images);
    }
    if let Some(ranks) = choice.ranks.map(i64::from) {
        let per_node = number(&spec, "workers", "gpusPerNode");
        let (nodes, per_node) = if ranks < per_node {
            (1, ranks)
        } else {
            (ranks / per_node, per_node)
        };
        if nodes * per_node != ranks {
            return Err(format!(
                "{ranks} ranks do not fill nodes of workers.gpusPerNode {per_node}"
            ));
        }
        spec["workers"]["nodes"] = json!(nodes);
        spec["workers"]["gpusPerNode"] = json!(per_node);
        if sweep.global_batch == GlobalBatch::Fixed {
            let fewest = i64::from(fewest(sweep));
            let images = number(&spec, "training", "microBatchSize") * fewest;
            if images % ranks != 0 {
                return Err(format!(
                    "the {images} images that {fewest} ranks take together are no multiple of {ranks} ranks"
                ));
            }
            spec["training"]["microBatchSize"] = json!(images / ranks);
        }
        if let Some(fraction) = sweep.fraction_per_rank {
            let fraction = fraction * ranks as f64;
            if fraction > 1.0 + 1e-9 {
                return Err(format!(
                    "{ranks} ranks would train on {fraction:.3} times the images that there are"
                ));
            }
            spec["data"]["fraction"] = json!(fraction.min(1.0));
        }
    }
    serde_json::from_value(spec).map_err(|error| error.to_string())
}

fn fewest(sweep: &Sweep) -> u32 {
    sweep.ranks.iter().copied().min().map_or(1, count)
}

/// The same job with a seed of its own for each repetition.
fn seeded(spec: &ViTTrainingJobSpec, repetition: i32) -> ViTTrainingJobSpec {
    let mut spec = spec.clone();
    spec.training.seed += i64::from(repetition);
    spec
}

fn config(spec: &ViTTrainingJobSpec) -> Result<RunConfig, String> {
    let job = ViTTrainingJob::new("point", spec.clone());
    crds::validate(&job)
        .map(|job| job.run_config)
        .map_err(|error| error.to_string())
}

/// The speed of each rank; none where nothing is emulated.
fn speeds(variant: Option<&Variant>, config: &RunConfig) -> Result<Vec<f64>, String> {
    let Some((given, last)) =
        variant.and_then(|variant| variant.speeds.last().map(|last| (&variant.speeds, *last)))
    else {
        return Ok(vec![]);
    };
    if config.device != Device::Cpu {
        return Err("speeds need workers.device cpu: a GPU cannot be made to compute as a slower one".into());
    }
    let ranks = config.world_size() as usize;
    Ok(given
        .iter()
        .copied()
        .chain(std::iter::repeat(last))
        .take(ranks)
        .collect())
}

/// Eight hexadecimal digits of everything that a run is made from.
fn key(spec: &ViTTrainingJobSpec, speeds: &[f64], external: Option<&[String]>) -> String {
    let all = json!([spec, speeds, external]).to_string();
    format!("{:08x}", crc32fast::hash(all.as_bytes()))
}

fn count(value: i32) -> u32 {
    u32::try_from(value).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: &str = include_str!("../../examples/studies/digits.yaml");

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
            uneven.ends_with("3 ranks do not fill nodes of workers.gpusPerNode 2"),
            "{uneven}"
        );
        let many = message("[{name: w, mode: Weak, ranks: [1, 5], fractionPerRank: 0.25}]");
        assert!(many.contains("the point ranks 5 of spec.sweeps[w]"), "{many}");
        assert!(
            many.ends_with("5 ranks would train on 1.250 times the images that there are"),
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
        let seeds: Vec<i64> = plan.runs[0].jobs.iter().map(|job| job.training.seed).collect();
        assert_eq!(seeds, [0, 1, 2]);
        assert_eq!(plan.runs[0].jobs[0].training.epochs, 3, "measure.epochs");
        let keys: BTreeSet<&str> = plan.runs.iter().map(|run| run.key.as_str()).collect();
        assert_eq!(keys.len(), plan.runs.len());
    }

    #[test]
    fn a_variant_changes_whatever_it_names_and_its_last_speed_is_of_all_further_ranks() {
        let plan = planned(
            "[{name: v, mode: Variants, ranks: [3], variants: [{name: plain}, \
             {name: Half Precision, speeds: [0.5, 0.25], spec: {training: {precision: bf16, schedule: null}}}]}]",
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
        let schedule = |run: &Run| run.jobs[0].training.schedule.clone();
        assert_ne!(schedule(plain), crds::spec::Schedule::default());
        assert_eq!(
            schedule(half),
            crds::spec::Schedule::default(),
            "null takes the template's away"
        );
    }

    #[test]
    fn what_cannot_be_measured_is_named() {
        for (sweeps, expected) in [
            ("[]", "spec.sweeps is empty: must name what is measured"),
            (
                "[{name: s, mode: Strong, ranks: [2]}]",
                "spec.sweeps[s].ranks is a list of 1: mode Strong needs at least two values",
            ),
            (
                "[{name: s, mode: Batch, microBatchSize: [8, 8]}]",
                "spec.sweeps[s].microBatchSize is 8 twice: values must differ",
            ),
            (
                "[{name: s, mode: Strong, ranks: [0, 1]}]",
                "spec.sweeps[s].ranks is 0: must be at least 1",
            ),
            (
                "[{name: s, mode: Weak, ranks: [1, 2]}]",
                "spec.sweeps[s].fractionPerRank is missing: must be given with mode Weak, and with no other",
            ),
            (
                "[{name: s, mode: Batch, microBatchSize: [8, 16], globalBatch: Fixed}]",
                "spec.sweeps[s].globalBatch is Fixed: needs ranks to divide the images among",
            ),
            (
                "[{name: s, mode: Strong, ranks: [1, 3], globalBatch: Fixed}]",
                "the 16 images that 1 ranks take together are no multiple of 3 ranks",
            ),
            (
                "[{name: s, mode: Strong, ranks: [1, 2]}, {name: s, mode: Strong, ranks: [1, 2]}]",
                "spec.sweeps is \"s\" twice: names must differ",
            ),
            (
                "[{name: s, mode: Variants, variants: [{name: a}, {name: a, speeds: [2.0]}]}]",
                "spec.sweeps[s].variants.speeds is 2: must be between 0.0001 and 1, the speed of the machine",
            ),
            (
                "[{name: s, mode: Variants, variants: [{name: a}, {name: b, external: {command: []}}]}]",
                "spec.sweeps[s].variants.external.command is empty: must name a program",
            ),
            (
                "[{name: s, mode: Variants, variants: [{name: a}, {name: b, speeds: [0.5], external: {command: [x]}}]}]",
                "spec.sweeps[s].variants.speeds is given: another trainer cannot be slowed",
            ),
            (
                "[{name: s, mode: Variants, variants: [{name: a}, {name: b, spec: 3}]}]",
                "spec.sweeps[s].variants.spec is 3: must be fields of a ViTTrainingJob's spec",
            ),
            (
                "[{name: s, mode: Variants, variants: [{name: a}, {name: b, spec: {model: {heads: 5}}}]}]",
                "the point variant \"b\" of spec.sweeps[s] makes no job: spec.model.hiddenSize is 96: must be a multiple of model.heads (5)",
            ),
            (
                "[{name: s, mode: Variants, variants: [{name: a}, {name: b, spec: {training: {epoch: 5}}}]}]",
                "unknown field `epoch`",
            ),
            (
                "[{name: s, mode: Variants, variants: [{name: a}, {name: b, speeds: [0.5], spec: {workers: {device: auto}}}]}]",
                "speeds need workers.device cpu: a GPU cannot be made to compute as a slower one",
            ),
        ] {
            let message = message(sweeps);
            assert!(message.contains(expected), "{sweeps}: {message}");
        }
        let mut study: crds::ViTScalingStudy = serde_saphyr::from_str(EXAMPLE).expect("a study");
        study.spec.template.spec.elastic = Some(serde_saphyr::from_str("{minNodes: 1}").expect("elastic"));
        study.spec.measure.repetitions = 0;
        let message = plan(&study.spec).expect_err("refused").to_string();
        assert_eq!(
            message,
            "spec.measure.repetitions is 0: must be at least 1; spec.template.spec.elastic is given: a point has one number of ranks: leave it out"
        );
    }
}
