//! A model's weights, for the model and for the optimizer, whole or this rank's shard.
//!
//! The optimizer updates the model's own weights if they are in 32 bits, on the device and whole.
//! Otherwise it has separate masters: on the device, or in host memory if it is offloaded. State
//! made like the masters, such as moments, is in the same place.

use std::cell::OnceCell;
use std::rc::Rc;

use contract::OffloadTo;
use tch::{Kind, Tensor};
use torch_ext::optim::{copy, zero};
use torch_ext::{Error, Sharded};

use super::{Division, StateTensor};
use crate::error::TrainError;
use crate::host_memory::{host_copy, wait_for_copies};
use crate::model::{Parameter, Parameters};
use crate::precision::Precision;

/// The weights of a model, in the order of its parameters.
#[derive(Debug)]
pub(crate) struct TrainedWeights {
    pub(super) names: Vec<String>,
    pub(super) divisions: Vec<Rc<Division>>,
    /// What is not trained, whole on each rank or divided by heads.
    pub(super) frozen: Vec<StateTensor>,
    /// The weights that the model computes with.
    pub(super) model: Vec<Tensor>,
    /// In 32 bits, updated by this rank's optimizer. If sharded, flat and maybe empty.
    pub(super) masters: Vec<Tensor>,
    pub(super) offload: OffloadTo,
    pub(super) form: Form,
    /// Sums of half-precision gradients without another buffer; see [`Self::sum_gradients`].
    pub(super) sums: OnceCell<Vec<Tensor>>,
}

#[derive(Debug)]
pub(super) enum Form {
    Whole {
        /// Indices of the weights with separate masters.
        apart: Vec<usize>,
        /// Buffers on the device for their gradients in 32 bits, if the optimizer is there.
        gradients: Vec<Tensor>,
    },
    Sharded {
        sharded: Rc<Sharded>,
        /// This rank's part of each gradient, in 32 bits.
        gradients: Vec<Tensor>,
        /// This rank's shards of model weights that are copies of masters, and those masters.
        shards: [Vec<Tensor>; 2],
    },
}

impl TrainedWeights {
    /// Takes weights in 32 bits and converts the model to half precision if `precision` says so. Frozen ones have no
    /// masters: they are in the precision in which the model computes.
    pub(crate) fn whole(
        parameters: &Parameters,
        precision: Precision,
        offload: OffloadTo,
    ) -> Result<Self, TrainError> {
        let model: Vec<Tensor> = parameters
            .trained()
            .map(|parameter| parameter.tensor.shallow_clone())
            .collect();
        let mut masters = Vec::new();
        let mut apart = Vec::new();
        for (index, parameter) in parameters.trained().enumerate() {
            let values = parameter.tensor.detach();
            let kind = precision.kind_of(&parameter.name, &parameter.tensor);
            if offload == OffloadTo::Cpu || kind != values.kind() {
                apart.push(index);
            }
            masters.push(match offload {
                OffloadTo::Cpu => host_copy(&values)?,
                OffloadTo::None => values.shallow_clone(),
            });
            if kind != values.kind() {
                // The layers' handles are to the same tensor; its values are replaced.
                parameter.tensor.shallow_clone().set_data(&values.to_kind(kind));
            }
        }
        if let Some(first) = model.first() {
            wait_for_copies(first.device())?;
        }
        let gradients = match offload {
            OffloadTo::Cpu => Vec::new(),
            OffloadTo::None => apart.iter().map(|index| masters[*index].zeros_like()).collect(),
        };
        let division = |parameter: &Parameter| Rc::new(Division::new(parameter, None));
        Ok(Self {
            names: parameters
                .trained()
                .map(|parameter| parameter.name.clone())
                .collect(),
            divisions: parameters.trained().map(division).collect(),
            frozen: frozen(parameters, precision),
            model,
            masters,
            offload,
            form: Form::Whole { apart, gradients },
            sums: OnceCell::new(),
        })
    }

    /// The weights that the model computes with.
    pub(crate) fn model(&self) -> &[Tensor] {
        &self.model
    }

    /// This rank's weights in 32 bits.
    pub(crate) fn masters(&self) -> &[Tensor] {
        &self.masters
    }

    /// How each weight is sharded among the ranks.
    pub(crate) fn divisions(&self) -> &[Rc<Division>] {
        &self.divisions
    }

    /// Buffers in host memory for this rank's gradients in 32 bits, if the optimizer is there.
    pub(crate) fn room_for_gradients(&self) -> Result<Option<Vec<Tensor>>, TrainError> {
        let templates = match (self.offload, &self.form) {
            (OffloadTo::None, _) => return Ok(None),
            (OffloadTo::Cpu, Form::Whole { .. }) => &self.model,
            (OffloadTo::Cpu, Form::Sharded { gradients, .. }) => gradients,
        };
        // The copied values are never read.
        let room: Result<_, _> = templates.iter().map(host_copy).collect();
        Ok(Some(room?))
    }

