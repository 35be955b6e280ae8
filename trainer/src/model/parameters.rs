//! The learned tensors of a model, under timm's names.

use std::ops::{Deref, Range};

use contract::ModelConfig;
use contract::architecture::{Initial, ParameterSpec, Split};
use tch::{Device, Kind, TchError, Tensor};
use torch_ext::Member;

use super::split::SplitTensor as _;

#[derive(Debug)]
pub(crate) struct Parameter {
    /// The part of the model that uses it: 0 is the embedding, then the blocks, then the rest.
    pub(crate) unit: usize,
    pub(crate) spec: ParameterSpec,
    /// The values, once drawn, shared with the layer; this rank's part if ranks divide heads.
    pub(crate) tensor: Tensor,
    /// Number of ranks that divide the model's heads.
    pub(crate) split_ranks: u32,
    /// Whether it is trained, or stays as it was.
    pub(crate) is_trained: bool,
}

impl Deref for Parameter {
    type Target = ParameterSpec;

    fn deref(&self) -> &ParameterSpec {
        &self.spec
    }
}

fn draw(spec: &ParameterSpec, device: Device) -> Tensor {
    let (shape, options) = (spec.shape.as_slice(), (Kind::Float, device));
    match spec.initial {
        Initial::Constant(value) => Tensor::full(shape, value, options),
        // At 100 deviations, clamping gives the same distribution as resampling.
        Initial::TruncatedNormal => (Tensor::randn(shape, options) * 0.02).clamp(-2.0, 2.0),
        Initial::UniformFanIn(fan_in) => {
            let bound = 1.0 / (fan_in as f64).sqrt();
            (Tensor::rand(shape, options) * 2.0 - 1.0) * bound
        }
        Initial::Token => Tensor::randn(shape, options) * 1e-6,
    }
}

/// Seeds the values drawn from now on, of all units in order.
pub(crate) fn seed_values(seed: u64) {
    tch::manual_seed(seed.cast_signed());
}

/// All learned tensors of a model in forward order, the same on every rank.
///
/// They have no values and no memory until drawn, unit by unit, so that sharded weights are never
/// whole on a rank.
#[derive(Debug)]
pub(crate) struct Parameters {
    list: Vec<Parameter>,
    config: ModelConfig,
    device: Device,
    /// The unit of the next parameters.
    unit: usize,
}

impl Parameters {
    pub(super) fn new(config: &ModelConfig, device: Device) -> Self {
        Self {
            list: Vec::new(),
            config: config.clone(),
            device,
            unit: 0,
        }
    }

    /// Starts the next unit.
    pub(super) fn begin_unit(&mut self) {
        self.unit += 1;
    }

    /// Registers a learned tensor and returns the layer's handle.
    pub(super) fn add(&mut self, spec: &ParameterSpec) -> Tensor {
        // One value stands for all.
        let nothing = Tensor::zeros([], (Kind::Float, self.device)).expand(&spec.shape, false);
        let is_trained = self.config.is_trained(self.unit as u32, &spec.name);
        let tensor = nothing.set_requires_grad(is_trained);
        let handle = tensor.shallow_clone();
        self.list.push(Parameter {
            unit: self.unit,
            spec: spec.clone(),
            split_ranks: 1,
            is_trained,
            tensor,
        });
        handle
    }

    /// The unit with the first trained parameters.
    pub(crate) fn first_trained_unit(&self) -> usize {
        self.config.first_trained_unit() as usize
    }

    pub(crate) fn units(&self) -> usize {
        self.unit + 1
    }

    /// The indices of a unit's parameters.
    fn places_of(&self, unit: usize) -> Range<usize> {
        let start = self.list.partition_point(|parameter| parameter.unit < unit);
        start..self.list.partition_point(|parameter| parameter.unit <= unit)
    }

    /// Draws the values of a unit, whole and in 32 bits.
    pub(crate) fn draw(&self, unit: usize) {
        for parameter in &self.list[self.places_of(unit)] {
            let values = draw(&parameter.spec, self.device);
            // The layers' handles are to the same tensor; its values are replaced.
            parameter.tensor.shallow_clone().set_data(&values);
        }
    }

    /// Reduces each parameter of a unit to the part of this one of the ranks that divide heads.
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

    /// The parameters of a unit.
    pub(crate) fn of_unit(&self, unit: usize) -> &[Parameter] {
        &self.list[self.places_of(unit)]
    }

    /// Those that are trained.
    pub(crate) fn trained(&self) -> impl Iterator<Item = &Parameter> {
        self.list.iter().filter(|parameter| parameter.is_trained)
    }

    /// Those that stay as they were.
    pub(crate) fn frozen(&self) -> impl Iterator<Item = &Parameter> {
        self.list.iter().filter(|parameter| !parameter.is_trained)
    }

    #[cfg(test)]
    pub(crate) fn tensors(&self) -> Vec<Tensor> {
        self.list
            .iter()
            .map(|parameter| parameter.tensor.shallow_clone())
            .collect()
    }
}
