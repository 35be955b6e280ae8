//! Operations on the colors and the shape of an image, on its bytes. Pillow's operations return
//! Pillow's bytes; affine ones and the blur are described below.

use crate::data::decode::luma;

/// An operation on an image.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Op {
    /// Stretches each channel to 0..255.
    AutoContrast,
    /// Makes each channel's histogram flat.
    Equalize,
    Invert,
    /// Output to input, both in 0..1 of the side: x = a x + b y + c, y = d x + e y + f.
    Affine([f64; 6]),
    /// Saturation: 0 is gray, 1 the image.
    Color(f64),
    /// 0 is evenly gray, 1 the image.
    Contrast(f64),
    /// 0 is black, 1 the image.
    Brightness(f64),
    /// 0 is smooth, 1 the image.
    Sharpness(f64),
    /// How many of the 8 bits remain.
    Posterize(u8),
    /// Threshold from which values are inverted.
    Solarize(f64),
    /// Added to values below 128.
    SolarizeAdd(f64),
    /// Gaussian blur of this deviation in pixels.
    Blur(f64),
}

/// Red, green and blue of each pixel.
const CHANNELS: usize = 3;

/// Pixels row by row, channels together.
#[derive(Debug)]
pub(super) struct Picture<'a> {
    pub(super) pixels: &'a mut [u8],
    pub(super) width: usize,
    pub(super) height: usize,
}

/// A new value for each value.
type Table = [u8; 256];

