//! Augmentation of training images. Names and defaults are timm's.

use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::rules::Rules;
use super::{ModelConfig, Training};
use crate::schema::cel;

/// Augmentation varies training images, in this order: crop, flip, colors, normalization, erasing,
/// mixing. Random choices depend only on training.seed, the epoch and the image's position in it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[schemars(transform = cel(RULES))]
pub struct Augmentation {
    /// randomResizedCrop cuts out a random part of the image and resizes it to model.imageSize.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub random_resized_crop: Option<RandomResizedCrop>,
    /// randomCrop shifts the image by at most a margin, as usual CIFAR recipes do (padding 4).
    /// Images from files are first resized so that the shorter side is model.imageSize.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub random_crop: Option<RandomCrop>,
    /// horizontalFlip is the probability that an image is mirrored left to right, usually 0.5.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub horizontal_flip: f64,
    /// colorJitter changes brightness, contrast and saturation, in random order, by factors that
    /// differ from 1 by at most colorJitter; DeiT III uses 0.3.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub color_jitter: f64,
    /// randAugment is timm's RandAugment in timm's notation. In rand-m9-mstd0.5-inc1, the magnitude
    /// is 9 of 10 with a deviation of 0.5, and every operation is stronger with more magnitude.
    /// Each image gets 2 operations (-n2), each skipped with probability 0.5. torchvision and
    /// big_vision differ.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64), regex(pattern = "^rand(-[a-z]+[0-9.]+)*$"))]
    pub rand_augment: Option<String>,
    /// threeAugment applies one of grayscale, solarize and Gaussian blur to each image (3-Augment
    /// of DeiT III, which adds colorJitter 0.3).
    pub three_augment: bool,
    /// mixup is the alpha of mixup's Beta distribution, 0 for none. Neighbors in the epoch's order
    /// are mixed, each pair with another ratio (timm's mode pair).
    #[schemars(range(min = 0.0, max = 100.0))]
    pub mixup: f64,
    /// cutmix is the alpha of CutMix's Beta distribution, 0 for none.
    #[schemars(range(min = 0.0, max = 100.0))]
    pub cutmix: f64,
    /// mixupProbability is the probability that a pair of images is mixed at all (mixup_prob of timm).
    #[schemars(range(min = 0.0, max = 1.0))]
    pub mixup_probability: f64,
    /// mixupSwitchProbability is the probability of cutmix instead of mixup if both are on
    /// (mixup_switch_prob of timm).
    #[schemars(range(min = 0.0, max = 1.0))]
    pub mixup_switch_probability: f64,
    /// randomErasing is the probability that a rectangle of 2 % to 33 % of an image is replaced by noise (mode pixel of
    /// timm).
    #[schemars(range(min = 0.0, max = 1.0))]
    pub random_erasing: f64,
    /// repeatedAugmentation is how many variants of an image a batch has; DeiT uses 3. An epoch has
    /// as many steps as without, so it sees only that part of the images.
    #[schemars(range(min = 1, max = 16))]
    pub repeated_augmentation: u32,
}

/// Filters for resizing. Both widen when shrinking an image (antialiasing), as in Pillow.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Interpolation {
    /// Bicubic (Catmull-Rom).
    #[default]
    Bicubic,
    /// Bilinear.
    Bilinear,
}

/// RandomResizedCrop cuts out a random part of the image.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[schemars(transform = cel(CROP_RULES))]
pub struct RandomResizedCrop {
    /// scale is the minimum and maximum share of the image's area.
    #[schemars(inner(range(min = 0.0001, max = 1.0)))]
    pub scale: [f64; 2],
    /// ratio is the minimum and maximum of width over height.
    #[schemars(inner(range(min = 0.01, max = 100.0)))]
    pub ratio: [f64; 2],
    /// interpolation is the filter to resize with: bilinear or bicubic.
    pub interpolation: Interpolation,
}

impl Default for RandomResizedCrop {
    fn default() -> Self {
        Self {
            scale: [0.08, 1.0],
            ratio: [0.75, 4.0 / 3.0],
            interpolation: Interpolation::default(),
        }
    }
}

/// RandomCrop shifts the image.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RandomCrop {
    /// padding is the width in pixels of the black margin from which a window of the image's own size is cut.
    #[schemars(range(min = 1, max = 512))]
    pub padding: u32,
}

/// timm's `RandAugment`, in timm's notation: `rand-m9-mstd0.5-inc1`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RandAugment {
    /// `m`: strength, 0 to 10.
    pub magnitude: f64,
    /// `mstd`: standard deviation of the strength.
    pub magnitude_std: f64,
    /// `n`: operations per image; each is skipped with probability 0.5.
    pub layers: u32,
    /// `inc`: whether a higher magnitude makes every operation stronger.
    pub increasing: bool,
}

/// The text is not a valid [`RandAugment`].
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error(
    "must be rand, then any of -mN (magnitude 0 to 10), -mstdN (its deviation), -nN (1 to 15 operations) and -inc1, as in rand-m9-mstd0.5-inc1"
)]
pub struct NoRandAugment;

