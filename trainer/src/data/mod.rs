//! Data sets and their batches.
//!
//! ```text
//!   files -> Splits { train, validation } -> Batches -> Batch { images, labels, targets }
//! ```
//! Small sets stay on the device as stored, and every batch is made there. Images in files, and those whose colors
//! change, are prepared by separate threads while the model works on earlier batches.

mod arrays;
mod augment;
mod batch;
mod cifar;
mod decode;
mod draws;
mod error;
mod files;
#[cfg(test)]
pub(crate) mod fixtures;
mod image_folder;
mod in_memory;
mod labels;
mod loader;
mod order;
mod parquet;
mod part;
mod resident;
mod source;
mod statistics;
mod synthetic;
mod web_dataset;
mod window;

use std::ops;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use contract::{ClassWeights, DataConfig, DataFormat, ExitCode, Loss, ModelConfig, PixelType, RunConfig};
use objects::{Cache, Location};
use serde::{Deserialize, Serialize};
use tch::Device;

pub(crate) use error::DataError;
pub(crate) use loader::{Batches, StageSeconds};
pub(crate) use order::Share;
pub(crate) use statistics::{Range, Split, Unreadable, survey};

use crate::error::Failure as _;
use crate::threads;
use arrays::Files;
use augment::{Finish, Preparation};
pub(crate) use batch::Batch;
use batch::Readable;
use files::Root;
use in_memory::InMemory;
use labels::Label;
use loader::{Batching, Pipeline, ResidentBatches, Task};
use order::{EpochOrder, Item};
use resident::Resident;
use source::{Source, fingerprint, label_of};

/// Bytes of a shard that are read from a store at once.
const BLOCK: u64 = 8 << 20;
/// How long a store is retried within one read.
const PATIENCE: Duration = Duration::from_secs(10);
/// Share of the cache's limit for files: files being written could get the pod evicted.
const CACHE_PERCENT: u64 = 90;
/// Images decoded before a run.
const CHECKED_IMAGES: u64 = 16;

#[derive(Debug)]
pub(crate) struct Splits {
    pub(crate) train: DataSet,
    /// The images to evaluate, if any.
    pub(crate) validation: Option<DataSet>,
}

/// The training images and their order: ranks compare it at the start, and checkpoints keep it.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct DataIdentity {
    /// Number of training images.
    pub(crate) images: u64,
    /// Of the names of all images, or of their labels if they have no names.
    pub(crate) fingerprint: u32,
    /// The seed of an epoch's order.
    pub(crate) seed: u64,
}

impl Splits {
    pub(crate) fn identity(&self) -> DataIdentity {
        let sets = std::iter::once(&self.train).chain(&self.validation);
        DataIdentity {
            images: self.train.len(),
            fingerprint: fingerprint(sets.map(|set| set.fingerprint().to_le_bytes())),
            seed: self.train.seed,
        }
    }

    /// An error if a label would end a run.
    pub(crate) fn check_labels(&self) -> Result<(), DataError> {
        let mut sets = std::iter::once(&self.train).chain(&self.validation);
        sets.try_for_each(DataSet::check_labels)
    }

    /// Logs files among the images that are not used.
    pub(crate) fn tell_passed_over(&self) {
        for (folder, set) in [("train", Some(&self.train)), ("val", self.validation.as_ref())] {
            if let Some(Images::Single(source)) = set.map(|set| &set.images) {
                let are_folders = self.train.preparation.config.format == DataFormat::ImageFolder;
                if let Some([before, after]) = out_of_order(source.classes()).filter(|_| are_folders) {
                    tracing::warn!(
                        "classes are numbered by their names as text ({folder}): {before} comes before {after}; data.classOrder: natural sorts by number"
                    );
                }
                for (why, count) in source.passed_over() {
                    tracing::warn!("not used in the data set ({folder}): {count} {why}");
                }
            }
        }
    }

    /// An error if the training images do not fill one optimizer step.
    pub(crate) fn require_a_step(&self, global_batch_size: u64) -> Result<(), DataError> {
        let images = self.train.len();
        if images < global_batch_size {
            return Err(DataError::TooSmall {
                images,
                global_batch_size,
            });
        }
        Ok(())
    }

