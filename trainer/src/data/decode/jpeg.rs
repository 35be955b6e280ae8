//! JPEG, by libjpeg-turbo, as in Pillow.

use std::panic::{AssertUnwindSafe, catch_unwind};

use image::{DynamicImage, GrayImage, RgbImage};
use mozjpeg::{ColorSpace, Decompress, NO_MARKERS};

use super::{check_size, rgb_of_cmyk};

/// The image, and the number of channels in its file.
pub(super) fn decode(bytes: &[u8]) -> Result<(DynamicImage, u8), String> {
    let Some(scans) = count_scans(bytes) else {
        return Err(format!("the JPEG file is truncated after {} bytes", bytes.len()));
    };
    // The library unwinds on an error, without a panic message.
    catch_unwind(AssertUnwindSafe(|| decompress(bytes, scans)))
        .unwrap_or_else(|payload| Err(payload.downcast_ref().cloned().unwrap_or_default()))
}

fn decompress(bytes: &[u8], scans: usize) -> Result<(DynamicImage, u8), String> {
    let words = |error: std::io::Error| error.to_string();
    let file = Decompress::with_markers(NO_MARKERS)
        .from_mem(bytes)
        .map_err(words)?;
    let components = file.components().len() as u8;
    // With several scans, the library keeps two bytes of each value until the last one.
    let value_bytes = if scans > 1 { 3 } else { 1 };
    let (width, height) = (file.width() as u32, file.height() as u32);
    check_size(width, height, u64::from(components) * value_bytes)?;
    let mut image = match file.color_space() {
        ColorSpace::JCS_GRAYSCALE => file.grayscale(),
        ColorSpace::JCS_CMYK | ColorSpace::JCS_YCCK => file.to_colorspace(ColorSpace::JCS_CMYK),
        _ => file.rgb(),
    }
    .map_err(words)?;
    let (width, height) = (image.width() as u32, image.height() as u32);
    let mut pixels: Vec<u8> = image.read_scanlines().map_err(words)?;
    let image = match image.color_space() {
        ColorSpace::JCS_GRAYSCALE => GrayImage::from_raw(width, height, pixels).map(DynamicImage::from),
        space => {
            if space == ColorSpace::JCS_CMYK {
                // Files have inverted inks, as Adobe's programs write them.
                let inks = pixels.as_chunks().0.iter();
                pixels = inks
                    .flat_map(|inks: &[u8; 4]| rgb_of_cmyk(inks.map(|ink| !ink)))
                    .collect();
            }
            RgbImage::from_raw(width, height, pixels).map(DynamicImage::from)
        }
    };
    Ok((image.ok_or("it has fewer rows than its header says")?, components))
}

/// The number of scans in a JPEG file; `None` if it ends early, which decoders fill with gray. Data
/// after the image's end (ISO/IEC 10918-1, B.1), as a phone's video, is ignored.
fn count_scans(bytes: &[u8]) -> Option<usize> {
    let mut rest = bytes;
    let mut scans = 0;
    loop {
        // A marker: 0xff, once or repeatedly, then a byte that is neither 0xff nor 0.
        rest = &rest[rest.iter().position(|byte| *byte == 0xff)?..];
        let place = rest.iter().position(|byte| *byte != 0xff)?;
        let marker = rest[place];
        rest = &rest[place + 1..];
        match marker {
            0xd9 => return Some(scans),
            // Data of a scan, and markers without a segment.
            0x00 | 0x01 | 0xd0..=0xd8 => continue,
            0xda => scans += 1,
            _ => {}
        }
        let length = u16::from_be_bytes(*rest.first_chunk()?);
        rest = rest.get(usize::from(length).max(2)..)?;
    }
}

#[cfg(test)]
mod tests {
    use crate::data::decode::decode;
    use crate::data::fixtures::jpeg;

    #[test]
    fn what_follows_a_jpeg_file_is_no_part_of_it() {
        let mut bytes = jpeg(64, 64, [1, 2, 3]);
        // The start of a scan in the video of a phone's photo.
        bytes.extend(b"\0\0\0\x18ftypmp42\xff\xda and more");
        assert_eq!(
            decode(&bytes, 3, contract::PixelType::Uint8)
                .expect("decodes")
                .width,
            64
        );
        // A thumbnail in a segment has its own end.
        let thumbnail = b"\xff\xd8\xff\xd9";
        let mut segment = vec![0xff, 0xe1, 0, 2 + thumbnail.len() as u8];
        segment.extend(thumbnail);
        let plain = jpeg(64, 64, [1, 2, 3]);
        let bytes = [&plain[..2], &segment, &plain[2..plain.len() - 20]].concat();
        assert!(
            decode(&bytes, 3, contract::PixelType::Uint8)
                .expect_err("refused")
                .contains("is truncated")
        );
    }
}
