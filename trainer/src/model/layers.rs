//! The layers of a block.

use contract::architecture::{LinearSpec, NormSpec};
use tch::{Kind, Tensor};

use super::parameters::Parameters;
use crate::error::TrainError;
use torch_ext::Collectives;
use torch_ext::recompute::{gelu_linear, norm_linear};

/// As in timm and torchvision; PyTorch's default is larger.
const NORM_EPSILON: f64 = 1e-6;

#[derive(Debug)]
pub(super) struct Linear {
    weight: Tensor,
    bias: Tensor,
}

#[derive(Debug)]
pub(super) struct LayerNorm {
    weight: Tensor,
    bias: Tensor,
}

impl Linear {
    /// Registers its parameters.
    pub(super) fn new(parameters: &mut Parameters, spec: &LinearSpec) -> Self {
        Self {
            weight: parameters.add(&spec.weight),
            bias: parameters.add(&spec.bias),
        }
    }

    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor, TrainError> {
        Ok(x.f_linear(&self.weight, Some(&self.bias))?)
    }

    /// The output for patches, of a weight that is shaped like the equivalent convolution's.
    pub(super) fn forward_patches(&self, patches: &Tensor) -> Result<Tensor, TrainError> {
        Ok(patches.f_linear(&self.weight.f_flatten(1, -1)?, Some(&self.bias))?)
    }

    pub(super) fn kind(&self) -> Kind {
        self.weight.kind()
    }

    /// The output for `x`, whose last dimension is divided among `ranks`.
    pub(super) fn forward_parts(&self, x: &Tensor, ranks: &Collectives) -> Result<Tensor, TrainError> {
        let part = x.f_linear(&self.weight, None::<&Tensor>)?;
        Ok(ranks.sum_of_parts(&part)?.f_add(&self.bias)?)
    }

    /// The output for `gelu(x)`, which the backward pass recomputes.
    pub(super) fn forward_gelu(&self, x: &Tensor) -> Result<Tensor, TrainError> {
        Ok(gelu_linear(x, &self.weight, &self.bias)?)
    }

    /// The output for `norm(x)`, which the backward pass recomputes.
    pub(super) fn forward_normed(&self, norm: &LayerNorm, x: &Tensor) -> Result<Tensor, TrainError> {
        let norm = [&norm.weight, &norm.bias];
        Ok(norm_linear(x, norm, [&self.weight, &self.bias], NORM_EPSILON)?)
    }

    pub(super) fn tensors(&self) -> [&Tensor; 2] {
        [&self.weight, &self.bias]
    }

    pub(super) fn shallow_clone(&self) -> Self {
        let [weight, bias] = self.tensors().map(Tensor::shallow_clone);
        Self { weight, bias }
    }
}

impl LayerNorm {
    /// Registers its parameters.
    pub(super) fn new(parameters: &mut Parameters, spec: &NormSpec) -> Self {
        Self {
            weight: parameters.add(&spec.weight),
            bias: parameters.add(&spec.bias),
        }
    }

    pub(super) fn tensors(&self) -> [&Tensor; 2] {
        [&self.weight, &self.bias]
    }

    pub(super) fn shallow_clone(&self) -> Self {
        let [weight, bias] = self.tensors().map(Tensor::shallow_clone);
        Self { weight, bias }
    }

    /// Statistics are in single precision, even for half-precision values.
    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor, TrainError> {
        let shape = self.weight.size();
        Ok(x.f_layer_norm(shape, Some(&self.weight), Some(&self.bias), NORM_EPSILON, true)?)
    }
}