    /// The images to evaluate; an error without any.
    pub(crate) fn held_out(self, format: DataFormat) -> Result<DataSet, DataError> {
        let held_out = self.validation.filter(|images| images.len() > 0);
        held_out.ok_or(DataError::NothingHeldOut {
            expected: match format {
                DataFormat::Cifar10 => "cifar10 has them in test_batch.bin",
                DataFormat::Cifar100 => "cifar100 has them in test.bin",
                DataFormat::Numpy => "numpy has them in val.npz, or val_images.npy and val_labels.npy",
                DataFormat::Hdf5 => "hdf5 has them in val.h5, or val_images.h5 and val_labels.h5",
                DataFormat::ImageFolder => "an imageFolder has them in val/<class>/",
                DataFormat::Parquet => {
                    "files of format parquet to evaluate have validation, val or test in their names"
                }
                DataFormat::WebDataset => {
                    "a webDataset has them in the files that data.validationShards names"
                }
                DataFormat::Synthetic => "synthetic images are all for training",
            },
        })
    }
}

/// Labeled images, and how their batches are made.
#[derive(Debug)]
pub(crate) struct DataSet {
    images: Images,
    preparation: Arc<Preparation>,
    finish: Rc<Finish>,
    seed: u64,
    repeats: u32,
    threads: usize,
}

/// A model's requirements for a data set.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Expected {
    pub(crate) channels: u32,
    pub(crate) classes: Classes,
    /// Side of images in pixels; others are resized to it.
    pub(crate) side: u32,
}

/// The valid labels.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Classes {
    /// Number of the model's classes.
    pub(crate) count: u32,
    /// Whether an image may show any number of them, instead of one.
    pub(crate) several: bool,
}

impl Classes {
    /// For a data set without a model.
    pub(crate) const ANY: Self = Self {
        // Labels are stored in this many bits.
        count: i32::MAX as u32,
        several: true,
    };

    pub(crate) fn of(model: &ModelConfig, loss: Loss) -> Self {
        Self {
            count: model.num_classes,
            several: loss == Loss::BinaryCrossEntropy,
        }
    }
}

impl Expected {
    pub(crate) fn of(model: &ModelConfig, loss: Loss) -> Self {
        Self {
            channels: model.channels,
            classes: Classes::of(model, loss),
            side: model.image_size,
        }
    }
}

#[derive(Debug)]
enum Images {
    Resident(Rc<Resident>),
    /// Prepared one by one: images in files, and those whose colors change.
    Single(Arc<dyn Source>),
}

/// Opens the data set; small ones are read completely, onto the device.
pub(crate) fn load(config: &RunConfig, device: Device) -> Result<Splits, DataError> {
    let threads = decode_threads(&config.data, config.ranks_per_node);
    let (train, validation) = with_retries(config, || {
        open(
            &config.data,
            Expected::of(&config.model, config.training.loss),
            config.training.seed,
            threads,
        )
    })?;
    let class_weights = match &config.training.class_weights {
        None => None,
        Some(ClassWeights {
            values: Some(values), ..
        }) => Some(values.iter().map(|value| *value as f32).collect()),
        Some(_) => {
            let counts = with_retries(config, || {
                let classes = Classes::of(&config.model, config.training.loss);
                count_classes(&train, classes, threads)
            })?;
            Some(match config.training.loss {
                Loss::CrossEntropy => balanced(&counts),
                Loss::BinaryCrossEntropy => balanced_against_the_others(&counts, train.len()),
            })
        }
    };
    let preparation = Arc::new(Preparation::new(config));
    let set = |images: Images| {
        let (images, pixel_type) = match images {
            Images::Resident(images) => {
                let images = images.to_device(device);
                let pixel_type = images.pixel_type();
                (Images::Resident(Rc::new(images)), pixel_type)
            }
            Images::Single(source) => (Images::Single(source), config.data.pixel_type),
        };
        DataSet {
            images,
            preparation: Arc::clone(&preparation),
            finish: Rc::new(Finish::new(config, pixel_type, class_weights.as_deref(), device)),
            seed: config.training.seed,
            repeats: config.data.augmentation.repeated_augmentation,
            threads,
        }
    };
    let train = match train {
        Images::Resident(images) if config.data.augmentation.changes_colors() => {
            Images::Single(Arc::new(InMemory::new(&images)))
        }
        images => images,
    };
    Ok(Splits {
        train: set(train),
        validation: validation.map(set),
    })
}

