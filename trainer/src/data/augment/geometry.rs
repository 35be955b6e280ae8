//! Cropping, resizing, shifting and flipping of stored images.

use contract::Interpolation;
use tch::{Kind, Tensor};

use super::parameters::{Column, Columns};

/// Crops a window from each image and resizes it to a square, as two matrix products: a batch of
/// windows of many sizes needs as many operations as one. `images` are BCHW.
pub(super) fn crop_and_resize(
    images: &Tensor,
    windows: &Columns,
    side: i64,
    interpolation: Interpolation,
) -> Tensor {
    let (_, _, height, width) = images.size4().expect("BCHW");
    let column = |column| windows.floats(column).reshape([-1, 1, 1]);
    let rows = weights(
        &column(Column::WindowTop),
        &column(Column::WindowHeight),
        height,
        side,
        interpolation,
    );
    let columns = weights(
        &column(Column::WindowLeft),
        &column(Column::WindowWidth),
        width,
        side,
        interpolation,
    );
    rows.unsqueeze(1)
        .matmul(&images.to_kind(Kind::Float))
        .matmul(&columns.transpose(1, 2).unsqueeze(1))
}

/// The weight of each of `from` pixels in each of `side` pixels, [batch, side, from], if pixels
/// `start` to `start + length` are resized.
fn weights(start: &Tensor, length: &Tensor, from: i64, side: i64, interpolation: Interpolation) -> Tensor {
    let options = (Kind::Float, start.device());
    let scale = length / side as f64;
    // If the image shrinks, the filter widens: antialiasing.
    let widened = scale.clamp_min(1.0);
    let centre = (Tensor::arange(side, options).reshape([1, -1, 1]) + 0.5) * &scale;
    let pixel = Tensor::arange(from, options).reshape([1, 1, -1]) - start;
    let distance = ((&pixel + 0.5 - centre) / widened).abs();
    let weight = match interpolation {
        Interpolation::Bilinear => (1.0_f64 - distance).clamp_min(0.0),
        Interpolation::Bicubic => {
            let near: Tensor = (&distance * 1.5 - 2.5) * &distance * &distance + 1.0;
            let far: Tensor = (((&distance - 5.0) * &distance + 8.0) * &distance - 4.0) * -0.5;
            let far = far * distance.lt(2.0);
            near.where_self(&distance.lt(1.0), &far)
        }
    };
    let weight = weight * pixel.ge(0.0).logical_and(&pixel.lt_tensor(length));
    &weight / weight.sum_dim_intlist([-1_i64].as_slice(), true, Kind::Float)
}

/// Shifts each image: a window of its size, at a given left and top, with a black margin.
pub(super) fn shift(images: &Tensor, offsets: &Columns, padding: u32) -> Tensor {
    let (batch, _, height, width) = images.size4().expect("BCHW");
    let margin = i64::from(padding);
    let padded = images.constant_pad_nd([margin, margin, margin, margin]);
    let options = (Kind::Int64, images.device());
    let index =
        |column, length: i64| offsets.integers(column).reshape([-1, 1]) + Tensor::arange(length, options);
    let rows = index(Column::WindowTop, height).reshape([batch, height, 1]);
    let columns = index(Column::WindowLeft, width).reshape([batch, 1, width]);
    let image = Tensor::arange(batch, options).reshape([batch, 1, 1]);
    // Indices on both sides of a full dimension move that dimension to the end.
    padded
        .index(&[Some(image), None, Some(rows), Some(columns)])
        .permute([0, 3, 1, 2])
        .contiguous()
}

/// Resizes whole images to a square. Returns floats, unless images have that size already.
pub(super) fn resize(images: &Tensor, side: i64, interpolation: Interpolation) -> Tensor {
    if images.size()[2..] == [side, side] {
        return images.shallow_clone();
    }
    let images = images.to_kind(Kind::Float);
    match interpolation {
        Interpolation::Bilinear => images.internal_upsample_bilinear2d_aa([side, side], false, None, None),
        Interpolation::Bicubic => images.internal_upsample_bicubic2d_aa([side, side], false, None, None),
    }
}

