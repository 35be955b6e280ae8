//! Mixup (arXiv 1710.09412), `CutMix` (arXiv 1905.04899) and random erasing (arXiv 1708.04896).

use contract::Augmentation;
use tch::{Device, Kind, Tensor};

use super::parameters::{Column, Columns, Parameters};
use crate::data::draws::Draws;
use crate::random::SplitMix64;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Rectangle {
    pub(super) top: i64,
    pub(super) left: i64,
    pub(super) height: i64,
    pub(super) width: i64,
}

/// How two images are mixed: each keeps a share of itself, and the rest comes from the other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Mixing {
    /// All of itself.
    None,
    /// This share of every pixel.
    Mixup(f64),
    /// Everything but a rectangle.
    CutMix(Rectangle),
}

impl Mixing {
    /// Draws as timm does, for images of `side` pixels.
    pub(super) fn draw(augmentation: &Augmentation, side: i64, draws: &mut Draws) -> Self {
        let Augmentation { mixup, cutmix, .. } = *augmentation;
        if !draws.chance(augmentation.mixup_probability) {
            return Self::None;
        }
        let switched = draws.chance(augmentation.mixup_switch_probability);
        if cutmix > 0.0 && (mixup <= 0.0 || switched) {
            let cut = (1.0 - draws.beta(cutmix)).sqrt();
            let length = (side as f64 * cut) as i64;
            let mut span = || {
                let middle = draws.below(side as usize) as i64;
                let start = (middle - length / 2).clamp(0, side);
                (start, (middle + length / 2).clamp(0, side) - start)
            };
            let ((top, height), (left, width)) = (span(), span());
            Self::CutMix(Rectangle {
                top,
                left,
                height,
                width,
            })
        } else {
            Self::Mixup(draws.beta(mixup))
        }
    }

    /// The share of itself that an image keeps.
    fn kept(&self, side: i64) -> f64 {
        match self {
            Self::None => 1.0,
            Self::Mixup(share) => *share,
            Self::CutMix(cut) => 1.0 - (cut.height * cut.width) as f64 / (side * side) as f64,
        }
    }
}

/// Sets how each pair is mixed, for images of `side` pixels.
pub(super) fn set_mixings(parameters: &mut Parameters, mixings: &[Mixing], side: i64) {
    parameters.mixed = true;
    for (pair, mixing) in mixings.iter().enumerate() {
        let (share, cut) = match *mixing {
            Mixing::None => (1.0, None),
            Mixing::Mixup(share) => (share, None),
            Mixing::CutMix(cut) => (1.0, Some(cut)),
        };
        parameters.cut |= cut.is_some();
        for row in [2 * pair, 2 * pair + 1] {
            // Rounded to 32-bit floats, in which the device computes.
            parameters.set(row, Column::Kept, f64::from(mixing.kept(side) as f32));
            parameters.set(row, Column::Share, f64::from(share as f32));
            if let Some(cut) = cut {
                for (column, bound) in [
                    (Column::CutTop, cut.top),
                    (Column::CutLeft, cut.left),
                    (Column::CutBottom, cut.top + cut.height),
                    (Column::CutRight, cut.left + cut.width),
                ] {
                    parameters.set(row, column, bound as f64);
                }
            }
        }
    }
}

/// Whether `0..length` is within `start..end`, for each image; `dimension` is the length's in BCHW.
fn inside(length: i64, dimension: usize, start: &Tensor, end: &Tensor) -> Tensor {
    let mut shape = [1; 4];
    shape[dimension] = length;
    let at = Tensor::arange(length, (Kind::Int64, start.device())).reshape(shape);
    let [start, end] = [start, end].map(|bound| bound.reshape([-1, 1, 1, 1]));
    at.ge_tensor(&start).logical_and(&at.lt_tensor(&end))
}

