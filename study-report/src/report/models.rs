//! Cost models and predictions as text and tables.
use study::Spread;

use super::charts::{Axes, Series};
use super::figures::{Figure, counted};
use crate::forecast::{Forecast, HeldOut, Prediction};

pub(super) const EXPLANATION: &str = "Each part of a step is fitted separately to the medians of all points of a job with equally fast ranks. Costs \
    are at least 0. N: ranks; n: images per rank and step; b: images per micro-batch; x(N): expected maximum of N standard normal \
    values.";

/// A table with a title.
pub(super) struct Table {
    pub(super) title: String,
    pub(super) titles: Vec<&'static str>,
    pub(super) rows: Vec<Vec<String>>,
}

/// The model's formula.
pub(super) fn costs(forecast: &Forecast) -> String {
    let model = &forecast.model;
    let ms = |seconds: f64| format!("{} ms", significant(seconds * 1e3));
    let mut parts = vec![format!("compute {} + {} × n", ms(model.fixed), ms(model.image))];
    if model.interference > 0.0 {
        parts.push(format!(
            "{} × n for each other rank on the same machine (at most {} per machine)",
            ms(model.interference),
            model.ranks_on_machine
        ));
    }
    if model.spread > 0.0 {
        parts.push(format!(
            "waiting for slower ranks {} % of compute × x(N)",
            significant(model.spread * 1e2)
        ));
    }
    let mut text = format!("Step time: {}", parts.join(" + "));
    if model.latency + model.transfer + model.contention > 0.0 {
        let traffic = model.traffic_of(forecast.gradient_accumulation_steps);
        let mut parts = Vec::new();
        if model.latency > 0.0 {
            parts.push(format!("{} × log2(N)", ms(model.latency * traffic.all_reduces)));
        }
        if model.transfer > 0.0 {
            let rate = if forecast.knows_traffic {
                format!(" ({} GB/s)", significant(1e-9 / model.transfer))
            } else {
                String::new()
            };
            parts.push(format!(
                "{} × 2 (N - 1)/N{rate}",
                ms(model.transfer * traffic.bytes)
            ));
        }
        if model.contention > 0.0 {
            parts.push(format!(
                "{} for each other rank on the same machine",
                ms(model.contention)
            ));
        }
        text += &format!(". Communication time: {}", parts.join(" + "));
        text += &match (model.tail, model.hiding) {
            (tail, hiding) if tail >= 1.0 || hiding <= 0.0 => "; computation hides none of it".to_owned(),
            (tail, hiding) => format!(
                "; computation hides up to {} × b of it, but at least {} % stays exposed",
                ms(hiding),
                significant(tail * 1e2)
            ),
        };
    }
    text + "."
}

/// Conclusions from the model.
pub(super) fn findings(forecast: &Forecast) -> Vec<String> {
    let mut sentences = Vec::new();
    let enough: Vec<String> = forecast
        .enough_images
        .iter()
        .map(|enough| {
            let by_model = if enough.is_measured { "" } else { " (extrapolated)" };
            format!(
                "{} images on {}{by_model}",
                enough.micro_batch_size,
                counted(enough.ranks)
            )
        })
        .collect();
    if !enough.is_empty() {
        sentences.push(format!(
            "Doubling the micro-batch gains less than 5 % of images/s at {}.",
            enough.join(", ")
        ));
    }
    if !forecast.is_predictable {
        sentences.push(
            "Other numbers of ranks are not predicted: the study needs at least two different numbers above 1."
                .into(),
        );
    }
    let errors = forecast.held_out.iter().map(|point| point.error().abs() * 100.0);
    if let Some(errors) = Spread::of(errors) {
        sentences.push(format!(
            "{} points, each predicted by a model fitted to the others: median error {} %, maximum {} %.",
            forecast.held_out.len(),
            significant(errors.median),
            significant(errors.most)
        ));
    }
    if let Some(skill) = &forecast.skill {
        sentences.push(format!(
            "Mean error {} %; with the same step on any number of ranks {} % (skill {:.2}).",
            significant(skill.error * 100.0),
            significant(skill.constant_error * 100.0),
            skill.score()
        ));
    }
    sentences
}

pub(super) fn tables(forecast: &Forecast) -> Vec<Table> {
    let held_out = Table {
        title: "Each point, predicted by a model fitted to the others:".into(),
        titles: vec![
            "ranks",
            "micro-batch",
            "accumulation",
            "measured, ms",
            "predicted, ms",
            "error, %",
        ],
        rows: forecast.held_out.iter().map(held_out_row).collect(),
    };
    let predicted = Table {
        title: "Predictions, with the range of 90 % of the models fitted to randomly drawn repetitions:"
            .into(),
        titles: vec![
            "ranks",
            "micro-batch",
            "step, ms",
            "90 % range, ms",
            "compute, ms",
            "exposed, ms",
            "straggler, ms",
            "images/s",
            "efficiency, %",
            "rank-hours per million images",
        ],
        rows: forecast.predictions.iter().map(prediction_row).collect(),
    };
    [held_out, predicted]
        .into_iter()
        .filter(|table| !table.rows.is_empty())
        .collect()
}

