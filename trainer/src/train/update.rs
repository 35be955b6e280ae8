//! From averaged gradients to new weights, or to the reason why there are none.

use tch::Tensor;
use torch_ext::optim::{global_norm, scale};

use super::Trainer;
use super::arrival::Agreed;
use crate::error::TrainError;
use crate::loss_scale::AtMinimum;
use crate::optim::clip_factor;

impl Trainer {
    /// What a micro-batch's mean loss is multiplied by for its backward pass.
    pub(super) fn loss_factor(&self) -> f64 {
        self.loss_scale() / f64::from(self.config.training.gradient_accumulation_steps)
    }

    fn loss_scale(&self) -> f64 {
        self.position.loss_scale.map_or(1.0, |scale| scale.scale)
    }

    /// An error on every rank where the loss of some is not a number.
    pub(super) fn require_finite_loss(&self, own_loss: &Tensor, agreed: &Agreed) -> Result<(), TrainError> {
        if agreed.is_finite {
            return Ok(());
        }
        // Every rank is here, as all of them know of the loss.
        let own_is_finite = own_loss.isfinite().int64_value(&[]) != 0;
        Err(TrainError::LossNotFinite {
            step: self.position.step + 1,
            epoch: self.position.epoch,
            ranks: self.world.ranks_where(!own_is_finite)?,
        })
    }

    /// Changes the weights with the gradients that the backward pass has left, or skips the step where they overflow
    /// fp16.
    pub(super) fn update_weights(&mut self, learning_rate: f64, loss: f64) -> Result<(), TrainError> {
        let gradients = self.trained.weights.gradients()?;
        let norm = global_norm(&gradients)?.double_value(&[]) / self.loss_scale();
        if !norm.is_finite() {
            return self.skip_step(norm, loss);
        }
        let limits = [
            self.config.training.clip_grad_norm,
            self.trained.optimizer.gradient_norm_limit(),
        ];
        let factor = clip_factor(norm, limits) / self.loss_scale();
        if factor < 1.0 {
            scale(&gradients, factor)?;
        }
        self.position.updates += 1;
        self.trained
            .optimizer
            .step(&gradients, learning_rate, self.position.updates)?;
        self.trained.weights.publish()?;
        if let Some(average) = &self.trained.average {
            average.update(&self.trained.weights, self.position.updates)?;
        }
        if let Some(scale) = &mut self.position.loss_scale {
            scale.step_taken(&self.config.training.loss_scale);
        }
        Ok(())
    }

    /// Leaves the weights as they are for gradients that overflow fp16. In any other format such gradients end the run.
    fn skip_step(&mut self, norm: f64, loss: f64) -> Result<(), TrainError> {
        let (step, epoch) = (self.position.step + 1, self.position.epoch);
        let Some(scale) = &mut self.position.loss_scale else {
            return Err(TrainError::GradientNotFinite {
                step,
                epoch,
                norm,
                loss,
            });
        };
        let attempted = scale.scale;
        scale
            .overflowed(&self.config.training.loss_scale)
            .map_err(|AtMinimum| TrainError::LossScaleAtMinimum {
                step,
                epoch,
                scale: attempted,
            })?;
        if self.world.is_first() {
            tracing::info!(
                "step {step} is skipped: gradients overflow fp16 at loss scale {attempted}; the next one tries {} (hysteresis {}, {} skipped so far)",
                scale.scale,
                scale.hysteresis,
                scale.skipped
            );
        }
        Ok(())
    }
}
