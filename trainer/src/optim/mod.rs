//! Optimizers over all parameters at once: a few calls into libtorch a step, however many parameters there are.
//!
//! Weights here are always in 32 bits: the model's own, or the masters of a model in half precision
//! (see [`crate::precision`]). They, and the state, are this rank's part where they are divided among ranks (see
//! [`crate::parallel`]).

mod ema;
mod gate;
mod groups;
mod strategy;

use contract::TrainingConfig;
use tch::Tensor;
use torch_ext::optim::Gate;
use torch_ext::{Error, ProcessGroup};

use crate::model::Parameters;
use crate::parallel::{StateTensor, TrainedWeights};
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
    /// `update` counts such steps, this one too: a float scalar on the weights' device. Where weights are divided among
    /// `ranks`, each of them calls this.
    pub(crate) fn step(
        &self,
        gradients: &[Tensor],
        learning_rate: f64,
        (update, gate): (&Tensor, &Gate),
        ranks: Option<&ProcessGroup>,
    ) -> Result<(), Error> {
        for group in &self.groups {
            self.strategy
                .step(group, gradients, learning_rate, (update, gate), ranks)?;
        }
        Ok(())
    }

    /// The state under the names that PyTorch gives to it, for example `exp_avg.<parameter>`.
    pub(crate) fn state(&self) -> Vec<StateTensor> {
        self.groups
            .iter()
            .flat_map(|group| group.state(self.strategy.state_names()))
            .collect()
    }
}

#[cfg(test)]
mod tests;
