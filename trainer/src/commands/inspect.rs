//! `vit-trainer data inspect`: the contents of a data set, before training.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;

use contract::{DataConfig, DataFormat, ExitCode, PixelType, Shards};
use serde::Serialize;

use crate::data::{Classes, Expected, Range, Split, Unreadable, survey};
use crate::error::TrainError;
use crate::manifest;

/// Commands about data sets.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Show what a data set contains: images by class and split, sizes, channels, mean and
    /// deviation, unreadable files
    Inspect(Arguments),
}

/// The command line of `data inspect`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit code 3 if the data set cannot be used, or has more unreadable images than data.maxCorruptFraction allows.\n\nExample: vit-trainer data inspect -f examples/digits.yaml --data target/digits\nExample: vit-trainer data inspect --format imageFolder --path /data/imagenet --sample 0 --json"
)]
pub(crate) struct Arguments {
    /// Manifest of a ViTTrainingJob, or - for standard input
    #[arg(short = 'f', long = "file", value_name = "FILE", conflicts_with_all = ["format", "path", "channels", "pixel_type"], required_unless_present = "format")]
    manifest: Option<PathBuf>,
    /// Folder of the data set, in place of the manifest's volume
    #[arg(long, value_name = "DIR", conflicts_with = "path")]
    data: Option<PathBuf>,
    /// Format of a data set without a manifest: cifar10, cifar100, imageFolder, webDataset, parquet, numpy or hdf5
    #[arg(long, value_parser = format, requires = "path")]
    format: Option<DataFormat>,
    /// Folder of a data set without a manifest
    #[arg(long, value_name = "DIR", requires = "format")]
    path: Option<PathBuf>,
    /// Parquet column with the images, if there are several
    #[arg(long, value_name = "NAME", requires = "format")]
    image_column: Option<String>,
    /// Parquet column with the class numbers, if there are several
    #[arg(long, value_name = "NAME", requires = "format")]
    label_column: Option<String>,
    /// Channels of the images of a data set without a manifest
    #[arg(long, value_name = "N", default_value = "3")]
    channels: u32,
    /// Type to which images of a data set without a manifest are decoded: uint8 or float32
    #[arg(long, value_name = "TYPE", value_parser = pixel_type, default_value = "uint8")]
    pixel_type: PixelType,
    /// Images of each split to decode, evenly spread; 0 for all
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
        .ok_or_else(|| "must be cifar10, cifar100, imageFolder, webDataset, parquet, numpy or hdf5".into())
}

fn pixel_type(name: &str) -> Result<PixelType, String> {
    serde_json::from_value(name.into()).map_err(|_| "must be uint8 or float32".into())
}

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

/// Runs a command about data sets. Returns the exit code.
pub(crate) fn main(command: &Command) -> Result<ExitCode, TrainError> {
    let Command::Inspect(arguments) = command;
    let (data, expected, seed) = subject(arguments)?;
    let (train, validation) = survey(&data, expected, seed, arguments.sample)?;
    let report = Report {
        format: data.format,
        path: data.path.clone(),
        train,
        validation,
    };
    let text = if arguments.json {
        serde_json::to_string_pretty(&report).expect("strings and numbers") + "\n"
    } else {
        report.text()
    };
    std::io::stdout()
        .write_all(text.as_bytes())
        .map_err(TrainError::system("failed to print"))?;
    let usable = [Some(&report.train), report.validation.as_ref()]
        .into_iter()
        .flatten()
        .all(|split| split.is_usable(data.max_corrupt_fraction));
    Ok(if usable { ExitCode::Done } else { ExitCode::BadData })
}

/// The data set of the command line, and what a model expects of it.
fn subject(arguments: &Arguments) -> Result<(DataConfig, Expected, u64), TrainError> {
    if let Some(path) = &arguments.manifest {
        let job = manifest::read(path)?;
        let config = crds::validate(&job)
            .map_err(|error| TrainError::Config(format!("{}: {error}", path.display())))?
            .run_config;
        let expected = Expected::of(&config.model, config.training.loss);
        let mut data = config.data;
        if data.format.has_files()
            && let Some(folder) = &arguments.data
        {
            data.path = Some(folder.clone());
            data.from = None;
        }
        manifest::cache_here(&mut data);
        return Ok((data, expected, config.training.seed));
    }
    let format = arguments.format.expect("the command line has one of the two");
    let columns = [&arguments.image_column, &arguments.label_column];
    if format != DataFormat::Parquet && columns.iter().any(|column| column.is_some()) {
        return Err(TrainError::Config(
            "--image-column and --label-column are for --format parquet".into(),
        ));
    }
    if !format.has_image_files() && arguments.pixel_type != PixelType::Uint8 {
        return Err(TrainError::Config(
            "--pixel-type float32 is for --format imageFolder, parquet and webDataset".into(),
        ));
    }
    let files_have_colors = format.has_image_files() && arguments.pixel_type == PixelType::Uint8;
    if arguments.channels == 0 || (files_have_colors && ![1, 3].contains(&arguments.channels)) {
        return Err(TrainError::Config(format!(
            "--channels is {}: must be 1 (gray) or 3 (red, green, blue), or with --pixel-type float32 or arrays, at least 1",
            arguments.channels
        )));
    }
    let data = DataConfig {
        path: arguments.path.clone(),
        shards: (format == DataFormat::WebDataset).then(|| Shards {
            train: "train-*.tar".into(),
            validation: "val-*.tar".into(),
        }),
        image_column: arguments.image_column.clone(),
        label_column: arguments.label_column.clone(),
        pixel_type: arguments.pixel_type,
        ..DataConfig::plain(format)
    };
    let expected = Expected {
        channels: arguments.channels,
        classes: Classes::ANY,
        side: 1,
    };
    Ok((data, expected, 0))
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
        for (why, count) in &self.passed_over {
            line("not used", format!("{count} {why}"));
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

    use super::*;
    use crate::data::fixtures::{folder, png as image_file};

    #[test]
    fn files_are_counted_measured_and_the_unreadable_named() {
        let png = |width| image_file(width, 20, [0, 51, 255]);
        let folder = folder(&[
            ("train/cat/1.png", png(10)),
            ("train/cat/2.png", png(30)),
            ("train/dog/1.png", b"no image".to_vec()),
            ("train/dog/1.bmp", b"of another format".to_vec()),
        ]);
        let expected = Expected {
            channels: 3,
            classes: Classes {
                count: 2,
                several: false,
            },
            side: 1,
        };
        let data = DataConfig {
            path: Some(folder.path().into()),
            ..DataConfig::plain(DataFormat::ImageFolder)
        };
        let (split, _) = survey(&data, expected, 0, 0).expect("opens");
        assert_eq!((split.images, split.examined, split.unreadable_images), (3, 3, 1));
        assert_eq!(split.mean, [0.0, 0.2, 1.0]);
        assert!(split.std.iter().all(|std| *std < 1e-6));
        assert!(split.is_usable(0.34) && !split.is_usable(0.33));
        let text = split.text("train");
        for part in [
            "train: 3 images of 2 classes",
            "0 cat: 2, 1 dog: 1",
            "10 to 30, median 30",
            "3 (2 images)",
            "dog/1.png: it is not a JPEG, PNG, WebP or TIFF file",
            "1 files that end in .bmp",
        ] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
        let split = Split {
            images: 100,
            examined: 100,
            unreadable_images: 29,
            unreadable_examined: 29,
            ..split
        };
        assert!(split.is_usable(0.29), "100 times 0.29 is a little less than 29");
    }
}
