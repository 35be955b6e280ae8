//! TIFF: as Pillow converts it (gray, RGB and CMYK, of 1, 8 and 16 bits), or as stored.

use std::borrow::Cow;
use std::io::Cursor;

use image::metadata::Orientation;
use image::{DynamicImage, GrayImage, RgbImage};
use tiff::decoder::{ChunkType, Decoder, DecodingResult, Limits};
use tiff::tags::{ExtraSamples, PhotometricInterpretation, PlanarConfiguration, Tag};
use tiff::{ColorType, TiffError};

use super::{LARGEST_IMAGE_BYTES, check_size, rgb_of_cmyk, upper_byte};

/// The first image of a file.
struct Page {
    width: u32,
    height: u32,
    color: ColorType,
    /// Whether colors are multiplied by alpha.
    is_premultiplied: bool,
    orientation: Option<Orientation>,
    planes: usize,
}

impl Page {
    /// Reads the page and its values, if they fit the memory limit with `copy_bytes` more for each value. Values come
    /// pixel by pixel, or plane by plane if there are several.
    fn read(bytes: &[u8], copy_bytes: u64) -> Result<(Self, DecodingResult), String> {
        let words = |error: TiffError| error.to_string();
        let mut limits = Limits::default();
        limits.decoding_buffer_size = LARGEST_IMAGE_BYTES as usize;
        limits.intermediate_buffer_size = LARGEST_IMAGE_BYTES as usize;
        let mut file = Decoder::new(Cursor::new(bytes))
            .map_err(words)?
            .with_limits(limits);
        let (width, height) = file.dimensions().map_err(words)?;
        let color = file.colortype().map_err(words)?;
        let value_bytes = u64::from(color.bit_depth().div_ceil(8)) + copy_bytes;
        let pixel_bytes = u64::from(color.num_samples()) * value_bytes;
        check_size(width, height, pixel_bytes)?;
        // The decoder allocates a row of a tile, whatever width the file claims.
        let (tile_width, tile_height) = file.chunk_dimensions();
        check_size(tile_width, 1, pixel_bytes)?;
        let planes: Option<u16> = file.find_tag_unsigned(Tag::PlanarConfiguration).map_err(words)?;
        if planes == Some(PlanarConfiguration::Planar.to_u16())
            && file.get_chunk_type() == ChunkType::Tile
            && height % tile_height != 0
        {
            // The decoder panics: https://github.com/image-rs/image-tiff/issues/403
            return Err(format!(
                "its planes are in tiles of {tile_height} rows, which do not divide its height of {height}"
            ));
        }
        let extra: Option<Vec<u16>> = file.find_tag_unsigned_vec(Tag::ExtraSamples).map_err(words)?;
        let orientation = file.find_tag_unsigned::<u8>(Tag::Orientation).map_err(words)?;
        let mut values = DecodingResult::U8(Vec::new());
        let layout = file.read_image_to_buffer(&mut values).map_err(words)?;
        let page = Self {
            width,
            height,
            color,
            is_premultiplied: extra
                .is_some_and(|extra| extra.contains(&ExtraSamples::AssociatedAlpha.to_u16())),
            orientation: orientation.and_then(Orientation::from_exif),
            planes: layout.planes,
        };
        Ok((page, values))
    }

    /// Values pixel by pixel.
    fn interleaved<T: Copy>(&self, values: Vec<T>) -> Result<Vec<T>, String> {
        let (width, height, samples) = (self.width, self.height, self.color.num_samples());
        let pixels = width as usize * height as usize;
        if values.len() != pixels * usize::from(samples) {
            return Err(format!(
                "it has {} values, but {width} x {height} pixels of {samples} channels are expected",
                values.len()
            ));
        }
        if self.planes == 1 {
            return Ok(values);
        }
        let of_pixel = |pixel| values.iter().skip(pixel).step_by(pixels).copied();
        Ok((0..pixels).flat_map(of_pixel).collect())
    }
}

/// The image as Pillow converts it, and the number of its channels.
pub(super) fn decode(bytes: &[u8]) -> Result<(DynamicImage, u8), String> {
    // Joining planes, and converting 16 bits to 8, needs another copy.
    let (page, values) = Page::read(bytes, 1)?;
    if page.is_premultiplied {
        return Err("its colors are multiplied by alpha (ExtraSamples 1), which is not supported".to_owned());
    }
    let Page {
        width, height, color, ..
    } = page;
    let values = match values {
        DecodingResult::U8(values) if color.bit_depth() == 8 => values,
        DecodingResult::U8(values) if color.bit_depth() == 1 => expand_bits(&values, width as usize),
        DecodingResult::U16(values) => values.into_iter().map(upper_byte).collect(),
        _ => {
            return Err(format!(
                "its values have {} bits or a sign, but must be unsigned with 1, 8 or 16 bits (data.pixelType float32 supports others)",
                color.bit_depth()
            ));
        }
    };
    let samples = usize::from(color.num_samples());
    let values = page.interleaved(values)?;
    let each = values.chunks_exact(samples);
    let image = match color {
        ColorType::Gray(_) => GrayImage::from_raw(width, height, values).map(DynamicImage::from),
        ColorType::RGB(_) => RgbImage::from_raw(width, height, values).map(DynamicImage::from),
        // Alpha is dropped, as in other formats.
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
                "it has {samples} channels that are not gray, RGB or CMYK (data.pixelType float32 supports any)"
            ));
        }
    };
    let mut image = image.ok_or("it has no pixels")?;
    // Pillow applies it to TIFF only.
    if let Some(orientation) = page.orientation {
        image.apply_orientation(orientation);
    }
    Ok((image, samples as u8))
}

