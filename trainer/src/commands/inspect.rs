//! `vit-trainer data inspect`: what a data set holds, before anything is trained on it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;

use contract::{DataConfig, DataFormat, ExitCode, Shards};
use serde::Serialize;
use tch::{Kind, Tensor};

use super::augment::Values;
use super::decode::decode;
use super::resident::Resident;
use super::source::Source;
use super::{Expected, Images, open};
use crate::error::TrainError;
use crate::threads;

/// Unreadable images that are named.
const NAMED: usize = 10;

/// Commands about data sets.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Tell what a data set holds: images by class and split, sizes, channels, mean and deviation, unreadable files
    Inspect(Arguments),
}

/// The command line of `data inspect`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit code 3 if the data set cannot be used, or has more unreadable images than data.maxCorruptFraction allows.\n\nExample: vit-trainer data inspect -f examples/digits.yaml --data target/digits\nExample: vit-trainer data inspect --format imageFolder --path /data/imagenet --sample 0 --json"
)]
pub(crate) struct Arguments {
    /// Manifest of a ViTTrainingJob
    #[arg(short = 'f', long = "file", value_name = "FILE", conflicts_with_all = ["format", "path", "channels"], required_unless_present = "format")]
    manifest: Option<PathBuf>,
    /// Folder of the data set, in place of the manifest's volume
    #[arg(long, value_name = "DIR", conflicts_with = "path")]
    data: Option<PathBuf>,
    /// Format of a data set without a manifest: cifar10, cifar100, imageFolder, webDataset or numpy
    #[arg(long, value_parser = format, requires = "path")]
    format: Option<DataFormat>,
    /// Folder of a data set without a manifest
    #[arg(long, value_name = "DIR", requires = "format")]
    path: Option<PathBuf>,
    /// Channels of the images of a data set without a manifest
    #[arg(long, value_name = "N", default_value = "3")]
    channels: u32,
    /// How many images of each split are read whole, evenly spread; 0 for all
    #[arg(long, value_name = "N", default_value = "2000")]
    sample: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn format(name: &str) -> Result<DataFormat, String> {
    let format = serde_json::from_value(name.into()).ok();
    format
        .filter(|format: &DataFormat| format.has_files())
        .ok_or_else(|| "must be cifar10, cifar100, imageFolder, webDataset or numpy".into())
}

/// What is told of a data set.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    format: DataFormat,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<PathBuf>,
    train: Split,
    #[serde(skip_serializing_if = "Option::is_none")]
    validation: Option<Split>,
}

#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Split {
    images: u64,
    /// In the order of class numbers, those with images.
    classes: Vec<Class>,
    /// Images that were read whole; all of the following is about them.
    examined: u64,
    width: Range,
    height: Range,
    /// Images by the number of channels in the file.
    channels: BTreeMap<u8, u64>,
    /// Of pixels scaled to 0..1 (float arrays: as they are), as the model's channels.
    mean: Vec<f64>,
    std: Vec<f64>,
    unreadable_images: u64,
    /// The first of them.
    unreadable: Vec<Unreadable>,
}

#[derive(Debug, Serialize)]
struct Class {
    #[serde(rename = "class")]
    number: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    images: u64,
}

#[derive(Debug, Default, Serialize)]
struct Range {
    least: u32,
    median: u32,
    largest: u32,
}

#[derive(Debug, Serialize)]
struct Unreadable {
    image: String,
    reason: String,
}

/// Carries out a command about data sets. Gives the exit code.
pub(crate) fn main(command: &Command) -> Result<ExitCode, TrainError> {
    let Command::Inspect(arguments) = command;
    let (data, expected, seed) = subject(arguments)?;
    let threads = data
        .decode_threads
        .map_or_else(|| threads::per_rank(1), |threads| threads as usize);
    let (train, validation) = open(&data, expected, seed, threads)?;
    let report = Report {
        format: data.format,
        path: data.path.clone(),
        train: examine(&train, expected, arguments.sample),
        validation: validation.map(|images| examine(&images, expected, arguments.sample)),
    };
    let text = if arguments.json {
        serde_json::to_string_pretty(&report).expect("strings and numbers") + "\n"
    } else {
        report.text()
    };
    std::io::stdout()
        .write_all(text.as_bytes())
        .map_err(|error| TrainError::System {
            action: "failed to print",
            error,
        })?;
    let usable = [Some(&report.train), report.validation.as_ref()]
        .into_iter()
        .flatten()
        .all(|split| split.unreadable_images as f64 <= split.examined as f64 * data.max_corrupt_fraction);
    Ok(if usable { ExitCode::Done } else { ExitCode::BadData })
}

