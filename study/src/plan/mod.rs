//! From a study's manifest to its points, and to the runs that measure them.

mod check;
mod job;

use std::time::Duration;

use contract::{Measurement, RunConfig};
use crds::ViTTrainingJobSpec;
use crds::spec::Homogeneity;
use crds::study::{GlobalBatch, Mode, Sweep, Variant, ViTScalingStudySpec};
use serde::Serialize;
use serde_json::{Value, json};

pub(crate) use check::MEASURED_NETWORK;
use check::check;
use job::Job;

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
    /// How often a run is repeated that failed for a reason that may pass.
    pub retries: u32,
    /// How long a run may take.
    pub timeout: Duration,
    /// How long a run may wait for GPUs in a cluster.
    pub pending_timeout: Option<Duration>,
    /// Images of a micro-batch of the template.
    pub micro_batch_size: u32,
    /// Micro-batches of a step of the template.
    pub gradient_accumulation_steps: u32,
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
    /// GPUs that it takes of a node at most: its run, which other points may share, may need fewer.
    #[serde(skip)]
    pub gpus_per_node: i32,
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
    /// The job of the first repetition.
    pub spec: ViTTrainingJobSpec,
    /// Speed of each rank, where slower devices are emulated.
    pub speeds: Vec<f64>,
    /// Ranks of a full node (`workers.gpusPerNode`). A run of fewer ranks has one node with only as many.
    pub gpus_per_node: i32,
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
        retries: count(study.measure.retries),
        timeout: Duration::from_secs(count(study.measure.timeout_seconds).into()),
        pending_timeout: study
            .measure
            .pending_timeout_seconds
            .map(|seconds| Duration::from_secs(count(seconds).into())),
        micro_batch_size: count(study.template.spec.training.micro_batch_size),
        gradient_accumulation_steps: count(study.template.spec.training.gradient_accumulation_steps),
    };
    if problems.is_empty() {
        for sweep in &study.sweeps {
            // What is wrong with one point of a sweep is often wrong with all.
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
    /// Refuses a variant that makes the same jobs as another: the report would show the other's numbers under its name.
    fn check_variants(&self, sweep: &Sweep) -> Result<(), Problem> {
        let runs = |variant: &Variant| -> Vec<usize> {
            let of_variant = self.points.iter().filter(|point| {
                point.sweep == sweep.name && point.variant.as_deref() == Some(variant.name.as_str())
            });
            of_variant.map(|point| point.run).collect()
        };
        for (place, variant) in sweep.variants.iter().enumerate() {
            let own = runs(variant);
            if let Some(same) = sweep.variants[..place].iter().find(|other| runs(other) == own) {
                return Err(Problem::Field {
                    field: format!("sweeps[{}].variants[{}]", sweep.name, variant.name),
                    value: format!("the same job as variant {:?} at every point", same.name),
                    expected: "must change something of the template".into(),
                });
            }
        }
        Ok(())
    }

    fn add(&mut self, study: &ViTScalingStudySpec, sweep: &Sweep, choice: Choice<'_>) -> Result<(), Problem> {
        let refused = |reason: String| Problem::Point {
            sweep: sweep.name.clone(),
            point: choice.words(),
            reason,
        };
        let Job {
            spec,
            config,
            speeds,
            gpus_per_node,
        } = Job::new(study, sweep, choice).map_err(refused)?;
        let point = Point {
            sweep: sweep.name.clone(),
            mode: sweep.mode,
            ranks: config.world_size(),
            micro_batch_size: config.training.micro_batch_size,
            gradient_accumulation_steps: config.training.gradient_accumulation_steps,
            global_batch_size: config.global_batch_size(),
            variant: choice.variant.map(|variant| variant.name.clone()),
            speeds: speeds.clone(),
            gpus_per_node,
            first_micro_batch_size: match sweep.global_batch {
                GlobalBatch::Grows => config.training.micro_batch_size,
                GlobalBatch::Fixed => {
                    config.training.micro_batch_size * config.world_size() / job::fewest(sweep)
                }
            },
            run: 0,
        };
        let key = key(&spec, &speeds);
        let run = self
            .runs
            .iter()
            .position(|run| run.key == key)
            .unwrap_or_else(|| {
                self.runs.push(Run {
                    key,
                    label: point.label(),
                    spec,
                    speeds,
                    gpus_per_node,
                    config,
                });
                self.runs.len() - 1
            });
        self.points.push(Point { run, ..point });
        Ok(())
    }
}

impl Run {
    /// The job of a repetition, counted from 0: each has a seed of its own.
    pub fn job(&self, repetition: u32) -> ViTTrainingJobSpec {
        let mut spec = self.spec.clone();
        spec.training.seed += i64::from(repetition);
        spec
    }

    /// How a measurement differs from this run, if it does.
    pub fn mismatch(&self, found: &Measurement) -> Option<String> {
        let sizes = |ranks: u32, images: u64| format!("{ranks} ranks with {images} images a step");
        let wanted = sizes(self.config.world_size(), self.config.global_batch_size());
        let found = sizes(found.world_size, found.global_batch_size);
        (found != wanted).then(|| format!("it trained on {found} in place of {wanted}"))
    }

    /// Identifies a point's job without its ranks, batch and amount of data. The point's `gpusPerNode` is kept: between nodes there
    /// is another network.
    pub(crate) fn job_key(&self, point: &Point) -> String {
        let mut spec = serde_json::to_value(&self.spec).unwrap_or_default();
        for field in [
            "/workers/nodes",
            "/workers/gpusPerNode",
            "/training/microBatchSize",
            "/training/gradientAccumulationSteps",
            "/data/fraction",
            "/data/syntheticImages",
        ] {
            if let Some(value) = spec.pointer_mut(field) {
                *value = Value::Null;
            }
        }
        json!([spec, point.gpus_per_node, self.speeds.first()]).to_string()
    }

    /// Whether the cost model applies: all ranks are equally fast, and they exchange only gradients and weights, whose size does not
    /// depend on the images. A gang that may mix GPUs counts as mixed, even if it got GPUs of one kind.
    pub(crate) fn follows_the_model(&self) -> bool {
        let parallelism = &self.config.parallelism;
        are_alike(&self.speeds)
            && self.spec.placement.homogeneity == Homogeneity::Required
            && parallelism.ranks_per_replica() == 1
            && !parallelism.shard_within_node
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
            label += &format!("-{variant}");
        }
        // It becomes the name of a folder.
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

/// Of everything that a run is made from.
fn key(spec: &ViTTrainingJobSpec, speeds: &[f64]) -> String {
    fingerprint(&json!([spec, speeds]))
}

/// Eight hexadecimal digits that tell a value from others.
pub fn fingerprint(value: &Value) -> String {
    format!("{:08x}", crc32fast::hash(value.to_string().as_bytes()))
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
        let seeds: Vec<i64> = (0..3)
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

    /// What a run was made from is kept as JSON, and compared with what it would be made from.
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
            "the template's is taken away"
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
                "spec.sweeps[s].ranks is 0: must be 1 to 65536",
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
                "spec.sweeps[s].variants.speeds is 2: must be 0.0001 to 1, the speed of a core",
            ),
            (
                "[{name: s, mode: Variants, variants: [{name: a}, {name: b, spec: {external: {command: []}}}]}]",
                "the point variant \"b\" of spec.sweeps[s] makes no job: spec.external.command is empty: must name a program",
            ),
            (
                "[{name: s, mode: Variants, variants: [{name: a}, {name: b, speeds: [0.5], spec: {external: {command: [x]}}}]}]",
                "the point variant \"b\" of spec.sweeps[s] makes no job: speeds are given with external: another trainer cannot be slowed",
            ),
            (
                "[{name: s, mode: Variants, variants: [{name: a}, {name: b, spec: 3}]}]",
                "spec.sweeps[s].variants.spec is 3: must be fields of a ViTTrainingJob's spec",
            ),
            (
                "[{name: ../s, mode: Strong, ranks: [1, 2]}]",
                "spec.sweeps is \"../s\": names must be of lower-case letters, digits and - inside, at most 40",
            ),
            (
                "[{name: s, mode: Variants, variants: [{name: a}, {name: b, spec: {training: 5}}]}]",
                "invalid type",
            ),
            (
                "[{name: s, mode: Strong, ranks: [1, 2], variants: [{name: b, spec: {workers: cpu}}]}]",
                "invalid type",
            ),
            (
                "[{name: s, mode: Strong, ranks: [1, 2], variants: [{name: b, spec: {workers: {gpusPerNode: 0}}}]}]",
                "workers.gpusPerNode is 0: must be at least 1",
            ),
            (
                "[{name: s, mode: Variants, variants: [{name: a}, {name: b, spec: {training: {seed: 9223372036854775806}}}]}]",
                "training.seed is 9223372036854775806: leaves no room for 3 repetitions with a seed each",
            ),
            (
                "[{name: s, mode: Variants, variants: [{name: a}, {name: b, spec: {elastic: {minNodes: 1}}}]}]",
                "elastic is given: a point has one number of ranks, leave it out",
            ),
            (
                "[{name: s, mode: Variants, variants: [{name: a}, {name: b, spec: {parallelism: {strategy: Auto}}}]}]",
                "parallelism.strategy is Auto: a point is one way to divide a model, make each a variant",
            ),
            (
                "[{name: s, mode: Variants, variants: [{name: a}, {name: b, spec: {training: {schedule: null}}}]}]",
                "spec.sweeps[s].variants[b].spec.training.schedule is null: must have a value; to remove the template's, list training.schedule in without",
            ),
            (
                "[{name: s, mode: Variants, variants: [{name: a}, {name: b, spec: {training: {}}}]}]",
                "spec.sweeps[s].variants[b] is the same job as variant \"a\" at every point: must change something of the template",
            ),
            (
                "[{name: s, mode: Variants, variants: [{name: a}, {name: b, without: [training.shedule]}]}]",
                "makes no job: without names training.shedule: the template's spec has no such field",
            ),
            (
                "[{name: s, mode: Variants, variants: [{name: a}, {name: b, without: [model.heads.training]}]}]",
                "makes no job: without names model.heads.training: the template's spec has no such field",
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
        study.spec.measure.repetitions = 0;
        let message = plan(&study.spec).expect_err("refused").to_string();
        assert_eq!(message, "spec.measure.repetitions is 0: must be 1 to 100");
    }
}
