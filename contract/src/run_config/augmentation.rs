//! Augmentation of training images. Names and defaults are timm's.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::rules::Rules;
use super::{ModelConfig, TrainingConfig};

/// Augmentation of training images, in this order: crop, flip, colors, normalization, erasing,
/// mixing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Augmentation {
    /// A random part of the image, resized to the model's size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub random_resized_crop: Option<RandomResizedCrop>,
    /// A shift by at most a margin.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub random_crop: Option<RandomCrop>,
    /// Probability that an image is mirrored left to right.
    pub horizontal_flip: f64,
    /// Strength of random brightness, contrast and saturation: factors are in 1 - strength to 1 + strength.
    pub color_jitter: f64,
    /// timm's `RandAugment`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rand_augment: Option<RandAugment>,
    /// One of grayscale, solarize and Gaussian blur (`DeiT III`).
    pub three_augment: bool,
    /// Both parameters of mixup's Beta distribution; 0 for none.
    pub mixup: f64,
    /// Both parameters of `CutMix`'s Beta distribution; 0 for none.
    pub cutmix: f64,
    /// Probability that a pair of images is mixed at all.
    pub mixup_probability: f64,
    /// Probability of `CutMix` instead of mixup if both are on.
    pub mixup_switch_probability: f64,
    /// Probability that a rectangle of an image is replaced by noise.
    pub random_erasing: f64,
    /// Number of variants of an image in a batch.
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

/// A random part of the image, resized to the model's size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RandomResizedCrop {
    /// Minimum and maximum share of the image's area.
    pub scale: [f64; 2],
    /// Minimum and maximum of width over height.
    pub ratio: [f64; 2],
    /// Filter for resizing.
    pub interpolation: Interpolation,
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
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
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

    pub(super) fn check(&self, model: &ModelConfig, training: &TrainingConfig, rules: &mut Rules) {
        for (field, value) in [
            ("data.augmentation.horizontalFlip", self.horizontal_flip),
            ("data.augmentation.mixupProbability", self.mixup_probability),
            (
                "data.augmentation.mixupSwitchProbability",
                self.mixup_switch_probability,
            ),
            ("data.augmentation.randomErasing", self.random_erasing),
            ("data.augmentation.colorJitter", self.color_jitter),
        ] {
            rules.require(
                (0.0..=1.0).contains(&value),
                field,
                value,
                "must be between 0 and 1",
            );
        }
        for (field, value) in [
            ("data.augmentation.mixup", self.mixup),
            ("data.augmentation.cutmix", self.cutmix),
        ] {
            rules.require(
                (0.0..=100.0).contains(&value),
                field,
                value,
                "must be between 0 and 100",
            );
        }
        if let Some(crop) = &self.random_resized_crop {
            let [least, largest] = crop.scale;
            rules.require(
                0.0 < least && least <= largest && largest <= 1.0,
                "data.augmentation.randomResizedCrop.scale",
                format_args!("{least}, {largest}"),
                "must be two shares above 0 and at most 1, the smaller one first",
            );
            let [least, largest] = crop.ratio;
            rules.require(
                0.0 < least && least <= largest && largest.is_finite(),
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
        rules.positive(
            "data.augmentation.repeatedAugmentation",
            self.repeated_augmentation,
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

impl fmt::Display for RandAugment {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "rand-m{}-mstd{}-n{}-inc{}",
            self.magnitude,
            self.magnitude_std,
            self.layers,
            u8::from(self.increasing)
        )
    }
}

impl TryFrom<String> for RandAugment {
    type Error = NoRandAugment;

    fn try_from(text: String) -> Result<Self, NoRandAugment> {
        text.parse()
    }
}

impl From<RandAugment> for String {
    fn from(policy: RandAugment) -> Self {
        policy.to_string()
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
        assert_eq!(policy.to_string().parse(), Ok(policy));
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
