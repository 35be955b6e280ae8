//! From the bytes of an image file to pixels, and from pixels to a square.
//!
//! Byte pixels are Pillow's after `convert("RGB")` or `convert("L")`, except for 16-bit gray, in
//! which Pillow turns values above 255 to white. Floats are the numbers in the file.

mod frame;
mod jpeg;
mod tiff;

use std::borrow::Cow;
use std::io::Cursor;

use contract::PixelType;
use image::{
    DynamicImage, GrayAlphaImage, GrayImage, ImageDecoder as _, ImageError, ImageFormat, ImageReader, Limits,
    RgbImage, RgbaImage,
};

pub(super) use frame::Framing;

/// Extensions of image files.
pub(super) const ENDINGS: [&str; 7] = ["jpg", "jpeg", "jfif", "png", "webp", "tif", "tiff"];

/// Memory limit for decoding an image, because a small file can claim any size.
const LARGEST_IMAGE_BYTES: u64 = 1 << 30;
/// Bytes per pixel after decoding: red, green, blue.
const COLOR_BYTES: u64 = 3;

/// Pixels of one image, row by row, channels together.
#[derive(Debug)]
pub(super) struct Decoded {
    pub(super) width: u32,
    pub(super) height: u32,
    pub(super) channels: u32,
    /// Channels in the file.
    pub(super) stored_channels: u16,
    pub(super) pixel_type: PixelType,
    /// The bytes of the values.
    pub(super) pixels: Vec<u8>,
}

impl Decoded {
    /// The numbers as stored.
    pub(super) fn numbers(&self) -> Box<dyn Iterator<Item = f32> + '_> {
        match self.pixel_type {
            PixelType::Uint8 => Box::new(self.pixels.iter().copied().map(f32::from)),
            PixelType::Float32 => Box::new(self.pixels.as_chunks().0.iter().copied().map(f32::from_ne_bytes)),
        }
    }

    fn pixel_bytes(&self) -> usize {
        self.channels as usize * self.pixel_type.bytes()
    }
}

/// Decodes a file: bytes to gray (1 channel) or RGB (3), floats to the channels in the file. The
/// error says what is wrong with the file.
pub(super) fn decode<'a>(
    file: impl Into<Cow<'a, [u8]>>,
    channels: u32,
    pixel_type: PixelType,
) -> Result<Decoded, String> {
    match pixel_type {
        PixelType::Uint8 => converted(&file.into(), channels),
        PixelType::Float32 => stored(file.into(), channels),
    }
}

fn converted(bytes: &[u8], channels: u32) -> Result<Decoded, String> {
    let (image, stored_channels) = if is_tiff(bytes) {
        tiff::decode(bytes)?
    } else {
        let (image, channels) = open(bytes)?;
        (to_eight_bits(image), channels)
    };
    let (width, height) = (image.width(), image.height());
    let pixels = match channels {
        1 if image.color().has_color() => {
            let pixels = image.into_rgb8();
            pixels.pixels().map(|pixel| luma(pixel.0)).collect()
        }
        1 => image.into_luma8().into_raw(),
        _ => image.into_rgb8().into_raw(),
    };
    Ok(Decoded {
        width,
        height,
        channels,
        stored_channels: stored_channels.into(),
        pixel_type: PixelType::Uint8,
        pixels,
    })
}

fn stored(file: Cow<'_, [u8]>, channels: u32) -> Result<Decoded, String> {
    let (width, height, stored_channels, values) = if is_tiff(&file) {
        tiff::stored(file)?
    } else {
        let (image, components) = open(&file)?;
        if is_expanded_png(&file) || components != image.color().channel_count() {
            return Err(
                "it has a palette, fewer than 8 bits or CMYK, which pixelType float32 does not support"
                    .to_owned(),
            );
        }
        let (width, height, color) = (image.width(), image.height(), image.color());
        let floats = 2 * size_of::<f32>() as u64 * u64::from(color.channel_count());
        check_size(width, height, u64::from(color.bytes_per_pixel()) + floats)?;
        let bytes = image.as_bytes();
        let values: Vec<f32> = if color.bytes_per_pixel() == color.channel_count() {
            bytes.iter().copied().map(f32::from).collect()
        } else {
            let values = bytes.as_chunks().0.iter().copied().map(u16::from_ne_bytes);
            values.map(f32::from).collect()
        };
        (width, height, color.channel_count().into(), values)
    };
    if u32::from(stored_channels) != channels {
        return Err(format!(
            "it has {stored_channels} channels, but model.channels is {channels} (data.pixelType float32 does not convert colors)"
        ));
    }
    if values.iter().any(|value| !value.is_finite()) {
        return Err("it has values that are not finite".to_owned());
    }
    Ok(Decoded {
        width,
        height,
        channels,
        stored_channels,
        pixel_type: PixelType::Float32,
        pixels: values.into_iter().flat_map(f32::to_ne_bytes).collect(),
    })
}

