//! The saved report of the small study belongs to its manifest, and the table of figures to both
//! manifests.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use crds::ViTScalingStudy;
use crds::study::ViTScalingStudySpec;
use serde_json::{Value, json};
use vit_tests::root;

use crate::messages::Test;

pub(crate) const TESTS: &[(&str, Test)] = &[
    ("the saved report is of the small study's points", saved_report),
    ("figures of the paper name sweeps of both studies", figures),
];

const LARGE: &str = "examples/studies/arxiv-2602-21081.yaml";
const SMALL: &str = "examples/studies/arxiv-2602-21081-small.yaml";
const SAVED: &str = "docs/reference/arxiv-2602-21081-small";
/// The only sweep that the small study leaves out: it needs 5 GB of Python packages.
const LEFT_OUT: &str = "deepspeed";

fn spec(path: &str) -> Result<ViTScalingStudySpec> {
    let text = fs_err::read_to_string(root().join(path))?;
    let study: ViTScalingStudy = serde_saphyr::from_str(&text)?;
    Ok(study.spec)
}

fn saved_report() -> Result<()> {
    let plan = study::plan(&spec(SMALL)?)?;
    let text = fs_err::read_to_string(root().join(SAVED).join("report.json"))?;
    let report: Value = serde_json::from_str(&text)?;
    let points = report["points"].as_array().context("points")?;
    let stale = format!("run `make study`, and copy target/study/report.{{html,json,md}} to {SAVED}");
    ensure!(
        points.len() == plan.points.len(),
        "{SAVED} has {} points and {SMALL} {}: {stale}",
        points.len(),
        plan.points.len()
    );
    for (point, saved) in plan.points.iter().zip(points) {
        let mut planned = json!(point);
        planned["run"] = json!(plan.runs[point.run].key);
        for (field, value) in planned.as_object().context("fields")? {
            ensure!(
                saved[field] == *value,
                "{SAVED} has {field} {}, and {SMALL} {value} in {planned}: {stale}",
                saved[field]
            );
        }
        ensure!(
            saved["imagesPerSecond"].is_object() && saved["failures"].is_null(),
            "{SAVED} lacks a measurement of {planned}: {stale}"
        );
    }
    Ok(())
}

fn figures() -> Result<()> {
    let sweeps = |path: &str| -> Result<BTreeSet<String>> {
        Ok(spec(path)?.sweeps.into_iter().map(|sweep| sweep.name).collect())
    };
    let (mut both, small) = (sweeps(LARGE)?, sweeps(SMALL)?);
    ensure!(both.remove(LEFT_OUT), "{LARGE} has no sweep {LEFT_OUT}");
    ensure!(both == small, "{LARGE} has {both:?}, {SMALL} {small:?}");
    let page = fs_err::read_to_string(root().join("docs/reference/studies.md"))?;
    let (_, table) = page
        .split_once("| figure | sweep |\n")
        .context("a table of figures")?;
    let rows: Vec<&str> = table
        .lines()
        .skip(1)
        .take_while(|line| line.starts_with('|'))
        .collect();
    ensure!(rows.len() > 10, "only {} rows", rows.len());
    let mut named = BTreeSet::new();
    for row in rows {
        let of_row: Vec<&str> = row.split('`').filter(|code| both.contains(*code)).collect();
        ensure!(!of_row.is_empty(), "no sweep of both studies: {row}");
        named.extend(of_row);
    }
    ensure!(
        named.len() == both.len(),
        "no figure names another sweep than {named:?}"
    );
    Ok(())
}
