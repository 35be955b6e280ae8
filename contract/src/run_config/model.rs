//! The network.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::rules::Rules;
use crate::architecture::{Architecture, Position};

/// Channels of a head for each frequency: two rotated ones for each axis.
const ROTARY_CHANNELS: u32 = 4;

/// A Vision Transformer. Lengths in pixels and in channels of the residual stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ModelConfig {
    /// Side of the square input, pixels; images of another size are resized to it.
    pub image_size: u32,
    /// Side of a square patch, pixels.
    pub patch_size: u32,
    /// Width of the residual stream.
    pub hidden_size: u32,
    /// Transformer blocks.
    pub depth: u32,
    /// Attention heads of a block.
    pub heads: u32,
    /// Width of the hidden layer of a block's MLP.
    pub mlp_size: u32,
    /// Classes of the classifier.
    pub num_classes: u32,
    /// Channels of the input.
    pub channels: u32,
    /// Input of the classifier.
    pub pooling: Pooling,
    /// Learned tokens that the classifier does not read (arXiv 2309.16588). With any, the position
    /// embedding covers only the patches, as in timm.
    #[serde(default)]
    pub register_tokens: u32,
    /// Initial value of a learned factor per channel of a block's two branches (arXiv 2103.17239);
    /// `None` for no factor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layer_scale: Option<f64>,
    /// Share of images that skip a branch of the last block in a training step (stochastic depth,
    /// arXiv 1603.09382); increases linearly from 0 in the first block.
    #[serde(default)]
    pub drop_path: f64,
    /// Number of last blocks that are trained, with what follows them; 0 for the classifier alone (a
    /// linear probe); `None` for the whole network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub train_last_blocks: Option<u32>,
    /// What its family has in place of the plain Vision Transformer's parts.
    #[serde(default, skip_serializing_if = "Architecture::is_plain")]
    pub architecture: Architecture,
    /// Safetensors file with initial weights under known names; `None` for random
    /// ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pretrained: Option<PathBuf>,
}

/// Input of the classifier from the last block.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize, JsonSchema)]
// The schema describes an optional field by its type.
#[schemars(
    description = "pooling is the input of the classifier: the class token (token), the mean over all patches \
            (average), or\nattention of a learned query (attention, as in SigLIP); by default the preset's, else token."
)]
#[serde(rename_all = "camelCase")]
pub enum Pooling {
    /// The class token.
    Token,
    /// The mean over all patches.
    Average,
    /// Attention of a learned query, then an MLP (SigLIP, arXiv 2303.15343).
    Attention,
}

impl std::fmt::Display for Pooling {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::Token => "token",
            Self::Average => "average",
            Self::Attention => "attention",
        })
    }
}

impl ModelConfig {
    pub(super) fn check(&self, rules: &mut Rules) {
        rules.divides(
            "model.patchSize",
            self.patch_size,
            "model.imageSize",
            self.image_size,
        );
        rules.divides("model.heads", self.heads, "model.hiddenSize", self.hidden_size);
        if let Some(blocks) = self.train_last_blocks {
            rules.require(
                blocks <= self.depth,
                "model.trainLastBlocks",
                blocks,
                format!("must be at most model.depth ({})", self.depth),
            );
        }
        let head_width = self.hidden_size.checked_div(self.heads).unwrap_or(0);
        rules.require(
            self.architecture.position != Position::Rotary || head_width.is_multiple_of(ROTARY_CHANNELS),
            "model.heads",
            self.heads,
            format!(
                "must make heads of a multiple of {ROTARY_CHANNELS} channels (model.hiddenSize / model.heads is {head_width}): rotary positions turn two channels for each axis"
            ),
        );
        rules.require(
            !self.architecture.distillation_token || self.pooling == Pooling::Token,
            "model.pooling",
            self.pooling,
            "must be token with a distilled DeiT, whose classifiers read a token each",
        );
    }

