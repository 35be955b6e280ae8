//! The contents of a data set: images by class, sizes, mean and deviation, unreadable files.

use std::collections::{BTreeMap, BTreeSet};

use contract::{DataConfig, PixelType};
use serde::Serialize;
use tch::{Kind, Tensor};

use super::resident::Resident;
use super::source::{PassedOver, Source, label_of};
use super::{DataError, Expected, Images, decode_threads, open, part};

/// How many unreadable images are named.
const NAMED: usize = 10;

/// The contents of a part of a data set.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Split {
    pub(crate) images: u64,
    /// Classes with images, in the order of their numbers.
    pub(crate) classes: Vec<Class>,
    /// Images that were decoded; all of the following is about them.
    pub(crate) examined: u64,
    pub(crate) width: Range,
    pub(crate) height: Range,
    /// Images by the number of channels in the file.
    pub(crate) channels: BTreeMap<u16, u64>,
    /// Of pixels scaled to 0..1 (float32: as stored), in the model's channels.
    pub(crate) mean: Vec<f64>,
    pub(crate) std: Vec<f64>,
    /// Among the examined images, plus all whose label cannot be read.
    pub(crate) unreadable_images: u64,
    /// The first of them.
    pub(crate) unreadable: Vec<Unreadable>,
    /// Files that are not images of the set, by reason.
    pub(crate) passed_over: PassedOver,
    /// Among the examined images.
    #[serde(skip)]
    pub(crate) unreadable_examined: u64,
}

impl Split {
    /// Whether training with this `data.maxCorruptFraction` would continue.
    pub(crate) fn is_usable(&self, max_corrupt_fraction: f64) -> bool {
        self.unreadable_images <= part::whole(self.images, max_corrupt_fraction)
            && self.unreadable_examined <= part::whole(self.examined, max_corrupt_fraction)
    }
}

impl Split {
    /// Counts an image that cannot be read.
    fn leave_out(&mut self, image: String, reason: String) {
        self.unreadable_images += 1;
        if self.unreadable.len() < NAMED {
            self.unreadable.push(Unreadable { image, reason });
        }
    }
}

#[derive(Debug, Serialize)]
pub(crate) struct Class {
    #[serde(rename = "class")]
    pub(crate) number: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    pub(crate) images: u64,
}

/// Lengths of the images' sides.
#[derive(Debug, Default, PartialEq, Serialize)]
pub(crate) struct Range {
    pub(crate) least: u32,
    pub(crate) median: u32,
    pub(crate) largest: u32,
}

#[derive(Debug, Serialize)]
pub(crate) struct Unreadable {
    pub(crate) image: String,
    pub(crate) reason: String,
}

/// Examines the images to train on and those to evaluate: `sample` images of each are decoded,
/// evenly spread, or all if it is 0.
pub(crate) fn survey(
    data: &DataConfig,
    expected: Expected,
    seed: u64,
    sample: u64,
) -> Result<(Split, Option<Split>), DataError> {
    let threads = decode_threads(data, 1);
    let (train, validation) = open(data, expected, seed, threads)?;
    let examine = |images: Images| match images {
        Images::Resident(images) => Ok(of_resident(&images, sample)),
        Images::Single(source) => of_files(&*source, expected, data.pixel_type, sample),
    };
    Ok((examine(train)?, validation.map(examine).transpose()?))
}

/// The numbers of all images, or of `sample`, evenly spread.
fn spread(len: u64, sample: u64) -> impl Iterator<Item = u64> {
    let count = if sample == 0 { len } else { sample.min(len) };
    (0..count).map(move |index| index * len / count)
}

fn of_resident(images: &Resident, sample: u64) -> Split {
    let (pixels, labels) = images.stored();
    let stored = pixels.size()[0].cast_unsigned();
    let rows: Vec<i64> = spread(stored, sample).map(u64::cast_signed).collect();
    let unit = images.pixel_type().unit();
    let some = pixels
        .index_select(0, &Tensor::from_slice(&rows))
        .to_kind(Kind::Float)
        / unit;
    let dimensions = [0_i64, 2, 3];
    let numbers = |tensor: Tensor| Vec::<f64>::try_from(tensor.to_kind(Kind::Double)).unwrap_or_default();
    let mut counts = BTreeMap::<i64, u64>::new();
    for class in labels.classes() {
        *counts.entry((*class).into()).or_default() += 1;
    }
    let size = |dimension: usize| range(vec![pixels.size()[dimension] as u32]);
    Split {
        images: images.len(),
        classes: counts
            .into_iter()
            .map(|(number, images)| Class {
                number,
                name: None,
                images,
            })
            .collect(),
        examined: rows.len() as u64,
        width: size(3),
        height: size(2),
        channels: BTreeMap::from([(pixels.size()[1] as u16, rows.len() as u64)]),
        mean: numbers(some.mean_dim(dimensions.as_slice(), false, Kind::Float)),
        std: numbers(some.std_dim(dimensions.as_slice(), false, false)),
        ..Split::default()
    }
}

