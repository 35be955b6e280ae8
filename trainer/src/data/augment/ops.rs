//! Operations on the colours and the shape of images, as Pillow defines them, on batches of floats in 0..255 with
//! three channels. Every image of a batch has a strength of its own.

use std::mem::discriminant;

use tch::{Kind, Tensor};

use crate::data::decode::LUMA;

/// What is done to one image.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Op {
    /// Stretches each channel to 0..255.
    AutoContrast,
    /// Makes each channel's histogram flat.
    Equalize,
    Invert,
    /// Output to input, both in 0..1 of the side: x = a x + b y + c, y = d x + e y + f.
    Affine([f64; 6]),
    /// Saturation: 0 is grey, 1 the image.
    Color(f64),
    /// 0 is evenly grey, 1 the image.
    Contrast(f64),
    /// 0 is black, 1 the image.
    Brightness(f64),
    /// 0 is smooth, 1 the image.
    Sharpness(f64),
    /// How many of the 8 bits are kept.
    Posterize(u8),
    /// Values from this one on are inverted.
    Solarize(f64),
    /// What is added to values below 128.
    SolarizeAdd(f64),
    /// Gaussian blur of this deviation in pixels.
    Blur(f64),
}

impl Op {
    fn strength(&self) -> f64 {
        match *self {
            Self::AutoContrast | Self::Equalize | Self::Invert | Self::Affine(_) => 0.0,
            Self::Posterize(bits) => f64::from(bits),
            Self::Color(value)
            | Self::Contrast(value)
            | Self::Brightness(value)
            | Self::Sharpness(value)
            | Self::Solarize(value)
            | Self::SolarizeAdd(value)
            | Self::Blur(value) => value,
        }
    }
}

/// Gives each image its operation, if any. `fill` is the colour of what lies outside an image, [1, 3, 1, 1].
pub(super) fn apply(mut images: Tensor, ops: &[Option<Op>], fill: &Tensor) -> Tensor {
    let mut rest: Vec<(i64, Op)> = (0_i64..)
        .zip(ops)
        .filter_map(|(row, op)| Some((row, (*op)?)))
        .collect();
    // Images with the same operation are computed together.
    while let Some((_, first)) = rest.first() {
        let first = discriminant(first);
        let (group, others) = rest.into_iter().partition(|(_, op)| discriminant(op) == first);
        let (rows, ops): (Vec<i64>, Vec<Op>) = Vec::<_>::into_iter(group).unzip();
        let rows = Tensor::from_slice(&rows).to_device(images.device());
        let changed = apply_all(&images.index_select(0, &rows), &ops, fill);
        images = images.index_copy(0, &rows, &changed);
        rest = others;
    }
    images
}

/// Applies one operation, to each image at its own strength.
fn apply_all(images: &Tensor, ops: &[Op], fill: &Tensor) -> Tensor {
    let strengths: Vec<f32> = ops.iter().map(|op| op.strength() as f32).collect();
    let strength = Tensor::from_slice(&strengths)
        .reshape([-1, 1, 1, 1])
        .to_device(images.device());
    match ops[0] {
        Op::AutoContrast => auto_contrast(images),
        Op::Equalize => equalize(images),
        Op::Invert => 255.0 - images,
        Op::Affine(_) => affine(images, ops, fill),
        Op::Color(_) => blend(&grey(images), images, &strength),
        Op::Contrast(_) => {
            let mean = grey(images).mean_dim([2_i64, 3].as_slice(), true, Kind::Float);
            blend(&(mean + 0.5).floor(), images, &strength)
        }
        Op::Brightness(_) => blend(&images.zeros_like(), images, &strength),
        Op::Sharpness(_) => blend(&smooth(images), images, &strength),
        Op::Posterize(_) => {
            let step = (8.0_f64 - strength).exp2();
            (images / &step).floor() * step
        }
        Op::Solarize(_) => images.where_self(&images.lt_tensor(&strength), &(255.0 - images)),
        Op::SolarizeAdd(_) => {
            let added = (images + strength).clamp_max(255.0);
            added.where_self(&images.lt(128.0), images)
        }
        Op::Blur(_) => blur(images, &strengths),
    }
}

