//! Rules between the fields of a study, for use outside a cluster, where no API server checks them.

use std::collections::BTreeSet;
use std::fmt::{Debug, Display};

use contract::ConfigError;
use crds::study::{GlobalBatch, Mode, Sweep, Variant, ViTScalingStudySpec};
use serde_json::Value;

const MOST_LETTERS: usize = 40;
const MOST_POINTS: usize = 1000;

/// Violated rules.
struct Errors(Vec<ConfigError>);

/// Every rule that a study violates.
pub(super) fn check(study: &ViTScalingStudySpec) -> Vec<ConfigError> {
    let mut errors = Errors(study.out_of_bounds());
    if study.sweeps.is_empty() {
        errors.refuse("sweeps", "empty", "must have at least one sweep");
    }
    let points: usize = study.sweeps.iter().map(points).fold(0, usize::saturating_add);
    if points > MOST_POINTS {
        let points = format!("{points} points in total");
        errors.refuse("sweeps", points, format!("must be at most {MOST_POINTS}"));
    }
    let names = study.sweeps.iter().map(|sweep| &sweep.name);
    errors.distinct("sweeps", names, "names must differ");
    for sweep in &study.sweeps {
        errors.sweep(sweep);
    }
    errors.0
}

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

impl Errors {
    fn refuse(&mut self, field: impl Into<String>, value: impl Display, expected: impl Into<String>) {
        self.0.push(ConfigError {
            field: field.into().into(),
            value: value.to_string(),
            expected: expected.into(),
        });
    }

    fn distinct<T: Ord + Debug>(
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
        let is_part = |letter: char| matches!(letter, 'a'..='z' | '0'..='9' | '-');
        let is_inside = name.trim_matches('-') == name;
        if name.is_empty() || name.len() > MOST_LETTERS || !is_inside || !name.chars().all(is_part) {
            let expected =
                format!("names must have 1 to {MOST_LETTERS} lowercase letters, digits and inner hyphens");
            self.refuse("sweeps", format!("{name:?}"), expected);
        }
        let field = |part: &str| format!("sweeps[{name}].{part}");
        let lists = [
            ("ranks", &sweep.ranks),
            ("microBatchSize", &sweep.micro_batch_size),
            ("gradientAccumulationSteps", &sweep.gradient_accumulation_steps),
        ];
        for (part, list) in lists {
            self.distinct(field(part), list, "values must differ");
        }
        let [ranks, batches, accumulations] = lists.map(|(part, list)| (part, list.len()));
        let (axis, values) = match sweep.mode {
            Mode::Strong | Mode::Weak => ranks,
            Mode::Batch => batches,
            Mode::Accumulation => accumulations,
            Mode::Variants => ("variants", sweep.variants.len()),
        };
        if values < 2 {
            let expected = format!("mode {:?} needs at least two values", sweep.mode);
            self.refuse(field(axis), format!("a list of {values}"), expected);
        }
        let given = sweep.fraction_per_rank.map_or("missing", |_| "given");
        if (sweep.mode == Mode::Weak) != sweep.fraction_per_rank.is_some() {
            let expected = "must be given with mode Weak, and with no other";
            self.refuse(field("fractionPerRank"), given, expected);
        }
        if sweep.global_batch == GlobalBatch::Fixed && sweep.ranks.is_empty() {
            let expected = "needs ranks to divide the images among";
            self.refuse(field("globalBatch"), "Fixed", expected);
        }
        let names = sweep.variants.iter().map(|variant| &variant.name);
        self.distinct(field("variants"), names, "names must differ");
        for variant in &sweep.variants {
            self.variant(variant, &field("variants"));
        }
    }

    fn variant(&mut self, variant: &Variant, field: &str) {
        if variant.name.is_empty() || variant.name.chars().count() > MOST_LETTERS {
            let expected = format!("must have 1 to {MOST_LETTERS} characters");
            self.refuse(format!("{field}.name"), format!("{:?}", variant.name), expected);
        }
        if !variant.spec.is_null() && !variant.spec.is_object() {
            let expected = "must be fields of a ViTTrainingJob's spec";
            self.refuse(format!("{field}.spec"), &variant.spec, expected);
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
            self.refuse(format!("{field}[{}].spec{path}", variant.name), "null", expected);
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