/// Reads the labels of all images and the pixels of a sample. An error if a run would be refused.
fn of_files(
    source: &dyn Source,
    expected: Expected,
    pixel_type: PixelType,
    sample: u64,
) -> Result<Split, DataError> {
    let mut split = Split {
        images: source.len(),
        passed_over: source.passed_over(),
        ..Split::default()
    };
    let mut unlabelled = BTreeSet::new();
    let mut counts = BTreeMap::<i64, u64>::new();
    for image in 0..source.len() {
        match label_of(source, image, expected.classes)? {
            Ok(label) => label
                .classes()
                .iter()
                .for_each(|class| *counts.entry(*class).or_default() += 1),
            Err(reason) => {
                split.leave_out(source.name(image), reason);
                unlabelled.insert(image);
            }
        }
    }
    let name = |class: i64| source.classes().get(usize::try_from(class).ok()?).cloned();
    split.classes = counts
        .into_iter()
        .map(|(number, images)| Class {
            number,
            name: name(number),
            images,
        })
        .collect();

    let channels = expected.channels as usize;
    let (mut sums, mut squares, mut pixels) = (vec![0.0_f64; channels], vec![0.0_f64; channels], 0_u64);
    let (mut widths, mut heights) = (Vec::new(), Vec::new());
    for image in spread(source.len(), sample) {
        split.examined += 1;
        if unlabelled.contains(&image) {
            split.unreadable_examined += 1;
            continue;
        }
        let decoded = source
            .read(image)
            .and_then(|stored| Ok(source.decode(stored.file, expected.channels, pixel_type)?));
        match decoded {
            Ok(decoded) => {
                widths.push(decoded.width);
                heights.push(decoded.height);
                *split.channels.entry(decoded.stored_channels).or_default() += 1;
                pixels += u64::from(decoded.width) * u64::from(decoded.height);
                for (place, number) in decoded.numbers().map(f64::from).enumerate() {
                    sums[place % channels] += number;
                    squares[place % channels] += number * number;
                }
            }
            Err(error) => {
                split.unreadable_examined += 1;
                split.leave_out(source.name(image), error.reason(source, image)?);
            }
        }
    }
    let mean = |sum: &f64| sum / pixels.max(1) as f64;
    let unit = pixel_type.unit();
    split.mean = sums.iter().map(|sum| mean(sum) / unit).collect();
    split.std = sums
        .iter()
        .zip(&squares)
        .map(|(sum, square)| (mean(square) - mean(sum).powi(2)).max(0.0).sqrt() / unit)
        .collect();
    split.width = range(widths);
    split.height = range(heights);
    Ok(split)
}

fn range(mut lengths: Vec<u32>) -> Range {
    lengths.sort_unstable();
    Range {
        least: lengths.first().copied().unwrap_or(0),
        median: lengths.get(lengths.len() / 2).copied().unwrap_or(0),
        largest: lengths.last().copied().unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::labels::Labels;

    #[test]
    fn a_sample_is_spread_and_never_larger_than_the_set() {
        let numbers = |len, sample| spread(len, sample).collect::<Vec<_>>();
        assert_eq!(numbers(10, 4), [0, 2, 5, 7]);
        assert_eq!(numbers(3, 100), [0, 1, 2]);
        assert_eq!(numbers(3, 0), [0, 1, 2]);
        assert_eq!(numbers(0, 5), Vec::<u64>::new());
    }

    #[test]
    fn arrays_tell_the_deviation_over_all_pixels_of_a_channel() {
        let images = Tensor::from_slice(&[0_u8, 255, 0, 255, 51, 51, 51, 51]).reshape([1, 2, 2, 2]);
        let set = Resident::new(images, Labels::from_classes(vec![4]), 1);
        let split = of_resident(&set, 10);
        let near = |found: &[f64], expected: [f64; 2]| {
            assert!(
                found
                    .iter()
                    .zip(expected)
                    .all(|(left, right)| (left - right).abs() < 1e-6),
                "{found:?}"
            );
        };
        near(&split.mean, [0.5, 0.2]);
        near(&split.std, [0.5, 0.0]);
        assert_eq!((split.classes[0].number, split.classes[0].images), (4, 1));
        assert_eq!(split.width, range(vec![2]));
    }
}
