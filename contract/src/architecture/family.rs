//! What distinguishes the families of Vision Transformers.

use serde::{Deserialize, Serialize};

/// What a family of Vision Transformers has in place of the plain one's parts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[allow(clippy::struct_excessive_bools, reason = "independent parts")]
pub struct Architecture {
    /// A class token that the classifier does not read, beside average or attention pooling.
    pub unread_class_token: bool,
    /// A second token and classifier, for distillation (DeiT, arXiv 2012.12877). Logits are the mean of both
    /// classifiers'.
    pub distillation_token: bool,
    /// How tokens know their place.
    pub position: Position,
    /// A norm of all tokens before the blocks, after patches without a bias (CLIP, arXiv 2103.00020).
    pub input_norm: bool,
    /// The final norm is of all tokens, before they are pooled (timm's `fc_norm=False`).
    pub norm_before_pooling: bool,
    /// Added to the variance in norms.
    pub norm_epsilon: f64,
    /// The bias of queries, keys and values.
    pub qkv_bias: QkvBias,
    /// The MLP of a block.
    pub mlp: Mlp,
}

/// How tokens know their place.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Position {
    /// A learned embedding of patches and the tokens before them; with registers of patches alone.
    Learned,
    /// A learned embedding of patches alone (timm's `no_embed_class`, DeiT-III).
    LearnedOfPatches,
    /// Queries and keys of patches are rotated by their coordinates (RoPE of DINOv3, arXiv 2508.10104).
    Rotary,
}

/// Which of queries, keys and values have a bias.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum QkvBias {
    /// All, in one parameter.
    All,
    /// Queries and values, in a parameter each (timm's `Eva`; that of keys is zero in DINOv3).
    QueriesAndValues,
    /// None.
    None,
}

/// The MLP of a block.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Mlp {
    /// Two layers with the exact GELU between them.
    Gelu,
    /// With the approximation of GELU by `tanh` (sizes of SigLIP 2).
    GeluTanh,
    /// With x * sigmoid(1.702 x) (OpenAI's CLIP).
    QuickGelu,
    /// Hidden values gated by SiLU of others (arXiv 2002.05202; DINOv3's large models).
    SwiGlu,
}

/// The plain Vision Transformer (arXiv 2010.11929).
impl Default for Architecture {
    fn default() -> Self {
        Self {
            unread_class_token: false,
            distillation_token: false,
            position: Position::Learned,
            input_norm: false,
            norm_before_pooling: false,
            norm_epsilon: 1e-6,
            qkv_bias: QkvBias::All,
            mlp: Mlp::Gelu,
        }
    }
}

impl Architecture {
    /// Whether it is the plain Vision Transformer's.
    pub fn is_plain(&self) -> bool {
        *self == Self::default()
    }

    /// Names and values of its parts, as in the run configuration.
    pub(crate) fn parts(&self) -> Vec<(String, String)> {
        let Ok(serde_json::Value::Object(parts)) = serde_json::to_value(self) else {
            return Vec::new();
        };
        let text = |value: serde_json::Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        parts
            .into_iter()
            .map(|(name, value)| (name, text(value)))
            .collect()
    }
}
