//! From images as they are stored to the model's input. Everything here is operations on whole batches, on the device
//! on which the model is.
//!
//! ```text
//!   stored image -> window of it, the model's size -> mirrored -> colours -> normalised -> erased -> mixed in pairs
//! ```
//! What is random is drawn by [`Draws`] from seed, epoch and the place in the epoch's order.

mod geometry;
mod mix;
mod ops;
mod policy;

use std::sync::{Mutex, PoisonError};

use contract::{Augmentation, DataConfig, RunConfig};
use fast_image_resize::Resizer;
use tch::{Device, Kind, Tensor};

use super::batch::{Batch, Targets};
use super::decode::{Decoded, Framing};
use super::draws::Draws;
use super::resident::Values;
use super::window::{Window, random_offset, random_window};
use crate::random::{Stream, derive};
use mix::{Mixing, NOISE_STARTS, erase, erased, mix_images, mix_targets, noise};

/// Where in training a batch is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment<'a> {
    pub(super) epoch: u32,
    /// Places of the batch's images in the epoch's order.
    pub(super) places: &'a [u64],
}

/// Makes batches of stored images.
#[derive(Debug)]
pub(super) struct Preparation {
    pub(super) config: DataConfig,
    seed: u64,
    /// Of the model's images.
    pub(super) side: i64,
    pub(super) channels: u32,
    pub(super) classes: u32,
    /// Where batches are made.
    pub(super) device: Device,
    label_smoothing: f64,
    values: Values,
    /// Threads share these; a lock is held no longer than it takes to make new handles.
    constants: Mutex<Constants>,
}

/// Tensors on the device that no batch changes.
#[derive(Debug)]
struct Constants {
    /// In units of the stored numbers, [1, channels, 1, 1].
    mean: Tensor,
    std: Tensor,
    /// Colour of what lies outside an image, in 0..255.
    fill: Tensor,
    /// For random erasing.
    noise: Option<Tensor>,
}

impl Preparation {
    pub(super) fn new(config: &RunConfig, values: Values, device: Device) -> Self {
        let RunConfig {
            model,
            data,
            training,
            ..
        } = config;
        let unit = match values {
            Values::Bytes => 255.0,
            Values::Floats => 1.0,
        };
        let per_channel = |numbers: &[f64], unit: f64| {
            let numbers: Vec<f32> = numbers.iter().map(|number| (number * unit) as f32).collect();
            Tensor::from_slice(&numbers)
                .reshape([1, -1, 1, 1])
                .expand([1, i64::from(model.channels), 1, 1], false)
                .contiguous()
                .to_device(device)
        };
        Self {
            seed: training.seed,
            side: i64::from(model.image_size),
            classes: model.num_classes,
            label_smoothing: training.label_smoothing,
            values,
            device,
            channels: model.channels,
            constants: Mutex::new(Constants {
                mean: per_channel(&data.normalization.mean, unit),
                std: per_channel(&data.normalization.std, unit),
                fill: per_channel(&data.normalization.mean, 255.0)
                    .round()
                    .clamp(0.0, 255.0),
                noise: (data.augmentation.random_erasing > 0.0).then(|| {
                    let seed = derive(training.seed, Stream::Noise, 0, 0);
                    noise(seed, model.channels, model.image_size, device)
                }),
            }),
            config: data.clone(),
        }
    }

    fn constants(&self) -> Constants {
        let constants = self.constants.lock().unwrap_or_else(PoisonError::into_inner);
        Constants {
            mean: constants.mean.shallow_clone(),
            std: constants.std.shallow_clone(),
            fill: constants.fill.shallow_clone(),
            noise: constants.noise.as_ref().map(Tensor::shallow_clone),
        }
    }

    fn augmentation(&self) -> &Augmentation {
        &self.config.augmentation
    }

    /// Draws of one purpose for each image of a batch.
    fn draws(&self, stream: Stream, moment: Moment<'_>) -> impl Iterator<Item = Draws> {
        let (seed, epoch) = (self.seed, moment.epoch);
        moment
            .places
            .iter()
            .map(move |place| Draws::new(seed, stream, epoch, *place))
    }

    /// Whole stored images, BCHW on the device, to a training batch.
    pub(super) fn training(&self, images: Tensor, labels: Tensor, moment: Moment<'_>) -> Batch {
        let augmentation = self.augmentation();
        let images = if let Some(crop) = &augmentation.random_resized_crop {
            let (_, _, height, width) = images.size4().expect("BCHW");
            let windows: Vec<Window> = self
                .draws(Stream::Crop, moment)
                .map(|mut draws| random_window(crop, width as u32, height as u32, &mut draws))
                .collect();
            let images = geometry::crop_and_resize(&images, &windows, self.side, crop.interpolation);
            self.within_bytes(images)
        } else if let Some(crop) = &augmentation.random_crop {
            let offsets: Vec<(u32, u32)> = self
                .draws(Stream::Crop, moment)
                .map(|mut draws| random_offset(crop.padding, &mut draws))
                .collect();
            self.resized(geometry::shift(&images, &offsets, crop.padding))
        } else {
            self.resized(images)
        };
        self.cropped(images, labels, moment)
    }

