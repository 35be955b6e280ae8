//! Fits the weights of a file to a model, exactly or as timm adapts pretrained ones.

use tch::{Kind, Tensor};

use super::{Weights, WeightsError};
use crate::model::VisionTransformer;
use crate::model::parameters::Parameter;

const PATCH_WEIGHT: &str = "patch_embed.proj.weight";
const POSITION: &str = "pos_embed";
const HEAD: [&str; 2] = ["head.weight", "head.bias"];
const DISTILLED_HEAD: [&str; 2] = ["head_dist.weight", "head_dist.bias"];
/// Channels of the images for which pretrained weights were made.
const COLORS: i64 = 3;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Fit {
    /// Every tensor has the same shape: the model gives the same results.
    Exact,
    /// For training on other data: the head stays random if the number of classes differs, and the
    /// position and patch embeddings are adapted.
    Adapted,
}

impl Weights {
    /// Sets all parameters of `model`; changes nothing if it returns an error.
    pub(crate) fn load_into(&self, model: &VisionTransformer, fit: Fit) -> Result<(), WeightsError> {
        let values = self.fit(model, fit)?;
        tch::no_grad(|| {
            for (parameter, value) in model.parameters().iter().zip(values) {
                if let Some(value) = value {
                    parameter.tensor.shallow_clone().copy_(&value);
                }
            }
        });
        Ok(())
    }

    /// The value for each parameter of `model`, in their order; `None` if the random values stay.
    pub(crate) fn fit(
        &self,
        model: &VisionTransformer,
        fit: Fit,
    ) -> Result<Vec<Option<Tensor>>, WeightsError> {
        let fitter = Fitter {
            file: self,
            model,
            fit,
        };
        let head_is_kept = fitter.keeps_random_head()?;
        let value = |parameter: &Parameter| {
            let mut heads = HEAD.iter().chain(&DISTILLED_HEAD);
            let is_kept = head_is_kept && heads.any(|name| *name == parameter.name);
            (!is_kept).then(|| fitter.value(parameter)).transpose()
        };
        let values = model.parameters().iter().map(value).collect::<Result<_, _>>()?;
        self.refuse_others(model)?;
        self.refuse_other_heads(model)?;
        Ok(values)
    }

    fn refuse_other_heads(&self, model: &VisionTransformer) -> Result<(), WeightsError> {
        let expected = model.config().heads;
        match self.heads {
            Some(found) if found != expected => Err(WeightsError::Heads {
                path: self.path.clone(),
                found,
                expected,
            }),
            _ => Ok(()),
        }
    }

    fn refuse_others(&self, model: &VisionTransformer) -> Result<(), WeightsError> {
        let known = |name: &str| model.parameters().iter().any(|parameter| parameter.name == name);
        // Biases of zero change nothing: DINOv3's have no effect in most sizes.
        let is_zero = |name: &str, tensor: &Tensor| {
            let is_bias = name.ends_with("attn.q_bias") || name.ends_with("attn.v_bias");
            is_bias && tensor.count_nonzero(None::<i64>).int64_value(&[]) == 0
        };
        let mut others = self.tensors.iter().filter(|(name, _)| !known(name));
        match others.find(|(name, tensor)| !is_zero(name, tensor)) {
            None => Ok(()),
            Some((name, tensor)) => Err(WeightsError::Unexpected {
                path: self.path.clone(),
                name: name.clone(),
                found: tensor.size(),
                hint: hint(name),
            }),
        }
    }
}

struct Fitter<'a> {
    file: &'a Weights,
    model: &'a VisionTransformer,
    fit: Fit,
}

impl Fitter<'_> {
    /// Whether the head stays random: the file has none, or one for other classes.
    fn keeps_random_head(&self) -> Result<bool, WeightsError> {
        let expected = i64::from(self.model.config().num_classes);
        let path = self.file.path.display();
        if self.fit == Fit::Exact {
            return Ok(false);
        }
        let [Some(weight), Some(_)] = HEAD.map(|name| self.file.tensors.get(name)) else {
            if let Some(name) = HEAD.iter().find(|name| self.file.tensors.contains_key(**name)) {
                let other = if *name == HEAD[0] { HEAD[1] } else { HEAD[0] };
                return Err(self.missing(other, vec![expected]));
            }
            tracing::info!("{path} has no head: the head for {expected} classes starts at random weights");
            return Ok(true);
        };
        let found = weight.size().first().copied().unwrap_or(0);
        if found == expected {
            return Ok(false);
        }
        tracing::info!(
            "{path} is for {found} classes: the head for {expected} classes starts at random weights"
        );
        Ok(true)
    }

    fn value(&self, parameter: &Parameter) -> Result<Tensor, WeightsError> {
        let (name, expected) = (parameter.name.as_str(), parameter.shape.clone());
        let Some(tensor) = self.file.tensors.get(name) else {
            return Err(self.missing(name, expected));
        };
        let found = tensor.size();
        if found == expected {
            return Ok(tensor.shallow_clone());
        }
        let adapted = match (self.fit, name) {
            (Fit::Adapted, PATCH_WEIGHT) => other_channels(tensor, &expected),
            (Fit::Adapted, POSITION) => resized(tensor, &expected, self.model.embedding().position_prefix()),
            _ => None,
        };
        let Some(adapted) = adapted else {
            return Err(WeightsError::Shape {
                path: self.file.path.clone(),
                name: name.into(),
                found,
                expected,
                hint: hint(name),
            });
        };
        tracing::info!(
            "{}: {name} of shape {found:?} is adapted to {expected:?}",
            self.file.path.display()
        );
        Ok(adapted)
    }

    fn missing(&self, name: &str, expected: Vec<i64>) -> WeightsError {
        let path = self.file.path.clone();
        let mut names = self.file.tensors.keys();
        if let Some(prefix) = names.find_map(|found| found.strip_suffix(name)?.strip_suffix('.')) {
            return WeightsError::Prefixed {
                path,
                name: name.into(),
                prefix: format!("{prefix}."),
            };
        }
        let first = self.file.tensors.keys().next();
        if let Some(found) = first.filter(|_| !self.file.tensors.contains_key(PATCH_WEIGHT)) {
            return WeightsError::Layout {
                path,
                name: found.clone(),
            };
        }
        WeightsError::Missing {
            path: self.file.path.clone(),
            name: name.into(),
            expected,
            hint: hint(name),
        }
    }
}

