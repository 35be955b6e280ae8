//! From an image of any size to a square.

use contract::{Interpolation, PixelType, RandomResizedCrop};
use fast_image_resize::images::{CroppedImage, Image, ImageRef};
use fast_image_resize::{self as resize, FilterType, ResizeAlg, ResizeOptions, Resizer};

use super::{Decoded, check_size};
use crate::data::draws::Draws;
use crate::data::window::{Window, random_offset, random_window};

/// If one side is longer than this many times the other, only the middle is used: scaled by its
/// shorter side, a thin image could need any amount of memory.
const MOST_ASPECT: u32 = 64;

/// The part of an image that is used.
#[derive(Clone, Copy, Debug)]
pub(in crate::data) enum Framing<'a> {
    /// The center: the shorter side becomes the square's over `crop_fraction`, then it is cut.
    Centre {
        crop_fraction: f64,
        interpolation: Interpolation,
    },
    /// A part of random size and shape.
    RandomResized(&'a RandomResizedCrop),
    /// The shorter side becomes the square's, then a square is cut out, with a black margin.
    Random {
        padding: u32,
        interpolation: Interpolation,
    },
    /// The whole image, or an equally large part of it with a black margin, becomes the square.
    Whole {
        padding: u32,
        interpolation: Interpolation,
    },
}

impl Decoded {
    /// The square to train on or to evaluate, `side` x `side`.
    pub(in crate::data) fn frame(
        &self,
        framing: Framing<'_>,
        side: u32,
        resizer: &mut Resizer,
        draws: &mut Draws,
    ) -> Result<Vec<u8>, String> {
        match framing {
            Framing::RandomResized(crop) => {
                let window = random_window(crop, self.width, self.height, draws);
                self.resize(window, side, side, crop.interpolation, resizer)
                    .map(|square| square.pixels)
            }
            Framing::Centre {
                crop_fraction,
                interpolation,
            } => {
                let shorter = ((f64::from(side) / crop_fraction) as u32).max(side);
                let image = self.with_shorter_side(shorter, interpolation, resizer)?;
                // As torchvision's center_crop, which rounds halves to even.
                let margin = |length: u32| (f64::from(length - side) / 2.0).round_ties_even() as i64;
                Ok(image.cut(margin(image.width), margin(image.height), side, side))
            }
            Framing::Random {
                padding,
                interpolation,
            } => {
                let image = self.with_shorter_side(side, interpolation, resizer)?;
                let (left, top) = random_offset(padding, draws);
                // Along the longer side, the window may be anywhere.
                let along = |length: u32, offset: u32, draws: &mut Draws| {
                    i64::from(offset) - i64::from(padding) + draws.below((length - side) as usize + 1) as i64
                };
                let left = along(image.width, left, draws);
                let top = along(image.height, top, draws);
                Ok(image.cut(left, top, side, side))
            }
            Framing::Whole {
                padding,
                interpolation,
            } => {
                let offset = |offset| i64::from(offset) - i64::from(padding);
                let (left, top) = random_offset(padding, draws);
                let image = Self {
                    pixels: self.cut(offset(left), offset(top), self.width, self.height),
                    ..*self
                };
                let square = image.resize(image.whole(), side, side, interpolation, resizer)?;
                Ok(square.pixels)
            }
        }
    }

    fn with_shorter_side(
        &self,
        shorter: u32,
        interpolation: Interpolation,
        resizer: &mut Resizer,
    ) -> Result<Self, String> {
        let window = self.middle();
        let scaled = |length: u32| {
            let product = u64::from(shorter) * u64::from(length);
            ((product / u64::from(self.width.min(self.height).max(1))) as u32).max(shorter)
        };
        self.resize(
            window,
            scaled(window.width),
            scaled(window.height),
            interpolation,
            resizer,
        )
    }

    /// The whole image, or the middle part of a thin one.
    fn middle(&self) -> Window {
        let most = self.width.min(self.height).saturating_mul(MOST_ASPECT);
        let (width, height) = (self.width.min(most), self.height.min(most));
        Window {
            left: (self.width - width) / 2,
            top: (self.height - height) / 2,
            width,
            height,
        }
    }

    fn whole(&self) -> Window {
        Window {
            left: 0,
            top: 0,
            width: self.width,
            height: self.height,
        }
    }

