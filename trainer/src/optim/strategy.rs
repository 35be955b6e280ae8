//! Update rules of the optimizers.

use contract::{Optimizer, OptimizerName};
use tch::Tensor;
use torch_ext::optim::{AdamNumbers, Gate, SgdNumbers, fused_adamw, fused_sgd, lamb};
use torch_ext::{Error, ProcessGroup};

use super::groups::Group;

/// LAMB's `max_grad_norm` in timm.
const LAMB_GRADIENT_NORM: f64 = 1.0;

/// An optimizer and its parameters.
#[derive(Clone, Copy, Debug)]
pub(super) struct Strategy(pub(super) Optimizer);

impl Strategy {
    /// PyTorch's names of the kinds of state.
    pub(super) fn state_names(&self) -> &'static [&'static str] {
        match self.0.name {
            OptimizerName::Adamw | OptimizerName::Lamb => &["exp_avg", "exp_avg_sq"],
            OptimizerName::Sgd if self.0.momentum() > 0.0 => &["momentum_buffer"],
            OptimizerName::Sgd => &[],
        }
    }

    /// The global norm to which gradients are scaled down before the step.
    pub(super) fn gradient_norm_limit(&self) -> Option<f64> {
        (self.0.name == OptimizerName::Lamb).then_some(LAMB_GRADIENT_NORM)
    }

    /// Updates a group's weights and state if the `gate` is open; `update` is a float scalar, 1 for
    /// the first step. With sharded weights, each of `ranks` calls this.
    pub(super) fn step(
        &self,
        group: &Group,
        gradients: &[Tensor],
        learning_rate: f64,
        (update, gate): (&Tensor, &Gate),
        ranks: Option<&ProcessGroup>,
    ) -> Result<(), Error> {
        let weights = &group.weights;
        let gradients = group.own(gradients);
        let learning_rate = learning_rate * group.members.learning_rate_scale;
        let weight_decay = group.members.weight_decay;
        let adam = AdamNumbers {
            learning_rate,
            betas: self.0.betas(),
            weight_decay,
            epsilon: self.0.epsilon(),
        };
        match self.0.name {
            OptimizerName::Adamw => fused_adamw(weights, &gradients, moments(group), update, gate, adam),
            OptimizerName::Sgd => {
                let buffers = group.state.first().map_or(&[][..], Vec::as_slice);
                let numbers = SgdNumbers {
                    learning_rate,
                    momentum: self.0.momentum(),
                    weight_decay,
                    nesterov: self.0.nesterov(),
                };
                fused_sgd(weights, &gradients, buffers, gate, numbers)
            }
            OptimizerName::Lamb => {
                let (moments, sizes) = (moments(group), (&group.sizes, ranks));
                lamb(weights, &gradients, moments, sizes, update, gate, adam)
            }
        }
    }
}

fn moments(group: &Group) -> [&[Tensor]; 2] {
    [&group.state[0], &group.state[1]]
}
