//! From averaged gradients to new weights, or to the reason why there are none. Whether a step is taken is decided on the
//! device: the host hears of it a step later.

use tch::{Device, Kind, Tensor};

use super::Trainer;
use super::arrival::{Agreed, Arrival};
use crate::checkpoint::Position;
use crate::error::TrainError;
use crate::loss_scale::{self, AtMinimum, DeviceLossScale, LossScale};
use crate::optim::gate;

/// What decides of steps, and is changed by them, on the device.
#[derive(Debug)]
pub(super) struct Updates {
    /// Steps that changed the weights: a float scalar.
    count: Tensor,
    /// Only with fp16.
    loss_scale: Option<DeviceLossScale>,
}

impl Updates {
    pub(super) fn new(position: &Position, device: Device) -> Self {
        Self {
            count: Tensor::full([], position.updates as f64, (Kind::Float, device)),
            loss_scale: position
                .loss_scale
                .map(|scale| DeviceLossScale::new(scale, device)),
        }
    }

    /// What a micro-batch's mean loss becomes for its backward pass, of which the mean of the step has so many parts.
    pub(super) fn scaled(&self, loss: Tensor, parts: f64) -> Tensor {
        let part = loss / parts;
        match &self.loss_scale {
            Some(scale) => part * scale.scale().to_kind(Kind::Float),
            None => part,
        }
    }
}

/// What became of a step, as the host reads it later.
#[derive(Debug)]
pub(super) struct Verdict {
    /// Of the gradients, before clipping.
    pub(super) norm: f64,
    pub(super) is_taken: bool,
    pub(super) updates: u64,
    pub(super) loss_scale: Option<Result<LossScale, AtMinimum>>,
    pub(super) agreed: Agreed,
}

impl Verdict {
    /// Reads what [`Trainer::update_weights`] gives.
    pub(super) fn from_numbers(numbers: &[f64], has_loss_scale: bool) -> Self {
        let (first, rest) = numbers.split_first_chunk().expect("a verdict has these numbers");
        let [norm, is_taken, updates] = *first;
        let (loss_scale, sums) = if has_loss_scale {
            let (scale, sums) = rest
                .split_first_chunk::<{ loss_scale::NUMBERS }>()
                .expect("a loss scale has these numbers");
            (Some(LossScale::from_numbers(*scale)), sums)
        } else {
            (None, rest)
        };
        Self {
            norm,
            is_taken: is_taken > 0.0,
            updates: updates as u64,
            loss_scale,
            agreed: Agreed::from_sums(sums),
        }
    }
}

impl Trainer {
    /// Changes the weights with the gradients that the backward pass has left, or leaves them as they are where gradients or
    /// losses are no finite numbers. `sums` are those of the ranks' arrivals. Gives the numbers of a [`Verdict`].
    pub(super) fn update_weights(&mut self, learning_rate: f64, sums: &Tensor) -> Result<Tensor, TrainError> {
        let Updates { count, loss_scale } = &mut self.updates;
        let gradients = self.trained.weights.gradients()?;
        let weights = &self.trained.weights;
        let mut norm = self.world.norm(&gradients, weights)?;
        if let Some(scale) = loss_scale {
            norm /= scale.scale();
        }
        let is_finite = norm
            .isfinite()
            .logical_and(&Arrival::is_finite(sums).to_device(norm.device()));
        let limits = [
            self.config.training.clip_grad_norm,
            self.trained.optimizer.gradient_norm_limit(),
        ];
        let scale = loss_scale.as_ref().map(DeviceLossScale::scale);
        let gate = gate(&norm, &is_finite, limits, scale);
        *count += &is_finite;
        let ranks = self.world.dividing(weights.are_sharded());
        self.trained
            .optimizer
            .step(&gradients, learning_rate, (count, &gate), ranks)?;
        self.trained.weights.publish()?;
        if let Some(average) = &self.trained.average {
            average.update(&self.trained.weights, self.position.step + 1)?;
        }
        let verdict =
            Tensor::stack(&[&norm, &is_finite.to_kind(Kind::Float), count], 0).to_kind(Kind::Double);
        let mut numbers = vec![verdict];
        if let Some(scale) = loss_scale {
            scale.update(&is_finite.logical_not(), &self.config.training.loss_scale);
            numbers.push(scale.numbers());
        }
        numbers.push(sums.to_device(norm.device()));
        Ok(Tensor::cat(&numbers, 0))
    }

    /// An error on every rank where the loss of some is no finite number, or gradients are none in a format in which that ends
    /// the run. With fp16 a step whose gradients overflow is skipped. `before` is the loss scale that the step had.
    pub(super) fn require_finite(
        &self,
        step: u64,
        epoch: u32,
        verdict: &Verdict,
        before: Option<LossScale>,
    ) -> Result<(), TrainError> {
        let Verdict { agreed, norm, .. } = verdict;
        if !agreed.not_finite.is_empty() {
            let ranks = agreed.not_finite.clone();
            return Err(TrainError::LossNotFinite { step, epoch, ranks });
        }
        if verdict.is_taken {
            return Ok(());
        }
        let (norm, loss) = (*norm, agreed.loss);
        match (before, verdict.loss_scale) {
            (Some(before), Some(Ok(scale))) => {
                if self.world.is_first() {
                    tracing::info!(
                        "step {step} is skipped: gradients overflow fp16 at loss scale {}; the next one tries {} (hysteresis {}, {} skipped so far)",
                        before.scale,
                        scale.scale,
                        scale.hysteresis,
                        scale.skipped
                    );
                }
                Ok(())
            }
            (_, Some(Err(AtMinimum { scale }))) => Err(TrainError::LossScaleAtMinimum { step, epoch, scale }),
            _ => Err(TrainError::GradientNotFinite {
                step,
                epoch,
                norm,
                loss,
            }),
        }
    }
}