impl Picture<'_> {
    /// Applies an operation. `fill` is the color of pixels outside the image.
    pub(super) fn apply(&mut self, op: Op, fill: [u8; CHANNELS]) {
        match op {
            Op::AutoContrast => self.map_channels(stretched),
            Op::Equalize => self.map_channels(equalized),
            Op::Invert => self.map(|value| 255 - value),
            Op::Affine(matrix) => self.affine(&matrix, fill),
            Op::Color(strength) => {
                for pixel in self.pixels.as_chunks_mut::<CHANNELS>().0 {
                    let grey = luma(*pixel);
                    *pixel = pixel.map(|value| blend(grey, value, strength));
                }
            }
            Op::Contrast(strength) => {
                let mean = self.mean_luma();
                self.map(|value| blend(mean, value, strength));
            }
            Op::Brightness(strength) => self.map(|value| blend(0, value, strength)),
            Op::Sharpness(strength) => self.sharpen(strength),
            Op::Posterize(bits) => self.map(|value| value & !(0xff_u32 >> bits) as u8),
            Op::Solarize(threshold) => self.map(|value| {
                if f64::from(value) < threshold {
                    value
                } else {
                    255 - value
                }
            }),
            Op::SolarizeAdd(added) => self.map(|value| {
                if value < 128 {
                    (f64::from(value) + added).min(255.0) as u8
                } else {
                    value
                }
            }),
            Op::Blur(deviation) => self.blur(deviation),
        }
    }

    fn map(&mut self, change: impl Fn(u8) -> u8) {
        let table = table(change);
        for value in &mut *self.pixels {
            *value = table[usize::from(*value)];
        }
    }

    /// Maps each channel by the table of its histogram.
    fn map_channels(&mut self, of_histogram: fn(&[u32; 256]) -> Table) {
        let mut histograms = [[0_u32; 256]; CHANNELS];
        let pixels = self.pixels.as_chunks_mut::<CHANNELS>().0;
        for pixel in &*pixels {
            for (histogram, value) in histograms.iter_mut().zip(pixel) {
                histogram[usize::from(*value)] += 1;
            }
        }
        let tables = histograms.each_ref().map(of_histogram);
        for pixel in pixels {
            for (value, table) in pixel.iter_mut().zip(&tables) {
                *value = table[usize::from(*value)];
            }
        }
    }

    /// Mean of the gray image, rounded.
    fn mean_luma(&self) -> u8 {
        let pixels = self.pixels.as_chunks::<CHANNELS>().0;
        let sum: u64 = pixels.iter().map(|pixel| u64::from(luma(*pixel))).sum();
        (sum as f64 / pixels.len() as f64 + 0.5) as u8
    }

    /// Away from Pillow's SMOOTH: a pixel and its neighbors, weighted 5 and 1. The border is kept.
    fn sharpen(&mut self, strength: f64) {
        let row = self.width * CHANNELS;
        if self.height < 3 || self.width < 3 {
            return;
        }
        let original = self.pixels.to_vec();
        let mut columns = vec![0_u16; row];
        for (above, changed) in original
            .windows(3 * row)
            .step_by(row)
            .zip(self.pixels[row..].chunks_exact_mut(row))
        {
            let (above, rest) = above.split_at(row);
            let (middle, below) = rest.split_at(row);
            for (((sum, above), middle), below) in columns.iter_mut().zip(above).zip(middle).zip(below) {
                *sum = u16::from(*above) + u16::from(*middle) + u16::from(*below);
            }
            let (left, centre, right) = (&columns, &columns[CHANNELS..], &columns[2 * CHANNELS..]);
            let around = left.iter().zip(centre).zip(right);
            let inner = middle[CHANNELS..]
                .iter()
                .zip(&mut changed[CHANNELS..row - CHANNELS]);
            for (((left, centre), right), (value, changed)) in around.zip(inner) {
                let sum = u32::from(left + centre + right) + 4 * u32::from(*value);
                // The nearest of sum / 13; there is no tie.
                *changed = blend(((2 * sum + 13) / 26) as u8, *value, strength);
            }
        }
    }

    /// Bilinear. Within a pixel of the border the image blends into `fill`, as in libtorch's
    /// `grid_sample`, where Pillow cuts; values are rounded, where Pillow truncates.
    fn affine(&mut self, matrix: &[f64; 6], fill: [u8; CHANNELS]) {
        let (width, height) = (self.width, self.height);
        let differences = self.differences(fill);
        let stride = (width + 2) * CHANNELS;
        // From 0..1 to -1..1, and from the center of a pixel to its number.
        let [to_x, to_y]: [[f32; 3]; 2] = [0, 3]
            .map(|row| [matrix[row], matrix[row + 1], matrix[row + 2]])
            .map(|[x, y, shift]| [x as f32, y as f32, (x + y + 2.0 * shift - 1.0) as f32]);
        let centre = |place: usize, length: usize| (place as f32 * 2.0 + 1.0) / length as f32 - 1.0;
        let place = |at: f32, length: usize| (at + 1.0) * (length as f32 / 2.0) - 0.5;
        // The place, in the margin or the image, of a pixel whose neighbor is also there.
        let inside =
            |place: i32, length: usize| usize::try_from(place + 1).ok().filter(|place| *place <= length);
        let xs: Vec<f32> = (0..width).map(|column| centre(column, width)).collect();
        for (row, line) in self.pixels.chunks_exact_mut(width * CHANNELS).enumerate() {
            let y_out = centre(row, height);
            for (x_out, pixel) in xs.iter().zip(line.as_chunks_mut::<CHANNELS>().0) {
                let x = place(to_x[0] * x_out + to_x[1] * y_out + to_x[2], width);
                let y = place(to_y[0] * x_out + to_y[1] * y_out + to_y[2], height);
                let (left, top) = (floor(x), floor(y));
                let (Some(column), Some(row)) = (inside(left, width), inside(top, height)) else {
                    *pixel = fill;
                    continue;
                };
                let (west, north) = (x - left as f32, y - top as f32);
                let (east, south) = (1.0 - west, 1.0 - north);
                let shares = [east * south, west * south, east * north, west * north];
                let start = row * stride + column * CHANNELS;
                let upper = &differences[start..][..2 * CHANNELS];
                let lower = &differences[start + stride..][..2 * CHANNELS];
                for (channel, (value, fill)) in pixel.iter_mut().zip(fill).enumerate() {
                    let sum = upper[channel] * shares[0]
                        + upper[channel + CHANNELS] * shares[1]
                        + lower[channel] * shares[2]
                        + lower[channel + CHANNELS] * shares[3];
                    *value = nearest(sum + f32::from(fill));
                }
            }
        }
    }

    /// Differences of values from `fill`, with a margin of one pixel of zeros.
    fn differences(&self, fill: [u8; CHANNELS]) -> Vec<f32> {
        let stride = (self.width + 2) * CHANNELS;
        let fill = fill.map(f32::from);
        let mut differences = vec![0.0; stride * (self.height + 2)];
        let inner = differences[stride..].chunks_exact_mut(stride);
        for (to, line) in inner.zip(self.pixels.chunks_exact(self.width * CHANNELS)) {
            let to = to[CHANNELS..].as_chunks_mut::<CHANNELS>().0;
            for (to, pixel) in to.iter_mut().zip(line.as_chunks::<CHANNELS>().0) {
                *to = std::array::from_fn(|channel| f32::from(pixel[channel]) - fill[channel]);
            }
        }
        differences
    }

    /// A Gaussian truncated at three deviations; at the border the outermost pixels repeat.
    fn blur(&mut self, deviation: f64) {
        let reach = ((3.0 * deviation).ceil() as usize).max(1);
        let kernel = gaussian(deviation as f32, reach);
        let row = self.width * CHANNELS;
        let mut padded = vec![0.0_f32; row + 2 * reach * CHANNELS];
        let mut across = vec![0.0_f32; self.pixels.len()];
        for (line, blurred) in self.pixels.chunks_exact(row).zip(across.chunks_exact_mut(row)) {
            let (first, last) = (&line[..CHANNELS], &line[row - CHANNELS..]);
            let values = std::iter::repeat_n(first, reach)
                .chain([line])
                .chain(std::iter::repeat_n(last, reach));
            for (to, from) in padded.iter_mut().zip(values.flatten()) {
                *to = f32::from(*from);
            }
            for (weight, shifted) in kernel.iter().zip(padded.windows(row).step_by(CHANNELS)) {
                add(blurred, shifted, *weight);
            }
        }
        let mut sum = vec![0.0_f32; row];
        for (number, line) in self.pixels.chunks_exact_mut(row).enumerate() {
            sum.fill(0.0);
            for (offset, weight) in kernel.iter().enumerate() {
                let from = (number + offset).saturating_sub(reach).min(self.height - 1);
                add(&mut sum, &across[from * row..][..row], *weight);
            }
            for (value, sum) in line.iter_mut().zip(&sum) {
                *value = nearest(*sum);
            }
        }
    }
}