fn held_out_row(point: &HeldOut) -> Vec<String> {
    vec![
        point.ranks.to_string(),
        point.micro_batch_size.to_string(),
        point.gradient_accumulation_steps.to_string(),
        format!("{:.1}", point.measured * 1e3),
        format!("{:.1}", point.predicted * 1e3),
        format!("{:+.1}", point.error() * 1e2),
    ]
}

fn prediction_row(prediction: &Prediction) -> Vec<String> {
    let ms = |seconds: f64| format!("{:.1}", seconds * 1e3);
    let spread = prediction.step_seconds;
    vec![
        prediction.ranks.to_string(),
        prediction.micro_batch_size.to_string(),
        ms(spread.median),
        // Single repetitions have no spread.
        if spread.least < spread.most {
            format!("{} to {}", ms(spread.least), ms(spread.most))
        } else {
            String::new()
        },
        ms(prediction.parts.compute),
        ms(prediction.parts.exposed),
        ms(prediction.parts.straggler),
        format!("{:.0}", prediction.images_per_second),
        format!("{:.1}", prediction.efficiency * 1e2),
        format!("{:.3}", prediction.rank_hours_per_million_images),
    ]
}

/// Predicted efficiency by ranks.
pub(super) fn efficiencies(forecast: &Forecast) -> Vec<Figure> {
    let mut predictions: Vec<&Prediction> = forecast.predictions.iter().collect();
    predictions.sort_by_key(|prediction| prediction.ranks);
    if predictions.len() < 2 {
        return vec![];
    }
    let value = |prediction: &&Prediction| {
        // A longer step is a lower efficiency.
        let percent = |seconds: f64| prediction.efficiency * 1e2 * prediction.step_seconds.median / seconds;
        Some(Spread {
            median: prediction.efficiency * 1e2,
            least: percent(prediction.step_seconds.most),
            most: percent(prediction.step_seconds.least),
        })
    };
    let series = vec![Series {
        name: "predicted".into(),
        values: predictions.iter().map(value).collect(),
    }];
    let ranks = predictions.iter().map(|prediction| prediction.ranks.to_string());
    let categories: Vec<String> = ranks.collect();
    let axes = Axes {
        categories: &categories,
        x: "ranks",
        y: "percent",
        are_ordered: true,
    };
    let caption = "Images per second and rank, relative to a single rank, according to the model.";
    Figure::from_medians("Predicted efficiency", caption, &axes, series, None)
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
    use crate::model::{CostModel, Traffic};

    fn forecast(name: &str, fixed: f64, latency: f64) -> Forecast {
        let model = CostModel {
            fixed,
            image: 0.01,
            interference: 0.0,
            ranks_on_machine: 1,
            spread: 0.0,
            latency,
            transfer: 2e-9,
            traffic: Traffic {
                all_reduces: 1.0,
                bytes: 1e6,
            },
            micro_batch_traffic: Traffic::default(),
            contention: 0.0,
            tail: 0.25,
            hiding: 0.001,
        };
        Forecast {
            name: name.into(),
            points: 5,
            micro_batch_size: 16,
            gradient_accumulation_steps: 1,
            fewest_ranks: 1,
            is_predictable: true,
            model,
            knows_traffic: true,
            held_out: vec![],
            skill: None,
            enough_images: vec![],
            predictions: vec![],
        }
    }

    #[test]
    fn costs_are_told_without_what_is_zero() {
        assert_eq!(
            costs(&forecast("a", 0.02, 0.0)),
            "Step time: compute 20.0 ms + 10.0 ms × n. Communication time: 2.00 ms × 2 (N - 1)/N (0.500 GB/s); computation hides up to 1.00 ms × b of it, but at least 25.0 % stays exposed."
        );
        let mut alone = forecast("a", 0.0, 0.0);
        alone.knows_traffic = false;
        assert!(
            costs(&alone).contains("time: 2.00 ms × 2 (N - 1)/N; computation"),
            "{}",
            costs(&alone)
        );
        alone.model.transfer = 0.0;
        assert_eq!(costs(&alone), "Step time: compute 0 ms + 10.0 ms × n.");
        alone.model.ranks_on_machine = 4;
        (alone.model.interference, alone.model.contention) = (0.002, 0.003);
        alone.model.hiding = 0.0;
        assert_eq!(
            costs(&alone),
            "Step time: compute 0 ms + 10.0 ms × n + 2.00 ms × n for each other rank on the same machine (at most 4 per machine). Communication time: 3.00 ms for each other rank on the same machine; computation hides none of it."
        );
    }
}