/// Mixes images 0 and 1, 2 and 3, and so on.
pub(super) fn mix_images(images: &Tensor, columns: &Columns, cut: bool) -> Tensor {
    let (batch, channels, height, width) = images.size4().expect("BCHW");
    let share = columns.floats(Column::Share).reshape([-1, 1, 1, 1]);
    let kept = if cut {
        let bound = |column| columns.integers(column);
        let rows = inside(height, 2, &bound(Column::CutTop), &bound(Column::CutBottom));
        let across = inside(width, 3, &bound(Column::CutLeft), &bound(Column::CutRight));
        share * rows.logical_and(&across).logical_not()
    } else {
        share
    };
    let other = images
        .reshape([batch / 2, 2, channels, height, width])
        .flip([1])
        .reshape([batch, channels, height, width]);
    other.lerp_tensor(images, &kept)
}

/// Targets, [batch, classes], from `shown`, 1 for shown classes; with timm's label smoothing.
pub(super) fn targets(shown: &Tensor, label_smoothing: f64) -> Tensor {
    let off = label_smoothing / shown.size()[1] as f64;
    shown.to_kind(Kind::Float) * (1.0 - label_smoothing) + off
}

/// Shown classes, [batch, classes], of images that show one each.
pub(super) fn one_hot(columns: &Columns, classes: i64) -> Tensor {
    let labels = columns.integers(Column::Label).reshape([-1, 1]);
    Tensor::arange(classes, (Kind::Int64, labels.device())).eq_tensor(&labels)
}

/// The targets of mixed images, [batch, classes].
pub(super) fn mix_targets(targets: &Tensor, columns: &Columns) -> Tensor {
    let kept = columns.floats(Column::Kept).reshape([-1, 1]);
    let (batch, classes) = targets.size2().expect("BK");
    let others = targets
        .reshape([batch / 2, 2, classes])
        .flip([1])
        .reshape([batch, classes]);
    targets * &kept + others * (1.0_f64 - &kept)
}

/// Minimum and maximum erased share of the image, and minimum height over width; as in timm.
const ERASED_AREA: [f64; 2] = [0.02, 1.0 / 3.0];
const ERASED_ASPECT: f64 = 0.3;
const ATTEMPTS: usize = 10;

/// The rectangle to erase from an image of `side` pixels, if any.
pub(super) fn erased(probability: f64, side: i64, draws: &mut Draws) -> Option<Rectangle> {
    if !draws.chance(probability) {
        return None;
    }
    let area = (side * side) as f64;
    for _ in 0..ATTEMPTS {
        let target = draws.between(ERASED_AREA) * area;
        let limit = ERASED_ASPECT.ln().abs();
        let aspect = draws.between([-limit, limit]).exp();
        let [height, width] = [target * aspect, target / aspect].map(|square| square.sqrt().round() as i64);
        if height < side && width < side && height > 0 && width > 0 {
            return Some(Rectangle {
                top: draws.below((side - height) as usize + 1) as i64,
                left: draws.below((side - width) as usize + 1) as i64,
                height,
                width,
            });
        }
    }
    None
}

/// Normally distributed numbers, enough for any rectangle at any of [`NOISE_STARTS`] places.
/// Rectangles copy theirs from here.
pub(super) fn noise(seed: u64, channels: u32, side: u32, device: Device) -> Tensor {
    // Not from libtorch's generator, which all threads of a process share.
    let mut random = SplitMix64::new(seed);
    let count = (channels * side * side) as usize + NOISE_STARTS;
    let pairs = (0..count.div_ceil(2)).flat_map(|_| random.normal_pair());
    let numbers: Vec<f32> = pairs.take(count).map(|number| number as f32).collect();
    Tensor::from_slice(&numbers).to_device(device)
}

/// Places in the noise at which a rectangle's may begin.
pub(super) const NOISE_STARTS: usize = 65_536;

/// Sets the rectangle of each image that gets noise, and where in the noise it begins.
pub(super) fn set_erased(
    parameters: &mut Parameters,
    rectangles: impl Iterator<Item = Option<(Rectangle, usize)>>,
) {
    for (row, erased) in rectangles.enumerate() {
        let Some((rectangle, start)) = erased else {
            continue;
        };
        let Rectangle {
            top,
            left,
            height,
            width,
        } = rectangle;
        let number = parameters.erased;
        for (column, value) in [
            (Column::ErasedRow, row as i64),
            (Column::ErasedTop, top),
            (Column::ErasedLeft, left),
            (Column::ErasedHeight, height),
            (Column::ErasedWidth, width),
            (Column::NoiseStart, start as i64),
        ] {
            parameters.set(number, column, value as f64);
        }
        parameters.erased += 1;
    }
}