    /// How the weights of `other` differ in number or shape, or what it computes from them, as text, field by
    /// field; `None` if they are compatible.
    pub fn difference(&self, other: &Self) -> Option<String> {
        let numbers = |model: &Self| {
            [
                ("imageSize", model.image_size),
                ("patchSize", model.patch_size),
                ("hiddenSize", model.hidden_size),
                ("depth", model.depth),
                ("heads", model.heads),
                ("mlpSize", model.mlp_size),
                ("numClasses", model.num_classes),
                ("channels", model.channels),
                ("registerTokens", model.register_tokens),
            ]
        };
        let mut differences: Vec<String> = numbers(self)
            .into_iter()
            .zip(numbers(other))
            .filter(|(own, others)| own != others)
            .map(|((name, own), (_, others))| format!("{name} is {own} instead of {others}"))
            .collect();
        if self.pooling != other.pooling {
            differences.push(format!(
                "pooling is {} instead of {}",
                self.pooling, other.pooling
            ));
        }
        if self.layer_scale.is_some() != other.layer_scale.is_some() {
            let say = |model: &Self| {
                if model.layer_scale.is_some() {
                    "present"
                } else {
                    "absent"
                }
            };
            differences.push(format!("layerScale is {} instead of {}", say(self), say(other)));
        }
        let parts = self.architecture.parts().into_iter();
        let parts = parts.zip(other.architecture.parts());
        let parts = parts.filter(|(own, others)| own != others);
        differences.extend(
            parts.map(|((name, own), (_, others))| {
                format!("architecture.{name} is {own} instead of {others}")
            }),
        );
        (!differences.is_empty()).then(|| differences.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::config;
    use super::*;
    use crate::architecture::Mlp;

    fn model() -> ModelConfig {
        config().model
    }

    #[test]
    fn only_what_shapes_weights_makes_another_model() {
        let same = ModelConfig {
            drop_path: 0.2,
            pretrained: Some("/pretrained/vit.safetensors".into()),
            ..model()
        };
        assert_eq!(model().difference(&same), None);
        let other = ModelConfig {
            depth: 3,
            pooling: Pooling::Token,
            layer_scale: Some(1e-5),
            ..model()
        };
        assert_eq!(
            model().difference(&other).as_deref(),
            Some(
                "depth is 2 instead of 3, pooling is average instead of token, layerScale is absent instead of present"
            )
        );
        let mut gated = model();
        gated.architecture.mlp = Mlp::SwiGlu;
        gated.architecture.norm_epsilon = 1e-5;
        assert_eq!(
            gated.difference(&model()).as_deref(),
            Some(
                "architecture.mlp is swiGlu instead of gelu, architecture.normEpsilon is 0.00001 instead of 1e-6"
            )
        );
    }

    #[test]
    fn families_refuse_what_does_not_fit_them() {
        let broken = |change: fn(&mut ModelConfig)| {
            let (mut model, mut rules) = (model(), Rules::default());
            change(&mut model);
            model.check(&mut rules);
            let errors = rules.0.iter().map(ToString::to_string);
            errors.collect::<Vec<_>>().join("\n")
        };
        assert_eq!(broken(|model| model.architecture.position = Position::Rotary), "");
        assert_eq!(
            broken(|model| model.train_last_blocks = Some(3)),
            "model.trainLastBlocks is 3: must be at most model.depth (2)"
        );
        let found = broken(|model| {
            model.architecture.position = Position::Rotary;
            (model.hidden_size, model.heads) = (24, 4);
        });
        assert!(
            found.starts_with("model.heads is 4: must make heads of a multiple of 4 channels (model.hiddenSize / model.heads is 6)"),
            "{found}"
        );
        let found = broken(|model| {
            model.architecture.distillation_token = true;
            model.pooling = Pooling::Average;
        });
        assert!(
            found.starts_with("model.pooling is average: must be token with a distilled DeiT"),
            "{found}"
        );
    }

    #[test]
    fn the_operations_of_vit_b16_are_those_of_the_literature_less_what_the_last_block_leaves_out() {
        let model = ModelConfig::preset("vit_base_patch16_224", 1000, 3).expect("a preset");
        let flops = model.flops_per_image();
        assert!((flops / 1e9 - 98.78).abs() < 0.01, "{flops}");
        // The literature's 17.56 GMAC forward include all tokens of the last block. The register
        // token replaces the class token, which average pooling lacks.
        let average = ModelConfig {
            pooling: Pooling::Average,
            register_tokens: 1,
            ..model
        };
        let flops = average.flops_per_image();
        assert!((flops / 1e9 - 105.38).abs() < 0.01, "{flops}");
        // A forward pass, and both backward passes of the classifier.
        let probe = ModelConfig {
            train_last_blocks: Some(0),
            ..average.clone()
        };
        let classifier = 4.0 * 768.0 * 1000.0;
        assert!((probe.flops_per_image() - flops / 3.0 - classifier).abs() < 1.0);
        let half = ModelConfig {
            train_last_blocks: Some(6),
            ..average
        };
        let share = half.flops_per_image() / flops;
        assert!((share - 2.0 / 3.0).abs() < 0.01, "{share}");
    }
}
