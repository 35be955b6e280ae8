//! From the bytes of an image file to pixels, and from these to a square.
//!
//! Pixels are those that Pillow has after `convert("RGB")` or `convert("L")`, but for grey of 16 bits, of which
//! it makes white what is above 255.

mod frame;
mod jpeg;
mod tiff;

use std::io::Cursor;

use image::{
    DynamicImage, GrayAlphaImage, GrayImage, ImageDecoder as _, ImageError, ImageFormat, ImageReader, Limits,
    RgbImage, RgbaImage,
};

pub(super) use frame::Framing;

/// How names of image files end.
pub(super) const ENDINGS: [&str; 7] = ["jpg", "jpeg", "jfif", "png", "webp", "tif", "tiff"];

/// No image is decoded that takes more memory than this: a small file can claim any size.
const LARGEST_IMAGE_BYTES: u64 = 1 << 30;
/// Of a pixel as it is used: red, green and blue.
const COLOR_BYTES: u64 = 3;

/// Pixels of one image, row by row, channels together.
#[derive(Debug)]
pub(super) struct Decoded {
    pub(super) width: u32,
    pub(super) height: u32,
    pub(super) channels: u32,
    /// Channels in the file.
    pub(super) stored_channels: u8,
    pub(super) pixels: Vec<u8>,
}

/// Decodes a file to grey (1 channel) or red, green, blue (3). The error says what is wrong with it.
pub(super) fn decode(bytes: &[u8], channels: u32) -> Result<Decoded, String> {
    let is_big_tiff = bytes.starts_with(b"II+\0") || bytes.starts_with(b"MM\0+");
    let (image, stored_channels) = match image::guess_format(bytes) {
        Ok(ImageFormat::Jpeg) => jpeg::decode(bytes)?,
        Ok(ImageFormat::Tiff) => tiff::decode(bytes)?,
        _ if is_big_tiff => tiff::decode(bytes)?,
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
            (of_eight_bits(image), channels)
        }
        other => {
            return Err(format!(
                "it is no JPEG, PNG, WebP or TIFF file{}",
                guess(bytes, other.ok())
            ));
        }
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
        stored_channels,
        pixels,
    })
}

/// Pixels of 16 bits by their upper bytes.
fn of_eight_bits(image: DynamicImage) -> DynamicImage {
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

/// Pillow's 8 bits of 16, in colours.
fn upper_byte(value: u16) -> u8 {
    value.to_be_bytes()[0]
}

/// What bytes that are no image that can be read are instead.
fn guess(bytes: &[u8], format: Option<ImageFormat>) -> String {
    match format {
        Some(format) => format!(": it is {}", format.to_mime_type()),
        None if bytes.is_empty() => ": it is empty".to_owned(),
        None if bytes.starts_with(b"version https://git-lfs") => {
            ": it is a pointer of Git LFS, whose file was not fetched".to_owned()
        }
        None => String::new(),
    }
}

/// An error where an image of this size, of which the decoder needs so many bytes for each pixel, takes too much, with its colours.
fn check_size(width: u32, height: u32, pixel_bytes: u64) -> Result<(), String> {
    let pixels = u64::from(width) * u64::from(height);
    if pixels.saturating_mul(pixel_bytes + COLOR_BYTES) > LARGEST_IMAGE_BYTES {
        return Err(format!(
            "its {width} x {height} pixels take more than {} MiB to decode",
            LARGEST_IMAGE_BYTES >> 20
        ));
    }
    Ok(())
}

/// Red, green and blue of Pillow, from cyan, magenta, yellow and black (`cmyk2rgb` of its `Convert.c`).
fn rgb_of_cmyk([cyan, magenta, yellow, black]: [u8; 4]) -> [u8; 3] {
    let white = 255 - u32::from(black);
    [cyan, magenta, yellow].map(|ink| {
        let product = u32::from(ink) * white + 128;
        // Their product over 255, rounded.
        (white - (((product >> 8) + product) >> 8)) as u8
    })
}

/// Weights of red, green and blue in Pillow's grey: luma of ITU-R 601 in 16 bits of fixed point.
const LUMA: [u16; 3] = [19595, 38470, 7471];

/// Pillow's grey of red, green and blue.
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
    use crate::data::fixtures::{jpeg, png};

    #[test]
    fn files_are_decoded_to_the_channels_of_the_model() {
        let color = [200, 100, 50];
        for (format, bytes) in [("JPEG", jpeg(20, 10, color)), ("PNG", png(20, 10, color))] {
            let color = decode(&bytes, 3).expect("decodes");
            assert_eq!((color.width, color.height, color.pixels.len()), (20, 10, 600));
            for (found, expected) in color.pixels.iter().zip([200_u8, 100, 50]) {
                assert!(found.abs_diff(expected) <= 3, "{format}: {found}");
            }
            assert_eq!(decode(&bytes, 1).expect("decodes").pixels.len(), 200);
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
            let decoded = decode(&png(2, 1, color), 1).expect("decodes");
            assert_eq!(decoded.pixels, [grey, grey], "{color:?}");
        }
        let mut stored = Cursor::new(Vec::new());
        let image = image::GrayImage::from_raw(3, 1, vec![0, 77, 255]).expect("pixels");
        image.write_to(&mut stored, ImageFormat::Png).expect("encodes");
        let decoded = decode(stored.get_ref(), 1).expect("decodes");
        assert_eq!(decoded.pixels, [0, 77, 255], "grey stays as it is");
    }

    #[test]
    fn an_image_that_would_take_much_memory_is_refused_before_it_is_decoded() {
        // Grey: one byte for each pixel is within the bound, with red, green and blue it is not.
        let mut stored = Cursor::new(Vec::new());
        let image = image::GrayImage::new(1, 1);
        image.write_to(&mut stored, ImageFormat::Png).expect("encodes");
        let mut bytes = stored.into_inner();
        bytes[16..24].copy_from_slice(&[20_000_u32.to_be_bytes(); 2].concat());
        let checksum = crc32fast::hash(&bytes[12..29]);
        bytes[29..33].copy_from_slice(&checksum.to_be_bytes());
        let error = decode(&bytes, 3).expect_err("refused");
        assert_eq!(
            error,
            "its 20000 x 20000 pixels take more than 1024 MiB to decode"
        );
    }

    #[test]
    fn what_is_no_whole_image_is_refused() {
        // The end marker of the one; the end chunk and what is left of the pixels' checksum of the other.
        let color = [1, 2, 3];
        for (format, bytes, end) in [("JPEG", jpeg(64, 64, color), 2), ("PNG", png(64, 64, color), 14)] {
            for length in [2, 30, bytes.len() / 2, bytes.len() - end] {
                let error = decode(&bytes[..length], 3);
                assert!(error.is_err(), "{format} of {length} bytes");
            }
        }
        for (bytes, told) in [
            (&b"GIF89a and more"[..], ": it is image/gif"),
            (b"", ": it is empty"),
            (
                b"version https://git-lfs.github.com/spec/v1\noid",
                ": it is a pointer of Git LFS, whose file was not fetched",
            ),
            (b"no image", ""),
        ] {
            let error = decode(bytes, 3).expect_err("refused");
            assert_eq!(error, format!("it is no JPEG, PNG, WebP or TIFF file{told}"));
        }
    }

    /// Files that `tests/peers/pillow_images.py` made: here, or in the folder that this variable names.
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
                match decode(&bytes, channels) {
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