/// Fills a rectangle in each of `count` images with noise.
pub(super) fn erase(images: &mut Tensor, columns: &Columns, count: usize, noise: &Tensor) {
    if count == 0 {
        return;
    }
    let (_, channels, height, width) = images.size4().expect("BCHW");
    let column = |column| columns.integers(column).narrow(0, 0, count as i64);
    let [top, left, high, wide, start] = [
        Column::ErasedTop,
        Column::ErasedLeft,
        Column::ErasedHeight,
        Column::ErasedWidth,
        Column::NoiseStart,
    ]
    .map(|number| column(number).reshape([-1, 1, 1, 1]));
    let rows = inside(height, 2, &top, &(&top + &high));
    let across = inside(width, 3, &left, &(&left + &wide));
    let erased = rows.logical_and(&across);
    let along = |length: i64, dimension: usize| {
        let mut shape = [1; 4];
        shape[dimension] = length;
        Tensor::arange(length, (Kind::Int64, images.device())).reshape(shape)
    };
    let plane = &high * &wide;
    let place = (along(height, 2) - top) * wide + (along(width, 3) - left);
    let number = (along(channels, 1) * plane + start + place) * &erased;
    let chosen = column(Column::ErasedRow);
    let changed = noise
        .take(&number)
        .where_self(&erased, &images.index_select(0, &chosen));
    let _ = images.index_copy_(0, &chosen, &changed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Stream;

    fn augmentation() -> Augmentation {
        Augmentation {
            mixup: 0.8,
            cutmix: 1.0,
            ..Augmentation::default()
        }
    }

    fn draws(place: u64) -> Draws {
        Draws::new(2, Stream::Mix, 0, place)
    }

    fn pictures(batch: i64) -> Tensor {
        tch::manual_seed(9);
        Tensor::rand([batch, 3, 8, 8], (Kind::Float, Device::Cpu))
    }

    #[test]
    fn targets_sum_to_one_and_weigh_classes_by_what_is_seen_of_them() {
        let mixings = [
            Mixing::None,
            Mixing::Mixup(0.3),
            Mixing::CutMix(Rectangle {
                top: 0,
                left: 4,
                height: 4,
                width: 4,
            }),
        ];
        let mut parameters = Parameters::from_classes(&[0, 1, 2, 3, 4, 4]);
        set_mixings(&mut parameters, &mixings, 8);
        let columns = parameters.columns();
        let targets = mix_targets(&targets(&one_hot(&columns, 5), 0.1), &columns);
        let sums: Vec<f32> =
            Vec::try_from(targets.sum_dim_intlist([1_i64].as_slice(), false, Kind::Float)).expect("sums");
        assert!(sums.iter().all(|sum| (sum - 1.0).abs() < 1e-6), "{sums:?}");
        let at = |row, class| targets.double_value(&[row, class]);
        let near = |found: f64, expected: f64| assert!((found - expected).abs() < 1e-6, "{found}");
        near(at(0, 0), 0.92);
        near(at(0, 1), 0.02);
        near(at(2, 2), 0.9 * 0.3 + 0.02);
        near(at(2, 3), 0.9 * 0.7 + 0.02);
        near(at(3, 3), 0.9 * 0.3 + 0.02);
        near(at(4, 4), 0.92);
    }

    #[test]
    fn images_are_mixed_within_their_pair_alone() {
        let images = pictures(6);
        let cut = Rectangle {
            top: 2,
            left: 1,
            height: 3,
            width: 5,
        };
        let mixings = [Mixing::None, Mixing::Mixup(0.25), Mixing::CutMix(cut)];
        let mut parameters = Parameters::from_classes(&[0; 6]);
        set_mixings(&mut parameters, &mixings, 8);
        assert!(parameters.mixed && parameters.cut);
        let mixed = mix_images(&images, &parameters.columns(), true);
        assert!(mixed.narrow(0, 0, 2).equal(&images.narrow(0, 0, 2)));
        let expected = images.get(2) * 0.25 + images.get(3) * 0.75;
        assert!((mixed.get(2) - expected).abs().max().double_value(&[]) < 1e-6);
        let part = |images: &Tensor, row| images.get(row).narrow(1, 2, 3).narrow(2, 1, 5);
        assert!(part(&mixed, 4).equal(&part(&images, 5)));
        assert!(part(&mixed, 5).equal(&part(&images, 4)));
        let changed = mixed.get(4).ne_tensor(&images.get(4)).sum(Kind::Int64);
        assert_eq!(changed.int64_value(&[]), 3 * 3 * 5);
    }

    #[test]
    fn probabilities_and_the_switch_are_kept() {
        let mut counts = [0_u32; 3];
        let augmentation = Augmentation {
            mixup_probability: 0.8,
            mixup_switch_probability: 0.25,
            ..augmentation()
        };
        for place in 0..4000 {
            let mixing = Mixing::draw(&augmentation, 32, &mut draws(place));
            assert!((0.0..=1.0).contains(&mixing.kept(32)), "{mixing:?}");
            counts[match mixing {
                Mixing::None => 0,
                Mixing::Mixup(_) => 1,
                Mixing::CutMix(cut) => {
                    assert!(cut.top + cut.height <= 32 && cut.left + cut.width <= 32);
                    2
                }
            }] += 1;
        }
        for (count, expected) in counts.iter().zip([800, 2400, 800]) {
            assert!(count.abs_diff(expected) < 150, "{counts:?}");
        }
        let only = |mixup, cutmix| {
            let augmentation = Augmentation {
                mixup,
                cutmix,
                ..Augmentation::default()
            };
            Mixing::draw(&augmentation, 32, &mut draws(1))
        };
        assert!(matches!(only(0.2, 0.0), Mixing::Mixup(_)));
        assert!(matches!(only(0.0, 0.2), Mixing::CutMix(_)));
    }

    #[test]
    fn erased_rectangles_lie_inside_and_hold_noise() {
        let mut count = 0;
        for place in 0..2000 {
            let Some(rectangle) = erased(0.25, 16, &mut draws(place)) else {
                continue;
            };
            count += 1;
            assert!(rectangle.top + rectangle.height <= 16 && rectangle.left + rectangle.width <= 16);
            let share = (rectangle.height * rectangle.width) as f64 / 256.0;
            assert!((0.01..0.36).contains(&share), "{rectangle:?}");
        }
        assert!((420..580).contains(&count), "{count} of 2000");
    }

    #[test]
    fn each_image_gets_its_own_noise_in_its_own_rectangle() {
        let noise = noise(1, 3, 8, Device::Cpu);
        let images = pictures(4);
        let rectangle = |top, left, height, width| Rectangle {
            top,
            left,
            height,
            width,
        };
        let rectangles = [
            None,
            Some((rectangle(1, 2, 3, 4), NOISE_STARTS)),
            None,
            Some((rectangle(0, 0, 7, 7), 5)),
        ];
        let mut parameters = Parameters::from_classes(&[0; 4]);
        set_erased(&mut parameters, rectangles.into_iter());
        let mut erased = images.copy();
        erase(&mut erased, &parameters.columns(), parameters.erased, &noise);
        // One by one, cut from the numbers by rectangle.
        for (row, rectangle) in (0..).zip(rectangles) {
            let expected = images.get(row).copy();
            if let Some((at, start)) = rectangle {
                let numbers = noise
                    .narrow(0, start as i64, 3 * at.height * at.width)
                    .reshape([3, at.height, at.width]);
                expected
                    .narrow(1, at.top, at.height)
                    .narrow(2, at.left, at.width)
                    .copy_(&numbers);
            }
            assert!(erased.get(row).equal(&expected), "image {row}");
        }
    }
}