/// Calls `read`, and retries for a while if the storage fails.
fn with_retries<T>(config: &RunConfig, read: impl Fn() -> Result<T, DataError>) -> Result<T, DataError> {
    let mut pauses = source::pauses(config.data.retry_seconds);
    loop {
        let found = read();
        let failed = found
            .as_ref()
            .err()
            .filter(|error| error.exit_code() == ExitCode::Storage);
        let Some((error, pause)) = failed.and_then(|error| Some((error, pauses.next()?))) else {
            return found;
        };
        tracing::warn!(
            "the storage failed ({error}): retrying in {} ms",
            pause.as_millis()
        );
        std::thread::sleep(pause);
    }
}

/// Images of each class, counted by threads. Unreadable labels are reported when they are used.
fn count_classes(images: &Images, classes: Classes, threads: usize) -> Result<Vec<u64>, DataError> {
    let count = |labels: &mut dyn Iterator<Item = Result<Option<Label>, DataError>>| {
        let mut counts = vec![0_u64; classes.count as usize];
        for label in labels {
            let label = label?;
            for class in label.iter().flat_map(Label::classes) {
                let place = usize::try_from(*class).ok();
                if let Some(count) = place.and_then(|place| counts.get_mut(place)) {
                    *count += 1;
                }
            }
        }
        Ok::<_, DataError>(counts)
    };
    let source = match images {
        Images::Resident(images) => {
            let labels = images.stored().1.iter().take(images.len() as usize);
            return count(&mut labels.map(|label| Ok(Some(label))));
        }
        Images::Single(source) => source,
    };
    let len = source.len();
    let share = len.div_ceil(threads as u64).max(1);
    let parts: Vec<_> = std::thread::scope(|scope| {
        let starts = (0..len).step_by(share as usize);
        let running: Vec<_> = starts
            .map(|start| {
                let images = start..len.min(start + share);
                scope.spawn(move || {
                    let mut labels = images.map(|image| Ok(label_of(&**source, image, classes)?.ok()));
                    count(&mut labels)
                })
            })
            .collect();
        running
            .into_iter()
            .map(|part| part.join().expect("no panic"))
            .collect()
    });
    parts
        .into_iter()
        .try_fold(vec![0; classes.count as usize], |sums, part| {
            Ok(sums
                .into_iter()
                .zip(part?)
                .map(|(sum, count)| sum + count)
                .collect())
        })
}

/// Weights by which all classes with images count the same in total, and an image 1 on average.
fn balanced(counts: &[u64]) -> Vec<f32> {
    let images: u64 = counts.iter().sum();
    let present = counts.iter().filter(|count| **count > 0).count();
    let weight = |count: &u64| images as f64 / (present as f64 * *count as f64);
    counts
        .iter()
        .map(|count| if *count > 0 { weight(count) as f32 } else { 0.0 })
        .collect()
}

/// Weights by which the images that show a class count as much as the others, as in PyTorch's
/// documentation of `pos_weight`.
fn balanced_against_the_others(counts: &[u64], images: u64) -> Vec<f32> {
    let weight = |count: &u64| images.saturating_sub(*count) as f64 / *count as f64;
    counts
        .iter()
        .map(|count| if *count > 0 { weight(count) as f32 } else { 1.0 })
        .collect()
}

/// Decoding threads of each of `ranks` ranks on this machine.
fn decode_threads(data: &DataConfig, ranks: u32) -> usize {
    data.decode_threads
        .map_or_else(|| threads::per_rank(ranks), |threads| threads as usize)
}

