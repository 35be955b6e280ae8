//! The layers of a block.

use tch::Tensor;

use super::parameters::{Initial, Parameters};
use super::split::Split;
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
    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor, TrainError> {
        Ok(x.f_linear(&self.weight, Some(&self.bias))?)
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

/// Creates layers and registers their parameters.
pub(super) struct Builder(pub(super) Parameters);

impl Builder {
    pub(super) fn linear(&mut self, name: &str, input: i64, output: i64, split: Split) -> Linear {
        // If ranks divide the inputs of a layer, every rank sums all outputs.
        let split_of_bias = match split {
            Split::Columns => Split::Whole,
            other => other,
        };
        let mut add = |part: &str, shape: &[i64], initial, split| {
            self.0.add(format!("{name}.{part}"), shape, initial, split)
        };
        Linear {
            weight: add("weight", &[output, input], Initial::TruncatedNormal, split),
            bias: add("bias", &[output], Initial::Constant(0.0), split_of_bias),
        }
    }

    pub(super) fn layer_norm(&mut self, name: &str, size: i64) -> LayerNorm {
        let mut constant =
            |part: &str, value| self.whole(&format!("{name}.{part}"), &[size], Initial::Constant(value));
        LayerNorm {
            weight: constant("weight", 1.0),
            bias: constant("bias", 0.0),
        }
    }

    /// A parameter that ranks never divide.
    pub(super) fn whole(&mut self, name: &str, shape: &[i64], initial: Initial) -> Tensor {
        self.0.add(name.into(), shape, initial, Split::Whole)
    }
}
