//! Notes that keep readers from misinterpreting the numbers.

use crds::study::Mode;
use study::{PointResult, are_equal};

use super::figures::{Names, counted};

/// Smallest accuracy gap, in percentage points, that gets a note.
const LEAST_GAP: f64 = 1.0;

/// Notes on a sweep.
pub(super) fn notes(points: &[PointResult]) -> Vec<String> {
    let mode = points[0].point.mode;
    let mut notes = Vec::new();
    let batches = |points: &[&PointResult]| {
        let batches = || points.iter().map(|point| point.point.global_batch_size);
        (batches().min().unwrap_or(0), batches().max().unwrap_or(0))
    };
    let all: Vec<&PointResult> = points.iter().collect();
    let (least, most) = batches(&all);
    // Within a series: other series may have other batches.
    let grows = points.iter().any(|point| {
        let series = points
            .iter()
            .filter(|other| point.point.is_of_series(&other.point));
        let (least, most) = batches(&series.collect::<Vec<_>>());
        least != most
    });
    match mode {
        Mode::Strong if grows => notes.push(format!(
            "The global batch grows from {least} to {most} images: points with more ranks run fewer, larger steps, so part of \
             the apparent scaling is due to the larger batch. {} Unless the learning rate scales with the batch \
             (training.learningRateScaling), fewer steps also train less, and accuracies are not comparable.",
            fixed_batch(points)
        )),
        Mode::Weak => notes.push(
            "The data grow with the ranks: constant seconds per epoch are ideal, and accuracies belong to different amounts of data."
                .into(),
        ),
        Mode::Batch | Mode::Accumulation | Mode::Variants if least != most => notes.push(format!(
            "Steps have {least} to {most} images. For the same epochs, larger batches mean fewer steps, and accuracy usually \
             falls unless the learning rate scales with the batch (training.learningRateScaling)."
        )),
        _ => {}
    }
    for (name, speeds) in emulated(points) {
        notes.push(format!(
            "Emulated devices: in {name}, ranks pause between passes to compute at {speeds} of a core's speed, with one \
             thread each."
        ));
    }
    let with_warmup = |point: &PointResult| {
        let measured = point.measured.as_ref()?;
        Some(measured.mean_epoch_seconds.median / measured.epoch_seconds.median)
    };
    if let Some(ratio) = points
        .iter()
        .filter_map(with_warmup)
        .max_by(|a, b| (a - 1.0).abs().total_cmp(&(b - 1.0).abs()))
        && (ratio - 1.0).abs() > 0.03
    {
        notes.push(format!(
            "The mean over all epochs, which includes the warm-up, is up to {:.0} % {} than an epoch after the warm-up. \
             Both are in the table.",
            (ratio - 1.0).abs() * 100.0,
            if ratio > 1.0 { "longer" } else { "shorter" }
        ));
    }
    let gap = |point: &PointResult| {
        let measured = point.measured.as_ref()?;
        Some((measured.train_accuracy.median - measured.validation_accuracy?.median) * 100.0)
    };
    let gaps = points.iter().filter_map(gap);
    if let Some(gap) = gaps.max_by(|a, b| a.abs().total_cmp(&b.abs()))
        && gap.abs() >= LEAST_GAP
    {
        notes.push(format!(
            "Accuracy on training images, which many studies report, is up to {:.1} percentage points {} than on held-out images. \
             Both are in the table.",
            gap.abs(),
            if gap > 0.0 { "higher" } else { "lower" }
        ));
    }
    if points.iter().any(|point| point.repetitions == 1) {
        notes.push("Some points were measured once: their spread is unknown.".into());
    }
    notes
}

/// Throughput with a fixed global batch, on the most ranks for which both were measured.
fn fixed_batch(points: &[PointResult]) -> String {
    let both = points.iter().filter_map(|point| {
        let measured = point.measured.as_ref()?;
        let fixed = measured.fixed_batch_images_per_second?;
        Some((point, measured.images_per_second.median, fixed.median))
    });
    let Some((point, grows, fixed)) = both.max_by_key(|(point, ..)| point.point.ranks) else {
        return "To exclude this effect, measure the same job with globalBatch: Fixed.".into();
    };
    let names = Names::new(points, Some(Mode::Strong));
    let series = if names.tell_apart() {
        format!(" ({})", names.of(point))
    } else {
        String::new()
    };
    format!(
        "{} train {grows:.1} images/s{series}, and {fixed:.1} with the global batch of the fewest ranks; both are in the table.",
        counted(point.point.ranks)
    )
}

/// Variants whose ranks emulate slower devices, with the speeds on the most ranks.
fn emulated(points: &[PointResult]) -> Vec<(String, String)> {
    let mut found: Vec<(String, Vec<f64>)> = Vec::new();
    for point in points.iter().filter(|point| !point.point.speeds.is_empty()) {
        let name = point.point.variant.clone().unwrap_or_default();
        let speeds = &point.point.speeds;
        match found.iter_mut().find(|(known, _)| *known == name) {
            Some((_, known)) if known.len() < speeds.len() => known.clone_from(speeds),
            Some(_) => {}
            None => found.push((name, speeds.clone())),
        }
    }
    let words = |speeds: &[f64]| match speeds {
        [first, ..] if are_equal(speeds) => first.to_string(),
        _ => speeds
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(", "),
    };
    found
        .into_iter()
        .map(|(name, speeds)| (format!("{name:?}"), words(&speeds)))
        .collect()
}