    /// Images that are cut out and of the model's size already, to a training batch.
    pub(super) fn cropped(&self, images: Tensor, labels: Tensor, moment: Moment<'_>) -> Batch {
        let augmentation = self.augmentation();
        let flips: Vec<bool> = self
            .draws(Stream::Flip, moment)
            .map(|mut draws| draws.chance(augmentation.horizontal_flip))
            .collect();
        let constants = self.constants();
        let images = self.colored(geometry::flip(images, &flips), &constants.fill, moment);
        let images = normalized(&images, &constants);
        if let Some(noise) = &constants.noise {
            self.erase(&images, noise, moment);
        }
        if !augmentation.mixes() {
            return Batch {
                images,
                labels,
                targets: Targets::Classes,
            };
        }
        let mixings: Vec<Mixing> = moment
            .places
            .chunks(2)
            .map(|pair| {
                let mut draws = Draws::new(self.seed, Stream::Mix, moment.epoch, pair[0] / 2);
                Mixing::draw(augmentation, self.side, &mut draws)
            })
            .collect();
        let targets = mix_targets(
            &labels,
            &mixings,
            self.side,
            self.classes.into(),
            self.label_smoothing,
        );
        Batch {
            images: mix_images(images, &mixings),
            labels,
            targets: Targets::Distribution(targets),
        }
    }

    /// Whole stored images to a batch that is not augmented.
    pub(super) fn evaluation(&self, images: Tensor, labels: Tensor) -> Batch {
        Batch {
            images: normalized(&self.resized(images), &self.constants()),
            labels,
            targets: Targets::Classes,
        }
    }

    /// The square of a decoded image that a batch takes.
    pub(super) fn frame(
        &self,
        image: &Decoded,
        epoch: Option<u32>,
        place: u64,
        resizer: &mut Resizer,
    ) -> Result<Vec<u8>, String> {
        let interpolation = self.config.interpolation;
        let centre = Framing::Centre {
            crop_fraction: self.config.crop_fraction,
            interpolation,
        };
        let augmentation = self.augmentation();
        let framing = match (epoch, &augmentation.random_resized_crop, augmentation.random_crop) {
            (Some(_), Some(crop), _) => Framing::RandomResized(crop),
            (Some(_), None, Some(crop)) => Framing::Random {
                padding: crop.padding,
                interpolation,
            },
            _ => centre,
        };
        let mut draws = Draws::new(self.seed, Stream::Crop, epoch.unwrap_or(0), place);
        image.frame(framing, self.side as u32, resizer, &mut draws)
    }

    /// What a prepared image takes in memory.
    pub(super) fn image_bytes(&self) -> usize {
        (self.side * self.side) as usize * self.channels as usize * size_of::<f32>()
    }

    fn resized(&self, images: Tensor) -> Tensor {
        let resized = geometry::resize(images, self.side, self.config.interpolation);
        self.within_bytes(resized)
    }

    /// A bicubic filter leaves the range of bytes; Pillow cuts that off.
    fn within_bytes(&self, images: Tensor) -> Tensor {
        match self.values {
            Values::Bytes if images.kind() != Kind::Uint8 => images.clamp(0.0, 255.0),
            _ => images,
        }
    }

    fn colored(&self, images: Tensor, fill: &Tensor, moment: Moment<'_>) -> Tensor {
        if !self.augmentation().changes_colors() {
            return images;
        }
        let operations: Vec<Vec<Option<ops::Op>>> = self
            .draws(Stream::Color, moment)
            .map(|mut draws| policy::operations(self.augmentation(), &mut draws))
            .collect();
        let rounds = operations.first().map_or(0, Vec::len);
        (0..rounds).fold(images.to_kind(Kind::Float).round(), |images, round| {
            let row: Vec<Option<ops::Op>> = operations.iter().map(|operations| operations[round]).collect();
            ops::apply(images, &row, fill)
        })
    }

    fn erase(&self, images: &Tensor, noise: &Tensor, moment: Moment<'_>) {
        for (row, mut draws) in (0_i64..).zip(self.draws(Stream::Erase, moment)) {
            let rectangle = erased(self.augmentation().random_erasing, self.side, &mut draws);
            if let Some(rectangle) = rectangle {
                erase(&images.get(row), rectangle, noise, draws.below(NOISE_STARTS + 1));
            }
        }
    }
}

fn normalized(images: &Tensor, constants: &Constants) -> Tensor {
    let mut images = images.to_kind(Kind::Float) - &constants.mean;
    // In place: the difference is this function's own.
    images /= &constants.std;
    images
}