    /// Whether each rank has only a part of the weights.
    pub(crate) fn are_sharded(&self) -> bool {
        matches!(self.form, Form::Sharded { .. })
    }

    /// All weights of the model: the trained ones in 32 bits, then the frozen ones.
    pub(crate) fn named(&self) -> Vec<StateTensor> {
        self.with_frozen(&self.masters)
    }

    /// Like [`Self::name`], followed by the frozen weights.
    pub(crate) fn with_frozen(&self, tensors: &[Tensor]) -> Vec<StateTensor> {
        let mut all = self.name(tensors);
        all.extend(self.frozen.iter().map(StateTensor::shallow_clone));
        all
    }

    /// Tensors that are sharded like the weights, in the same order, under the weights' names.
    pub(crate) fn name(&self, tensors: &[Tensor]) -> Vec<StateTensor> {
        let named = self.names.iter().zip(tensors).zip(&self.divisions);
        named
            .map(|((name, tensor), division)| StateTensor {
                name: name.clone(),
                local: tensor.shallow_clone(),
                division: Rc::clone(division),
            })
            .collect()
    }

    /// Zeroes the gradients unless the next step replaces them.
    pub(crate) fn zero_gradients(&self) -> Result<(), Error> {
        match self.form {
            Form::Whole { .. } => zero(&self.raw_gradients()),
            Form::Sharded { .. } => Ok(()),
        }
    }

    /// Call it after each backward pass of `count` micro-batches but the last, which adds its own.
    /// Sums in 32 bits: bf16 would drop gradients below a 256th of the sum.
    pub(crate) fn sum_gradients(&self, index: usize, count: usize) -> Result<(), TrainError> {
        let mut gradients = self.raw_gradients();
        // From stage 2 on gradients are freed, and already summed in 32 bits.
        gradients.retain(|gradient| gradient.defined() && gradient.kind() != Kind::Float);
        // With two micro-batches, the last pass makes the sum.
        if count < 3 || gradients.is_empty() {
            return Ok(());
        }
        let sums = match &self.form {
            Form::Whole { gradients, .. } if !gradients.is_empty() => gradients,
            _ => self.sums.get_or_init(|| {
                let in_full = |gradient: &Tensor| gradient.empty_like().to_kind(Kind::Float);
                gradients.iter().map(in_full).collect()
            }),
        };
        if index == 0 {
            copy(sums, &gradients)?;
        } else {
            tch::no_grad(|| {
                let mut pairs = sums.iter().zip(&gradients);
                pairs.try_for_each(|(sum, gradient)| sum.shallow_clone().f_add_(gradient).map(|_| ()))
            })?;
        }
        if index + 2 == count {
            copy(&gradients, sums)?;
        } else {
            zero(&gradients)?;
        }
        Ok(())
    }

    /// The gradients on the device: in 32 bits, or in any kind if the optimizer is offloaded.
    pub(crate) fn gradients(&self) -> Result<Vec<Tensor>, Error> {
        let (apart, room) = match &self.form {
            Form::Whole { apart, gradients } => (apart, gradients),
            Form::Sharded { gradients, .. } => {
                return Ok(gradients.iter().map(Tensor::shallow_clone).collect());
            }
        };
        let mut gradients = self.raw_gradients();
        if !room.is_empty() {
            copy(room, &select(apart, &gradients))?;
            for (index, full) in apart.iter().zip(room) {
                gradients[*index] = full.shallow_clone();
            }
        }
        Ok(gradients)
    }

    /// The gradients as the backward pass leaves them.
    fn raw_gradients(&self) -> Vec<Tensor> {
        self.model.iter().map(Tensor::grad).collect()
    }

    /// Copies the masters to the model after they have changed on every rank.
    pub(crate) fn publish(&self) -> Result<(), Error> {
        match &self.form {
            Form::Whole { apart, .. } => copy(&select(apart, &self.model), &select(apart, &self.masters)),
            Form::Sharded { sharded, shards, .. } => {
                let [shards, masters] = shards;
                copy(shards, masters)?;
                sharded.publish()
            }
        }
    }

    /// Runs `compute` while the model has other `values`, sharded like the masters. Every rank
    /// calls it. Masters and values are swapped, with memory for one more tensor.
    pub(crate) fn with_values<T, E: From<Error>>(
        &self,
        values: &[Tensor],
        compute: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        self.exchange(values)?;
        let result = compute();
        self.exchange(values)?;
        result
    }