/// The nearest byte, ties to even, of 0..255: `round_ties_even` is a call without SSE 4.1.
fn nearest(value: f32) -> u8 {
    // In this range the last bit of a float counts as one.
    const WHOLE_NUMBERS: f32 = 1.5 * (1 << 23) as f32;
    (value + WHOLE_NUMBERS).to_bits() as u8
}

/// As `value.floor()`, which is also a call.
fn floor(value: f32) -> i32 {
    let cut_off = value as i32;
    cut_off - i32::from((cut_off as f32) > value)
}

fn add(sums: &mut [f32], values: &[f32], weight: f32) {
    for (sum, value) in sums.iter_mut().zip(values) {
        *sum += value * weight;
    }
}

/// Weights of the pixels from `-reach` to `reach`; their sum is 1.
fn gaussian(deviation: f32, reach: usize) -> Vec<f32> {
    let offsets = (0..=2 * reach).map(|place| place as f32 - reach as f32);
    let weights: Vec<f32> = offsets
        .map(|offset| ((offset / deviation).powi(2) * -0.5).exp())
        .collect();
    let sum: f32 = weights.iter().sum();
    weights.iter().map(|weight| weight / sum).collect()
}

/// `degenerate` at strength 0, `value` at 1, beyond above; truncated as in Pillow's `blend`.
fn blend(degenerate: u8, value: u8, strength: f64) -> u8 {
    let (degenerate, value) = (f32::from(degenerate), f32::from(value));
    // A cast of a float truncates the fraction and clamps to 0..255.
    (degenerate + strength as f32 * (value - degenerate)) as u8
}

fn table(change: impl Fn(u8) -> u8) -> Table {
    std::array::from_fn(|value| change(value as u8))
}

/// Pillow's `ImageOps.autocontrast`.
fn stretched(histogram: &[u32; 256]) -> Table {
    let occurs = |count: &u32| *count > 0;
    let low = histogram.iter().position(occurs).unwrap_or(0);
    let high = histogram.iter().rposition(occurs).unwrap_or(0);
    if high <= low {
        return table(|value| value);
    }
    let scale = 255.0 / (high - low) as f64;
    let offset = -(low as f64) * scale;
    table(|value| (f64::from(value) * scale + offset) as u8)
}

