//! Update rules of the optimizers.

use contract::OptimizerKind;
use tch::Tensor;
use torch_ext::optim::{AdamNumbers, Gate, SgdNumbers, fused_adamw, fused_sgd, lamb};
use torch_ext::{Error, ProcessGroup};

use super::groups::Group;

/// LAMB's `max_grad_norm` in timm.
const LAMB_GRADIENT_NORM: f64 = 1.0;

/// An optimizer and its parameters.
#[derive(Clone, Copy, Debug)]
pub(super) struct Strategy(pub(super) OptimizerKind);

impl Strategy {
    /// PyTorch's names of the kinds of state.
    pub(super) fn state_names(&self) -> &'static [&'static str] {
        match self.0 {
            OptimizerKind::Adamw { .. } | OptimizerKind::Lamb { .. } => &["exp_avg", "exp_avg_sq"],
            OptimizerKind::Sgd { momentum, .. } if momentum > 0.0 => &["momentum_buffer"],
            OptimizerKind::Sgd { .. } => &[],
        }
    }

    /// The global norm to which gradients are scaled down before the step.
    pub(super) fn gradient_norm_limit(&self) -> Option<f64> {
        matches!(self.0, OptimizerKind::Lamb { .. }).then_some(LAMB_GRADIENT_NORM)
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
        let adam = |betas, epsilon| AdamNumbers {
            learning_rate,
            betas,
            weight_decay,
            epsilon,
        };
        match self.0 {
            OptimizerKind::Adamw { betas, epsilon } => {
                let numbers = adam(betas, epsilon);
                fused_adamw(weights, &gradients, moments(group), update, gate, numbers)
            }
            OptimizerKind::Sgd { momentum, nesterov } => {
                let buffers = group.state.first().map_or(&[][..], Vec::as_slice);
                let numbers = SgdNumbers {
                    learning_rate,
                    momentum,
                    weight_decay,
                    nesterov,
                };
                fused_sgd(weights, &gradients, buffers, gate, numbers)
            }
            OptimizerKind::Lamb { betas, epsilon } => {
                let numbers = adam(betas, epsilon);
                let (moments, sizes) = (moments(group), (&group.sizes, ranks));
                lamb(weights, &gradients, moments, sizes, update, gate, numbers)
            }
        }
    }
}

fn moments(group: &Group) -> [&[Tensor]; 2] {
    [&group.state[0], &group.state[1]]
}
