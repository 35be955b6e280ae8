//! The choice of operations for an image.

use contract::{Augmentation, RandAugment};

use super::ops::Op;
use crate::data::draws::Draws;

/// Maximum magnitude of timm's policies.
const FULL: f64 = 10.0;
/// Probability with which timm's `RandAugment` applies a chosen operation.
const PROBABILITY: f64 = 0.5;
/// Maximum shift, a share of the side.
const SHIFT: f64 = 0.45;

/// The operations of one image, in order.
pub(super) fn operations(augmentation: &Augmentation, draws: &mut Draws) -> Vec<Option<Op>> {
    let mut operations = Vec::new();
    let policy = augmentation.rand_augment.as_ref();
    if let Some(policy) = policy.and_then(|text| text.parse::<RandAugment>().ok()) {
        operations.extend((0..policy.layers).map(|_| rand_augment(policy, draws)));
    }
    if augmentation.three_augment {
        operations.push(Some(three_augment(draws)));
    }
    if augmentation.color_jitter > 0.0 {
        operations.extend(color_jitter(augmentation.color_jitter, draws).map(Some));
    }
    operations
}

/// One of timm's fifteen transforms, with timm's levels; those of `_RAND_INCREASING_TRANSFORMS` if
/// the policy says `inc1`.
fn rand_augment(policy: RandAugment, draws: &mut Draws) -> Option<Op> {
    let transform = draws.below(15);
    let carried_out = draws.chance(PROBABILITY);
    let magnitude = policy.magnitude + policy.magnitude_std * draws.normal();
    let level = magnitude.clamp(0.0, FULL) / FULL;
    let sign = draws.sign();
    if !carried_out {
        return None;
    }
    let increasing = policy.increasing;
    let factor = if increasing {
        (1.0 + sign * level * 0.9).max(0.1)
    } else {
        level * 1.8 + 0.1
    };
    Some(match transform {
        0 => Op::AutoContrast,
        1 => Op::Equalize,
        2 => Op::Invert,
        3 => Op::Affine(rotation(sign * level * 30.0)),
        4 => {
            let bits = (level * 4.0) as u8;
            Op::Posterize(if increasing { 4 - bits } else { bits })
        }
        5 => {
            let threshold = (level * 256.0).floor();
            Op::Solarize(if increasing { 256.0 - threshold } else { threshold })
        }
        6 => Op::SolarizeAdd((level * 110.0).floor()),
        7 => Op::Color(factor),
        8 => Op::Contrast(factor),
        9 => Op::Brightness(factor),
        10 => Op::Sharpness(factor),
        11 => Op::Affine([1.0, sign * level * 0.3, 0.0, 0.0, 1.0, 0.0]),
        12 => Op::Affine([1.0, 0.0, 0.0, sign * level * 0.3, 1.0, 0.0]),
        13 => Op::Affine([1.0, 0.0, sign * level * SHIFT, 0.0, 1.0, 0.0]),
        _ => Op::Affine([1.0, 0.0, 0.0, 0.0, 1.0, sign * level * SHIFT]),
    })
}

/// Around the center, counterclockwise.
fn rotation(degrees: f64) -> [f64; 6] {
    let (sin, cos) = (-degrees).to_radians().sin_cos();
    [
        cos,
        sin,
        0.5 - 0.5 * (cos + sin),
        -sin,
        cos,
        0.5 - 0.5 * (cos - sin),
    ]
}

/// `DeiT III`: gray, solarize or blur.
fn three_augment(draws: &mut Draws) -> Op {
    let radius = draws.between([0.1, 2.0]);
    match draws.below(3) {
        0 => Op::Color(0.0),
        1 => Op::Solarize(128.0),
        _ => Op::Blur(radius),
    }
}

