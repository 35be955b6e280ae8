//! From averaged gradients to new weights, or to the reason for a skipped step. The device decides
//! whether to take a step; the host learns it one step later.

use tch::{Device, Kind, Tensor};

use super::Trainer;
use super::rank_report::{RankReport, ReducedReport};
use crate::checkpoint::Position;
use crate::error::TrainError;
use crate::loss_scale::{self, AtMinimum, DeviceLossScale, LossScale};
use crate::optim::gate;

/// Device state that decides on steps and changes with them.
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

    /// Scales the mean loss of a micro-batch for its backward pass and divides it by `parts`.
    pub(super) fn scaled(&self, loss: Tensor, parts: f64) -> Tensor {
        let part = loss / parts;
        match &self.loss_scale {
            Some(scale) => part * scale.scale().to_kind(Kind::Float),
            None => part,
        }
    }
}

/// The result of a step, as the host reads it later.
#[derive(Debug)]
pub(super) struct StepResult {
    /// Norm of the gradients before clipping.
    pub(super) norm: f64,
    pub(super) is_taken: bool,
    pub(super) updates: u64,
    pub(super) loss_scale: Option<Result<LossScale, AtMinimum>>,
    pub(super) agreed: ReducedReport,
}

impl StepResult {
    /// Reads the numbers that [`Trainer::update_weights`] returns.
    pub(super) fn from_numbers(numbers: &[f64], has_loss_scale: bool) -> Self {
        let (first, rest) = numbers
            .split_first_chunk()
            .expect("a step result has these numbers");
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
            agreed: ReducedReport::from_sums(sums),
        }
    }
}

impl Trainer {
    /// Updates the weights, or keeps them if a gradient or loss is not finite. `sums` are the
    /// summed reports of all ranks. Returns the numbers of a [`StepResult`].
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
            .logical_and(&RankReport::is_finite(sums).to_device(norm.device()));
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
        let result = Tensor::stack(&[&norm, &is_finite.to_kind(Kind::Float), count], 0).to_kind(Kind::Double);
        let mut numbers = vec![result];
        if let Some(scale) = loss_scale {
            scale.update(
                &is_finite.logical_not(),
                &self.config.training.loss_scale.unwrap_or_default(),
            );
            numbers.push(scale.numbers());
        }
        numbers.push(sums.to_device(norm.device()));
        Ok(Tensor::cat(&numbers, 0))
    }

    /// Fails on every rank if a loss is not finite, or gradients that must be. With fp16, a step
    /// whose gradients overflow is skipped. `before` is the loss scale that the step had.
    pub(super) fn require_finite(
        &self,
        step: u64,
        epoch: u32,
        result: &StepResult,
        before: Option<LossScale>,
    ) -> Result<(), TrainError> {
        let StepResult { agreed, norm, .. } = result;
        if !agreed.not_finite.is_empty() {
            let ranks = agreed.not_finite.clone();
            return Err(TrainError::LossNotFinite { step, epoch, ranks });
        }
        if result.is_taken {
            return Ok(());
        }
        let (norm, loss) = (*norm, agreed.loss);
        match (before, result.loss_scale) {
            (Some(before), Some(Ok(scale))) => {
                if self.world.is_first() {
                    tracing::info!(
                        "skipping step {step}: gradients overflow fp16 at loss scale {}; the next step uses {} (hysteresis {}, {} skipped so far)",
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
