//! The screen of a study.

use crds::ViTScalingStudy;
use crds::conditions::types;
use crds::study::status::{PointStatus, ViTScalingStudyStatus};
use jiff::Timestamp;
use kube::ResourceExt as _;

use crate::cluster::Place;
use crate::kind::Kind as _;
use crate::paint::Paint;
use crate::text::{age, counted, duration, or_dash, percent, table, wrapped};

/// Indentation of lines about the study.
const INDENT: usize = 2;

/// The screen of a study.
pub(super) fn render(study: &ViTScalingStudy, place: &Place, now: Timestamp, paint: Paint) -> String {
    let status = study.status.clone().unwrap_or_default();
    let mut text = head(study, &status, now, paint);
    let mut say = |words: &str| {
        let words = wrapped(words, paint.width, INDENT);
        text += &format!("{:INDENT$}{words}\n", "");
    };
    if let Some(message) = why(&status) {
        say(message);
    }
    for sweep in &study.spec.sweeps {
        let points: Vec<&PointStatus> = status
            .points
            .iter()
            .filter(|point| point.sweep == sweep.name)
            .collect();
        if !points.is_empty() {
            let heading = format!("{} ({:?})", sweep.name, sweep.mode);
            text += &format!("\n{}\n{}", paint.bold(heading), rows(&points, study, paint));
        }
    }
    if status.runs.as_ref().is_some_and(|runs| runs.measured > 0) {
        let command = place.vit(&format!("study report {}", study.name_any()));
        text += &format!("\n{}\n", paint.accent(command));
    }
    text
}

fn head(study: &ViTScalingStudy, status: &ViTScalingStudyStatus, now: Timestamp, paint: Paint) -> String {
    let mut facts = Vec::new();
    if let Some(runs) = &status.runs {
        facts.push(format!(
            "{} of {} measured",
            runs.measured,
            counted(runs.total, "run")
        ));
        if runs.failed > 0 {
            facts.push(format!("{} failed", runs.failed));
        }
    }
    if let (Some(start), Some(end)) = (&status.start_time, &status.completion_time) {
        facts.push(format!("took {}", duration(end.0.duration_since(start.0))));
    } else if let Some(created) = study.creation_timestamp() {
        facts.push(format!("created {} ago", age(created.0, now)));
    }
    let phase = paint.phase(study.phase());
    let name = format!("{}/{}", study.namespace().unwrap_or_default(), study.name_any());
    let facts = paint.dim(facts.join(", "));
    format!("{}  {phase}  {facts}\n", paint.bold(name))
}

/// What the study does, or why it does nothing.
fn why(status: &ViTScalingStudyStatus) -> Option<&str> {
    let of_type = |type_: &str| status.condition(type_);
    let is_true = |type_: &str| of_type(type_).filter(|condition| condition.status == "True");
    let found = of_type(types::RECONCILED)
        .or_else(|| is_true(types::FAILED))
        .or_else(|| is_true(types::COMPLETE))
        .or_else(|| is_true(types::SUSPENDED))
        .or_else(|| of_type(types::RUNNING))?;
    Some(&found.message)
}

fn rows(points: &[&PointStatus], study: &ViTScalingStudy, paint: Paint) -> String {
    let has_variants = points.iter().any(|point| point.variant.is_some());
    let has_efficiency = points.iter().any(|point| point.efficiency.is_some());
    let mut header = vec!["RANKS", "MICRO-BATCH", "ACCUMULATION"];
    header.extend(has_variants.then_some("VARIANT"));
    header.extend(["IMAGES/S", "STEP", "WAITING"]);
    header.extend(has_efficiency.then_some("EFFICIENCY"));
    header.push("MEASURED");
    let row = |point: &&PointStatus| {
        let mut row = vec![
            point.ranks.to_string(),
            point.micro_batch_size.to_string(),
            point.gradient_accumulation_steps.to_string(),
        ];
        if has_variants {
            row.push(point.variant.clone().unwrap_or_default());
        }
        row.extend([
            or_dash(point.images_per_second.map(|rate| format!("{rate:.1}"))),
            or_dash(point.step_milliseconds.map(|time| format!("{time:.1} ms"))),
            or_dash(point.sync_share.map(percent)),
        ]);
        if has_efficiency {
            row.push(or_dash(point.efficiency.map(percent)));
        }
        row.push(format!("{}/{}", point.measured, study.spec.measure.repetitions));
        row
    };
    let rows: Vec<Vec<String>> = points.iter().map(row).collect();
    let mut text = table(&header, &rows);
    for point in points {
        if let Some(failure) = &point.failure {
            let failure = format!("{}: {failure}", name(point));
            text += &format!("{}\n", paint.bad(wrapped(&failure, paint.width, INDENT)));
        }
    }
    text
}

/// The values that distinguish a point from others of its sweep.
fn name(point: &PointStatus) -> String {
    let mut name = format!(
        "{}, micro-batch {}",
        counted(point.ranks, "rank"),
        point.micro_batch_size
    );
    if point.gradient_accumulation_steps > 1 {
        name += &format!(" x {}", point.gradient_accumulation_steps);
    }
    if let Some(variant) = &point.variant {
        name += &format!(", {variant}");
    }
    name
}
