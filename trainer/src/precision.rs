//! Number formats: what is in half precision, and what never is.
//!
//! | | fp32 | bf16, fp16 | with masterWeights |
//! |---|---|---|---|
//! | weights of the model | 32 bits | 32 bits | half; on the CPU those of norms in 32 bits |
//! | matrix products, attention | 32 bits; with tf32 a GPU rounds the inputs of products to 19 | half: weights are cast once a forward pass, inputs at each product | half |
//! | residual stream, outputs of norms | 32 bits | 32 bits, by PyTorch's autocast | half |
//! | GELU | 32 bits | half: its input is a product | half |
//! | statistics of norms | 32 bits | 32 bits | 32 bits |
//! | logits, loss, norm of gradients | 32 bits | 32 bits | 32 bits |
//! | gradients, and their reduction over ranks | 32 bits | 32 bits | that of the weight |
//! | optimizer: weights, gradients, moments | 32 bits | 32 bits | 32 bits: masters |
//! | average of weights, checkpoints | 32 bits | 32 bits | 32 bits |
//!
//! The norms' weights stay in 32 bits on the CPU because its kernel keeps the statistics in the format of the weights;
//! that of CUDA has them in 32 bits always, and wants one format for input and weights.

use contract::{AttentionBackend, TrainingConfig};
use tch::{Kind, Tensor};
use torch_ext::optim::copy;
use torch_ext::{Arithmetic, Error, autocast};

use crate::error::TrainError;
use crate::model::{Mode, Parameters, VisionTransformer};

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Precision {
    Full,
    /// Weights in 32 bits are cast where they are used.
    Autocast(Kind),
    Half(Kind),
}

impl Precision {
    /// Gives the number formats, and sets what libtorch has for the whole process: TF32, and the kernels of attention.
    pub(crate) fn begin(training: &TrainingConfig) -> Result<Self, Error> {
        Arithmetic::set(
            training.tf32,
            training.attention_backend == AttentionBackend::Cudnn,
        )?;
        let kind = match training.precision {
            contract::Precision::Fp32 => return Ok(Self::Full),
            contract::Precision::Bf16 => Kind::BFloat16,
            contract::Precision::Fp16 => Kind::Half,
        };
        Ok(if training.master_weights {
            Self::Half(kind)
        } else {
            Self::Autocast(kind)
        })
    }

    /// The precision for weights that are in 32 bits whatever those of the model are: an average of them.
    pub(crate) fn of_full_weights(self) -> Self {
        match self {
            Self::Half(kind) => Self::Autocast(kind),
            other => other,
        }
    }

    /// Logits BK in 32 bits of images BCHW in 32 bits.
    pub(crate) fn forward(
        self,
        model: &VisionTransformer,
        images_bchw: &Tensor,
        mode: Mode,
    ) -> Result<Tensor, TrainError> {
        let logits = match self {
            Self::Full | Self::Half(_) => model.forward(images_bchw, mode)?,
            Self::Autocast(kind) => autocast(images_bchw, kind, || model.forward(images_bchw, mode))??,
        };
        Ok(logits.to_kind(Kind::Float))
    }
}

/// A model's weights as it uses them, and as the optimizer changes them.
#[derive(Debug)]
pub(crate) struct TrainedWeights {
    names: Vec<String>,
    /// What the model computes with.
    model: Vec<Tensor>,
    /// In 32 bits. Where the model's are, the same tensors.
    masters: Vec<Tensor>,
    /// Places of those that are in half precision.
    halves: Vec<usize>,
    /// Room for gradients in 32 bits, one for each of `halves`.
    gradients: Vec<Tensor>,
}

impl TrainedWeights {
    /// Takes the weights of a model in 32 bits and, where `precision` says so, puts the model into half precision.
    pub(crate) fn new(parameters: &Parameters, precision: Precision) -> Self {
        let names: Vec<String> = parameters
            .iter()
            .map(|parameter| parameter.name.clone())
            .collect();
        let mut model = parameters.tensors();
        let masters: Vec<Tensor> = model.iter().map(Tensor::detach).collect();
        let mut halves = Vec::new();
        if let Precision::Half(kind) = precision {
            halves.extend((0..model.len()).filter(|index| !stays_full(&names[*index], &model[*index])));
            for index in &halves {
                // The layers' handles are to the same tensor, whose values are replaced.
                model[*index].set_data(&masters[*index].to_kind(kind));
            }
        }
        let gradients = halves.iter().map(|index| masters[*index].zeros_like()).collect();
        Self {
            names,
            model,
            masters,
            halves,
            gradients,
        }
    }

    /// What the model computes with, in the order of its parameters.
    pub(crate) fn model(&self) -> &[Tensor] {
        &self.model
    }

    /// The weights in 32 bits, in the same order.
    pub(crate) fn masters(&self) -> &[Tensor] {
        &self.masters
    }

    /// The weights in 32 bits under their names.
    pub(crate) fn named(&self) -> Vec<(String, Tensor)> {
        let masters = self.masters.iter().map(Tensor::shallow_clone);
        self.names.iter().cloned().zip(masters).collect()
    }

    /// The gradients as the backward pass leaves them.
    pub(crate) fn raw_gradients(&self) -> Vec<Tensor> {
        self.model.iter().map(Tensor::grad).collect()
    }

    /// The gradients in 32 bits.
    pub(crate) fn gradients(&self) -> Result<Vec<Tensor>, Error> {
        let mut gradients = self.raw_gradients();
        if !self.halves.is_empty() {
            let halves = self.halves_of(&gradients);
            copy(&self.gradients, &halves)?;
            for (index, full) in self.halves.iter().zip(&self.gradients) {
                gradients[*index] = full.shallow_clone();
            }
        }
        Ok(gradients)
    }