/// The data set of the command line, and what a model expects of it.
fn subject(arguments: &Arguments) -> Result<(DataConfig, Expected, u64), TrainError> {
    if let Some(manifest) = &arguments.manifest {
        let job = crate::run::read_manifest(manifest)?;
        let config = crds::validate(&job)
            .map_err(|error| TrainError::Config(format!("{}: {error}", manifest.display())))?
            .run_config;
        let expected = Expected::of(&config.model);
        let mut data = config.data;
        if data.format.has_files()
            && let Some(folder) = &arguments.data
        {
            data.path = Some(folder.clone());
        }
        return Ok((data, expected, config.training.seed));
    }
    let format = arguments.format.expect("the command line has one of both");
    let data = DataConfig {
        path: arguments.path.clone(),
        shards: (format == DataFormat::WebDataset).then(|| Shards {
            train: "train-*.tar".into(),
            validation: "val-*.tar".into(),
        }),
        ..DataConfig::plain(format)
    };
    let expected = Expected {
        channels: arguments.channels,
        classes: u32::MAX,
        side: 1,
    };
    Ok((data, expected, 0))
}

fn examine(images: &Images, expected: Expected, sample: u64) -> Split {
    match images {
        Images::Resident(images) => of_resident(images, sample),
        Images::Files(source) => of_files(&**source, expected, sample),
    }
}

/// Every image's number, or `sample` of them, evenly spread.
fn spread(len: u64, sample: u64) -> impl Iterator<Item = u64> {
    let count = if sample == 0 { len } else { sample.min(len) };
    (0..count).map(move |index| index * len / count)
}

fn of_resident(images: &Resident, sample: u64) -> Split {
    let (pixels, labels) = images.stored();
    let stored = pixels.size()[0].cast_unsigned();
    let rows: Vec<i64> = spread(stored, sample).map(u64::cast_signed).collect();
    let unit = match images.values() {
        Values::Bytes => 255.0,
        Values::Floats => 1.0,
    };
    let some = pixels
        .index_select(0, &Tensor::from_slice(&rows))
        .to_kind(Kind::Float)
        / unit;
    let dimensions = [0_i64, 2, 3];
    let numbers = |tensor: Tensor| Vec::<f64>::try_from(tensor.to_kind(Kind::Double)).unwrap_or_default();
    let counts = Vec::<i64>::try_from(labels.bincount::<Tensor>(None, 0)).unwrap_or_default();
    let size = |dimension: usize| {
        let length = pixels.size()[dimension] as u32;
        Range {
            least: length,
            median: length,
            largest: length,
        }
    };
    Split {
        images: images.len(),
        classes: (0..)
            .zip(counts)
            .filter(|(_, images)| *images > 0)
            .map(|(number, images)| Class {
                number,
                name: None,
                images: images.cast_unsigned(),
            })
            .collect(),
        examined: rows.len() as u64,
        width: size(3),
        height: size(2),
        channels: BTreeMap::from([(pixels.size()[1] as u8, rows.len() as u64)]),
        mean: numbers(some.mean_dim(dimensions.as_slice(), false, Kind::Float)),
        std: numbers(some.std_dim(dimensions.as_slice(), false, false)),
        ..Split::default()
    }
}