    fn exchange(&self, values: &[Tensor]) -> Result<(), Error> {
        // A stopped evaluation may not have used them all.
        if let Form::Sharded { sharded, .. } = &self.form {
            sharded.settle()?;
        }
        for (master, value) in self.masters.iter().zip(values) {
            let kept = master.copy();
            copy(std::slice::from_ref(master), std::slice::from_ref(value))?;
            copy(std::slice::from_ref(value), &[kept])?;
        }
        self.publish()
    }
}

/// The frozen weights of a model, converted to the precision in which it computes.
pub(super) fn frozen(parameters: &Parameters, precision: Precision) -> Vec<StateTensor> {
    let frozen = parameters.frozen().map(|parameter| {
        let kind = precision.kind_of(&parameter.name, &parameter.tensor);
        if kind != parameter.tensor.kind() {
            let values = parameter.tensor.detach().to_kind(kind);
            // The layers' handles are to the same tensor; its values are replaced.
            parameter.tensor.shallow_clone().set_data(&values);
        }
        StateTensor {
            name: parameter.name.clone(),
            local: parameter.tensor.shallow_clone(),
            division: Rc::new(Division::new(parameter, None)),
        }
    });
    frozen.collect()
}

/// The tensors of a list at these indices.
fn select(places: &[usize], list: &[Tensor]) -> Vec<Tensor> {
    places.iter().map(|index| list[*index].shallow_clone()).collect()
}

#[cfg(test)]
mod tests {
    use contract::{ModelConfig, Pooling};
    use tch::{Device, Kind};

    use super::*;
    use crate::model::fixtures::small;
    use crate::model::{DropSeed, Mode, VisionTransformer};

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
    fn gradients_of_many_micro_batches_lose_nothing_in_half_precision() {
        // In bf16 the sum of ones stays at 256.
        const COUNT: usize = 320;
        for offload in [OffloadTo::None, OffloadTo::Cpu] {
            let model = model(Pooling::Average);
            let precision = Precision::Half(Kind::BFloat16);
            let weights = TrainedWeights::whole(model.parameters(), precision, offload).expect("weights");
            for step in 0..2 {
                if step > 0 {
                    weights.zero_gradients().expect("zeroes");
                }
                for index in 0..COUNT {
                    for parameter in weights.model() {
                        parameter.sum(Kind::Float).backward();
                    }
                    if index + 1 < COUNT {
                        weights.sum_gradients(index, COUNT).expect("sums");
                    }
                }
                for gradient in weights.gradients().expect("gradients") {
                    assert!(gradient.equal(&gradient.full_like(COUNT as f64)), "{gradient:?}");
                }
            }
        }
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
                let weights =
                    TrainedWeights::whole(model.parameters(), precision, OffloadTo::None).expect("weights");
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
        let weights = TrainedWeights::whole(
            model.parameters(),
            Precision::Half(Kind::BFloat16),
            OffloadTo::None,
        )
        .expect("weights");
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
        let weights = TrainedWeights::whole(
            model.parameters(),
            Precision::Half(Kind::BFloat16),
            OffloadTo::None,
        )
        .expect("weights");
        let head = weights.masters().last().expect("the classifier's bias");
        let model_head = weights.model().last().expect("the same");
        tch::no_grad(|| {
            let _ = head.shallow_clone().fill_(1.0);
            for _ in 0..16 {
                let _ = head.shallow_clone().g_add_scalar_(0.001);
                weights.publish().expect("copies");
            }
        });
        // One such step is below the resolution of bfloat16 at 1, which is 1/128.
        assert!((head.double_value(&[0]) - 1.016).abs() < 1e-5);
        assert!((model_head.double_value(&[0]) - 1.015_625).abs() < 1e-6);
    }

    #[test]
    fn an_offloaded_optimizer_has_weights_of_its_own_in_any_precision() {
        for precision in [Precision::Full, Precision::Half(Kind::BFloat16)] {
            let model = model(Pooling::Token);
            let weights =
                TrainedWeights::whole(model.parameters(), precision, OffloadTo::Cpu).expect("weights");
            let room = weights.room_for_gradients().expect("room").expect("it is there");
            assert_eq!(room.len(), weights.masters().len());
            let bias = model.parameters().tensors().pop().expect("the classifier's bias");
            let before = bias.copy();
            tch::no_grad(|| {
                for master in weights.masters() {
                    assert_eq!(master.kind(), Kind::Float);
                    let _ = master.shallow_clone().fill_(0.5);
                }
            });
            assert!(bias.equal(&before), "{precision:?}: before it is published");
            weights.publish().expect("copies");
            assert!(bias.equal(&bias.full_like(0.5)), "{precision:?}");
        }
    }
}
