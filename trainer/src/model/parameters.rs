//! The trained tensors of a model, under timm's names.

use std::ops::Range;

use tch::{Device, Kind, TchError, Tensor};
use torch_ext::Member;

use super::split::Split;

#[derive(Debug)]
pub(crate) struct Parameter {
    /// The part of the model that uses it: 0 is the embedding, then come the blocks, and what is after them is the last.
    pub(crate) unit: usize,
    /// timm's name, for example `blocks.0.attn.qkv.weight`.
    pub(crate) name: String,
    /// The values, once they are drawn; shared with the layer that uses them. Where ranks divide the model's heads, this rank's.
    pub(crate) tensor: Tensor,
    /// Where the values come from.
    initial: Initial,
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

/// The distribution of a parameter's first values.
#[derive(Clone, Copy, Debug)]
pub(super) enum Initial {
    Constant(f64),
    /// A normal distribution of standard deviation 0.02, cut off at ±2 as timm's `trunc_normal_(std=.02)`. The cut lies at 100
    /// standard deviations, so clamping gives the same distribution as sampling again.
    TruncatedNormal,
    /// The uniform distribution that PyTorch gives to the weights and biases of a convolution with so many inputs.
    UniformFanIn(i64),
    /// Almost zero, as timm's for tokens that are learned.
    Token,
}

impl Initial {
    fn draw(self, shape: &[i64], device: Device) -> Tensor {
        let options = (Kind::Float, device);
        match self {
            Self::Constant(value) => Tensor::full(shape, value, options),
            Self::TruncatedNormal => (Tensor::randn(shape, options) * 0.02).clamp(-2.0, 2.0),
            Self::UniformFanIn(fan_in) => {
                let bound = 1.0 / (fan_in as f64).sqrt();
                (Tensor::rand(shape, options) * 2.0 - 1.0) * bound
            }
            Self::Token => Tensor::randn(shape, options) * 1e-6,
        }
    }
}

/// Lets a seed determine the values that are drawn from now on: those of all units in their order.
pub(crate) fn seed_values(seed: u64) {
    tch::manual_seed(seed.cast_signed());
}

/// All trained tensors of a model in the order in which the forward pass uses them, which is the same on every rank.
///
/// They have no values, and take no memory, until those are drawn: unit by unit, so that what is divided among ranks is never
/// whole on one of them.
#[derive(Debug)]
pub(crate) struct Parameters {
    list: Vec<Parameter>,
    device: Device,
    /// Of those that come next.
    unit: usize,
}

impl Parameters {
    pub(super) fn new(device: Device) -> Self {
        Self {
            list: Vec::new(),
            device,
            unit: 0,
        }
    }

    /// What is added from now on belongs to the next unit.
    pub(super) fn begin_unit(&mut self) {
        self.unit += 1;
    }

    /// Registers a trained tensor and gives the layer's handle to it.
    pub(super) fn add(&mut self, name: String, shape: &[i64], initial: Initial, split: Split) -> Tensor {
        // One value in the place of all.
        let nothing = Tensor::zeros([], (Kind::Float, self.device)).expand(shape, false);
        let tensor = nothing.set_requires_grad(true);
        let decays = shape.len() > 1 && !["cls_token", "reg_token", "pos_embed"].contains(&name.as_str());
        let handle = tensor.shallow_clone();
        self.list.push(Parameter {
            unit: self.unit,
            name,
            shape: shape.to_vec(),
            initial,
            split,
            split_ranks: 1,
            tensor,
            decays,
        });
        handle
    }

    pub(crate) fn units(&self) -> usize {
        self.unit + 1
    }

    /// The places of a unit's parameters.
    fn places_of(&self, unit: usize) -> Range<usize> {
        let start = self.list.partition_point(|parameter| parameter.unit < unit);
        start..self.list.partition_point(|parameter| parameter.unit <= unit)
    }

    /// Draws the values of a unit, whole and in 32 bits.
    pub(crate) fn draw(&self, unit: usize) {
        for parameter in &self.list[self.places_of(unit)] {
            let values = parameter.initial.draw(&parameter.shape, self.device);
            // The layers' handles are to the same tensor, whose values are replaced.
            parameter.tensor.shallow_clone().set_data(&values);
        }
    }

    /// Leaves of each parameter of a unit what this one of the ranks has that divide the model's heads.
    pub(crate) fn split_among(&mut self, unit: usize, ranks: Member) -> Result<(), TchError> {
        let places = self.places_of(unit);
        for parameter in &mut self.list[places] {
            parameter.split_ranks = ranks.size;
            if parameter.split != Split::Whole {
                let own = tch::no_grad(|| parameter.split.take(&parameter.tensor, ranks))?;
                parameter.tensor.set_data(&own);
            }
        }
        Ok(())
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Parameter> {
        self.list.iter()
    }

    /// Those of a unit.
    pub(crate) fn of_unit(&self, unit: usize) -> &[Parameter] {
        &self.list[self.places_of(unit)]
    }

    pub(crate) fn tensors(&self) -> Vec<Tensor> {
        self.list
            .iter()
            .map(|parameter| parameter.tensor.shallow_clone())
            .collect()
    }
}