/// Whether the decoder changes a PNG file's numbers: with a palette or fewer than 8 bits.
fn is_expanded_png(file: &[u8]) -> bool {
    // From the header chunk, which comes first.
    matches!(file, [0x89, b'P', b'N', b'G', header @ ..] if matches!(header.get(20..22), Some([0..8, _] | [_, 3])))
}

fn is_tiff(bytes: &[u8]) -> bool {
    let is_big = bytes.starts_with(b"II+\0") || bytes.starts_with(b"MM\0+");
    is_big || matches!(image::guess_format(bytes), Ok(ImageFormat::Tiff))
}

/// An image in another format, with values of 8 or 16 bits, and the number of channels in its file.
fn open(bytes: &[u8]) -> Result<(DynamicImage, u8), String> {
    match image::guess_format(bytes) {
        Ok(ImageFormat::Jpeg) => jpeg::decode(bytes),
        Ok(format @ (ImageFormat::Png | ImageFormat::WebP)) => {
            let words = |error: ImageError| error.to_string().trim().to_owned();
            let mut reader = ImageReader::with_format(Cursor::new(bytes), format);
            let mut limits = Limits::default();
            limits.max_alloc = Some(LARGEST_IMAGE_BYTES);
            reader.limits(limits);
            let decoder = reader.into_decoder().map_err(words)?;
            let (width, height) = decoder.dimensions();
            check_size(width, height, decoder.color_type().bytes_per_pixel().into())?;
            let image = DynamicImage::from_decoder(decoder).map_err(words)?;
            let channels = image.color().channel_count();
            Ok((image, channels))
        }
        other => Err(format!(
            "it is not a JPEG, PNG, WebP or TIFF file{}",
            guess(bytes, other.ok())
        )),
    }
}

/// 16-bit pixels by their upper bytes.
fn to_eight_bits(image: DynamicImage) -> DynamicImage {
    let upper = |values: &[u16]| values.iter().copied().map(upper_byte).collect();
    let (width, height) = (image.width(), image.height());
    let narrow = match &image {
        DynamicImage::ImageLuma16(wide) => {
            GrayImage::from_raw(width, height, upper(wide)).map(DynamicImage::from)
        }
        DynamicImage::ImageLumaA16(wide) => {
            GrayAlphaImage::from_raw(width, height, upper(wide)).map(DynamicImage::from)
        }
        DynamicImage::ImageRgb16(wide) => {
            RgbImage::from_raw(width, height, upper(wide)).map(DynamicImage::from)
        }
        DynamicImage::ImageRgba16(wide) => {
            RgbaImage::from_raw(width, height, upper(wide)).map(DynamicImage::from)
        }
        _ => None,
    };
    narrow.unwrap_or(image)
}

/// Pillow's 8 of 16 bits, for colors.
fn upper_byte(value: u16) -> u8 {
    value.to_be_bytes()[0]
}

/// What unreadable bytes are instead of an image.
fn guess(bytes: &[u8], format: Option<ImageFormat>) -> String {
    match format {
        Some(format) => format!(": it is {}", format.to_mime_type()),
        None if bytes.is_empty() => ": it is empty".to_owned(),
        None if bytes.starts_with(b"version https://git-lfs") => {
            ": it is a Git LFS pointer whose file was not fetched".to_owned()
        }
        None => String::new(),
    }
}

/// An error if decoding at so many bytes per pixel, with the colors, needs too much memory.
fn check_size(width: u32, height: u32, pixel_bytes: u64) -> Result<(), String> {
    let pixels = u64::from(width) * u64::from(height);
    if pixels.saturating_mul(pixel_bytes + COLOR_BYTES) > LARGEST_IMAGE_BYTES {
        return Err(format!(
            "its {width} x {height} pixels need more than {} MiB",
            LARGEST_IMAGE_BYTES >> 20
        ));
    }
    Ok(())
}