/// Brightness, contrast and saturation in random order.
fn color_jitter(strength: f64, draws: &mut Draws) -> [Op; 3] {
    let mut factor = || draws.between([1.0 - strength, 1.0 + strength]);
    let mut operations = [
        Op::Brightness(factor()),
        Op::Contrast(factor()),
        Op::Color(factor()),
    ];
    for last in [2, 1] {
        operations.swap(last, draws.below(last + 1));
    }
    operations
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::random::Stream;

    fn draw(augmentation: &Augmentation) -> Vec<Vec<Option<Op>>> {
        (0..6000)
            .map(|place| operations(augmentation, &mut Draws::new(1, Stream::Color, 0, place)))
            .collect()
    }

    fn name(op: &Op) -> String {
        let text = format!("{op:?}");
        text.split('(').next().expect("a name").to_owned()
    }

    #[test]
    fn rand_augment_draws_evenly_and_leaves_out_half() {
        let augmentation = Augmentation {
            rand_augment: Some("rand-m9-mstd0.5-inc1".into()),
            ..Augmentation::default()
        };
        let drawn = draw(&augmentation);
        assert!(drawn.iter().all(|layers| layers.len() == 2));
        let done: Vec<Op> = drawn.into_iter().flatten().flatten().collect();
        assert!((5700..6300).contains(&done.len()), "{} of 12,000", done.len());
        let mut counts = BTreeMap::new();
        for op in &done {
            *counts.entry(name(op)).or_insert(0_usize) += 1;
        }
        // Rotation, two shears and two shifts are affine.
        assert_eq!(counts.len(), 11, "{counts:?}");
        for (name, count) in &counts {
            let expected = if name == "Affine" { 2000 } else { 400 };
            assert!(
                count.abs_diff(expected) < expected / 4,
                "{name}: {count}, not about {expected}"
            );
        }
    }

    /// timm's levels at magnitude 9 of 10.
    #[test]
    fn strengths_are_those_of_timm() {
        let strengths = |policy: &str| {
            let augmentation = Augmentation {
                rand_augment: Some(policy.into()),
                ..Augmentation::default()
            };
            let mut found = BTreeMap::<String, Vec<String>>::new();
            for op in draw(&augmentation).into_iter().flatten().flatten() {
                let values = found.entry(name(&op)).or_default();
                let text = match op {
                    Op::Color(value) | Op::Contrast(value) | Op::Brightness(value) | Op::Sharpness(value) => {
                        format!("{value:.2}")
                    }
                    other => format!("{other:?}"),
                };
                if !values.contains(&text) {
                    values.push(text);
                    values.sort();
                }
            }
            found
        };
        let increasing = strengths("rand-m9-inc1");
        for name in ["Color", "Contrast", "Brightness", "Sharpness"] {
            assert_eq!(increasing[name], ["0.19", "1.81"], "{name}");
        }
        assert_eq!(increasing["Posterize"], ["Posterize(1)"]);
        assert_eq!(increasing["Solarize"], ["Solarize(26.0)"]);
        assert_eq!(increasing["SolarizeAdd"], ["SolarizeAdd(99.0)"]);
        assert_eq!(increasing["Affine"].len(), 10, "five kinds in two directions");
        let plain = strengths("rand-m9");
        assert_eq!(plain["Color"], ["1.72"]);
        assert_eq!(plain["Posterize"], ["Posterize(3)"]);
        assert_eq!(plain["Solarize"], ["Solarize(230.0)"]);
    }

    #[test]
    fn a_quarter_turn_swaps_sides_around_the_middle() {
        let matrix = rotation(90.0);
        let turned =
            |x: f64, y: f64| [0, 3].map(|row| matrix[row] * x + matrix[row + 1] * y + matrix[row + 2]);
        let near = |found: [f64; 2], expected: [f64; 2]| {
            assert!(
                found
                    .iter()
                    .zip(expected)
                    .all(|(left, right)| (left - right).abs() < 1e-9),
                "{found:?}"
            );
        };
        near(turned(0.5, 0.5), [0.5, 0.5]);
        // Counterclockwise: the top left was at the top right before.
        near(turned(0.0, 0.0), [1.0, 0.0]);
    }

    #[test]
    fn three_augment_takes_one_of_three_and_jitter_comes_after_it() {
        let augmentation = Augmentation {
            three_augment: true,
            color_jitter: 0.3,
            ..Augmentation::default()
        };
        let mut first = BTreeMap::new();
        let mut orders = BTreeMap::new();
        for operations in draw(&augmentation) {
            assert_eq!(operations.len(), 4);
            let names: Vec<String> = operations.iter().flatten().map(name).collect();
            *first.entry(names[0].clone()).or_insert(0) += 1;
            *orders.entry(names[1..].join(" ")).or_insert(0) += 1;
            for op in operations[1..].iter().flatten() {
                let (Op::Brightness(factor) | Op::Contrast(factor) | Op::Color(factor)) = op else {
                    panic!("{op:?}")
                };
                assert!((0.7..=1.3).contains(factor));
            }
        }
        assert_eq!(first.len(), 3);
        assert!(
            first.values().all(|count| (1800..2200).contains(count)),
            "{first:?}"
        );
        assert_eq!(orders.len(), 6);
        assert!(
            orders.values().all(|count| (850..1150).contains(count)),
            "{orders:?}"
        );
    }
}
