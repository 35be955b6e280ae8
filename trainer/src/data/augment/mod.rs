//! From stored images to the model's input.
//!
//! ```text
//!   stored image -> window of it, the model's size -> mirrored -> colors -> normalized -> erased -> mixed in pairs
//! ```
//! Up to the colors, host threads work on the bytes of an image ([`Preparation`]). The rest is done on the device,
//! for a whole batch at once ([`Finish`]); so is the cropping of images on the device whose colors stay.
//! Random numbers are drawn on the host ([`Draws`]) from seed, epoch and place in the epoch's order.

mod finish;
mod geometry;
mod mix;
mod ops;
mod parameters;
mod policy;

use contract::{Augmentation, DataConfig, RunConfig};
use fast_image_resize::Resizer;

use super::Classes;
use super::decode::{Decoded, Framing};
use super::draws::Draws;
use super::labels::Label;
use super::window::{Window, random_offset, random_window};
use crate::random::Stream;
use mix::{Mixing, NOISE_STARTS, erased, set_erased, set_mixings};
use ops::Picture;
use parameters::Column;

pub(super) use finish::Finish;
pub(super) use parameters::{Layout, Parameters};

/// The position of an image in training.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TrainingMoment {
    pub(super) epoch: u32,
    /// The image's place in the epoch's order.
    pub(super) place: u64,
}

/// The host's work on images, and the random numbers for the device.
#[derive(Debug)]
pub(super) struct Preparation {
    pub(super) config: DataConfig,
    seed: u64,
    /// Of the model's images.
    pub(super) side: u32,
    pub(super) channels: u32,
    pub(super) classes: Classes,
    /// Color of pixels outside an image.
    fill: [u8; 3],
}

impl Preparation {
    pub(super) fn new(config: &RunConfig) -> Self {
        let RunConfig {
            model,
            data,
            training,
            ..
        } = config;
        let mean = &data.normalization.mean;
        Self {
            config: data.clone(),
            seed: training.seed,
            side: model.image_size,
            channels: model.channels,
            classes: Classes::of(model, training.loss),
            fill: std::array::from_fn(|channel| {
                let mean = mean.get(channel).or(mean.first()).copied().unwrap_or_default();
                ((mean * 255.0) as f32).round_ties_even() as u8
            }),
        }
    }

    fn augmentation(&self) -> &Augmentation {
        &self.config.augmentation
    }

    fn draws(&self, stream: Stream, moment: TrainingMoment) -> Draws {
        Draws::new(self.seed, stream, moment.epoch, moment.place)
    }

    fn pixel_bytes(&self) -> usize {
        self.channels as usize * self.config.pixel_type.bytes()
    }

    /// Bytes of an image of the model's size.
    pub(super) fn image_bytes(&self) -> usize {
        self.side as usize * self.side as usize * self.pixel_bytes()
    }

    /// The square of a decoded image for a batch, mirrored or not. `whole` images are only cropped
    /// by a random crop. Without `moment` it is for evaluation.
    pub(super) fn frame(
        &self,
        image: &Decoded,
        whole: bool,
        moment: Option<TrainingMoment>,
        resizer: &mut Resizer,
    ) -> Result<Vec<u8>, String> {
        let interpolation = self.config.interpolation;
        let augmentation = self.augmentation();
        let framing = match (
            moment,
            &augmentation.random_resized_crop,
            augmentation.random_crop,
        ) {
            (Some(_), Some(crop), _) => Framing::RandomResized(crop),
            (Some(_), None, crop) if whole => Framing::Whole {
                padding: crop.map_or(0, |crop| crop.padding),
                interpolation,
            },
            (Some(_), None, Some(crop)) => Framing::Random {
                padding: crop.padding,
                interpolation,
            },
            _ => Framing::Centre {
                crop_fraction: self.config.crop_fraction,
                interpolation,
            },
        };
        let mut draws = self.draws(Stream::Crop, moment.unwrap_or_default());
        let mut square = image.frame(framing, self.side, resizer, &mut draws)?;
        if moment.is_some_and(|moment| self.flips(moment)) {
            mirror(&mut square, self.side as usize, self.pixel_bytes());
        }
        Ok(square)
    }

    fn flips(&self, moment: TrainingMoment) -> bool {
        self.draws(Stream::Flip, moment)
            .chance(self.augmentation().horizontal_flip)
    }

    /// Changes the colors of a square.
    pub(super) fn color(&self, square: &mut [u8], moment: TrainingMoment) {
        if !self.augmentation().changes_colors() {
            return;
        }
        let side = self.side as usize;
        let mut picture = Picture {
            pixels: square,
            width: side,
            height: side,
        };
        let mut draws = self.draws(Stream::Color, moment);
        for op in policy::operations(self.augmentation(), &mut draws)
            .into_iter()
            .flatten()
        {
            picture.apply(op, self.fill);
        }
    }

