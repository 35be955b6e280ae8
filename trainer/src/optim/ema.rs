//! The exponential moving average of the weights.

use contract::{Ema, ModelConfig};
use tch::{Device, Tensor};
use torch_ext::Error;
use torch_ext::optim::lerp;

use crate::model::VisionTransformer;
use crate::precision::TrainedWeights;

/// Power of the decay's warm-up in timm's `ModelEmaV3`.
const WARMUP_POWER: f64 = -2.0 / 3.0;

/// A model whose weights are the average, in 32 bits; the rule is that of timm's `ModelEmaV3`.
#[derive(Debug)]
pub(crate) struct Average {
    settings: Ema,
    model: VisionTransformer,
    weights: Vec<Tensor>,
}

impl Average {
    /// An average of weights to come: [`Average::update`] starts it.
    pub(crate) fn new(settings: Ema, config: &ModelConfig, device: Device) -> Self {
        let model = VisionTransformer::new(config, 0, device);
        Self {
            settings,
            weights: model.parameters().tensors(),
            model,
        }
    }

    /// Takes in the weights after step number `step`, 1 for the first. As in timm, that is every step, also one that changed
    /// nothing because gradients overflowed fp16.
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

    pub(crate) fn model(&self) -> &VisionTransformer {
        &self.model
    }

    /// The averaged weights under the model's names, with handles to the live tensors.
    pub(crate) fn named(&self) -> Vec<(String, Tensor)> {
        self.model
            .parameters()
            .iter()
            .map(|parameter| (parameter.name.clone(), parameter.tensor.shallow_clone()))
            .collect()
    }
}
