//! The report on a study: a page with charts, and the same numbers as JSON, CSV and Markdown.

mod charts;
mod circumstances;
mod figures;
mod models;
mod notes;
mod page;
mod tables;

use contract::Measurement;
use crds::study::ViTScalingStudySpec;
use serde::Serialize;
use study::{Plan, Results};

use crate::forecast::{Forecast, forecasts};

/// What was measured, and on which machines.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Subject {
    /// Name of the study.
    pub name: String,
    /// Machines and versions, as names and values.
    pub circumstances: Vec<(String, String)>,
    /// Steps at the start of each run that are excluded from times.
    pub warmup_steps: u32,
    /// Epochs of each run.
    pub epochs: u32,
    /// Planned repetitions of each point.
    pub repetitions: u32,
}

/// The report on a study.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The study.
    pub subject: Subject,
    /// Its results.
    #[serde(flatten)]
    pub results: Results,
    /// Predictions for points that were not measured.
    pub forecasts: Vec<Forecast>,
}

impl Report {
    /// `measured` has the measurement or failure of each repetition, by index in [`Plan::runs`].
    pub fn new(
        name: &str,
        study: &ViTScalingStudySpec,
        plan: &Plan,
        measured: &[Vec<Result<Measurement, String>>],
    ) -> Self {
        let measurements = measured.iter().flatten().filter_map(|found| found.as_ref().ok());
        Self {
            subject: Subject {
                name: name.into(),
                circumstances: circumstances::circumstances(measurements),
                warmup_steps: plan.warmup_steps,
                epochs: u32::try_from(study.measure.epochs).unwrap_or(0),
                repetitions: plan.repetitions,
            },
            results: Results::new(plan, measured),
            forecasts: forecasts(plan, measured, &study.predict),
        }
    }

    /// Every file of the report, by its name: `report.html`, `report.json`, `report.csv`, `report.md`.
    pub fn files(&self) -> [(&'static str, String); 4] {
        [
            ("report.html", self.html()),
            ("report.json", self.json()),
            ("report.csv", self.csv()),
            ("report.md", self.markdown()),
        ]
    }

    /// A self-contained page.
    fn html(&self) -> String {
        page::page(self).into_string()
    }

    /// All numbers.
    fn json(&self) -> String {
        serde_json::to_string(self).expect("strings and numbers")
    }

    /// A line for each point; each value as median, minimum and maximum.
    fn csv(&self) -> String {
        tables::csv(&self.results.points)
    }

    /// A table for each sweep.
    fn markdown(&self) -> String {
        tables::markdown(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{measurement, plan};

    const SWEEPS: &str = "[{name: strong, mode: Strong, ranks: [1, 2, 4]}, \
        {name: batch, mode: Batch, ranks: [1, 2], microBatchSize: [8, 16]}, \
        {name: kinds, mode: Variants, variants: [{name: plain}, {name: slow & late, speeds: [0.5]}]}]";

    fn report(measured: impl Fn(usize) -> Vec<Result<Measurement, String>>) -> Report {
        let plan = plan(SWEEPS);
        let measured: Vec<_> = (0..plan.runs.len()).map(measured).collect();
        let predict = serde_saphyr::from_str("{ranks: [8, 64]}").expect("predictions");
        Report {
            subject: Subject {
                name: "digits".into(),
                circumstances: vec![("machine".into(), "2 x <CPU>".into())],
                warmup_steps: 5,
                epochs: 2,
                repetitions: 2,
            },
            results: Results::new(&plan, &measured),
            forecasts: crate::forecast::forecasts(&plan, &measured, &predict),
        }
    }

    fn whole() -> Report {
        report(|run| vec![Ok(measurement(100.0 + run as f64)), Ok(measurement(110.0))])
    }

    #[test]
    fn the_page_needs_no_other_file_and_escapes_what_it_shows() {
        let page = whole().html();
        for outside in ["src=", "href=", "url(", "@import", "<script"] {
            assert!(!page.contains(outside), "{outside}");
        }
        assert!(page.contains("2 x &lt;CPU&gt;") && page.contains("slow &amp; late"));
        // Per sweep: parts, rates, accuracy, and two accuracies and the loss over epochs. Over ranks also
        // speedup and operations, over variants operations.
        assert_eq!(page.matches("<svg").count(), 8 + 6 + 7);
        for default in [
            "opacity=",
            "stroke=\"none\"",
            "font-size=",
            "TFLOP/s per rank</h3>",
        ] {
            assert!(!page.contains(default), "{default}");
        }
        for note in [
            "The global batch grows from 16 to 64 images",
            "2 ranks train 105.5 images/s, and 107.0 with the global batch of the fewest ranks",
            "is up to 12.5 percentage points higher than on held-out images",
            "ranks pause between passes to compute at 0.5 of",
        ] {
            assert!(page.contains(note), "{note}");
        }
    }

    #[test]
    fn a_point_that_failed_is_named_and_drawn_nowhere() {
        let all = whole().html();
        let some = report(|run| {
            if run == 2 {
                vec![Err("it broke".into())]
            } else {
                vec![Ok(measurement(100.0))]
            }
        });
        let page = some.html();
        assert!(page.contains(
            "Not measured: </b>ranks 4, micro-batch 16, accumulation 1, global batch 64: it broke"
        ));
        let circles = |page: &str| page.matches("<circle").count();
        assert!(
            circles(&page) < circles(&all),
            "{} of {}",
            circles(&page),
            circles(&all)
        );
        assert!(page.contains("Some points were measured once"));
        let csv = some.csv();
        let failed = csv
            .lines()
            .find(|line| line.starts_with("strong,4,"))
            .expect("a line");
        assert!(failed.starts_with("strong,4,16,1,64,,0,1,,,"), "{failed}");
        let none = report(|_| vec![Err("it broke".into())]);
        assert!(!none.html().contains("<svg"));
    }

    #[test]
    fn tables_have_a_row_for_each_point_and_a_value_for_each_column() {
        let report = whole();
        let csv = report.csv();
        let mut rows = csv::Reader::from_reader(csv.as_bytes());
        let headers = rows.headers().expect("headers").clone();
        let rows: Vec<csv::StringRecord> = rows.records().collect::<Result<_, _>>().expect("rows");
        assert_eq!(rows.len(), report.results.points.len());
        let of = |row: usize, header: &str| {
            let place = headers
                .iter()
                .position(|known| known == header)
                .expect("a column");
            rows[row][place].to_owned()
        };
        assert_eq!(
            (of(0, "imagesPerSecond"), of(0, "imagesPerSecondLeast")),
            ("105".into(), "100".into())
        );
        assert_eq!(
            (of(1, "ranks"), of(1, "globalBatchSize")),
            ("2".into(), "32".into())
        );
        let markdown = report.markdown();
        assert!(
            markdown.contains("| 1 | 16 | 1 | 16 |  | 2 | 105.0 (100.0 to 110.0) |"),
            "{markdown}"
        );
        let json: serde_json::Value = serde_json::from_str(&report.json()).expect("JSON");
        assert_eq!(json["points"][0]["imagesPerSecond"]["median"], 105.0);
        assert_eq!(json["points"][0]["mode"], "Strong");
    }
}