/// The images to train on and those to evaluate.
fn open(
    data: &DataConfig,
    expected: Expected,
    seed: u64,
    threads: usize,
) -> Result<(Images, Option<Images>), DataError> {
    let folder = data.path.as_deref().unwrap_or(Path::new("."));
    let (train, validation) = match data.format {
        DataFormat::Cifar10 => cifar::load(folder, &cifar::CIFAR_10)?,
        DataFormat::Cifar100 => cifar::load(folder, &cifar::CIFAR_100)?,
        DataFormat::Numpy => arrays::load(folder, Files::Numpy, expected)?,
        DataFormat::Hdf5 => arrays::load(folder, Files::Hdf5, expected)?,
        DataFormat::Synthetic => {
            let images = data.synthetic_images.unwrap_or(0);
            (synthetic::generate(images, expected, seed), None)
        }
        DataFormat::ImageFolder => {
            let (train, validation) =
                image_folder::open(folder, expected.classes.count, data.fraction, data.class_order)?;
            return Ok(in_files(train, validation));
        }
        DataFormat::Parquet => {
            let columns = parquet::Named {
                image: data.image_column.as_deref(),
                label: data.label_column.as_deref(),
            };
            let (train, validation) = parquet::open(root(data)?, columns, data.fraction, threads)?;
            return Ok(in_files(train, validation));
        }
        DataFormat::WebDataset => {
            let shards = data.shards.as_ref().expect("checked with the configuration");
            let (train, validation) = web_dataset::open(root(data)?, shards, data.fraction, threads)?;
            return Ok(in_files(train, validation));
        }
    };
    if train.pixel_type() == PixelType::Float32 && data.augmentation.changes_colors() {
        return Err(DataError::ColorsOfFloats { path: folder.into() });
    }
    let resident = |images: Resident| Images::Resident(Rc::new(images));
    Ok((
        resident(train.first_part(data.fraction)),
        validation.map(resident),
    ))
}

/// The location of the files, for formats that are read in parts.
fn root(data: &DataConfig) -> Result<Root, DataError> {
    let folder = data.path.as_deref().unwrap_or(Path::new("."));
    let Some((origin, bytes)) = data
        .from
        .as_ref()
        .and_then(|origin| Some((origin, origin.cache_bytes?)))
    else {
        return Ok(folder.into());
    };
    let locations: Result<Vec<Location>, _> = origin.locations.iter().map(|place| place.parse()).collect();
    // Samples of a shard are small, and read together. Parquet pages are read separately.
    let block = (data.format == DataFormat::WebDataset).then_some(BLOCK);
    // The caller retries failures that last longer.
    let patience = PATIENCE.min(Duration::from_secs(data.retry_seconds.into()));
    let cache = Cache::open(&locations?, folder, bytes / 100 * CACHE_PERCENT, block, patience)?;
    Ok(Root::from_store(cache, &origin.locations))
}

fn in_files<S: Source + 'static>(train: S, validation: Option<S>) -> (Images, Option<Images>) {
    let files = |source: S| Images::Single(Arc::new(source));
    (files(train), validation.map(files))
}

/// The first two names that are out of numerical order, if all are numbers.
fn out_of_order(classes: &[String]) -> Option<[&String; 2]> {
    let numbers: Vec<u64> = classes
        .iter()
        .map(|name| name.parse().ok())
        .collect::<Option<_>>()?;
    let place = numbers.windows(2).position(|pair| pair[0] > pair[1])?;
    Some([&classes[place], &classes[place + 1]])
}

impl Images {
    fn len(&self) -> u64 {
        match self {
            Self::Resident(images) => images.len(),
            Self::Single(source) => source.len(),
        }
    }
}

impl DataSet {
    /// Number of images, which is also the number of places in an epoch's order.
    pub(crate) fn len(&self) -> u64 {
        self.images.len()
    }

    /// Whether an image may show several classes.
    pub(crate) fn has_several_classes(&self) -> bool {
        self.preparation.classes.several
    }

