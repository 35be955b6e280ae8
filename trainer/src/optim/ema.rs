//! The exponential moving average of the weights.

use contract::Ema;
use tch::Tensor;
use torch_ext::Error;
use torch_ext::optim::lerp;

use crate::parallel::TrainedWeights;

/// Power of the decay's warm-up in timm's `ModelEmaV3`.
const WARMUP_POWER: f64 = -2.0 / 3.0;

/// The average of weights in 32 bits, sharded like them, by the rule of timm's `ModelEmaV3`.
#[derive(Debug)]
pub(crate) struct Average {
    settings: Ema,
    weights: Vec<Tensor>,
}

impl Average {
    /// An empty average, which [`Average::update`] starts.
    pub(crate) fn new(settings: Ema, weights: &TrainedWeights) -> Self {
        Self {
            settings,
            weights: weights.masters().iter().map(Tensor::zeros_like).collect(),
        }
    }

    /// Adds the weights after step number `step`, 1 for the first. As in timm, skipped fp16 steps
    /// count too.
    pub(crate) fn update(&self, weights: &TrainedWeights, step: u64) -> Result<(), Error> {
        lerp(&self.weights, weights.masters(), 1.0 - self.decay(step))
    }

    /// Share of the average that stays; the first step replaces all of it.
    pub(super) fn decay(&self, step: u64) -> f64 {
        let earlier = step.saturating_sub(1);
        let Ema { decay, warmup } = self.settings;
        match earlier {
            0 => 0.0,
            _ if warmup => decay.min(1.0 - (1.0 + earlier as f64).powf(WARMUP_POWER)),
            _ => decay,
        }
    }

    /// In the order of the model's parameters.
    pub(crate) fn weights(&self) -> &[Tensor] {
        &self.weights
    }
}
