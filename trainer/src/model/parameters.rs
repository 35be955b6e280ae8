//! The trained tensors of a model, under timm's names.

use tch::{Kind, TchError, Tensor};
use torch_ext::Member;

use super::split::Split;

#[derive(Debug)]
pub(crate) struct Parameter {
    /// The part of the model that uses it: 0 is the embedding, then come the blocks, and what is after them is the last.
    pub(crate) unit: usize,
    /// timm's name, for example `blocks.0.attn.qkv.weight`.
    pub(crate) name: String,
    /// The values; shared with the layer that uses them. Where ranks divide the model's heads, this rank's.
    pub(crate) tensor: Tensor,
    /// Of all ranks' values.
    pub(crate) shape: Vec<i64>,
    /// How it is divided among ranks that divide the model's heads.
    pub(crate) split: Split,
    /// Those ranks.
    pub(crate) split_ranks: u32,
    /// Whether weight decay applies. As in timm not to vectors (biases, norms, layer scales) and not to the class token,
    /// the registers and the position embedding (`no_weight_decay` of timm's `VisionTransformer`).
    pub(crate) decays: bool,
}

/// All trained tensors of a model in the order in which the forward pass uses them, which is the same on every rank.
#[derive(Debug, Default)]
pub(crate) struct Parameters {
    list: Vec<Parameter>,
    /// Of those that come next.
    unit: usize,
}

impl Parameters {
    /// What is added from now on belongs to the next unit.
    pub(super) fn begin_unit(&mut self) {
        self.unit += 1;
    }

    /// Registers `values` as a trained tensor, which ranks may only have as a whole, and gives the layer's handle to it.
    pub(super) fn add(&mut self, name: String, values: Tensor) -> Tensor {
        self.add_split(name, values, Split::Whole)
    }

    /// Registers `values` as a trained tensor and gives the layer's handle to it.
    pub(super) fn add_split(&mut self, name: String, values: Tensor, split: Split) -> Tensor {
        let tensor = values.set_requires_grad(true);
        let decays = tensor.dim() > 1 && !["cls_token", "reg_token", "pos_embed"].contains(&name.as_str());
        let handle = tensor.shallow_clone();
        self.list.push(Parameter {
            unit: self.unit,
            name,
            shape: tensor.size(),
            split,
            split_ranks: 1,
            tensor,
            decays,
        });
        handle
    }

    /// Leaves of each parameter what this one of the ranks has that divide the model's heads.
    pub(super) fn split_among(&mut self, ranks: Member) -> Result<(), TchError> {
        for parameter in &mut self.list {
            parameter.split_ranks = ranks.size;
            if parameter.split != Split::Whole {
                let own = tch::no_grad(|| parameter.split.take(&parameter.tensor, ranks))?;
                // The layers' handles are to the same tensor, whose values are replaced.
                parameter.tensor.set_data(&own);
            }
        }
        Ok(())
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Parameter> {
        self.list.iter()
    }

    pub(crate) fn tensors(&self) -> Vec<Tensor> {
        self.list
            .iter()
            .map(|parameter| parameter.tensor.shallow_clone())
            .collect()
    }
}

/// A normal distribution of standard deviation 0.02, cut off at ±2 as timm's `trunc_normal_(std=.02)`. The cut lies
/// at 100 standard deviations, so clamping gives the same distribution as sampling again.
pub(super) fn truncated_normal(shape: &[i64], device: tch::Device) -> Tensor {
    (Tensor::randn(shape, (Kind::Float, device)) * 0.02).clamp(-2.0, 2.0)
}

/// The uniform distribution that PyTorch gives to the weights and biases of a convolution with `fan_in` inputs.
pub(super) fn uniform_fan_in(shape: &[i64], fan_in: i64, device: tch::Device) -> Tensor {
    let bound = 1.0 / (fan_in as f64).sqrt();
    (Tensor::rand(shape, (Kind::Float, device)) * 2.0 - 1.0) * bound
}