/// The fix for a tensor that does not fit.
fn hint(name: &str) -> &'static str {
    match name {
        "cls_token" => ": it exists with model.pooling token, and in DINOv3 (model.name)",
        "norm.weight" | "norm.bias" => {
            ": with model.pooling average it is called fc_norm, but in models with gap or dinov3 in model.name"
        }
        "fc_norm.weight" | "fc_norm.bias" => {
            ": with model.pooling token, and with gap or dinov3 in model.name, it is called norm"
        }
        "dist_token" | "head_dist.weight" | "head_dist.bias" => {
            ": see model.name, such as deit_base_distilled_patch16_224"
        }
        "norm_pre.weight" | "norm_pre.bias" => ": see model.name, such as vit_base_patch16_clip_224",
        name if name.starts_with("attn_pool.") => {
            ": see model.pooling and model.name, such as vit_base_patch16_siglip_224"
        }
        "reg_token" => ": see model.registerTokens",
        "head.weight" | "head.bias" => ": see model.numClasses and model.hiddenSize",
        PATCH_WEIGHT => ": see model.hiddenSize, model.channels and model.patchSize",
        POSITION => {
            ": see model.imageSize, model.patchSize and model.pooling; it covers the class token too, except with register tokens, and in DeiT III (model.name)"
        }
        name if name.ends_with("qkv.bias") || name.ends_with("q_bias") || name.ends_with("v_bias") => {
            ": see model.hiddenSize and model.name; of DINOv3's models, those with qkvb have it, of queries and values"
        }
        name if name.contains(".mlp.fc1_") => {
            ": its MLP is gated; see model.name, such as vit_small_plus_patch16_dinov3"
        }
        name if name.contains(".ls") => ": see model.layerScale",
        name if name.contains("attn.q_norm") || name.contains("attn.k_norm") => {
            ": norms of queries and keys (timm's qk_norm) are not supported"
        }
        name if name.starts_with("blocks.") => ": see model.hiddenSize, model.mlpSize and model.depth",
        _ => "",
    }
}

/// The patch embedding's weight for another number of channels, as in timm's `adapt_input_conv`.
/// One channel gets the sum; more get the three in turn, scaled to keep the size of activations.
fn other_channels(weight: &Tensor, expected: &[i64]) -> Option<Tensor> {
    let [out, channels, height, width] = expected else {
        return None;
    };
    if weight.size() != [*out, COLORS, *height, *width] {
        return None;
    }
    if *channels == 1 {
        return Some(weight.sum_dim_intlist([1].as_slice(), true, Kind::Float));
    }
    let repeats = (channels + COLORS - 1) / COLORS;
    let repeated = weight.repeat([1, repeats, 1, 1]).narrow(1, 0, *channels);
    Some(repeated * (COLORS as f64 / *channels as f64))
}

/// The position embedding for another number of patches, as in timm's `resample_abs_pos_embed`:
/// bicubic with antialiasing; the first `prefix` positions stay.
fn resized(position: &Tensor, expected: &[i64], prefix: i64) -> Option<Tensor> {
    let [1, tokens, width] = position.size()[..] else {
        return None;
    };
    let old_side = side(tokens - prefix)?;
    let new_side = side(expected[1] - prefix)?;
    if width != expected[2] {
        return None;
    }
    let grid_1dhw = position
        .narrow(1, prefix, tokens - prefix)
        .reshape([1, old_side, old_side, width])
        .permute([0, 3, 1, 2])
        .contiguous();
    let patches = grid_1dhw
        .internal_upsample_bicubic2d_aa([new_side, new_side], false, None, None)
        .permute([0, 2, 3, 1])
        .reshape([1, new_side * new_side, width]);
    Some(Tensor::cat(&[position.narrow(1, 0, prefix), patches], 1))
}

/// The side of a square of this many patches.
pub(super) fn side(patches: i64) -> Option<i64> {
    let side = (patches.max(0) as f64).sqrt().round() as i64;
    (patches > 0 && side * side == patches).then_some(side)
}
