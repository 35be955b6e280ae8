//! Checks of a study before jobs are built from it: the schema's bounds, and rules between fields.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::ops::RangeInclusive;

use crds::study::{GlobalBatch, Mode, Sweep, Variant, ViTScalingStudySpec};

use serde_json::Value;

use super::Problem;

const RANKS: RangeInclusive<i32> = 1..=65_536;
const MOST_LETTERS: usize = 40;
const MOST_VALUES: usize = 32;

const MOST_POINTS: usize = 1000;

/// Number of combinations of a sweep's lists.
fn points(sweep: &Sweep) -> usize {
    let lists = [
        sweep.ranks.len(),
        sweep.micro_batch_size.len(),
        sweep.gradient_accumulation_steps.len(),
        sweep.variants.len(),
    ];
    let each = lists.into_iter().map(|list| list.max(1));
    each.fold(1, usize::saturating_mul)
}

/// Collects violations.
struct Problems<'a>(&'a mut Vec<Problem>);

/// Adds every rule that a study violates.
pub(super) fn check(study: &ViTScalingStudySpec, problems: &mut Vec<Problem>) {
    let mut problems = Problems(problems);
    let measure = &study.measure;
    problems.within("measure.epochs", measure.epochs, &(1..=10_000));
    problems.within("measure.warmupSteps", measure.warmup_steps, &(0..=1_000_000));
    problems.within("measure.repetitions", measure.repetitions, &(1..=100));
    problems.within("measure.retries", measure.retries, &(0..=10));
    problems.within("measure.timeoutSeconds", measure.timeout_seconds, &(1..=604_800));
    for ranks in &study.predict.ranks {
        problems.within("predict.ranks", *ranks, &(1..=1_000_000));
    }
    if study.sweeps.is_empty() {
        problems.refuse("sweeps", "empty", "must have at least one sweep");
    }
    problems.few("sweeps", study.sweeps.len());
    let points: usize = study.sweeps.iter().map(points).fold(0, usize::saturating_add);
    if points > MOST_POINTS {
        problems.refuse(
            "sweeps",
            format!("{points} points in total"),
            format!("must be at most {MOST_POINTS}"),
        );
    }
    let names = study.sweeps.iter().map(|sweep| &sweep.name);
    problems.distinct("sweeps", names, "names must differ");
    for sweep in &study.sweeps {
        problems.sweep(sweep);
    }
}

impl Problems<'_> {
    fn refuse(&mut self, field: impl Into<String>, value: impl Display, expected: impl Into<String>) {
        self.0.push(Problem::Field {
            field: field.into(),
            value: value.to_string(),
            expected: expected.into(),
        });
    }

    fn within(&mut self, field: impl Into<String>, value: i32, bounds: &RangeInclusive<i32>) {
        if !bounds.contains(&value) {
            let expected = format!("must be {} to {}", bounds.start(), bounds.end());
            self.refuse(field, value, expected);
        }
    }

    fn few(&mut self, field: impl Into<String>, values: usize) {
        if values > MOST_VALUES {
            self.refuse(
                field,
                format!("a list of {values}"),
                format!("must have at most {MOST_VALUES}"),
            );
        }
    }

    fn distinct<T: Ord + std::fmt::Debug>(
        &mut self,
        field: impl Into<String> + Clone,
        values: impl IntoIterator<Item = T>,
        expected: &str,
    ) {
        let mut known = BTreeSet::new();
        for value in values {
            let words = format!("{value:?} twice");
            if !known.insert(value) {
                self.refuse(field.clone(), words, expected);
            }
        }
    }

    fn sweep(&mut self, sweep: &Sweep) {
        let name = &sweep.name;
        let inside = name.trim_matches('-') == name;
        let letters = name
            .chars()
            .all(|letter| matches!(letter, 'a'..='z' | '0'..='9' | '-'));
        if name.is_empty() || name.len() > MOST_LETTERS || !inside || !letters {
            let expected =
                format!("names must have 1 to {MOST_LETTERS} lowercase letters, digits and inner hyphens");
            self.refuse("sweeps", format!("{name:?}"), expected);
        }
        let field = |part: &str| format!("sweeps[{name}].{part}");
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
            let expected = format!("mode {:?} needs at least two values", sweep.mode);
            self.refuse(field(axis), format!("a list of {values}"), expected);
        }
        if (sweep.mode == Mode::Weak) != sweep.fraction_per_rank.is_some() {
            let given = if sweep.fraction_per_rank.is_some() {
                "given"
            } else {
                "missing"
            };
            let expected = "must be given with mode Weak, and with no other";
            self.refuse(field("fractionPerRank"), given, expected);
        }
        if let Some(fraction) = sweep
            .fraction_per_rank
            .filter(|fraction| !(1e-6..=1.0).contains(fraction))
        {
            self.refuse(field("fractionPerRank"), fraction, "must be 0.000001 to 1");
        }
        if sweep.global_batch == GlobalBatch::Fixed && sweep.ranks.is_empty() {
            self.refuse(
                field("globalBatch"),
                "Fixed",
                "needs ranks to divide the images among",
            );
        }
        for (part, list, bounds) in [
            ("ranks", &sweep.ranks, &RANKS),
            ("microBatchSize", &sweep.micro_batch_size, &RANKS),
            (
                "gradientAccumulationSteps",
                &sweep.gradient_accumulation_steps,
                &(1..=1024),
            ),
        ] {
            self.few(field(part), list.len());
            self.distinct(field(part), list, "values must differ");
            for value in list {
                self.within(field(part), *value, bounds);
            }
        }
        self.few(field("variants"), sweep.variants.len());
        let names = sweep.variants.iter().map(|variant| &variant.name);
        self.distinct(field("variants"), names, "names must differ");
        for variant in &sweep.variants {
            self.variant(variant, &field);
        }
    }

    fn variant(&mut self, variant: &Variant, field: &impl Fn(&str) -> String) {
        if variant.name.is_empty() || variant.name.chars().count() > MOST_LETTERS {
            let expected = format!("must have 1 to {MOST_LETTERS} characters");
            self.refuse(field("variants.name"), format!("{:?}", variant.name), expected);
        }
        if !variant.spec.is_null() && !variant.spec.is_object() {
            let expected = "must be fields of a ViTTrainingJob's spec";
            self.refuse(field("variants.spec"), &variant.spec, expected);
        }
        if let Some(path) = null_in(&variant.spec) {
            // kubectl applies changes as a merge patch, which drops null within lists.
            let field_of_spec = &path[1..];
            let is_listable = field_of_spec
                .chars()
                .all(|letter| letter.is_ascii_alphanumeric() || letter == '.');
            let expected = if is_listable {
                format!("must have a value; to remove the template's field, list {field_of_spec} in without")
            } else {
                "must have a value, or be omitted".to_owned()
            };
            self.refuse(
                field(&format!("variants[{}].spec{path}", variant.name)),
                "null",
                expected,
            );
        }
        for speed in variant
            .speeds
            .iter()
            .filter(|speed| !(1e-4..=1.0).contains(*speed))
        {
            let expected = "must be 0.0001 to 1, a share of a core's speed";
            self.refuse(field("variants.speeds"), speed, expected);
        }
    }
}