/// Width, height, number of channels, and the values of all channels, pixel by pixel.
pub(super) fn stored(file: Cow<'_, [u8]>) -> Result<(u32, u32, u16, Vec<f32>), String> {
    let bytes = without_color_space(file)?;
    // A plane of floats is also copied for resizing.
    let (page, values) = Page::read(&bytes, 2 * size_of::<f32>() as u64)?;
    if page
        .orientation
        .is_some_and(|orientation| orientation != Orientation::NoTransforms)
    {
        return Err(
            "it is rotated or mirrored (Orientation), which pixelType float32 does not support".to_owned(),
        );
    }
    let values = match values {
        _ if page.color.bit_depth() < 8 => {
            return Err(format!(
                "its values have {} bits, but pixelType float32 needs 8 or more",
                page.color.bit_depth()
            ));
        }
        DecodingResult::U8(values) => floats(values),
        DecodingResult::U16(values) => floats(values),
        DecodingResult::U32(values) => values.into_iter().map(|value| value as f32).collect(),
        DecodingResult::U64(values) => values.into_iter().map(|value| value as f32).collect(),
        DecodingResult::I8(values) => floats(values),
        DecodingResult::I16(values) => floats(values),
        DecodingResult::I32(values) => values.into_iter().map(|value| value as f32).collect(),
        DecodingResult::I64(values) => values.into_iter().map(|value| value as f32).collect(),
        DecodingResult::F16(values) => values.into_iter().map(f32::from).collect(),
        DecodingResult::F32(values) => values,
        DecodingResult::F64(values) => values.into_iter().map(|value| value as f32).collect(),
    };
    let values = page.interleaved(values)?;
    Ok((page.width, page.height, page.color.num_samples(), values))
}

/// The file with `BlackIsZero` as its color space: for others, extra channels are dropped.
fn without_color_space(file: Cow<'_, [u8]>) -> Result<Cow<'_, [u8]>, String> {
    let bytes = &file[..];
    let is_big_endian = bytes.starts_with(b"MM");
    let number = |place: usize, length: usize| {
        let end = place.checked_add(length).ok_or("its directory is truncated")?;
        let bytes = bytes.get(place..end).ok_or("its directory is truncated")?;
        let append = |number: u64, byte: &u8| (number << 8) | u64::from(*byte);
        Ok::<_, String>(if is_big_endian {
            bytes.iter().fold(0, append) as usize
        } else {
            bytes.iter().rev().fold(0, append) as usize
        })
    };
    // Start of the first directory, bytes of its count and of an entry, the value's offset in one.
    let (start, count_bytes, entry_bytes, value_at) = if number(2, 2)? == 43 {
        (number(8, 8)?, 8, 20, 12)
    } else {
        (number(4, 4)?, 2, 12, 8)
    };
    let mut space_at = None;
    for index in 0..number(start, count_bytes)? {
        let entry = start.saturating_add(count_bytes + index.saturating_mul(entry_bytes));
        if number(entry, 2)? != usize::from(Tag::PhotometricInterpretation.to_u16()) {
            continue;
        }
        let space = number(entry.saturating_add(value_at), 2)? as u16;
        match PhotometricInterpretation::from_u16(space) {
            Some(
                PhotometricInterpretation::WhiteIsZero
                | PhotometricInterpretation::BlackIsZero
                | PhotometricInterpretation::RGB
                | PhotometricInterpretation::CMYK,
            ) => {}
            _ => {
                return Err(format!(
                    "its color space ({space}) is not gray, RGB or CMYK, as pixelType float32 requires"
                ));
            }
        }
        space_at = Some(entry + value_at);
        break;
    }
    let mut file = file;
    if let Some(place) = space_at {
        let black_is_zero = PhotometricInterpretation::BlackIsZero.to_u16();
        let value = if is_big_endian {
            black_is_zero.to_be_bytes()
        } else {
            black_is_zero.to_le_bytes()
        };
        file.to_mut()[place..][..2].copy_from_slice(&value);
    }
    Ok(file)
}

fn floats<T: Into<f32>>(values: Vec<T>) -> Vec<f32> {
    values.into_iter().map(Into::into).collect()
}

/// Converts rows of single bits, each starting at a byte, to bytes of 0 and 255.
fn expand_bits(rows: &[u8], width: usize) -> Vec<u8> {
    let row = |bytes: &[u8]| {
        let bits = (0..width).map(|place| (bytes[place / 8] >> (7 - place % 8)) & 1);
        bits.map(|bit| bit * 255).collect::<Vec<_>>()
    };
    rows.chunks_exact(width.div_ceil(8).max(1))
        .flat_map(row)
        .collect()
}
