use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Interpolation;

/// Augmentation varies training images. In this order: crop, flip, colours, normalisation, erasing, mixing. What is
/// random depends on training.seed, the epoch and the image's place in it alone, not on threads or ranks.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(
    validation = Rule::new("!has(self.randomResizedCrop) || !has(self.randomCrop)").message("give one of randomCrop and randomResizedCrop"),
    validation = Rule::new("!has(self.randAugment) || (!self.threeAugment && self.colorJitter == 0.0)").message("give one of randAugment, and threeAugment with or without colorJitter")
)]
pub struct Augmentation {
    /// randomResizedCrop cuts out a random part of the image and resizes it to model.imageSize.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub random_resized_crop: Option<RandomResizedCrop>,
    /// randomCrop shifts the image by at most a margin, as the usual CIFAR recipes do (padding 4). Images from files
    /// are first resized so that their shorter side is model.imageSize.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub random_crop: Option<RandomCrop>,
    /// horizontalFlip is the probability that an image is mirrored left to right, usually 0.5.
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub horizontal_flip: f64,
    /// colorJitter changes brightness, contrast and saturation, in random order, by factors between 1 - colorJitter and
    /// 1 + colorJitter; DeiT III takes 0.3.
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub color_jitter: f64,
    /// randAugment is timm's RandAugment, written as timm writes it: rand-m9-mstd0.5-inc1 is magnitude 9 of 10 with a
    /// deviation of 0.5, strength that grows with the magnitude for every operation, and 2 operations an image (-n2),
    /// each left out with probability 0.5. It is not torchvision's RandAugment, nor that of big_vision.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64), regex(pattern = "^rand(-[a-z]+[0-9.]+)*$"))]
    pub rand_augment: Option<String>,
    /// threeAugment gives each image one of grey, solarize and Gaussian blur (3-Augment of DeiT III, which adds
    /// colorJitter 0.3).
    #[serde(default)]
    pub three_augment: bool,
    /// mixup is the alpha of mixup's Beta distribution, 0 for none. Neighbours in the epoch's order are mixed, each pair
    /// with a share of its own (timm's mode pair).
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
    /// mixupSwitchProbability is the probability of cutmix in place of mixup where both are on (mixup_switch_prob of
    /// timm).
    #[serde(default = "default_mixup_switch_probability")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub mixup_switch_probability: f64,
    /// randomErasing is the probability that a rectangle of 2 % to 33 % of an image is replaced by noise (mode pixel of
    /// timm).
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub random_erasing: f64,
    /// repeatedAugmentation is how many variants of an image a batch holds; DeiT takes 3. An epoch has as many steps as
    /// without, and so sees only that part of the images.
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
    validation = Rule::new("self.scale[0] <= self.scale[1] && self.ratio[0] <= self.ratio[1]").message("the smaller number of scale and of ratio comes first")
)]
pub struct RandomResizedCrop {
    /// scale is the least and the largest share of the image's area.
    #[serde(default = "default_scale")]
    #[schemars(length(min = 2, max = 2), inner(range(min = 0.0001, max = 1.0)))]
    pub scale: Vec<f64>,
    /// ratio is the least and the largest width over height.
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

/// RandomCrop shifts the image.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RandomCrop {
    /// padding is the width in pixels of the black margin from which a window of the image's own size is cut.
    #[schemars(range(min = 1, max = 512))]
    pub padding: i32,
}
