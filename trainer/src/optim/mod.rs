//! Optimizers over all parameters at once: a few calls into libtorch a step, however many parameters there are.
//!
//! Weights here are always in 32 bits: the model's own, or the masters of a model in half precision
//! (see [`crate::precision`]).

mod ema;
mod gate;
mod groups;
mod strategy;

use contract::TrainingConfig;
use tch::Tensor;
use torch_ext::Error;
use torch_ext::optim::Gate;

use crate::model::Parameters;
use crate::precision::TrainedWeights;
use groups::Group;
use strategy::Strategy;

pub(crate) use ema::Average;
pub(crate) use gate::gate;

#[derive(Debug)]
pub(crate) struct Optimizer {
    strategy: Strategy,
    groups: Vec<Group>,
}

impl Optimizer {
    pub(crate) fn new(training: &TrainingConfig, parameters: &Parameters, weights: &TrainedWeights) -> Self {
        let strategy = Strategy::new(&training.optimizer);
        let groups = groups::split(training, parameters)
            .into_iter()
            .map(|members| Group::new(members, weights, strategy.state_names()))
            .collect();
        Self { strategy, groups }
    }

    /// The global norm above which the optimizer itself scales gradients down, whatever the configuration says.
    pub(crate) fn gradient_norm_limit(&self) -> Option<f64> {
        self.strategy.gradient_norm_limit()
    }

    /// One step with `gradients` in 32 bits, in the order of the model's parameters, where the `gate` lets it through.
    /// `update` counts such steps, this one too: a float scalar on the weights' device.
    pub(crate) fn step(
        &self,
        gradients: &[Tensor],
        learning_rate: f64,
        update: &Tensor,
        gate: &Gate,
    ) -> Result<(), Error> {
        for group in &self.groups {
            self.strategy
                .step(group, gradients, learning_rate, update, gate)?;
        }
        Ok(())
    }

    /// The state under the names that PyTorch gives to it, for example `exp_avg.<parameter>`, with handles to the live
    /// tensors.
    pub(crate) fn state(&self) -> Vec<(String, Tensor)> {
        self.groups
            .iter()
            .flat_map(|group| group.state(self.strategy.state_names()))
            .collect()
    }
}

#[cfg(test)]
mod tests;