    /// Gives the model the masters' values, after they have changed.
    pub(crate) fn publish(&self) -> Result<(), Error> {
        if self.halves.is_empty() {
            return Ok(());
        }
        copy(&self.halves_of(&self.model), &self.halves_of(&self.masters))
    }

    /// Those tensors of a list whose weights are in half precision.
    fn halves_of(&self, list: &[Tensor]) -> Vec<Tensor> {
        let halves = self.halves.iter();
        halves.map(|index| list[*index].shallow_clone()).collect()
    }
}

/// Whether a weight is in 32 bits in a model in half precision.
fn stays_full(name: &str, tensor: &Tensor) -> bool {
    let is_of_norm = name
        .split('.')
        .any(|part| part.starts_with("norm") || part == "fc_norm");
    is_of_norm && tensor.device() == tch::Device::Cpu
}

#[cfg(test)]
mod tests {
    use contract::{ModelConfig, Pooling};
    use tch::Device;

    use super::*;
    use crate::model::DropSeed;
    use crate::model::fixtures::small;

    fn model(pooling: Pooling) -> VisionTransformer {
        let config = ModelConfig {
            register_tokens: 2,
            layer_scale: Some(0.5),
            ..small(pooling)
        };
        VisionTransformer::new(&config, 1, Device::Cpu)
    }

    const HALF: [Precision; 4] = [
        Precision::Autocast(Kind::BFloat16),
        Precision::Half(Kind::BFloat16),
        Precision::Autocast(Kind::Half),
        Precision::Half(Kind::Half),
    ];

    fn images() -> Tensor {
        tch::manual_seed(3);
        Tensor::randn([4, 3, 8, 8], (Kind::Float, Device::Cpu))
    }

    #[test]
    fn logits_and_gradients_of_half_precision_are_near_those_of_32_bits() {
        for pooling in [Pooling::Token, Pooling::Average] {
            // Drawn once: other tests draw from the same generator at the same time.
            let (drawn, images) = (model(pooling), images());
            let run = |precision: Precision| {
                let model = model(pooling);
                tch::no_grad(|| {
                    for (own, drawn) in model
                        .parameters()
                        .tensors()
                        .iter()
                        .zip(drawn.parameters().tensors())
                    {
                        own.shallow_clone().copy_(&drawn);
                    }
                });
                let weights = TrainedWeights::new(model.parameters(), precision);
                let logits = precision
                    .forward(&model, &images, Mode::Train(DropSeed::default()))
                    .expect("logits");
                assert_eq!(logits.kind(), Kind::Float, "{precision:?}");
                let labels = Tensor::from_slice(&[0_i64, 1, 2, 3]);
                logits.cross_entropy_for_logits(&labels).backward();
                (logits, weights.gradients().expect("gradients"))
            };
            let (logits, gradients) = run(Precision::Full);
            for precision in HALF {
                let (half_logits, half_gradients) = run(precision);
                let error = (&half_logits - &logits).abs().max().double_value(&[]);
                assert!(
                    error > 0.0 && error < 0.02,
                    "{precision:?}: the logits differ by {error}"
                );
                for (half, full) in half_gradients.iter().zip(&gradients) {
                    assert_eq!(half.kind(), Kind::Float);
                    let error = (half - full).norm().double_value(&[]);
                    let size = full.norm().double_value(&[]).max(1e-3);
                    assert!(
                        error < 0.05 * size,
                        "{precision:?}: a gradient differs by {error} of {size}"
                    );
                }
            }
        }
    }

    #[test]
    fn weights_in_half_precision_have_masters_and_norms_stay_as_they_are_on_the_cpu() {
        let model = model(Pooling::Token);
        let before: Vec<Tensor> = model.parameters().tensors().iter().map(Tensor::copy).collect();
        let weights = TrainedWeights::new(model.parameters(), Precision::Half(Kind::BFloat16));
        for (parameter, (master, before)) in model
            .parameters()
            .iter()
            .zip(weights.masters().iter().zip(&before))
        {
            let expected = if parameter.name.contains("norm") {
                Kind::Float
            } else {
                Kind::BFloat16
            };
            assert_eq!(parameter.tensor.kind(), expected, "{}", parameter.name);
            assert!(parameter.tensor.requires_grad() && master.equal(before));
        }
        tch::no_grad(|| {
            for master in weights.masters() {
                let _ = master.shallow_clone().fill_(0.3);
            }
        });
        weights.publish().expect("copies");
        for parameter in model.parameters().iter() {
            let difference = (parameter.tensor.to_kind(Kind::Float) - 0.3).abs().max();
            assert!(difference.double_value(&[]) < 1e-3, "{}", parameter.name);
        }
    }

    #[test]
    fn small_steps_are_lost_in_half_precision_but_not_in_masters() {
        let model = model(Pooling::Token);
        let weights = TrainedWeights::new(model.parameters(), Precision::Half(Kind::BFloat16));
        let head = weights.masters().last().expect("the classifier's bias");
        let model_head = weights.model().last().expect("the same");
        tch::no_grad(|| {
            let _ = head.shallow_clone().fill_(1.0);
            for _ in 0..16 {
                let _ = head.shallow_clone().g_add_scalar_(0.001);
                weights.publish().expect("copies");
            }
        });
        // One such step is below bfloat16's resolution at 1, which is 1/128.
        assert!((head.double_value(&[0]) - 1.016).abs() < 1e-5);
        assert!((model_head.double_value(&[0]) - 1.015_625).abs() < 1e-6);
    }
}
