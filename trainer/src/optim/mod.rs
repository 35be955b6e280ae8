//! Optimizers over all parameters at once: a few calls into libtorch a step, however many parameters there are.
//!
//! Weights here are always in 32 bits: the model's own, or the masters of a model in half precision
//! (see [`crate::precision`]). They, and the state, are this rank's part where they are divided among ranks (see
//! [`crate::parallel`]).
//!
//! Where the optimizer is offloaded (ZeRO-Offload, arXiv 2101.06840), weights and state are in host memory, and its kernels run
//! on the host's processors. Gradients come there after the backward pass, at the start of the step: nothing is overlapped.

mod ema;
mod gate;
mod groups;
mod strategy;

use contract::TrainingConfig;
use tch::Tensor;
use torch_ext::optim::{Gate, copy};
use torch_ext::{Error, ProcessGroup};

use crate::error::TrainError;
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
    /// Room in host memory for gradients in 32 bits, where the optimizer is there and they are not.
    gradients: Option<Vec<Tensor>>,
}

impl Optimizer {
    pub(crate) fn new(
        training: &TrainingConfig,
        parameters: &Parameters,
        weights: &TrainedWeights,
    ) -> Result<Self, TrainError> {
        let strategy = Strategy::new(&training.optimizer);
        let groups = groups::split(training, parameters)
            .into_iter()
            .map(|members| Group::new(members, weights, strategy.state_names()))
            .collect();
        Ok(Self {
            strategy,
            groups,
            gradients: weights.room_for_gradients()?,
        })
    }

    /// The global norm above which the optimizer itself scales gradients down, whatever the configuration says.
    pub(crate) fn gradient_norm_limit(&self) -> Option<f64> {
        self.strategy.gradient_norm_limit()
    }

    /// One step with `gradients`, in the order of the model's parameters and in 32 bits, in any kind where it is offloaded,
    /// where the `gate` lets it through. `update` counts such steps, this one too: a float scalar on the device. Where weights
    /// are divided among `ranks`, each of them calls this.
    pub(crate) fn step(
        &self,
        gradients: &[Tensor],
        learning_rate: f64,
        (update, gate): (&Tensor, &Gate),
        ranks: Option<&ProcessGroup>,
    ) -> Result<(), Error> {
        let gradients = match &self.gradients {
            Some(room) => {
                copy(room, gradients)?;
                room
            }
            None => gradients,
        };
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