/// Path of the first null in a variant's part of a spec.
fn null_in(value: &Value) -> Option<String> {
    let Value::Object(fields) = value else { return None };
    fields.iter().find_map(|(name, value)| {
        if value.is_null() {
            Some(format!(".{name}"))
        } else {
            null_in(value).map(|path| format!(".{name}{path}"))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_of_what_is_measured_and_predicted_are_kept() {
        for (part, expected) in [
            (
                "measure: {epochs: 0}",
                "spec.measure.epochs is 0: must be 1 to 10000",
            ),
            (
                "measure: {warmupSteps: -1}",
                "spec.measure.warmupSteps is -1: must be 0 to 1000000",
            ),
            (
                "measure: {repetitions: 101}",
                "spec.measure.repetitions is 101: must be 1 to 100",
            ),
            (
                "measure: {retries: 11}",
                "spec.measure.retries is 11: must be 0 to 10",
            ),
            (
                "measure: {timeoutSeconds: 0}",
                "spec.measure.timeoutSeconds is 0: must be 1 to 604800",
            ),
            (
                "predict: {ranks: [0]}",
                "spec.predict.ranks is 0: must be 1 to 1000000",
            ),
        ] {
            let example = include_str!("../../../examples/studies/digits.yaml");
            let study: crds::ViTScalingStudy = serde_saphyr::from_str(example).expect("a study");
            let mut spec = serde_json::to_value(&study.spec).expect("JSON");
            json_patch::merge(&mut spec, &serde_saphyr::from_str(part).expect("a part"));
            let mut problems = Vec::new();
            check(&serde_json::from_value(spec).expect("a spec"), &mut problems);
            let found: Vec<String> = problems.iter().map(ToString::to_string).collect();
            assert_eq!(found, [expected]);
        }
    }

    #[test]
    fn the_points_of_all_sweeps_together_are_bounded() {
        let values: Vec<i32> = (1..=32).collect();
        let sweep = |name: &str, accumulation: &[i32]| {
            serde_json::json!({
                "name": name, "mode": "Batch", "microBatchSize": values, "gradientAccumulationSteps": accumulation,
            })
        };
        let found = |sweeps: &[serde_json::Value]| {
            let example = include_str!("../../../examples/studies/digits.yaml");
            let mut study: crds::ViTScalingStudy = serde_saphyr::from_str(example).expect("a study");
            study.spec.sweeps = serde_json::from_value(serde_json::json!(sweeps)).expect("sweeps");
            let mut problems = Vec::new();
            check(&study.spec, &mut problems);
            problems.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(
            found(&[sweep("a", &values[..16]), sweep("b", &values[..15])]),
            [""; 0]
        );
        assert_eq!(
            found(&[sweep("a", &values[..16]), sweep("b", &values[..16])]),
            ["spec.sweeps is 1024 points in total: must be at most 1000"]
        );
    }
}