    /// Bytes of an image's targets, if it may show several classes.
    pub(super) fn target_bytes(&self) -> usize {
        match self.classes {
            Classes { several: false, .. } => 0,
            Classes { count, .. } => (count as usize).next_multiple_of(size_of::<f64>()),
        }
    }

    /// The device's parameters of squares with these labels, at these moments or to evaluate.
    pub(super) fn parameters(&self, labels: &[Label], moments: Option<&[TrainingMoment]>) -> Parameters {
        let mut parameters = Parameters::new(labels, self.target_bytes());
        let Some(moments) = moments else {
            return parameters;
        };
        let (augmentation, side) = (self.augmentation(), i64::from(self.side));
        if augmentation.random_erasing > 0.0 {
            let rectangles = moments.iter().map(|moment| {
                let mut draws = self.draws(Stream::Erase, *moment);
                let rectangle = erased(augmentation.random_erasing, side, &mut draws)?;
                Some((rectangle, draws.below(NOISE_STARTS + 1)))
            });
            set_erased(&mut parameters, rectangles);
        }
        if augmentation.mixes() {
            let mixings: Vec<Mixing> = moments
                .chunks(2)
                .map(|pair| {
                    let mut draws = Draws::new(self.seed, Stream::Mix, pair[0].epoch, pair[0].place / 2);
                    Mixing::draw(augmentation, side, &mut draws)
                })
                .collect();
            set_mixings(&mut parameters, &mixings, side);
        }
        parameters
    }

    /// The same for stored images, on the device or copied to it: these rows of them, of this width
    /// and height.
    pub(super) fn resident_parameters(
        &self,
        labels: &[Label],
        rows: &[i64],
        [width, height]: [u32; 2],
        moments: Option<&[TrainingMoment]>,
    ) -> Parameters {
        let mut parameters = self.parameters(labels, moments);
        for (place, row) in rows.iter().enumerate() {
            parameters.set(place, Column::Stored, *row as f64);
        }
        let augmentation = self.augmentation();
        for (place, moment) in moments.unwrap_or_default().iter().enumerate() {
            let mut draws = self.draws(Stream::Crop, *moment);
            let window = if let Some(crop) = &augmentation.random_resized_crop {
                random_window(crop, width, height, &mut draws)
            } else {
                let padding = augmentation.random_crop.map_or(0, |crop| crop.padding);
                let (left, top) = random_offset(padding, &mut draws);
                Window {
                    left,
                    top,
                    width,
                    height,
                }
            };
            for (column, number) in [
                (Column::WindowLeft, window.left),
                (Column::WindowTop, window.top),
                (Column::WindowWidth, window.width),
                (Column::WindowHeight, window.height),
                (Column::Flip, u32::from(self.flips(*moment))),
            ] {
                parameters.set(place, column, f64::from(number));
            }
        }
        parameters
    }
}

/// Mirrors an image left to right.
fn mirror(pixels: &mut [u8], width: usize, pixel_bytes: usize) {
    for row in pixels.chunks_exact_mut(width * pixel_bytes) {
        row.reverse();
        for pixel in row.chunks_exact_mut(pixel_bytes) {
            pixel.reverse();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::fixtures::config;

    #[test]
    fn training_mirrors_as_often_as_it_is_told() {
        let framed = |probability: &str, moment| {
            let preparation = Preparation::new(&config(&format!(
                "{{format: synthetic, syntheticImages: 1, cropFraction: 1.0, augmentation: {{horizontalFlip: {probability}}}}}"
            )));
            let image = Decoded {
                width: 24,
                height: 24,
                channels: 3,
                stored_channels: 3,
                pixel_type: contract::PixelType::Uint8,
                pixels: (0..24 * 24 * 3).map(|place| (place % 251) as u8).collect(),
            };
            let square = preparation.frame(&image, false, moment, &mut Resizer::new());
            (square.expect("frames"), image.pixels)
        };
        let moments: Vec<_> = (0..100)
            .map(|place| Some(TrainingMoment { epoch: 1, place }))
            .collect();
        let mirrored = |probability| {
            let changed = moments.iter().filter(|moment| {
                let (square, mut pixels) = framed(probability, **moment);
                let is_same = square == pixels;
                mirror(&mut pixels, 24, 3);
                assert_ne!(is_same, square == pixels, "either the image or its mirror image");
                !is_same
            });
            changed.count()
        };
        assert_eq!([mirrored("0.0"), mirrored("1.0")], [0, 100]);
        assert!((30..70).contains(&mirrored("0.5")));
        let (square, pixels) = framed("1.0", None);
        assert_eq!(square, pixels, "evaluation does not");
    }

    #[test]
    fn mirroring_keeps_rows_and_channels() {
        let mut pixels = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];
        mirror(&mut pixels, 2, 3);
        assert_eq!(pixels, [4, 5, 6, 1, 2, 3, 10, 11, 12, 7, 8, 9]);
    }
}