/// `degenerate` at strength 0, `images` at 1, beyond it at more; in whole numbers as Pillow cuts them off.
fn blend(degenerate: &Tensor, images: &Tensor, strength: &Tensor) -> Tensor {
    (degenerate + (images - degenerate) * strength)
        .clamp(0.0, 255.0)
        .floor()
}

/// Luma of ITU-R 601, in Pillow's fixed point.
fn grey(images: &Tensor) -> Tensor {
    let [red, green, blue] = LUMA.map(f64::from);
    let luma = images.narrow(1, 0, 1) * red
        + images.narrow(1, 1, 1) * green
        + images.narrow(1, 2, 1) * blue
        + 32768.0;
    (luma / 65536.0).floor().expand_as(images)
}

/// Pillow's filter SMOOTH: a pixel and its eight neighbours, weighted 5 and 1; the border stays as it is.
fn smooth(images: &Tensor) -> Tensor {
    let (batch, channels, height, width) = images.size4().expect("BCHW");
    if height < 3 || width < 3 {
        return images.shallow_clone();
    }
    let planes = images.reshape([batch * channels, 1, height, width]);
    // The sum over 3 x 3 pixels: means of them times 9.
    let around = planes.avg_pool2d([3, 3], [1, 1], [0, 0], false, false, 9) * 9.0;
    let inner = planes.narrow(2, 1, height - 2).narrow(3, 1, width - 2);
    let smoothed = ((around + inner * 4.0) / 13.0 + 0.5).floor();
    let result = planes.copy();
    result
        .narrow(2, 1, height - 2)
        .narrow(3, 1, width - 2)
        .copy_(&smoothed);
    result.reshape([batch, channels, height, width])
}

fn auto_contrast(images: &Tensor) -> Tensor {
    let low = images.amin([2_i64, 3].as_slice(), true);
    let high = images.amax([2_i64, 3].as_slice(), true);
    let span = &high - &low;
    let stretched = ((images - &low) * (255.0_f64 / span.clamp_min(1.0)))
        .clamp(0.0, 255.0)
        .floor();
    stretched.where_self(&span.gt(0.0), images)
}

fn equalize(images: &Tensor) -> Tensor {
    let (batch, channels, height, width) = images.size4().expect("BCHW");
    let planes = batch * channels;
    let values = images.to_kind(Kind::Int64).reshape([planes, height * width]);
    let first = Tensor::arange(planes, (Kind::Int64, images.device())).reshape([-1, 1]) * 256;
    let histogram = (&values + first)
        .reshape([-1])
        .bincount::<Tensor>(None, planes * 256)
        .reshape([planes, 256]);
    // Pillow counts the pixels without those of the largest value.
    let largest = histogram.gather(1, &values.amax([1_i64].as_slice(), true), false);
    let step = (height * width - largest).divide_scalar_mode(255, "floor");
    let before = histogram.cumsum(1, Kind::Int64) - &histogram;
    let table = (before + step.divide_scalar_mode(2, "floor"))
        .divide_tensor_mode(&step.clamp_min(1), "floor")
        .clamp(0, 255);
    let identity = Tensor::arange(256, (Kind::Int64, images.device())).expand([planes, 256], false);
    let table = table.where_self(&step.gt(0), &identity);
    table
        .gather(1, &values, false)
        .to_kind(Kind::Float)
        .reshape([batch, channels, height, width])
}

/// Bilinear.
fn affine(images: &Tensor, ops: &[Op], fill: &Tensor) -> Tensor {
    let matrices: Vec<f32> = ops
        .iter()
        .flat_map(|op| match op {
            // From 0..1 to libtorch's -1..1.
            Op::Affine(matrix) => [0, 3]
                .map(|row| [matrix[row], matrix[row + 1], matrix[row + 2]])
                .map(|[x, y, shift]| [x as f32, y as f32, (x + y + 2.0 * shift - 1.0) as f32])
                .concat(),
            other => unreachable!("{other:?} is not affine"),
        })
        .collect();
    let device = images.device();
    let matrices = Tensor::from_slice(&matrices)
        .reshape([-1, 6, 1, 1])
        .to_device(device);
    let (_, _, height, width) = images.size4().expect("BCHW");
    let centres =
        |length: i64| (Tensor::arange(length, (Kind::Float, device)) * 2.0 + 1.0) / length as f64 - 1.0;
    let (x, y) = (centres(width), centres(height).reshape([-1, 1]));
    // Not libtorch's affine_grid: it is a matrix product, whose rounding depends on the batch and the number of threads.
    let coordinate = |row: i64| {
        let number = |column: i64| matrices.select(1, 3 * row + column);
        number(0) * &x + number(1) * &y + number(2)
    };
    let grid = Tensor::stack(&[coordinate(0), coordinate(1)], -1);
    // Zero is what lies outside.
    ((images - fill).grid_sampler(&grid, 0, 0, false) + fill).round()
}