/// Mirrors the images whose flip is set.
pub(super) fn flip(images: &Tensor, flips: &Columns) -> Tensor {
    let mask = flips.integers(Column::Flip).ne(0).reshape([-1, 1, 1, 1]);
    images.flip([3]).where_self(&mask, images)
}

#[cfg(test)]
mod tests {
    use tch::Device;

    use super::*;
    use crate::data::augment::parameters::Parameters;

    /// One row per image, with these columns.
    fn columns<const N: usize>(names: [Column; N], rows: &[[u32; N]]) -> Columns {
        let mut parameters = Parameters::from_classes(&vec![0; rows.len()]);
        for (row, values) in rows.iter().enumerate() {
            for (name, value) in names.iter().zip(values) {
                parameters.set(row, *name, f64::from(*value));
            }
        }
        parameters.columns()
    }

    /// Left, top, width and height.
    fn windows(rows: &[[u32; 4]]) -> Columns {
        let names = [
            Column::WindowLeft,
            Column::WindowTop,
            Column::WindowWidth,
            Column::WindowHeight,
        ];
        columns(names, rows)
    }

    fn images(batch: i64, height: i64, width: i64) -> Tensor {
        tch::manual_seed(1);
        Tensor::randint(256, [batch, 3, height, width], (Kind::Uint8, Device::Cpu))
    }

    #[test]
    fn the_whole_window_is_libtorchs_antialiased_resize() {
        let images = images(2, 40, 24);
        let whole = windows(&[[0, 0, 24, 40]; 2]);
        for interpolation in [Interpolation::Bilinear, Interpolation::Bicubic] {
            for side in [16, 32, 56] {
                let ours = crop_and_resize(&images, &whole, side, interpolation);
                let theirs = resize(&images, side, interpolation);
                let distance = (ours - theirs).abs().max().double_value(&[]);
                assert!(distance < 1e-2, "{interpolation:?} to {side}: {distance} of 255");
            }
        }
    }

    #[test]
    fn a_window_sees_nothing_outside_of_it() {
        let images = images(2, 30, 30);
        let window = windows(&[[5, 7, 12, 20]; 2]);
        let part = images.narrow(2, 7, 20).narrow(3, 5, 12);
        let ours = crop_and_resize(&images, &window, 16, Interpolation::Bicubic);
        let distance = (ours - resize(&part, 16, Interpolation::Bicubic))
            .abs()
            .max()
            .double_value(&[]);
        assert!(distance < 1e-2, "{distance}");
    }

    #[test]
    fn a_shift_moves_pixels_and_brings_in_black() {
        let images = images(3, 8, 6);
        let names = [Column::WindowLeft, Column::WindowTop];
        let shifted = shift(&images, &columns(names, &[[2, 2], [0, 4], [3, 2]]), 2);
        assert!(
            shifted.get(0).equal(&images.get(0)),
            "the middle is the image itself"
        );
        assert_eq!(shifted.kind(), Kind::Uint8);
        let down = shifted.get(1);
        assert!(
            down.narrow(1, 0, 6)
                .narrow(2, 2, 4)
                .equal(&images.get(1).narrow(1, 2, 6).narrow(2, 0, 4))
        );
        assert_eq!(down.narrow(1, 6, 2).max().int64_value(&[]), 0);
        assert_eq!(down.narrow(2, 0, 2).max().int64_value(&[]), 0);
        assert!(
            shifted
                .get(2)
                .narrow(2, 0, 5)
                .equal(&images.get(2).narrow(2, 1, 5))
        );
    }

    #[test]
    fn flipping_twice_is_the_identity_and_only_the_chosen_are_flipped() {
        let images = images(3, 5, 4);
        let flips = columns([Column::Flip], &[[1], [0], [1]]);
        let once = flip(&images, &flips);
        assert!(once.get(1).equal(&images.get(1)));
        assert!(once.get(0).equal(&images.get(0).flip([2])));
        assert!(flip(&once, &flips).equal(&images));
    }
}