/// Pillow's `ImageOps.equalize`.
fn equalized(histogram: &[u32; 256]) -> Table {
    let largest = histogram.iter().rfind(|count| **count > 0).unwrap_or(&0);
    let step = (histogram.iter().sum::<u32>() - largest) / 255;
    if step == 0 {
        return table(|value| value);
    }
    let mut before = step / 2;
    histogram.map(|count| {
        let value = (before / step).min(255) as u8;
        before += count;
        value
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::SplitMix64;

    const FILL: [u8; 3] = [124, 116, 104];
    const IDENTITY: [f64; 6] = [1.0, 0.0, 0.0, 0.0, 1.0, 0.0];

    fn random_pixels(width: usize, height: usize) -> Vec<u8> {
        let mut random = SplitMix64::new(4);
        // Only a part of 0..255, so that it can be stretched.
        (0..width * height * CHANNELS)
            .map(|_| 20 + random.below(180) as u8)
            .collect()
    }

    fn changed(pixels: &[u8], width: usize, op: Op) -> Vec<u8> {
        let mut pixels = pixels.to_vec();
        let height = pixels.len() / CHANNELS / width;
        let mut picture = Picture {
            pixels: &mut pixels,
            width,
            height,
        };
        picture.apply(op, FILL);
        pixels
    }

    #[test]
    fn numbers_are_rounded_as_the_standard_library_does() {
        for step in -3..=255 * 8 {
            let value = step as f32 / 8.0;
            assert_eq!(floor(value), value.floor() as i32, "{value}");
            assert_eq!(nearest(value), value.round_ties_even() as u8, "{value}");
        }
    }

    #[test]
    fn neutral_strengths_leave_images_as_they_are() {
        let pixels = random_pixels(9, 9);
        for op in [
            Op::Color(1.0),
            Op::Contrast(1.0),
            Op::Brightness(1.0),
            Op::Sharpness(1.0),
            Op::Posterize(8),
            Op::Solarize(256.0),
            Op::SolarizeAdd(0.0),
            Op::Affine(IDENTITY),
            Op::Blur(0.01),
        ] {
            assert_eq!(changed(&pixels, 9, op), pixels, "{op:?}");
        }
        let inverted = changed(&pixels, 9, Op::Invert);
        assert_ne!(inverted, pixels);
        assert_eq!(changed(&inverted, 9, Op::Invert), pixels);
    }

    /// Printed by `tests/peers/pillow_operations.py`.
    const PILLOW: [(Op, u32); 22] = [
        (Op::AutoContrast, 0x06a0_730e),
        (Op::Equalize, 0x295e_e895),
        (Op::Invert, 0x4134_d391),
        (Op::Posterize(3), 0x4101_8306),
        (Op::Solarize(100.0), 0x7573_363f),
        (Op::SolarizeAdd(99.0), 0xd648_ef1a),
        (Op::Color(0.0), 0xab49_96db),
        (Op::Color(0.19), 0x73d0_cf67),
        (Op::Color(1.33), 0x63a8_ca56),
        (Op::Color(1.81), 0xe258_5f4c),
        (Op::Contrast(0.0), 0xe154_daca),
        (Op::Contrast(0.19), 0xa71e_b6a2),
        (Op::Contrast(1.33), 0x461c_12b4),
        (Op::Contrast(1.81), 0x28f5_95b9),
        (Op::Brightness(0.0), 0x1e9a_75e8),
        (Op::Brightness(0.19), 0x0767_46ec),
        (Op::Brightness(1.33), 0xb8bb_ca65),
        (Op::Brightness(1.81), 0x5b46_e495),
        (Op::Sharpness(0.0), 0x19f3_02aa),
        (Op::Sharpness(0.19), 0xcfed_5b19),
        (Op::Sharpness(1.33), 0x2b77_5d51),
        (Op::Sharpness(1.81), 0x1cac_bacb),
    ];

    /// The hash of Pillow's result for the same image.
    #[test]
    fn operations_are_pillows() {
        let pixels = random_pixels(67, 45);
        for (op, expected) in PILLOW {
            assert_eq!(crc32fast::hash(&changed(&pixels, 67, op)), expected, "{op:?}");
        }
    }

    /// Results of Pillow for a row of pixels, the same in all channels.
    #[test]
    fn tables_are_those_of_pillow() {
        let row = [10, 20, 20, 30, 60, 60, 60, 110];
        let pixels: Vec<u8> = row.iter().flat_map(|value| [*value; CHANNELS]).collect();
        let values = |op| -> Vec<u8> { changed(&pixels, 8, op).into_iter().step_by(CHANNELS).collect() };
        assert_eq!(values(Op::AutoContrast), [0, 25, 25, 51, 127, 127, 127, 255]);
        assert_eq!(values(Op::Posterize(3)), [0, 0, 0, 0, 32, 32, 32, 96]);
        assert_eq!(values(Op::Posterize(0)), [0; 8]);
        assert_eq!(values(Op::Solarize(60.0)), [10, 20, 20, 30, 195, 195, 195, 145]);
        assert_eq!(
            values(Op::SolarizeAdd(200.0)),
            [210, 220, 220, 230, 255, 255, 255, 255]
        );
        // Fewer than 256 pixels: the step is 0 and Pillow changes nothing.
        assert_eq!(values(Op::Equalize), row);
    }

    #[test]
    fn equalizing_spreads_values_by_their_rank() {
        let pixels: Vec<u8> = (0..32 * 32)
            .flat_map(|place| [(place / 32) as u8 + 50; CHANNELS])
            .collect();
        let result = changed(&pixels, 32, Op::Equalize);
        // 32 values of 32 pixels each: step (1024 - 32) / 255 = 3, then (32 i + 1) / 3.
        for (row, line) in (0..).zip(result.chunks_exact(32 * CHANNELS)) {
            assert!(
                line.iter()
                    .all(|value| i32::from(*value) == ((32 * row + 1) / 3).min(255))
            );
        }
    }

    #[test]
    fn moving_by_a_ninth_moves_a_pixel_and_fills() {
        let pixels = random_pixels(9, 9);
        let moved = changed(&pixels, 9, Op::Affine([1.0, 0.0, 1.0 / 9.0, 0.0, 1.0, 0.0]));
        for (moved, line) in moved.chunks_exact(27).zip(pixels.chunks_exact(27)) {
            assert_eq!((&moved[..24], &moved[24..]), (&line[3..], &FILL[..]));
        }
    }

    #[test]
    fn a_quarter_turn_moves_every_pixel_to_its_place() {
        let pixels = random_pixels(9, 9);
        let turned = changed(&pixels, 9, Op::Affine([0.0, 1.0, 0.0, -1.0, 0.0, 1.0]));
        for (place, pixel) in turned.chunks_exact(CHANNELS).enumerate() {
            let (row, column) = (place / 9, place % 9);
            let from = ((8 - column) * 9 + row) * CHANNELS;
            assert_eq!(pixel, &pixels[from..from + CHANNELS], "{row}, {column}");
        }
    }

    #[test]
    fn half_a_pixel_is_the_mean_and_the_border_passes_into_the_fill() {
        let pixels = [[10; 3], [20; 3], [100; 3]].concat();
        let moved = changed(&pixels, 3, Op::Affine([1.0, 0.0, 0.5 / 3.0, 0.0, 1.0, 0.0]));
        assert_eq!(moved, [15, 15, 15, 60, 60, 60, 112, 108, 102]);
    }

    #[test]
    fn blurring_keeps_what_is_even_and_spreads_a_point() {
        let even = [77; 9 * 9 * CHANNELS];
        assert_eq!(changed(&even, 9, Op::Blur(2.0)), even);
        let mut point = [0; 9 * 9 * CHANNELS];
        let at = |row: usize, column: usize| (row * 9 + column) * CHANNELS;
        point[at(4, 4)..][..CHANNELS].fill(255);
        let result = changed(&point, 9, Op::Blur(1.0));
        // 255 / (2 pi), and the remaining value one pixel away.
        assert_eq!(
            [result[at(4, 4)], result[at(4, 5)], result[at(3, 4)]],
            [41, 25, 25]
        );
        point.fill(0);
        point[..CHANNELS].fill(255);
        let corner = changed(&point, 9, Op::Blur(1.0));
        // The outermost pixels repeat: in each direction the weights from 0 on count: 0.3990 + ...
        assert_eq!(corner[0], (0.6994_f64.powi(2) * 255.0).round() as u8);
    }
}