/// A Gaussian of each image's own deviation; at the border the outermost pixels go on.
fn blur(images: &Tensor, deviations: &[f32]) -> Tensor {
    let (batch, channels, height, width) = images.size4().expect("BCHW");
    let widest = deviations.iter().copied().fold(0.0, f32::max);
    let reach = ((3.0 * widest).ceil() as i64).max(1);
    let options = (Kind::Float, images.device());
    let deviations = Tensor::from_slice(deviations)
        .reshape([-1, 1])
        .to_device(images.device());
    let offsets = Tensor::arange(2 * reach + 1, options) - reach as f64;
    let kernel: Tensor = (offsets / deviations).square() * -0.5;
    let kernel = kernel.exp();
    let kernel = &kernel / kernel.sum_dim_intlist([1_i64].as_slice(), true, Kind::Float);
    let kernel = kernel.repeat_interleave_self_int(channels, 0, None);
    let planes = batch * channels;
    let padded = images.replication_pad2d([reach, reach, reach, reach]).reshape([
        1,
        planes,
        height + 2 * reach,
        width + 2 * reach,
    ]);
    let blurred = padded
        .conv2d::<Tensor>(
            &kernel.reshape([planes, 1, 1, -1]),
            None,
            [1, 1],
            [0, 0],
            [1, 1],
            planes,
        )
        .conv2d::<Tensor>(
            &kernel.reshape([planes, 1, -1, 1]),
            None,
            [1, 1],
            [0, 0],
            [1, 1],
            planes,
        );
    blurred.round().reshape([batch, channels, height, width])
}

#[cfg(test)]
mod tests {
    use tch::Device;

    use super::*;

    fn images(batch: i64) -> Tensor {
        tch::manual_seed(4);
        // Not all of 0..255, so that there is something to stretch.
        Tensor::randint(180, [batch, 3, 9, 9], (Kind::Float, Device::Cpu)) + 20.0
    }

    fn fill() -> Tensor {
        Tensor::from_slice(&[124_f32, 116.0, 104.0]).reshape([1, 3, 1, 1])
    }

    fn one(images: &Tensor, op: Op) -> Tensor {
        let ops = vec![Some(op); images.size()[0] as usize];
        apply(images.shallow_clone(), &ops, &fill())
    }

    const IDENTITY: [f64; 6] = [1.0, 0.0, 0.0, 0.0, 1.0, 0.0];

