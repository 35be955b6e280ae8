//! Cost models and predictions as text and tables.

use super::figures::counted;
use crate::forecast::{Errors, Forecast, HeldOut, Prediction};
use crate::model::Sizes;

pub(super) const EXPLANATION: &str = "Steps are fitted to the medians of all points of a job with equally fast ranks, by relative error. \
    Costs are at least 0. N: ranks; n: images per rank and step. Constant: a step with as many images lasts as long on any \
    number of ranks. Skill: 1 without errors, 0 if no better than the constant step.";

/// A table with a title.
pub(super) struct Table {
    pub(super) title: &'static str,
    pub(super) titles: Vec<&'static str>,
    pub(super) rows: Vec<Vec<String>>,
}

/// The model's formula.
pub(super) fn costs(forecast: &Forecast) -> String {
    let model = &forecast.model;
    let terms = [
        (model.fixed, ""),
        (model.image, " × n"),
        (model.doubling, " × log2(N)"),
    ];
    let terms = terms.into_iter().filter(|(seconds, _)| *seconds > 0.0);
    let terms = terms.map(|(seconds, factor)| format!("{} ms{factor}", significant(seconds * 1e3)));
    format!("Step time: {}.", terms.collect::<Vec<_>>().join(" + "))
}

/// Errors of the model beside those of the baseline, and what is not predicted.
pub(super) fn findings(forecast: &Forecast) -> Vec<String> {
    let mut sentences = Vec::new();
    let percent = |share: f64| significant(share * 1e2);
    if let (Some(errors), Some(point)) = (Errors::of(&forecast.largest), forecast.largest.first()) {
        sentences.push(format!(
            "{}, predicted from fewer: mean error {} %; of the constant step {} %.",
            counted(point.sizes.ranks),
            percent(errors.model),
            percent(errors.constant)
        ));
    }
    if let Some(errors) = Errors::of(&forecast.held_out) {
        sentences.push(format!(
            "Each point, predicted from the others: mean error {} %; of the constant step {} % (skill {:.2}).",
            percent(errors.model),
            percent(errors.constant),
            errors.skill()
        ));
        if errors.skill() <= 0.0 {
            sentences.push("The model predicts no better than the constant step: use that.".into());
        }
    }
    if !forecast.is_predictable {
        sentences.push(
            "Other numbers of ranks are not predicted: the study needs at least two different numbers above 1."
                .into(),
        );
    }
    sentences
}

pub(super) fn tables(forecast: &Forecast) -> Vec<Table> {
    let errors = |title, points: &[HeldOut]| Table {
        title,
        titles: [
            &SIZES[..],
            &[
                "measured, ms",
                "model, ms",
                "error, %",
                "constant, ms",
                "error, %",
            ],
        ]
        .concat(),
        rows: points.iter().map(held_out_row).collect(),
    };
    let tables = [
        errors("The most ranks, predicted from fewer:", &forecast.largest),
        errors("Each point, predicted from the others:", &forecast.held_out),
        Table {
            title: "Predictions:",
            titles: [
                &SIZES[..],
                &["step, ms", "constant step, ms", "images/s", "efficiency, %"],
            ]
            .concat(),
            rows: forecast.predictions.iter().map(prediction_row).collect(),
        },
    ];
    let tables = tables.into_iter().filter(|table| !table.rows.is_empty());
    tables.collect()
}

const SIZES: [&str; 3] = ["ranks", "micro-batch", "accumulation"];

fn row(sizes: &Sizes, values: impl IntoIterator<Item = String>) -> Vec<String> {
    let sizes = [
        sizes.ranks,
        sizes.micro_batch_size,
        sizes.gradient_accumulation_steps,
    ];
    sizes.iter().map(u32::to_string).chain(values).collect()
}

fn milliseconds(seconds: f64) -> String {
    format!("{:.1}", seconds * 1e3)
}

fn held_out_row(point: &HeldOut) -> Vec<String> {
    let error = |share: f64| format!("{:+.1}", share * 1e2);
    let values = [
        milliseconds(point.measured),
        milliseconds(point.predicted),
        error(point.error()),
        milliseconds(point.constant),
        error(point.constant_error()),
    ];
    row(&point.sizes, values)
}

fn prediction_row(prediction: &Prediction) -> Vec<String> {
    let values = [
        milliseconds(prediction.step_seconds),
        milliseconds(prediction.constant_step_seconds),
        format!("{:.0}", prediction.images_per_second),
        format!("{:.1}", prediction.efficiency * 1e2),
    ];
    row(&prediction.sizes, values)
}

/// Formats with three significant digits, up to 1000.
fn significant(value: f64) -> String {
    let digits = if value >= 100.0 || value == 0.0 {
        0
    } else if value >= 10.0 {
        1
    } else if value >= 1.0 {
        2
    } else {
        3
    };
    format!("{value:.digits$}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::CostModel;

    #[test]
    fn a_model_is_shown_with_its_errors_beside_those_of_the_constant_step() {
        let model = CostModel {
            fixed: 0.02,
            image: 0.0,
            doubling: 0.002,
        };
        let point = |predicted| HeldOut {
            sizes: Sizes {
                ranks: 8,
                micro_batch_size: 16,
                gradient_accumulation_steps: 1,
            },
            measured: 1.0,
            predicted,
            constant: 0.88,
        };
        let mut forecast = Forecast {
            name: "a".into(),
            points: 5,
            model,
            constant: model,
            held_out: vec![point(1.05)],
            largest: vec![point(0.96)],
            is_predictable: false,
            predictions: vec![],
        };
        assert_eq!(costs(&forecast), "Step time: 20.0 ms + 2.00 ms × log2(N).");
        let not_predicted = "Other numbers of ranks are not predicted: the study needs at least two different numbers above 1.";
        assert_eq!(
            findings(&forecast),
            [
                "8 ranks, predicted from fewer: mean error 4.00 %; of the constant step 12.0 %.",
                "Each point, predicted from the others: mean error 5.00 %; of the constant step 12.0 % (skill 0.58).",
                not_predicted,
            ]
        );
        assert_eq!(
            tables(&forecast)[1].rows,
            [["8", "16", "1", "1000.0", "1050.0", "+5.0", "880.0", "-12.0"]]
        );
        forecast.held_out = vec![point(0.88)];
        assert_eq!(
            findings(&forecast)[2],
            "The model predicts no better than the constant step: use that."
        );
    }
}