    fn resize(
        &self,
        window: Window,
        width: u32,
        height: u32,
        interpolation: Interpolation,
        resizer: &mut Resizer,
    ) -> Result<Self, String> {
        // With many channels, a thin image may need much more memory than before.
        check_size(width, height, self.pixel_bytes() as u64)?;
        let filter = match interpolation {
            Interpolation::Bilinear => FilterType::Bilinear,
            Interpolation::Bicubic => FilterType::CatmullRom,
        };
        let options = ResizeOptions::new()
            .resize_alg(ResizeAlg::Convolution(filter))
            .use_alpha(false);
        let pixels = match self.pixel_type {
            PixelType::Uint8 => self.resize_bytes(window, width, height, &options, resizer),
            PixelType::Float32 => self.resize_floats(window, width, height, &options, resizer),
        };
        Ok(Self {
            width,
            height,
            pixels: pixels?,
            ..*self
        })
    }

    fn resize_bytes(
        &self,
        window: Window,
        width: u32,
        height: u32,
        options: &ResizeOptions,
        resizer: &mut Resizer,
    ) -> Result<Vec<u8>, String> {
        let pixel = if self.channels == 1 {
            resize::PixelType::U8
        } else {
            resize::PixelType::U8x3
        };
        let image =
            ImageRef::new(self.width, self.height, &self.pixels, pixel).map_err(|error| error.to_string())?;
        // A view, not the resizer's own crop, whose filter would include pixels around the window.
        let part = CroppedImage::new(&image, window.left, window.top, window.width, window.height)
            .map_err(|error| error.to_string())?;
        let mut resized = Image::new(width, height, pixel);
        resizer
            .resize(&part, &mut resized, options)
            .map_err(|error| error.to_string())?;
        Ok(resized.into_vec())
    }

    /// Plane by plane, because there may be any number of channels.
    fn resize_floats(
        &self,
        window: Window,
        width: u32,
        height: u32,
        options: &ResizeOptions,
        resizer: &mut Resizer,
    ) -> Result<Vec<u8>, String> {
        let (pixel_bytes, value_bytes) = (self.pixel_bytes(), self.pixel_type.bytes());
        let mut part = Image::new(window.width, window.height, resize::PixelType::F32);
        let mut resized = Image::new(width, height, resize::PixelType::F32);
        let mut pixels = vec![0; width as usize * height as usize * pixel_bytes];
        for value in (0..pixel_bytes).step_by(value_bytes) {
            let rows = part
                .buffer_mut()
                .chunks_exact_mut(window.width as usize * value_bytes);
            for (row, to) in (window.top as usize..).zip(rows) {
                let first = row * self.width as usize + window.left as usize;
                let from = self.pixels[first * pixel_bytes..].chunks_exact(pixel_bytes);
                for (to, pixel) in to.chunks_exact_mut(value_bytes).zip(from) {
                    to.copy_from_slice(&pixel[value..][..value_bytes]);
                }
            }
            resizer
                .resize(&part, &mut resized, options)
                .map_err(|error| error.to_string())?;
            let numbers = resized.buffer().as_chunks().0.iter();
            if !numbers
                .copied()
                .all(|number| f32::from_ne_bytes(number).is_finite())
            {
                return Err("its values overflow when it is resized".to_owned());
            }
            let from = resized.buffer().chunks_exact(value_bytes);
            for (pixel, from) in pixels.chunks_exact_mut(pixel_bytes).zip(from) {
                pixel[value..][..value_bytes].copy_from_slice(from);
            }
        }
        Ok(pixels)
    }

