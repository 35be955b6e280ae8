//! The dynamic loss scale of fp16, with the names and the behaviour of DeepSpeed's `DynamicLossScaler`
//! (`deepspeed/runtime/fp16/loss_scaler.py`).
//!
//! The loss is multiplied by the scale before the backward pass, so that small gradients do not vanish in fp16, and
//! gradients are divided by it before the optimizer sees them. Where they overflow, the step is skipped.

use contract::LossScaleConfig;
use serde::{Deserialize, Serialize};

const SCALE_FACTOR: f64 = 2.0;

/// What a checkpoint keeps of the loss scale.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct LossScale {
    pub(crate) scale: f64,
    /// Steps so far, with those that were skipped.
    pub(crate) iterations: u64,
    /// The iterations up to and with the last overflow; 0 where there was none.
    pub(crate) since: u64,
    /// Overflows that are left until the scale is halved.
    pub(crate) hysteresis: u32,
    pub(crate) skipped: u64,
}

/// The gradients overflow although the scale cannot be lowered any more.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct AtMinimum;

impl LossScale {
    pub(crate) fn new(config: &LossScaleConfig) -> Self {
        Self {
            scale: SCALE_FACTOR.powf(f64::from(config.initial_scale_power)),
            iterations: 0,
            since: 0,
            hysteresis: config.hysteresis,
            skipped: 0,
        }
    }

    /// After a step whose gradients were finite.
    pub(crate) fn step_taken(&mut self, config: &LossScaleConfig) {
        let stable = self.iterations - self.since;
        if stable > 0 && stable.is_multiple_of(u64::from(config.loss_scale_window)) {
            self.hysteresis = config.hysteresis;
            self.scale *= SCALE_FACTOR;
        }
        self.iterations += 1;
    }

    /// After a step that was skipped because its gradients were not finite.
    pub(crate) fn overflowed(&mut self, config: &LossScaleConfig) -> Result<(), AtMinimum> {
        let minimum = f64::from(config.min_loss_scale);
        if self.hysteresis <= 1 {
            if self.scale <= minimum {
                return Err(AtMinimum);
            }
            self.scale = (self.scale / SCALE_FACTOR).max(minimum);
        } else {
            self.hysteresis -= 1;
        }
        self.iterations += 1;
        self.since = self.iterations;
        self.skipped += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What DeepSpeed 0.19.8's `DynamicLossScaler(init_scale=2**4, scale_window=3, min_scale=2, delayed_shift=2,
    /// consecutive_hysteresis=False)` shows as `cur_scale` and `cur_hysteresis` after each of these steps; `x` is an
    /// overflow.
    #[test]
    fn scale_and_hysteresis_move_as_deepspeeds() {
        let config = LossScaleConfig {
            initial_scale_power: 4,
            loss_scale_window: 3,
            hysteresis: 2,
            min_loss_scale: 2,
        };
        let mut scale = LossScale::new(&config);
        let steps = "....x.x....x...xxx";
        for (index, step) in steps.chars().enumerate() {
            if step == 'x' {
                scale.overflowed(&config).expect("above the minimum");
            } else {
                scale.step_taken(&config);
            }
            let expected = (SCALES[index], HYSTERESES[index]);
            assert_eq!((scale.scale, scale.hysteresis), expected, "step {index}");
        }
        assert_eq!(scale.skipped, 6);
    }

    const SCALES: [f64; 18] = [
        16.0, 16.0, 16.0, 32.0, 32.0, 32.0, 16.0, 16.0, 16.0, 16.0, 32.0, 32.0, 32.0, 32.0, 32.0, 16.0, 8.0,
        4.0,
    ];
    const HYSTERESES: [u32; 18] = [2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 2, 1, 1, 1, 1, 1, 1, 1];

    #[test]
    fn an_overflow_at_the_least_scale_is_an_error() {
        let config = LossScaleConfig {
            initial_scale_power: 1,
            hysteresis: 1,
            ..LossScaleConfig::default()
        };
        let mut scale = LossScale::new(&config);
        scale.overflowed(&config).expect("2 becomes 1");
        assert!((scale.scale - 1.0).abs() < f64::EPSILON);
        assert_eq!(scale.overflowed(&config), Err(AtMinimum));
    }
}
