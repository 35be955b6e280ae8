use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use super::{Origin, Pooling, Volume, multiple};

/// Model is the Vision Transformer to train: a preset by timm's name, custom sizes, or a preset
/// with changed sizes.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(
    validation = Rule::new("has(self.name) || (has(self.imageSize) && has(self.patchSize) && has(self.hiddenSize) && has(self.depth) && has(self.heads))").message("give name (a preset such as vit_base_patch16_224), or all of imageSize, patchSize, hiddenSize, depth and heads"),
    validation = multiple("!has(self.hiddenSize) || !has(self.heads)", &["hiddenSize"], &["heads"], ""),
    validation = multiple("!has(self.imageSize) || !has(self.patchSize)", &["imageSize"], &["patchSize"], "")
)]
pub struct Model {
    /// name is a preset by timm's or torchvision's name, such as vit_tiny_patch16_224,
    /// vit_base_patch16_384, deit3_base_patch16_224, vit_base_patch16_siglip_224,
    /// vit_small_patch16_dinov3 or vit_b_16. Given sizes replace the preset's.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub name: Option<String>,
    /// imageSize is the side of the square input in pixels; other images are resized to it.
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
    /// mlpSize is the width of the hidden layer of a block's MLP; by default the preset's, else 4 x
    /// hiddenSize.
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
    /// pooling is the input of the classifier.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pooling: Option<Pooling>,
    /// registerTokens is the number of learned tokens that the classifier does not read (arXiv
    /// 2309.16588); by default the preset's, else 0. With any, the position embedding covers only
    /// the patches.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 64))]
    pub register_tokens: Option<i32>,
    /// layerScale is the initial value of a learned factor per channel of a block's branches, such
    /// as 1e-5 (arXiv 2103.17239); 0 for none. By default the preset's, else 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 10.0))]
    pub layer_scale: Option<f64>,
    /// dropPath is the share of images that skip a branch of the last block in a training step
    /// (stochastic depth); it increases linearly from 0 in the first block.
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 0.99))]
    pub drop_path: f64,
    /// trainLastBlocks is the number of last blocks that are trained, with what follows them; all before
    /// stays as it was. 0 trains the classifier alone (a linear probe). By default everything is
    /// trained.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 256))]
    pub train_last_blocks: Option<i32>,
    /// pretrained is a file of weights to start from instead of random ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pretrained: Option<Pretrained>,
}

/// pretrained is a file of weights to start from instead of random ones: safetensors with the names of
/// timm, torchvision, Hugging Face, open_clip or Meta. As in timm, the head stays random if the number
/// of classes differs, the position embedding is resized to imageSize, and the patch embedding adapted
/// to channels.
// The schema describes an optional field by its type.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(
    validation = Rule::new("has(self.from) != has(self.path)").message("give path in a volume, or from"),
    validation = Rule::new("!has(self.path) || has(self.volume)").message("path needs the volume that has the file"),
    validation = Rule::new("!has(self.from) || size(self.from.locations) == 1").message("from must have one location, of one file")
)]
pub struct Pretrained {
    /// volume has the file at path, and pods mount it read-only; or keeps the file that is fetched.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume: Option<Volume>,
    /// path of the file in the volume.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = "^[^/:][^:]*$"), length(max = 256))]
    pub path: Option<String>,
    /// from is a location to fetch the file from before the trainer starts: of a safetensors file, or
    /// hf://OWNER/NAME[@REVISION] for the model.safetensors of a model of the Hugging Face Hub. Without
    /// a volume, each pod fetches it to its node's disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<Origin>,
}

impl Pretrained {
    /// The location of the file that is fetched.
    pub fn location(&self) -> Option<String> {
        let location = self.from.as_ref()?.locations.first()?;
        let repository = location
            .strip_prefix("hf://")
            .filter(|rest| rest.trim_end_matches('/').matches('/').count() == 1);
        Some(match repository {
            Some(repository) => format!("hf://{}/model.safetensors", repository.trim_end_matches('/')),
            None => location.clone(),
        })
    }
}

fn default_channels() -> i32 {
    3
}
