//! TIFF: grey, red, green and blue, and CMYK, of 1, 8 and 16 bits.

use std::io::Cursor;

use image::metadata::Orientation;
use image::{DynamicImage, GrayImage, RgbImage};
use tiff::decoder::{Decoder, DecodingResult, Limits};
use tiff::tags::{ExtraSamples, Tag};
use tiff::{ColorType, TiffError};

use super::{LARGEST_IMAGE_BYTES, check_size, rgb_of_cmyk, upper_byte};

/// The first image of the file, and how many channels it has.
pub(super) fn decode(bytes: &[u8]) -> Result<(DynamicImage, u8), String> {
    let words = |error: TiffError| error.to_string();
    let mut limits = Limits::default();
    limits.decoding_buffer_size = LARGEST_IMAGE_BYTES as usize;
    limits.intermediate_buffer_size = LARGEST_IMAGE_BYTES as usize;
    let mut file = Decoder::new(Cursor::new(bytes))
        .map_err(words)?
        .with_limits(limits);
    let (width, height) = file.dimensions().map_err(words)?;
    let color = file.colortype().map_err(words)?;
    // Planes are put together, and values of 16 bits made ones of 8, in another piece of memory.
    let value_bytes = u64::from(color.bit_depth().div_ceil(8)) + 1;
    check_size(width, height, u64::from(color.num_samples()) * value_bytes)?;
    let extra: Option<Vec<u16>> = file.find_tag_unsigned_vec(Tag::ExtraSamples).map_err(words)?;
    if extra.is_some_and(|extra| extra.contains(&ExtraSamples::AssociatedAlpha.to_u16())) {
        return Err("its colours are multiplied by alpha (ExtraSamples 1), which is not read".to_owned());
    }

    let orientation = file.find_tag_unsigned::<u8>(Tag::Orientation).map_err(words)?;

    let mut values = DecodingResult::U8(Vec::new());
    let layout = file.read_image_to_buffer(&mut values).map_err(words)?;
    let mut values = match values {
        DecodingResult::U8(values) if color.bit_depth() == 8 => values,
        DecodingResult::U8(values) if color.bit_depth() == 1 => expand_bits(&values, width as usize),
        DecodingResult::U16(values) => values.into_iter().map(upper_byte).collect(),
        _ => {
            return Err(format!(
                "its values have {} bits ({color:?}), where unsigned ones of 1, 8 or 16 bits are read",
                color.bit_depth()
            ));
        }
    };
    let pixels = width as usize * height as usize;
    if layout.planes > 1 {
        values = (0..pixels)
            .flat_map(|pixel| values.iter().skip(pixel).step_by(pixels))
            .copied()
            .collect();
    }
    let samples = usize::from(color.num_samples());
    if values.len() != pixels * samples {
        return Err(format!(
            "it has {} values, where {width} x {height} pixels of {samples} channels are expected",
            values.len()
        ));
    }
    let each = values.chunks_exact(samples);
    let image = match color {
        ColorType::Gray(_) => GrayImage::from_raw(width, height, values).map(DynamicImage::from),
        ColorType::RGB(_) => RgbImage::from_raw(width, height, values).map(DynamicImage::from),
        // Alpha is left out, as with other formats.
        ColorType::GrayA(_) | ColorType::Multiband { num_samples: 2, .. } => {
            let grey = each.map(|pixel| pixel[0]).collect();
            GrayImage::from_raw(width, height, grey).map(DynamicImage::from)
        }
        ColorType::RGBA(_) => {
            let colors = each.flat_map(|pixel| &pixel[..3]).copied().collect();
            RgbImage::from_raw(width, height, colors).map(DynamicImage::from)
        }
        ColorType::CMYK(_) => {
            let inks = values.as_chunks().0.iter();
            let colors = inks.flat_map(|inks| rgb_of_cmyk(*inks)).collect();
            RgbImage::from_raw(width, height, colors).map(DynamicImage::from)
        }
        _ => {
            return Err(format!(
                "it has {samples} channels ({color:?}), where grey, RGB and CMYK are read"
            ));
        }
    };
    let mut image = image.ok_or("it has no pixels")?;
    // Of TIFF alone Pillow takes it into account.
    if let Some(orientation) = orientation.and_then(Orientation::from_exif) {
        image.apply_orientation(orientation);
    }
    Ok((image, samples as u8))
}

/// Rows of single bits, which begin at a byte each, to bytes of 0 and 255.
fn expand_bits(rows: &[u8], width: usize) -> Vec<u8> {
    let row = |bytes: &[u8]| {
        let bits = (0..width).map(|place| (bytes[place / 8] >> (7 - place % 8)) & 1);
        bits.map(|bit| bit * 255).collect::<Vec<_>>()
    };
    rows.chunks_exact(width.div_ceil(8).max(1))
        .flat_map(row)
        .collect()
}