impl Default for Augmentation {
    fn default() -> Self {
        Self {
            random_resized_crop: None,
            random_crop: None,
            horizontal_flip: 0.0,
            color_jitter: 0.0,
            rand_augment: None,
            three_augment: false,
            mixup: 0.0,
            cutmix: 0.0,
            mixup_probability: 1.0,
            mixup_switch_probability: 0.5,
            random_erasing: 0.0,
            repeated_augmentation: 1,
        }
    }
}

impl Augmentation {
    /// Whether images are mixed.
    pub fn mixes(&self) -> bool {
        (self.mixup > 0.0 || self.cutmix > 0.0) && self.mixup_probability > 0.0
    }

    /// Whether colors change, which needs bytes in three channels.
    pub fn changes_colors(&self) -> bool {
        self.color_jitter > 0.0 || self.rand_augment.is_some() || self.three_augment
    }
}

/// What the API server checks, and [`Augmentation::check`] elsewhere.
const RULES: &[(&str, &str)] = &[
    (
        "!has(self.randomResizedCrop) || !has(self.randomCrop)",
        "give one of randomCrop and randomResizedCrop",
    ),
    (
        "!has(self.randAugment) || (!self.threeAugment && self.colorJitter == 0.0)",
        "randAugment cannot be combined with threeAugment or colorJitter",
    ),
];
const CROP_RULES: &[(&str, &str)] = &[(
    "self.scale[0] <= self.scale[1] && self.ratio[0] <= self.ratio[1]",
    "give the smaller number of scale and of ratio first",
)];

impl Augmentation {
    pub(super) fn check(&self, model: &ModelConfig, training: &Training, rules: &mut Rules) {
        if let Some(crop) = &self.random_resized_crop {
            let [least, largest] = crop.scale;
            rules.require(
                least <= largest,
                "data.augmentation.randomResizedCrop.scale",
                format_args!("{least}, {largest}"),
                "must be two shares above 0 and at most 1, the smaller one first",
            );
            let [least, largest] = crop.ratio;
            rules.require(
                least <= largest,
                "data.augmentation.randomResizedCrop.ratio",
                format_args!("{least}, {largest}"),
                "must be two numbers above 0, the smaller one first",
            );
            rules.require(
                self.random_crop.is_none(),
                "data.augmentation.randomCrop",
                "given",
                "give one of randomCrop and randomResizedCrop",
            );
        }
        if let Some(text) = &self.rand_augment
            && let Err(error) = text.parse::<RandAugment>()
        {
            rules.require(false, "data.augmentation.randAugment", text, error.to_string());
        }
        rules.require(
            !self.changes_colors() || model.channels == 3,
            "model.channels",
            model.channels,
            "must be 3 for colorJitter, randAugment and threeAugment of data.augmentation",
        );
        rules.require(
            self.rand_augment.is_none() || (!self.three_augment && self.color_jitter <= 0.0),
            "data.augmentation.randAugment",
            "given",
            "cannot be combined with threeAugment or colorJitter",
        );
        rules.require(
            !self.mixes() || training.micro_batch_size.is_multiple_of(2),
            "training.microBatchSize",
            training.micro_batch_size,
            "must be even for mixup and cutmix, which mix pairs of images",
        );
    }
}

impl FromStr for RandAugment {
    type Err = NoRandAugment;

    fn from_str(text: &str) -> Result<Self, NoRandAugment> {
        let mut parts = text.split('-');
        if parts.next() != Some("rand") {
            return Err(NoRandAugment);
        }
        let mut policy = Self {
            magnitude: 10.0,
            magnitude_std: 0.0,
            layers: 2,
            increasing: false,
        };
        for part in parts {
            let digits = part.find(|letter: char| !letter.is_ascii_alphabetic());
            let (key, value) = part.split_at(digits.ok_or(NoRandAugment)?);
            let number: f64 = value.parse().map_err(|_| NoRandAugment)?;
            match key {
                "m" if (0.0..=10.0).contains(&number) => policy.magnitude = number,
                "mstd" if (0.0..=10.0).contains(&number) => policy.magnitude_std = number,
                "n" if (1.0..=15.0).contains(&number) && number.fract() == 0.0 => {
                    policy.layers = number as u32;
                }
                "inc" if value == "0" || value == "1" => policy.increasing = value == "1",
                _ => return Err(NoRandAugment),
            }
        }
        Ok(policy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_is_read_as_timm_writes_it() {
        let policy: RandAugment = "rand-m9-mstd0.5-inc1".parse().expect("timm's");
        assert_eq!(
            policy,
            RandAugment {
                magnitude: 9.0,
                magnitude_std: 0.5,
                layers: 2,
                increasing: true
            }
        );
        assert_eq!(
            "rand-m7-n3".parse::<RandAugment>().map(|policy| policy.layers),
            Ok(3)
        );
        for wrong in [
            "",
            "augmix-m5",
            "rand-m11",
            "rand-w0",
            "rand-m",
            "rand-9",
            "rand-n0",
            "rand-n1.5",
            "rand-inc2",
        ] {
            assert_eq!(wrong.parse::<RandAugment>(), Err(NoRandAugment), "{wrong}");
        }
    }
}