/// Pillow's red, green and blue from cyan, magenta, yellow, black (`cmyk2rgb` of `Convert.c`).
fn rgb_of_cmyk([cyan, magenta, yellow, black]: [u8; 4]) -> [u8; 3] {
    let white = 255 - u32::from(black);
    [cyan, magenta, yellow].map(|ink| {
        let product = u32::from(ink) * white + 128;
        // Their product over 255, rounded.
        (white - (((product >> 8) + product) >> 8)) as u8
    })
}

/// Weights of red, green and blue in Pillow's gray: luma of ITU-R 601 in 16-bit fixed point.
const LUMA: [u16; 3] = [19595, 38470, 7471];

/// Pillow's gray for red, green and blue.
pub(super) fn luma(pixel: [u8; 3]) -> u8 {
    let sum: u32 = pixel
        .iter()
        .zip(LUMA)
        .map(|(value, weight)| u32::from(*value) * u32::from(weight))
        .sum();
    ((sum + 0x8000) >> 16) as u8
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::fixtures::{Tiff, jpeg, png};

    #[test]
    fn files_are_decoded_to_the_channels_of_the_model() {
        let color = [200, 100, 50];
        for (format, bytes) in [("JPEG", jpeg(20, 10, color)), ("PNG", png(20, 10, color))] {
            let color = decode(&bytes, 3, PixelType::Uint8).expect("decodes");
            assert_eq!((color.width, color.height, color.pixels.len()), (20, 10, 600));
            for (found, expected) in color.pixels.iter().zip([200_u8, 100, 50]) {
                assert!(found.abs_diff(expected) <= 3, "{format}: {found}");
            }
            assert_eq!(
                decode(&bytes, 1, PixelType::Uint8).expect("decodes").pixels.len(),
                200
            );
        }
    }

    #[test]
    fn grey_is_pillows() {
        // By Pillow's own formula, (19595 R + 38470 G + 7471 B + 0x8000) >> 16.
        for (color, grey) in [
            ([255, 0, 0], 76),
            ([0, 255, 0], 150),
            ([0, 0, 255], 29),
            ([200, 100, 50], 124),
            ([12, 200, 77], 130),
            ([255, 255, 255], 255),
        ] {
            let decoded = decode(png(2, 1, color), 1, PixelType::Uint8).expect("decodes");
            assert_eq!(decoded.pixels, [grey, grey], "{color:?}");
        }
        let mut stored = Cursor::new(Vec::new());
        let image = image::GrayImage::from_raw(3, 1, vec![0, 77, 255]).expect("pixels");
        image.write_to(&mut stored, ImageFormat::Png).expect("encodes");
        let decoded = decode(stored.get_ref(), 1, PixelType::Uint8).expect("decodes");
        assert_eq!(decoded.pixels, [0, 77, 255], "grey stays as it is");
    }

    fn tiff(values: &[u8]) -> Tiff<'_> {
        Tiff::of([2, 1, 5], values)
    }

    #[test]
    fn numbers_are_those_of_the_file_whatever_their_type() {
        let numbers = |file: &[u8], channels| {
            let decoded = decode(file, channels, PixelType::Float32)?;
            assert_eq!((decoded.width, decoded.height), (2, 1));
            Ok::<_, String>(decoded.numbers().collect::<Vec<f32>>())
        };
        let shorts = [1_u16, 300, 65_535, 4, 5, 6, 7, 8, 9, 10].map(u16::to_le_bytes);
        let found = [1.0, 300.0, 65_535.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0];
        let wide = tiff(shorts.as_flattened());
        assert_eq!(numbers(&wide.file(), 5), Ok(found.to_vec()));
        let with_color = Tiff {
            color_space: 2,
            ..wide
        };
        assert_eq!(
            numbers(&with_color.file(), 5),
            Ok(found.to_vec()),
            "red, green, blue and two more"
        );
        // Both pixels for each channel.
        let planar = Tiff {
            planar: true,
            ..with_color
        };
        assert_eq!(
            numbers(&planar.file(), 5),
            Ok(vec![1.0, 65_535.0, 5.0, 7.0, 9.0, 300.0, 4.0, 6.0, 8.0, 10.0])
        );
        let big_endian = [1_u16, 300, 65_535, 4, 5, 6, 7, 8, 9, 10].map(u16::to_be_bytes);
        for eight_byte_offsets in [false, true] {
            let in_order = Tiff {
                eight_byte_offsets,
                ..with_color
            };
            assert_eq!(
                numbers(&in_order.file(), 5),
                Ok(found.to_vec()),
                "{eight_byte_offsets}"
            );
            let other = Tiff {
                big_endian: true,
                values: big_endian.as_flattened(),
                ..in_order
            };
            assert_eq!(
                numbers(&other.file(), 5),
                Ok(found.to_vec()),
                "{eight_byte_offsets}"
            );
        }
        let alpha = Tiff { extra: 1, ..wide };
        assert_eq!(numbers(&alpha.file(), 5), Ok(found.to_vec()), "as they are");
        // Of 16 x 16 pixels, one in the corner of each tile is the image's.
        let mut tiled = [0; 16 * 16 * 5 * 2];
        tiled[..20].copy_from_slice(shorts.as_flattened());
        let tile = Some([16, 16]);
        assert_eq!(
            numbers(
                &Tiff {
                    tile,
                    values: &tiled,
                    ..wide
                }
                .file(),
                5
            ),
            Ok(found.to_vec())
        );
        let signed = [-2_i16, 300].map(i16::to_le_bytes);
        let one = Tiff {
            channels: 1,
            sample_format: 2,
            ..tiff(signed.as_flattened())
        };
        assert_eq!(numbers(&one.file(), 1), Ok(vec![-2.0, 300.0]));
        let floats = [-0.25_f32, 1e6].map(f32::to_le_bytes);
        let one = Tiff {
            channels: 1,
            bits: 32,
            sample_format: 3,
            ..tiff(floats.as_flattened())
        };
        assert_eq!(numbers(&one.file(), 1), Ok(vec![-0.25, 1e6]));
        let white_is_zero = Tiff {
            channels: 1,
            bits: 8,
            color_space: 0,
            ..tiff(&[0, 9])
        };
        assert_eq!(
            numbers(&white_is_zero.file(), 1),
            Ok(vec![0.0, 9.0]),
            "as they are"
        );

        let mut wide = Cursor::new(Vec::new());
        image::ImageBuffer::<image::Luma<u16>, _>::from_raw(2, 1, vec![7, 40_000])
            .expect("pixels")
            .write_to(&mut wide, ImageFormat::Png)
            .expect("encodes");
        assert_eq!(numbers(wide.get_ref(), 1), Ok(vec![7.0, 40_000.0]));
        let expected = vec![9.0, 8.0, 7.0, 9.0, 8.0, 7.0];
        assert_eq!(numbers(&png(2, 1, [9, 8, 7]), 3), Ok(expected));
    }

    #[test]
    fn numbers_that_are_not_the_models_are_refused() {
        let refused = |file: &[u8]| decode(file, 3, PixelType::Float32).expect_err("refused");
        let bytes = [0; 20];
        assert_eq!(
            refused(&tiff(&bytes).file()),
            "it has 5 channels, but model.channels is 3 (data.pixelType float32 does not convert colors)"
        );
        let numbers = [0.0, 1.0, f32::NAN, 0.0, 1.0, 2.0].map(f32::to_le_bytes);
        let floats = Tiff {
            channels: 3,
            bits: 32,
            sample_format: 3,
            ..tiff(numbers.as_flattened())
        };
        assert_eq!(refused(&floats.file()), "it has values that are not finite");
        let turned = Tiff {
            orientation: 6,
            ..tiff(&bytes)
        };
        assert_eq!(
            refused(&turned.file()),
            "it is rotated or mirrored (Orientation), which pixelType float32 does not support"
        );
        let other = Tiff {
            color_space: 8,
            ..tiff(&bytes)
        };
        assert_eq!(
            refused(&other.file()),
            "its color space (8) is not gray, RGB or CMYK, as pixelType float32 requires"
        );
        let bits = Tiff {
            channels: 1,
            bits: 1,
            ..tiff(&[0])
        };
        assert_eq!(
            refused(&bits.file()),
            "its values have 1 bits, but pixelType float32 needs 8 or more"
        );
        let whole = tiff(&bytes).file();
        for length in 0..whole.len() {
            assert!(
                decode(&whole[..length], 5, PixelType::Float32).is_err(),
                "{length} bytes"
            );
        }
        let error = decode(&whole, 3, PixelType::Uint8).expect_err("refused");
        assert_eq!(
            error,
            "it has 5 channels that are not gray, RGB or CMYK (data.pixelType float32 supports any)"
        );
        let tiles = [0; 16 * 16 * 5 * 2];
        let planes = Tiff {
            planar: true,
            tile: Some([16, 16]),
            ..tiff(&tiles)
        };
        assert_eq!(
            refused(&planes.file()),
            "its planes are in tiles of 16 rows, which do not divide its height of 1"
        );
        let alpha = Tiff {
            channels: 2,
            bits: 8,
            extra: 1,
            ..tiff(&[0; 4])
        };
        assert_eq!(
            decode(alpha.file(), 1, PixelType::Uint8).expect_err("refused"),
            "its colors are multiplied by alpha (ExtraSamples 1), which is not supported"
        );
        for (depth, kind, is_expanded) in [(8, 0, false), (16, 2, false), (8, 3, true), (4, 0, true)] {
            let mut header = png(1, 1, [0; 3]);
            header[24..26].copy_from_slice(&[depth, kind]);
            assert_eq!(is_expanded_png(&header), is_expanded, "{depth} bits, {kind}");
        }
        let claims = Tiff {
            width: 8000,
            height: 8000,
            ..tiff(&bytes)
        };
        assert_eq!(
            refused(&claims.file()),
            "its 8000 x 8000 pixels need more than 1024 MiB"
        );
    }

    #[test]
    fn an_image_that_would_take_much_memory_is_refused_before_it_is_decoded() {
        // Gray: one byte per pixel is within the limit, but not together with red, green and blue.
        let mut stored = Cursor::new(Vec::new());
        let image = image::GrayImage::new(1, 1);
        image.write_to(&mut stored, ImageFormat::Png).expect("encodes");
        let mut bytes = stored.into_inner();
        bytes[16..24].copy_from_slice(&[20_000_u32.to_be_bytes(); 2].concat());
        let checksum = crc32fast::hash(&bytes[12..29]);
        bytes[29..33].copy_from_slice(&checksum.to_be_bytes());
        let error = decode(&bytes, 3, PixelType::Uint8).expect_err("refused");
        assert_eq!(error, "its 20000 x 20000 pixels need more than 1024 MiB");
    }

    #[test]
    fn what_is_no_whole_image_is_refused() {
        // Cut off: JPEG's end marker; PNG's end chunk and the rest of the pixels' checksum.
        let color = [1, 2, 3];
        for (format, bytes, end) in [("JPEG", jpeg(64, 64, color), 2), ("PNG", png(64, 64, color), 14)] {
            for length in [2, 30, bytes.len() / 2, bytes.len() - end] {
                let error = decode(&bytes[..length], 3, PixelType::Uint8);
                assert!(error.is_err(), "{format} of {length} bytes");
            }
        }
        for (bytes, told) in [
            (&b"GIF89a and more"[..], ": it is image/gif"),
            (b"", ": it is empty"),
            (
                b"version https://git-lfs.github.com/spec/v1\noid",
                ": it is a Git LFS pointer whose file was not fetched",
            ),
            (b"no image", ""),
        ] {
            let error = decode(bytes, 3, PixelType::Uint8).expect_err("refused");
            assert_eq!(error, format!("it is not a JPEG, PNG, WebP or TIFF file{told}"));
        }
    }

    /// Files from `tests/peers/pillow_images.py`: here, or in the folder that this variable names.
    #[test]
    fn pixels_are_pillows() {
        #[derive(serde::Deserialize)]
        struct Expected {
            width: u32,
            height: u32,
            color: u32,
            grey: u32,
        }
        let goldens = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/peers/goldens/images");
        let folder = std::env::var("VIT_PILLOW_IMAGES").unwrap_or_else(|_| goldens.to_owned());
        let list = fs_err::read_to_string(format!("{folder}/expected.json")).expect("a list");
        let list: std::collections::BTreeMap<String, Expected> =
            serde_json::from_str(&list).expect("checksums");
        let mut wrong = Vec::new();
        let count = list.len();
        for (name, expected) in list {
            let bytes = fs_err::read(format!("{folder}/{name}")).expect("a file");
            for (channels, checksum) in [(3, expected.color), (1, expected.grey)] {
                match decode(&bytes, channels, PixelType::Uint8) {
                    Ok(image) => {
                        assert_eq!(
                            (image.width, image.height),
                            (expected.width, expected.height),
                            "{name}"
                        );
                        if crc32fast::hash(&image.pixels) != checksum {
                            wrong.push(format!("{name}, {channels} channels: other pixels"));
                        }
                    }
                    Err(error) => wrong.push(format!("{name}: {error}")),
                }
            }
        }
        assert!(
            wrong.is_empty(),
            "{} of {count} files:\n{}",
            wrong.len(),
            wrong.join("\n")
        );
        assert!(count >= 200, "only {count} files");
    }
}