    fn fingerprint(&self) -> u32 {
        match &self.images {
            Images::Resident(images) => {
                let (_, labels) = images.stored();
                fingerprint(labels.parts())
            }
            Images::Single(source) => source.fingerprint(),
        }
    }

    /// The device on which batches are made.
    pub(crate) fn device(&self) -> Device {
        self.finish.device
    }

    /// One rank's micro-batches of an epoch after its first `done` places, in whole steps.
    pub(crate) fn training(&self, epoch: u32, done: u64, share: &Share) -> Result<Batches, DataError> {
        let shards = match &self.images {
            Images::Resident(_) => None,
            Images::Single(source) => source.shards(),
        };
        let order = match shards {
            Some(shards) => EpochOrder::from_shards(self.seed, epoch, shards, self.repeats),
            None => EpochOrder::new(self.seed, epoch, self.len(), self.repeats),
        };
        let places = share.places(done..self.len());
        let items = places.map(|place| Item {
            image: order.image_at(place),
            place,
        });
        self.batches(Task {
            items: items.collect(),
            batching: Batching::new(share.micro_batches.iter().map(|images| *images as usize)),
            epoch: Some(epoch),
            readable: self.readable(),
        })
    }

    /// These images, each once.
    pub(crate) fn evaluation(&self, images: ops::Range<u64>, batch_size: u32) -> Result<Batches, DataError> {
        self.batches(Task {
            items: images.map(|image| Item { image, place: image }).collect(),
            batching: Batching::new([batch_size as usize]),
            epoch: None,
            readable: self.readable(),
        })
    }

    /// Checks all labels, and the pixels of some images, evenly spread.
    fn check_labels(&self) -> Result<(), DataError> {
        let Images::Single(source) = &self.images else {
            return Ok(());
        };
        let mut left_out = 0;
        let every = source.len().div_ceil(CHECKED_IMAGES).max(1);
        for image in 0..source.len() {
            let found = match label_of(&**source, image, self.preparation.classes)? {
                Ok(_) if image % every == 0 => self.check_pixels(&**source, image)?,
                found => found.map(|_| ()),
            };
            let Err(reason) = found else { continue };
            left_out += 1;
            if left_out > self.readable().allowed() {
                return Err(self.readable().refuse(source.name(image), reason, left_out));
            }
        }
        Ok(())
    }

    /// The inner error says what is wrong with the image.
    fn check_pixels(&self, source: &dyn Source, image: u64) -> Result<Result<(), String>, DataError> {
        let read = source.read(image);
        let (channels, pixel_type) = (self.preparation.channels, self.preparation.config.pixel_type);
        let decoded = read.and_then(|stored| Ok(source.decode(stored.file, channels, pixel_type)?));
        match decoded {
            Ok(_) => Ok(Ok(())),
            Err(error) => error.reason(source, image).map(Err),
        }
    }

    /// How many images may be unreadable.
    pub(crate) fn readable(&self) -> Readable {
        Readable::new(self.len(), self.preparation.config.max_corrupt_fraction)
    }

