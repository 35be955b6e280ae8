use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use super::{Interpolation, RandomCrop};

/// Augmentation varies training images, in this order: crop, flip, colors, normalization, erasing,
/// mixing. Random choices depend only on training.seed, the epoch and the image's position in it.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(
    validation = Rule::new("!has(self.randomResizedCrop) || !has(self.randomCrop)").message("give one of randomCrop and randomResizedCrop"),
    validation = Rule::new("!has(self.randAugment) || (!self.threeAugment && self.colorJitter == 0.0)").message("randAugment cannot be combined with threeAugment or colorJitter")
)]
pub struct Augmentation {
    /// randomResizedCrop cuts out a random part of the image and resizes it to model.imageSize.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub random_resized_crop: Option<RandomResizedCrop>,
    /// randomCrop shifts the image by at most a margin, as usual CIFAR recipes do (padding 4).
    /// Images from files are first resized so that the shorter side is model.imageSize.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub random_crop: Option<RandomCrop>,
    /// horizontalFlip is the probability that an image is mirrored left to right, usually 0.5.
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub horizontal_flip: f64,
    /// colorJitter changes brightness, contrast and saturation, in random order, by factors that
    /// differ from 1 by at most colorJitter; DeiT III uses 0.3.
    /// - colorJitter to 1 + colorJitter; DeiT III uses 0.3.
    #[serde(default)]
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
    #[serde(default)]
    pub three_augment: bool,
    /// mixup is the alpha of mixup's Beta distribution, 0 for none. Neighbors in the epoch's order
    /// are mixed, each pair with another ratio (timm's mode pair).
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 100.0))]
    pub mixup: f64,
    /// cutmix is the alpha of CutMix's Beta distribution, 0 for none.
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 100.0))]
    pub cutmix: f64,
    /// mixupProbability is the probability that a pair of images is mixed at all (mixup_prob of timm).
    #[serde(default = "default_mixup_probability")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub mixup_probability: f64,
    /// mixupSwitchProbability is the probability of cutmix instead of mixup if both are on
    /// (mixup_switch_prob of timm).
    #[serde(default = "default_mixup_switch_probability")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub mixup_switch_probability: f64,
    /// randomErasing is the probability that a rectangle of 2 % to 33 % of an image is replaced by noise (mode pixel of
    /// timm).
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub random_erasing: f64,
    /// repeatedAugmentation is how many variants of an image a batch has; DeiT uses 3. An epoch has
    /// as many steps as without, so it sees only that part of the images.
    #[serde(default = "default_repeated_augmentation")]
    #[schemars(range(min = 1, max = 16))]
    pub repeated_augmentation: i32,
}

fn default_mixup_probability() -> f64 {
    1.0
}

fn default_mixup_switch_probability() -> f64 {
    0.5
}

fn default_repeated_augmentation() -> i32 {
    1
}

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
            mixup_probability: default_mixup_probability(),
            mixup_switch_probability: default_mixup_switch_probability(),
            random_erasing: 0.0,
            repeated_augmentation: default_repeated_augmentation(),
        }
    }
}

/// RandomResizedCrop cuts out a random part of the image.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(
    validation = Rule::new("self.scale[0] <= self.scale[1] && self.ratio[0] <= self.ratio[1]").message("give the smaller number of scale and of ratio first")
)]
pub struct RandomResizedCrop {
    /// scale is the minimum and maximum share of the image's area.
    #[serde(default = "default_scale")]
    #[schemars(length(min = 2, max = 2), inner(range(min = 0.0001, max = 1.0)))]
    pub scale: Vec<f64>,
    /// ratio is the minimum and maximum of width over height.
    #[serde(default = "default_ratio")]
    #[schemars(length(min = 2, max = 2), inner(range(min = 0.01, max = 100.0)))]
    pub ratio: Vec<f64>,
    /// interpolation is the filter to resize with: bilinear or bicubic.
    #[serde(default)]
    pub interpolation: Interpolation,
}

fn default_scale() -> Vec<f64> {
    vec![0.08, 1.0]
}

fn default_ratio() -> Vec<f64> {
    vec![0.75, 4.0 / 3.0]
}
