use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Model is the Vision Transformer that is trained: a preset by timm's name, sizes of one's own, or a preset with some
/// sizes changed.
#[derive(KubeSchema, Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(
    validation = Rule::new("has(self.name) || (has(self.imageSize) && has(self.patchSize) && has(self.hiddenSize) && has(self.depth) && has(self.heads))").message("give name (a preset such as vit_base_patch16_224), or all of imageSize, patchSize, hiddenSize, depth and heads"),
    validation = Rule::new("!has(self.hiddenSize) || !has(self.heads) || self.hiddenSize % self.heads == 0").message("hiddenSize must be a multiple of heads"),
    validation = Rule::new("!has(self.imageSize) || !has(self.patchSize) || self.imageSize % self.patchSize == 0").message("imageSize must be a multiple of patchSize")
)]
pub struct Model {
    /// name is a preset by timm's name, such as vit_tiny_patch16_224, vit_small_patch16_224, vit_base_patch16_224 or
    /// vit_large_patch16_224. Sizes given beside it replace the preset's.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub name: Option<String>,
    /// imageSize is the side of the square input in pixels; images of another size are resized to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 8, max = 4096))]
    pub image_size: Option<i32>,
    /// patchSize is the side of a square patch in pixels.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 256))]
    pub patch_size: Option<i32>,
    /// hiddenSize is the width of the residual stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 8, max = 16384))]
    pub hidden_size: Option<i32>,
    /// depth is the number of transformer blocks.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 256))]
    pub depth: Option<i32>,
    /// heads is the number of attention heads of a block.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 256))]
    pub heads: Option<i32>,
    /// mlpSize is the width of the hidden layer of a block's MLP; 4 x hiddenSize if neither it nor a preset says.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 8, max = 65536))]
    pub mlp_size: Option<i32>,
    /// numClasses is the number of classes.
    #[schemars(range(min = 2, max = 100_000))]
    pub num_classes: i32,
    /// channels is the number of channels of the input.
    #[serde(default = "default_channels")]
    #[schemars(range(min = 1, max = 64))]
    pub channels: i32,
    /// pooling is what the classifier reads: the class token (token), or the mean over all patches (average).
    #[serde(default)]
    pub pooling: Pooling,
}

fn default_channels() -> i32 {
    3
}

/// What the classifier reads.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Pooling {
    /// The class token.
    #[default]
    Token,
    /// The mean over all patches; there is no class token.
    Average,
}