    #[test]
    fn neutral_strengths_leave_images_as_they_are() {
        let images = images(2);
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
            assert!(one(&images, op).equal(&images), "{op:?}");
        }
        assert!(one(&one(&images, Op::Invert), Op::Invert).equal(&images));
    }

    #[test]
    fn every_result_is_a_byte() {
        let images = images(3);
        for op in [
            Op::AutoContrast,
            Op::Equalize,
            Op::Invert,
            Op::Color(1.9),
            Op::Contrast(1.9),
            Op::Brightness(1.9),
            Op::Sharpness(1.9),
            Op::Posterize(1),
            Op::Solarize(100.0),
            Op::SolarizeAdd(110.0),
            Op::Affine([0.9, 0.2, 0.1, -0.2, 0.9, 0.0]),
            Op::Blur(2.0),
        ] {
            let result = one(&images, op);
            assert!(result.equal(&result.round().clamp(0.0, 255.0)), "{op:?}");
            assert_eq!(result.size(), images.size());
        }
    }

    #[test]
    fn each_image_gets_its_own_operation_and_the_rest_none() {
        let images = images(4);
        let ops = [
            Some(Op::Brightness(0.5)),
            None,
            Some(Op::Invert),
            Some(Op::Brightness(0.0)),
        ];
        let result = apply(images.shallow_clone(), &ops, &fill());
        assert!(result.get(0).equal(&(images.get(0) * 0.5).floor()));
        assert!(result.get(1).equal(&images.get(1)));
        assert!(result.get(2).equal(&(255.0 - images.get(2))));
        assert!(result.get(3).equal(&images.get(3).zeros_like()));
    }

    /// Results of Pillow for a row of pixels, the same in all channels.
    #[test]
    fn tables_are_those_of_pillow() {
        let row = Tensor::from_slice(&[10_f32, 20.0, 20.0, 30.0, 60.0, 60.0, 60.0, 110.0]);
        let image = row.reshape([1, 1, 1, 8]).expand([1, 3, 1, 8], true);
        let values = |op| Vec::<f32>::try_from(one(&image, op).get(0).get(0).get(0)).expect("values");
        assert_eq!(
            values(Op::AutoContrast),
            [0.0, 25.0, 25.0, 51.0, 127.0, 127.0, 127.0, 255.0]
        );
        assert_eq!(
            values(Op::Posterize(3)),
            [0.0, 0.0, 0.0, 0.0, 32.0, 32.0, 32.0, 96.0]
        );
        assert_eq!(
            values(Op::Solarize(60.0)),
            [10.0, 20.0, 20.0, 30.0, 195.0, 195.0, 195.0, 145.0]
        );
        assert_eq!(
            values(Op::SolarizeAdd(200.0)),
            [210.0, 220.0, 220.0, 230.0, 255.0, 255.0, 255.0, 255.0]
        );
        // Fewer than 256 pixels: the step is 0 and Pillow changes nothing.
        assert_eq!(
            values(Op::Equalize),
            [10.0, 20.0, 20.0, 30.0, 60.0, 60.0, 60.0, 110.0]
        );
    }

    #[test]
    fn equalizing_spreads_values_by_their_rank() {
        let ramp = Tensor::arange(32 * 32, (Kind::Float, Device::Cpu)).reshape([1, 1, 32, 32]) / 32.0;
        let image = ramp.floor().expand([1, 3, 32, 32], true) + 50.0;
        let result = one(&image, Op::Equalize);
        // 32 values of 32 pixels each: step (1024 - 32) / 255 = 3, then (32 i + 1) / 3.
        let column = result.get(0).get(0).select(1, 0).to_kind(Kind::Int64);
        for (index, value) in (0..).zip(Vec::<i64>::try_from(column).expect("values")) {
            assert_eq!(value, ((32 * index + 1) / 3).min(255));
        }
    }

    #[test]
    fn moving_by_a_ninth_moves_a_pixel_and_fills() {
        let images = images(1);
        let moved = one(&images, Op::Affine([1.0, 0.0, 1.0 / 9.0, 0.0, 1.0, 0.0]));
        assert!(moved.narrow(3, 0, 8).equal(&images.narrow(3, 1, 8)));
        assert!(moved.narrow(3, 8, 1).equal(&fill().expand([1, 3, 9, 1], false)));
    }

    #[test]
    fn blurring_keeps_what_is_even_and_spreads_a_point() {
        let even = Tensor::full([2, 3, 9, 9], 77.0, (Kind::Float, Device::Cpu));
        assert!(one(&even, Op::Blur(2.0)).equal(&even));
        let point = Tensor::zeros([1, 3, 9, 9], (Kind::Float, Device::Cpu));
        let _ = point.narrow(2, 4, 1).narrow(3, 4, 1).fill_(255.0);
        let result = one(&point, Op::Blur(1.0));
        let at = |row, column| result.double_value(&[0, 0, row, column]);
        // 255 / (2 pi), and what is left of it one pixel away.
        assert!((at(4, 4) - 40.6).abs() < 1.0, "{}", at(4, 4));
        assert!((at(4, 5) - 24.6).abs() < 1.0, "{}", at(4, 5));
    }
}
