//! Notes that keep readers from misinterpreting the numbers.

use crds::study::Mode;
use indexmap::IndexMap;
use study::{PointResult, are_equal};

use super::figures::{Names, counted};

/// Smallest accuracy gap, in percentage points, that gets a note.
const LEAST_GAP: f64 = 1.0;

/// A larger micro-batch should gain at least this share of images/s.
const LEAST_GAIN: f64 = 0.05;

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
    if mode == Mode::Batch {
        notes.extend(doublings(points));
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

/// The measured micro-batch of each series at which doubling gains little.
fn doublings(points: &[PointResult]) -> Option<String> {
    let names = Names::new(points, Some(Mode::Batch));
    let mut gains: IndexMap<String, Vec<(u32, f64)>> = IndexMap::new();
    for point in points {
        let (name, images) = (names.of(point), point.point.micro_batch_size);
        let is_double =
            |other: &&PointResult| names.of(other) == name && other.point.micro_batch_size == 2 * images;
        if let Some(single) = rate(point)
            && let Some(double) = points.iter().find(is_double).and_then(rate)
        {
            gains
                .entry(name)
                .or_default()
                .push((images, double / single - 1.0));
        }
    }
    let words = gains.iter_mut().filter_map(|(name, gains)| {
        gains.sort_by_key(|(images, _)| *images);
        let little = gains.iter().find(|(_, gain)| *gain < LEAST_GAIN);
        Some(match (little, gains.last()?) {
            (Some((images, _)), _) => format!("less than 5 % at {images} images ({name})"),
            (None, (images, gain)) => format!("still {:.1} % at {images} images ({name})", gain * 1e2),
        })
    });
    let words: Vec<String> = words.collect();
    let words = words.join("; ");
    (!words.is_empty()).then(|| format!("Gain in images/s by doubling the micro-batch: {words}."))
}

fn rate(point: &PointResult) -> Option<f64> {
    Some(point.measured.as_ref()?.images_per_second.median)
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

/// Variants whose ranks emulate slower devices, by their speeds on the most ranks.
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
    let mut names: IndexMap<String, Vec<String>> = IndexMap::new();
    for (name, speeds) in found {
        names.entry(words(&speeds)).or_default().push(format!("{name:?}"));
    }
    names
        .into_iter()
        .map(|(speeds, names)| (names.join(" and "), speeds))
        .collect()
}

#[cfg(test)]
mod tests {
    use study::Results;

    use super::*;
    use crate::fixtures::{measurement, plan};

    #[test]
    fn the_published_batches_are_large_enough_at_128_images_on_one_rank() {
        let plan = plan("[{name: b, mode: Batch, ranks: [1, 2], microBatchSize: [16, 32, 64, 128, 256]}]");
        // Seconds per epoch of 50,000 images in figure 6 of arXiv 2602.21081.
        let seconds = [
            276.31, 212.21, 171.17, 149.08, 142.34, 232.61, 152.21, 115.02, 92.80, 86.57,
        ];
        let measured = seconds.map(|seconds| vec![Ok(measurement(5e4 / seconds))]);
        let points = Results::new(&plan, &measured).points;
        let expected = "Gain in images/s by doubling the micro-batch: less than 5 % at 128 images (1 rank); \
                        still 7.2 % at 128 images (2 ranks).";
        assert_eq!(doublings(&points).as_deref(), Some(expected));
    }
}