fn of_files(source: &dyn Source, expected: Expected, sample: u64) -> Split {
    let mut split = Split {
        images: source.len(),
        ..Split::default()
    };
    let mut counts = BTreeMap::<i64, u64>::new();
    for label in (0..source.len()).filter_map(|image| source.label(image).ok()) {
        *counts.entry(label).or_default() += 1;
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
    let (mut sums, mut squares, mut pixels) = (vec![0_u64; channels], vec![0_u64; channels], 0_u64);
    let (mut widths, mut heights) = (Vec::new(), Vec::new());
    for image in spread(source.len(), sample) {
        split.examined += 1;
        let decoded = source
            .read(image)
            .and_then(|stored| decode(&stored.file, expected.channels));
        match decoded {
            Ok(decoded) => {
                widths.push(decoded.width);
                heights.push(decoded.height);
                *split.channels.entry(decoded.stored_channels).or_default() += 1;
                pixels += (decoded.pixels.len() / channels) as u64;
                for (place, value) in decoded.pixels.iter().enumerate() {
                    sums[place % channels] += u64::from(*value);
                    squares[place % channels] += u64::from(*value) * u64::from(*value);
                }
            }
            Err(reason) => {
                split.unreadable_images += 1;
                if split.unreadable.len() < NAMED {
                    let image = source.name(image);
                    split.unreadable.push(Unreadable { image, reason });
                }
            }
        }
    }
    let mean = |sum: &u64| *sum as f64 / pixels.max(1) as f64;
    split.mean = sums.iter().map(|sum| mean(sum) / 255.0).collect();
    split.std = sums
        .iter()
        .zip(&squares)
        .map(|(sum, square)| (mean(square) - mean(sum).powi(2)).max(0.0).sqrt() / 255.0)
        .collect();
    split.width = range(widths);
    split.height = range(heights);
    split
}

fn range(mut lengths: Vec<u32>) -> Range {
    lengths.sort_unstable();
    Range {
        least: lengths.first().copied().unwrap_or(0),
        median: lengths.get(lengths.len() / 2).copied().unwrap_or(0),
        largest: lengths.last().copied().unwrap_or(0),
    }
}

impl Report {
    fn text(&self) -> String {
        let mut text = self.train.text("train");
        if let Some(validation) = &self.validation {
            text += &validation.text("validation");
        } else {
            text += "validation: none\n";
        }
        text
    }
}

impl Split {
    fn text(&self, name: &str) -> String {
        let mut text = format!(
            "{name}: {} images of {} classes\n",
            self.images,
            self.classes.len()
        );
        let classes = self.classes.iter().map(|class| match &class.name {
            Some(name) => format!("{} {name}: {}", class.number, class.images),
            None => format!("{}: {}", class.number, class.images),
        });
        let mut line = |what: &str, value: String| {
            let _ = writeln!(text, "  {what:<12} {value}");
        };
        line("images by class", classes.collect::<Vec<_>>().join(", "));
        line("examined", format!("{} images", self.examined));
        line("width", self.width.text());
        line("height", self.height.text());
        let channels = self
            .channels
            .iter()
            .map(|(channels, images)| format!("{channels} ({images} images)"));
        line("channels", channels.collect::<Vec<_>>().join(", "));
        let numbers = |values: &[f64]| {
            let values = values.iter().map(|value| format!("{value:.4}"));
            format!("[{}]", values.collect::<Vec<_>>().join(", "))
        };
        line("mean", numbers(&self.mean));
        line("std", numbers(&self.std));
        line("unreadable", self.unreadable_images.to_string());
        for Unreadable { image, reason } in &self.unreadable {
            line("", format!("{image}: {reason}"));
        }
        text
    }
}

impl Range {
    fn text(&self) -> String {
        if self.least == self.largest {
            self.least.to_string()
        } else {
            format!("{} to {}, median {}", self.least, self.largest, self.median)
        }
    }
}

#[cfg(test)]
mod tests {
    use image::ImageFormat;

    use super::*;
    use crate::data::decode::samples::file;
    use crate::data::image_folder;

    #[test]
    fn a_sample_is_spread_and_never_larger_than_the_set() {
        let numbers = |len, sample| spread(len, sample).collect::<Vec<_>>();
        assert_eq!(numbers(10, 4), [0, 2, 5, 7]);
        assert_eq!(numbers(3, 100), [0, 1, 2]);
        assert_eq!(numbers(3, 0), [0, 1, 2]);
        assert_eq!(numbers(0, 5), Vec::<u64>::new());
    }

    #[test]
    fn files_are_counted_measured_and_the_unreadable_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, bytes: Vec<u8>| {
            let path = folder.path().join("train").join(name);
            fs_err::create_dir_all(path.parent().expect("a folder")).expect("creates");
            fs_err::write(path, bytes).expect("writes");
        };
        write("cat/1.png", file(ImageFormat::Png, 10, 20, [0, 51, 255]));
        write("cat/2.png", file(ImageFormat::Png, 30, 20, [0, 51, 255]));
        write("dog/1.png", b"no image".to_vec());
        let (train, _) = image_folder::open(folder.path(), 2, 1.0).expect("opens");
        let expected = Expected {
            channels: 3,
            classes: 2,
            side: 1,
        };
        let split = of_files(&train, expected, 0);
        assert_eq!((split.images, split.examined, split.unreadable_images), (3, 3, 1));
        assert_eq!(split.mean, [0.0, 0.2, 1.0]);
        assert!(split.std.iter().all(|std| *std < 1e-6));
        let text = split.text("train");
        for part in [
            "train: 3 images of 2 classes",
            "0 cat: 2, 1 dog: 1",
            "10 to 30, median 30",
            "3 (2 images)",
            "dog/1.png: it is neither JPEG nor PNG",
        ] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
    }

    #[test]
    fn arrays_tell_the_deviation_over_all_pixels_of_a_channel() {
        let images = Tensor::from_slice(&[0_u8, 255, 0, 255, 51, 51, 51, 51]).reshape([1, 2, 2, 2]);
        let set = Resident::new(images, Tensor::from_slice(&[4_i64]), 1);
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
        assert_eq!(split.width.text(), "2");
    }
}
