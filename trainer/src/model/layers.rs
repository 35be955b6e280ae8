//! The layers of a block.

use contract::architecture::{LinearSpec, NormSpec};
use tch::{Kind, Tensor};

use super::parameters::Parameters;
use crate::error::TrainError;
use torch_ext::Collectives;
use torch_ext::recompute::{gelu_linear, norm_linear};

#[derive(Debug)]
pub(super) struct Linear {
    weight: Tensor,
    bias: Option<Tensor>,
}

#[derive(Debug)]
pub(super) struct LayerNorm {
    weight: Tensor,
    bias: Tensor,
    epsilon: f64,
}

impl Linear {
    /// Registers its parameters.
    pub(super) fn new(parameters: &mut Parameters, spec: &LinearSpec) -> Self {
        Self {
            weight: parameters.add(&spec.weight),
            bias: spec.bias.as_ref().map(|bias| parameters.add(bias)),
        }
    }

    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor, TrainError> {
        Ok(x.f_linear(&self.weight, self.bias.as_ref())?)
    }

    /// The output for patches, of a weight that is shaped like the equivalent convolution's.
    pub(super) fn forward_patches(&self, patches: &Tensor) -> Result<Tensor, TrainError> {
        Ok(patches.f_linear(&self.weight.f_flatten(1, -1)?, self.bias.as_ref())?)
    }

    pub(super) fn kind(&self) -> Kind {
        self.weight.kind()
    }

    /// The output for `x`, whose last dimension is divided among `ranks`.
    pub(super) fn forward_parts(&self, x: &Tensor, ranks: &Collectives) -> Result<Tensor, TrainError> {
        let part = x.f_linear(&self.weight, None::<&Tensor>)?;
        let whole = ranks.sum_of_parts(&part)?;
        Ok(match &self.bias {
            Some(bias) => whole.f_add(bias)?,
            None => whole,
        })
    }

    /// The output for `gelu(x)`, which the backward pass recomputes.
    pub(super) fn forward_gelu(&self, x: &Tensor) -> Result<Tensor, TrainError> {
        Ok(gelu_linear(x, &self.weight, &self.bias_or_zeros()?)?)
    }

    /// The output for `norm(x)`, which the backward pass recomputes.
    pub(super) fn forward_normed(&self, norm: &LayerNorm, x: &Tensor) -> Result<Tensor, TrainError> {
        let (weights, bias) = ([&norm.weight, &norm.bias], self.bias_or_zeros()?);
        Ok(norm_linear(x, weights, [&self.weight, &bias], norm.epsilon)?)
    }

    fn bias_or_zeros(&self) -> Result<Tensor, TrainError> {
        Ok(match &self.bias {
            Some(bias) => bias.shallow_clone(),
            None => Tensor::f_zeros([self.weight.size()[0]], (self.kind(), self.weight.device()))?,
        })
    }

    pub(super) fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        std::iter::once(&self.weight).chain(&self.bias)
    }

    pub(super) fn shallow_clone(&self) -> Self {
        Self {
            weight: self.weight.shallow_clone(),
            bias: self.bias.as_ref().map(Tensor::shallow_clone),
        }
    }
}

impl LayerNorm {
    /// Registers its parameters.
    pub(super) fn new(parameters: &mut Parameters, spec: &NormSpec) -> Self {
        Self {
            weight: parameters.add(&spec.weight),
            bias: parameters.add(&spec.bias),
            epsilon: spec.epsilon,
        }
    }

    pub(super) fn tensors(&self) -> [&Tensor; 2] {
        [&self.weight, &self.bias]
    }

    pub(super) fn shallow_clone(&self) -> Self {
        let [weight, bias] = self.tensors().map(Tensor::shallow_clone);
        Self {
            weight,
            bias,
            epsilon: self.epsilon,
        }
    }

    /// Statistics are in single precision, even for half-precision values.
    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor, TrainError> {
        let shape = self.weight.size();
        Ok(x.f_layer_norm(shape, Some(&self.weight), Some(&self.bias), self.epsilon, true)?)
    }
}