    fn batches(&self, task: Task) -> Result<Batches, DataError> {
        let (preparation, finish) = (Arc::clone(&self.preparation), Rc::clone(&self.finish));
        match &self.images {
            Images::Resident(images) => {
                let on_device = images.stored().0.device() == finish.device;
                ResidentBatches::new(Rc::clone(images), on_device, preparation, finish, task)
                    .map(Batches::Resident)
            }
            Images::Single(source) => {
                Pipeline::start(Arc::clone(source), preparation, finish, task, self.threads)
                    .map(Batches::Prepared)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tch::{Kind, Tensor};

    use super::batch::Targets;
    use super::fixtures::config;
    use super::labels::Labels;
    use super::*;

    #[test]
    fn names_that_are_numbers_in_another_order_are_found() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let found = |given: &[&str]| out_of_order(&names(given)).map(|pair| pair.map(Clone::clone));
        assert_eq!(
            found(&["0", "1", "10", "2"]),
            Some(["10".to_owned(), "2".to_owned()])
        );
        for fine in [
            &["0", "1", "2"][..],
            &["00", "01", "10"],
            &["10", "2", "cat"],
            &[],
        ] {
            assert_eq!(found(fine), None);
        }
    }

    #[test]
    fn all_classes_with_images_count_the_same_together() {
        let files = ["a/1", "a/2", "a/3", "a/4", "a/5", "a/6", "b/1", "b/2", "c/1"];
        let files: Vec<(String, &str)> = files
            .iter()
            .map(|name| (format!("train/{name}.jpg"), ""))
            .collect();
        let files: Vec<(&str, &str)> = files.iter().map(|(name, text)| (name.as_str(), *text)).collect();
        let folder = fixtures::folder(&files);
        let (train, _) =
            image_folder::open(folder.path(), 4, 1.0, contract::ClassOrder::Name).expect("opens");
        let files = Images::Single(Arc::new(train));
        let labels = Labels::from_classes(vec![0, 0, 0, 0, 0, 0, 1, 1, 2]);
        let pixels = Tensor::zeros([9, 1, 2, 2], (tch::Kind::Uint8, Device::Cpu));
        let arrays = Images::Resident(Rc::new(Resident::new(pixels, labels, 9)));
        for (images, threads) in [(files, 4), (arrays, 1)] {
            let classes = Classes {
                count: 4,
                several: false,
            };
            let counts = count_classes(&images, classes, threads).expect("counts");
            assert_eq!(counts, [6, 2, 1, 0]);
            // As scikit-learn's compute_class_weight("balanced", ...) for three classes.
            assert_eq!(balanced(&counts), [0.5, 1.5, 3.0, 0.0]);
            assert_eq!(balanced_against_the_others(&counts, 9), [0.5, 3.5, 8.0, 1.0]);
        }
    }

    const EVERYTHING: &str = "{format: synthetic, syntheticImages: 80, augmentation: {horizontalFlip: 0.5, \
        randAugment: rand-m9-mstd0.5-inc1, mixup: 0.8, cutmix: 1.0, randomErasing: 0.5, repeatedAugmentation: 3, ";

    fn share(rank: u32, ranks: u32, micro_batch: u32, accumulation: u32) -> Share {
        let [rank, ranks, images, count] = [rank, ranks, micro_batch, accumulation].map(u64::from);
        Share {
            step: images * count * ranks,
            before: images * count * rank,
            micro_batches: vec![images; count as usize],
        }
    }

    fn stored(data: &DataSet) -> (&Tensor, &Labels) {
        match &data.images {
            Images::Resident(images) => images.stored(),
            Images::Single(_) => panic!("prepared one by one"),
        }
    }

    /// All batches as one.
    fn all(batches: Result<Batches, DataError>) -> (Tensor, Tensor, Tensor) {
        let mut batches = batches.expect("starts");
        let (mut images, mut labels, mut targets) = (Vec::new(), Vec::new(), Vec::new());
        while let Some(batch) = batches.next().expect("a batch") {
            let Targets::Smoothed(distribution) = batch.targets else {
                panic!("mixed")
            };
            images.push(batch.images);
            labels.push(batch.labels);
            targets.push(distribution);
        }
        (
            Tensor::cat(&images, 0),
            Tensor::cat(&labels, 0),
            Tensor::cat(&targets, 0),
        )
    }

    #[test]
    fn a_batch_is_normalised_and_in_the_order_of_the_images() {
        let splits = load(&config("{format: synthetic, syntheticImages: 9}"), Device::Cpu).expect("loads");
        let mut batches = splits.train.evaluation(4..8, 3).expect("starts");
        let batch = batches.next().expect("a batch").expect("one");
        let (images, labels) = stored(&splits.train);
        let rows = Tensor::from_slice(&[4_i64, 5, 6]);
        let expected = images.index_select(0, &rows).to_kind(Kind::Float) / 127.5 - 1.0;
        assert!((batch.images - expected).abs().max().double_value(&[]) < 1e-6);
        let found = Vec::<i64>::try_from(batch.labels).expect("labels");
        let expected: Vec<i64> = labels.classes()[4..7]
            .iter()
            .map(|class| i64::from(*class))
            .collect();
        assert_eq!(found, expected);
        assert!(matches!(batch.targets, Targets::Classes));
        assert_eq!(
            batches.next().expect("a batch").expect("the rest").labels.size(),
            [1]
        );
        assert!(batches.next().expect("no error").is_none());
    }

    #[test]
    fn what_is_random_depends_on_neither_ranks_nor_batches_nor_restarts() {
        for crop in ["randomCrop: {padding: 4}", "randomResizedCrop: {}"] {
            let splits = load(&config(&format!("{EVERYTHING}{crop}}}}}")), Device::Cpu).expect("loads");
            let train = &splits.train;
            let whole = all(train.training(1, 0, &share(0, 1, 8, 1)));
            let equal = |what: &str, (images, labels, targets): (Tensor, Tensor, Tensor)| {
                assert!(labels.equal(&whole.1), "{what}: labels");
                assert!(targets.equal(&whole.2), "{what}: targets");
                assert!(images.equal(&whole.0), "{crop}, {what}: images");
            };
            assert_eq!(whole.0.size(), [80, 3, 24, 24]);
            equal("accumulation", all(train.training(1, 0, &share(0, 1, 2, 4))));

            let [first, second] = [0, 1].map(|rank| all(train.training(1, 0, &share(rank, 2, 2, 2))));
            let merge = |left: &Tensor, right: &Tensor| {
                let mut shape = left.size();
                shape.splice(0..1, [-1, 4]);
                let both = Tensor::stack(&[left.reshape(&shape), right.reshape(&shape)], 1);
                both.flatten(0, 2)
            };
            equal(
                "two ranks",
                (
                    merge(&first.0, &second.0),
                    merge(&first.1, &second.1),
                    merge(&first.2, &second.2),
                ),
            );

            // Six images of a step in two micro-batches, after those of a rank that has two.
            let uneven = |before, micro_batches: &[u64]| Share {
                step: 8,
                before,
                micro_batches: micro_batches.to_vec(),
            };
            let [two, six] = [(0, &[2][..]), (2, &[2, 4])]
                .map(|(before, micro_batches)| all(train.training(1, 0, &uneven(before, micro_batches))));
            let merge = |two: &Tensor, six: &Tensor| {
                let part = |tensor: &Tensor, images: i64| {
                    let mut shape = tensor.size();
                    shape.splice(0..1, [-1, images]);
                    tensor.reshape(&shape)
                };
                Tensor::cat(&[part(two, 2), part(six, 6)], 1).flatten(0, 1)
            };
            equal(
                "uneven shares",
                (
                    merge(&two.0, &six.0),
                    merge(&two.1, &six.1),
                    merge(&two.2, &six.2),
                ),
            );

            let rest = all(train.training(1, 32, &share(0, 1, 8, 1)));
            assert!(rest.0.equal(&whole.0.narrow(0, 32, 48)), "a restart");
            let other = all(train.training(0, 0, &share(0, 1, 8, 1)));
            assert!(!other.0.equal(&whole.0), "epochs differ");
        }
    }

    #[test]
    fn images_in_memory_are_mirrored_where_they_are_and_recoloured_by_threads() {
        let first = |augmentation: &str| {
            let data = format!("{{format: synthetic, syntheticImages: 8, augmentation: {augmentation}}}");
            let splits = load(&config(&data), Device::Cpu).expect("loads");
            let mut batches = splits.train.training(0, 0, &share(0, 1, 8, 1)).expect("starts");
            let images = batches.next().expect("a batch").expect("one").images;
            (images, matches!(batches, Batches::Prepared(_)))
        };
        let (plain, by_threads) = first("{}");
        assert!(!by_threads);
        let (mirrored, by_threads) = first("{horizontalFlip: 1.0}");
        assert!(!by_threads && mirrored.equal(&plain.flip([3])));
        // Half of the operations are skipped, so some images stay the same.
        let (colored, by_threads) = first("{randAugment: rand-m9-n1}");
        let same: Vec<bool> = (0..8)
            .map(|row| colored.get(row).equal(&plain.get(row)))
            .collect();
        assert!(
            by_threads && same.contains(&true) && same.contains(&false),
            "{same:?}"
        );
    }

    #[test]
    fn rows_of_targets_sum_to_one() {
        let splits = load(&config(&format!("{EVERYTHING}}}}}")), Device::Cpu).expect("loads");
        let (_, _, targets) = all(splits.train.training(0, 0, &share(0, 1, 8, 1)));
        let sums = targets.sum_dim_intlist([1_i64].as_slice(), false, Kind::Float);
        assert!((sums - 1.0).abs().max().double_value(&[]) < 1e-6);
        assert!(targets.min().double_value(&[]) > 0.0099, "label smoothing is in");
    }

    #[test]
    fn files_of_many_channels_are_trained_on_in_their_own_units() {
        // Each pixel is 100 c + its column, in channel c.
        let values: Vec<u8> = (0..24 * 24)
            .flat_map(|pixel| (0..5_u16).map(move |channel| 100 * channel + pixel % 24))
            .flat_map(u16::to_le_bytes)
            .collect();
        let file = fixtures::Tiff::of([24, 24, 5], &values).file();
        let folder = fixtures::folder(&[
            ("train/a/1.tif", &file),
            ("train/b/2.tif", &file),
            ("val/a/3.tif", &file),
        ]);
        let mut config = config(
            "{format: imageFolder, volume: {hostPath: {path: /unused}}, pixelType: float32, cropFraction: 1.0, \
            normalization: {mean: [100], std: [10]}, augmentation: {horizontalFlip: 1.0}}",
        );
        config.model.channels = 5;
        config.data.path = Some(folder.path().into());
        let splits = load(&config, Device::Cpu).expect("loads");
        let channel = Tensor::arange(5, (Kind::Float, Device::Cpu)).reshape([1, 5, 1, 1]);
        let column = Tensor::arange(24, (Kind::Float, Device::Cpu)).reshape([1, 1, 1, 24]);
        let stored = (channel * 100.0 + column).expand([1, 5, 24, 24], false);
        let expected = (stored - 100.0) / 10.0;
        let mut trained = splits.train.training(0, 0, &share(0, 1, 2, 1)).expect("starts");
        let batch = trained.next().expect("a batch").expect("one");
        let mirrored = expected.flip([3]).expand([2, 5, 24, 24], false);
        assert!((batch.images - mirrored).abs().max().double_value(&[]) < 1e-5);
        let validation = splits.validation.expect("given");
        let mut evaluated = validation.evaluation(0..1, 4).expect("starts");
        let batch = evaluated.next().expect("a batch").expect("one");
        assert!((batch.images - expected).abs().max().double_value(&[]) < 1e-5);
        let (split, _) = survey(
            &config.data,
            Expected::of(&config.model, Loss::CrossEntropy),
            0,
            0,
        )
        .expect("reads");
        assert_eq!(split.channels.into_iter().collect::<Vec<_>>(), [(5, 2)]);
        for (channel, [mean, std]) in split
            .mean
            .iter()
            .zip(&split.std)
            .map(|(mean, std)| [mean, std])
            .enumerate()
        {
            assert!((mean - (100.0 * channel as f64 + 11.5)).abs() < 1e-6, "{mean}");
            // Of the numbers 0 to 23.
            assert!((std - (575.0_f64 / 12.0).sqrt()).abs() < 1e-6, "{std}");
        }
    }

    #[test]
    fn a_fraction_is_the_first_images() {
        let load_part = |fraction: &str| {
            let data = format!("{{format: synthetic, syntheticImages: 50{fraction}}}");
            load(&config(&data), Device::Cpu).expect("loads").train
        };
        let (whole, part) = (load_part(""), load_part(", fraction: 0.5"));
        assert_eq!((whole.len(), part.len()), (50, 25));
        assert!(stored(&part).0.equal(&stored(&whole).0.narrow(0, 0, 25)));
        assert_eq!(load_part(", fraction: 0.001").len(), 1);
    }
}
