//! Optimizers over all parameters at once: a few libtorch calls per step for any model.
//!
//! Weights here are always in 32 bits: the model's own, or the masters of a model in half precision
//! (see [`crate::precision`]). Weights and state are this rank's part if they are sharded (see
//! [`crate::parallel`]).
//!
//! An offloaded optimizer (ZeRO-Offload, arXiv 2101.06840) runs on the CPU, with weights and state
//! in host memory. Gradients are copied there after the backward pass, without overlap.

mod ema;
mod gate;
mod groups;
mod strategy;

use contract::Training;
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
    /// Host buffers for gradients in 32 bits, if the optimizer is offloaded.
    gradients: Option<Vec<Tensor>>,
}

impl Optimizer {
    pub(crate) fn new(
        training: &Training,
        parameters: &Parameters,
        weights: &TrainedWeights,
    ) -> Result<Self, TrainError> {
        let strategy = Strategy(training.optimizer);
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

    /// The global norm to which the optimizer itself limits gradients, in any configuration.
    pub(crate) fn gradient_norm_limit(&self) -> Option<f64> {
        self.strategy.gradient_norm_limit()
    }

    /// One step with `gradients`, in the order of the model's parameters, if the `gate` is open.
    /// They are in 32 bits, or in any kind if it is offloaded. `update` counts such steps including
    /// this one: a float scalar on the device. With sharded weights, each of `ranks` calls this.
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

    /// The state under PyTorch's names, for example `exp_avg.<parameter>`.
    pub(crate) fn state(&self) -> Vec<StateTensor> {
        self.groups
            .iter()
            .flat_map(|group| group.state(self.strategy.state_names()))
            .collect()
    }
}

#[cfg(test)]
mod tests;