    /// A part of this size whose corner is at (`left`, `top`), black outside the image.
    fn cut(&self, left: i64, top: i64, width: u32, height: u32) -> Vec<u8> {
        let pixel_bytes = self.pixel_bytes();
        let [width, height] = [width, height].map(i64::from);
        let mut part = vec![0; (width * height) as usize * pixel_bytes];
        let columns = (-left).clamp(0, width)..(i64::from(self.width) - left).clamp(0, width);
        for row in (-top).clamp(0, height)..(i64::from(self.height) - top).clamp(0, height) {
            let from = ((row + top) * i64::from(self.width) + left + columns.start) as usize * pixel_bytes;
            let to = (row * width + columns.start) as usize * pixel_bytes;
            let length = (columns.end - columns.start).max(0) as usize * pixel_bytes;
            part[to..to + length].copy_from_slice(&self.pixels[from..from + length]);
        }
        part
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Stream;

    /// The value of each pixel is its position.
    fn gradient(width: u32, height: u32) -> Decoded {
        let pixels = (0..height)
            .flat_map(|row| (0..width).flat_map(move |column| [row as u8, column as u8, 0]))
            .collect();
        Decoded {
            width,
            height,
            channels: 3,
            stored_channels: 3,
            pixel_type: PixelType::Uint8,
            pixels,
        }
    }

    fn draws(place: u64) -> Draws {
        Draws::new(0, Stream::Crop, 0, place)
    }

    #[test]
    fn the_centre_begins_where_torchvisions_does() {
        // torchvision's center_crop: int(round((width - side) / 2.0)), rounding halves to even.
        for (width, left) in [(16, 0), (17, 0), (18, 1), (19, 2), (20, 2), (21, 2), (23, 4)] {
            let framing = Framing::Centre {
                crop_fraction: 1.0,
                interpolation: Interpolation::Bilinear,
            };
            let square = gradient(width, 16)
                .frame(framing, 16, &mut Resizer::new(), &mut draws(0))
                .expect("frames");
            assert_eq!(square[1], left, "{width} pixels wide");
        }
    }

    #[test]
    fn a_thin_image_takes_no_more_memory_than_others() {
        let thin = Decoded {
            width: 1,
            height: 60_000,
            channels: 1,
            stored_channels: 1,
            pixel_type: PixelType::Uint8,
            pixels: (0..60_000_u32).map(|row| (row / 256) as u8).collect(),
        };
        let framing = Framing::Centre {
            crop_fraction: 1.0,
            interpolation: Interpolation::Bilinear,
        };
        let resized = thin
            .with_shorter_side(32, Interpolation::Bilinear, &mut Resizer::new())
            .expect("resizes");
        assert_eq!((resized.width, resized.height), (32, 32 * MOST_ASPECT));
        let square = thin
            .frame(framing, 32, &mut Resizer::new(), &mut draws(0))
            .expect("frames");
        // The middle of the image, with rows 29,968 to 30,032.
        assert!(square.iter().all(|value| *value == 117), "{square:?}");
    }

    #[test]
    fn the_centre_is_the_middle_of_the_shorter_side() {
        let framing = Framing::Centre {
            crop_fraction: 0.5,
            interpolation: Interpolation::Bilinear,
        };
        // The shorter side is 32 already: nothing is resized, and 16 x 16 pixels in the center
        // remain.
        let square = gradient(64, 32)
            .frame(framing, 16, &mut Resizer::new(), &mut draws(0))
            .expect("frames");
        assert_eq!(square[..3], [8, 24, 0]);
        assert_eq!(square[square.len() - 3..], [23, 39, 0]);
    }

    #[test]
    fn random_squares_have_the_models_size_whatever_the_image() {
        let crop = RandomResizedCrop {
            scale: [0.08, 1.0],
            ratio: [0.75, 4.0 / 3.0],
            interpolation: Interpolation::Bicubic,
        };
        let random = Framing::Random {
            padding: 4,
            interpolation: Interpolation::Bicubic,
        };
        for (width, height) in [(1, 1), (300, 20), (17, 64), (16, 16)] {
            let image = gradient(width.min(255), height);
            for place in 0..20 {
                for framing in [Framing::RandomResized(&crop), random] {
                    let square = image
                        .frame(framing, 16, &mut Resizer::new(), &mut draws(place))
                        .expect("frames");
                    assert_eq!(square.len(), 16 * 16 * 3);
                }
            }
        }
    }

    #[test]
    fn a_whole_image_is_shifted_by_its_margin_and_not_cut() {
        let image = gradient(20, 12);
        let framed = |padding, side| {
            let framing = Framing::Whole {
                padding,
                interpolation: Interpolation::Bilinear,
            };
            image
                .frame(framing, side, &mut Resizer::new(), &mut draws(3))
                .expect("frames")
        };
        let square = framed(0, 4);
        // Columns are 5 pixels wide: the first pixel's center is at 2, the last one's at 17.
        assert_eq!((square[1], square[square.len() - 2]), (2, 17));
        let (left, top) = random_offset(6, &mut draws(3));
        assert_ne!((left, top), (6, 6), "a place that shifts");
        let part = image.cut(i64::from(left) - 6, i64::from(top) - 6, 20, 12);
        let shifted = Decoded {
            pixels: part,
            ..image
        };
        let expected = shifted.resize(
            shifted.whole(),
            4,
            4,
            Interpolation::Bilinear,
            &mut Resizer::new(),
        );
        assert_eq!(framed(6, 4), expected.expect("resizes").pixels);
    }

    #[test]
    fn floats_are_resized_as_bytes_are_each_channel_by_itself() {
        let bytes = gradient(40, 30);
        // Four channels: row, row plus a thousand, column, and column plus 0.5.
        let numbers = bytes.pixels.chunks_exact(3).flat_map(|pixel| {
            let [row, column] = [pixel[0], pixel[1]].map(f32::from);
            [row, row + 1000.0, column, column + 0.5]
        });
        let floats = Decoded {
            channels: 4,
            stored_channels: 4,
            pixel_type: PixelType::Float32,
            pixels: numbers.flat_map(f32::to_ne_bytes).collect(),
            ..bytes
        };
        let crop = RandomResizedCrop {
            scale: [0.2, 0.8],
            ratio: [0.75, 4.0 / 3.0],
            interpolation: Interpolation::Bilinear,
        };
        let interpolation = Interpolation::Bilinear;
        for framing in [
            Framing::RandomResized(&crop),
            Framing::Centre {
                crop_fraction: 0.8,
                interpolation,
            },
            Framing::Random {
                padding: 0,
                interpolation,
            },
            Framing::Whole {
                padding: 0,
                interpolation,
            },
        ] {
            let framed = |image: &Decoded| {
                let square = image.frame(framing, 12, &mut Resizer::new(), &mut draws(8));
                Decoded {
                    width: 12,
                    height: 12,
                    pixels: square.expect("frames"),
                    ..*image
                }
            };
            let (bytes, floats) = (framed(&bytes), framed(&floats));
            let found: Vec<f32> = floats.numbers().collect();
            assert_eq!(found.len(), 12 * 12 * 4);
            for (floats, bytes) in found.chunks_exact(4).zip(bytes.pixels.chunks_exact(3)) {
                let expected = [
                    bytes[0].into(),
                    1000.0 + f32::from(bytes[0]),
                    bytes[1].into(),
                    0.5 + f32::from(bytes[1]),
                ];
                // Bytes are rounded after each direction.
                let is_near = |(found, expected): (&f32, f32)| (found - expected).abs() < 1.01;
                assert!(
                    floats.iter().zip(expected).all(is_near),
                    "{framing:?}: {floats:?} {bytes:?}"
                );
                assert!(
                    (floats[1] - floats[0] - 1000.0).abs() < 1e-3
                        && (floats[3] - floats[2] - 0.5).abs() < 1e-3
                );
            }
        }
    }

    #[test]
    fn floats_that_resizing_makes_too_many_or_too_large_are_refused() {
        let image = |width: u32, channels: u32, numbers: &[f32]| Decoded {
            width,
            height: 1,
            channels,
            stored_channels: channels as u16,
            pixel_type: PixelType::Float32,
            pixels: numbers.iter().copied().flat_map(f32::to_ne_bytes).collect(),
        };
        let framed = |image: Decoded, side| {
            let framing = Framing::Centre {
                crop_fraction: 1.0,
                interpolation: Interpolation::Bicubic,
            };
            image.frame(framing, side, &mut Resizer::new(), &mut draws(0))
        };
        let largest = [f32::MAX, -f32::MAX, f32::MAX, -f32::MAX];
        assert_eq!(
            framed(image(4, 1, &largest), 3).expect_err("refused"),
            "its values overflow when it is resized"
        );
        assert_eq!(
            framed(image(64, 64, &[0.0; 64 * 64]), 512).expect_err("refused"),
            "its 32768 x 512 pixels need more than 1024 MiB"
        );
    }

    #[test]
    fn outside_of_the_image_is_black() {
        let image = gradient(8, 8);
        let square = image.cut(-2, 3, 8, 8);
        let pixel = |row: usize, column: usize| &square[(row * 8 + column) * 3..][..3];
        assert_eq!(pixel(0, 1), [0, 0, 0]);
        assert_eq!(pixel(0, 2), [3, 0, 0]);
        assert_eq!(pixel(4, 7), [7, 5, 0]);
        assert_eq!(pixel(5, 7), [0, 0, 0]);
    }
}
