//! The dynamic loss scale of fp16, with the names and the behavior of DeepSpeed's `DynamicLossScaler`
//! (`deepspeed/runtime/fp16/loss_scaler.py`).
//!
//! The loss is multiplied by the scale before the backward pass, so that small gradients do not
//! vanish in fp16, and gradients are divided by it after. If they overflow, the step is skipped.

use serde::{Deserialize, Serialize};
use tch::{Device, Kind, Tensor};

const SCALE_FACTOR: f64 = 2.0;

/// The loss scale in a checkpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct LossScale {
    pub(crate) scale: f64,
    /// Steps so far, including skipped ones.
    pub(crate) iterations: u64,
    /// The iterations up to and including the last overflow; 0 if there was none.
    pub(crate) since: u64,
    /// Overflows left until the scale is halved.
    pub(crate) hysteresis: u32,
    pub(crate) skipped: u64,
}

/// How many numbers a scale has on the device.
pub(crate) const NUMBERS: usize = 6;

impl LossScale {
    pub(crate) fn new(config: &contract::LossScale) -> Self {
        Self {
            scale: SCALE_FACTOR.powf(f64::from(config.initial_scale_power)),
            iterations: 0,
            since: 0,
            hysteresis: config.hysteresis,
            skipped: 0,
        }
    }

    /// Reads [`DeviceLossScale::numbers`]. An error if gradients overflow at the minimum scale.
    pub(crate) fn from_numbers(numbers: [f64; NUMBERS]) -> Result<Self, AtMinimum> {
        let [scale, iterations, since, hysteresis, skipped, at_minimum] = numbers;
        if at_minimum > 0.0 {
            return Err(AtMinimum { scale });
        }
        Ok(Self {
            scale,
            iterations: iterations as u64,
            since: since as u64,
            hysteresis: hysteresis as u32,
            skipped: skipped as u64,
        })
    }
}

/// Gradients overflow at the minimum scale.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct AtMinimum {
    pub(crate) scale: f64,
}

/// The loss scale on the device of losses and gradients. It changes there; the host learns of an
/// overflow one step later. Its numbers are double-precision scalars.
#[derive(Debug)]
pub(crate) struct DeviceLossScale {
    scale: Tensor,
    iterations: Tensor,
    since: Tensor,
    hysteresis: Tensor,
    skipped: Tensor,
    at_minimum: Tensor,
}

impl DeviceLossScale {
    pub(crate) fn new(scale: LossScale, device: Device) -> Self {
        let number = |value: f64| Tensor::full([], value, (Kind::Double, device));
        Self {
            scale: number(scale.scale),
            iterations: number(scale.iterations as f64),
            since: number(scale.since as f64),
            hysteresis: number(f64::from(scale.hysteresis)),
            skipped: number(scale.skipped as f64),
            at_minimum: number(0.0),
        }
    }

    /// The factor of the loss.
    pub(crate) fn scale(&self) -> &Tensor {
        &self.scale
    }

    pub(crate) fn numbers(&self) -> Tensor {
        let numbers = [
            &self.scale,
            &self.iterations,
            &self.since,
            &self.hysteresis,
            &self.skipped,
            &self.at_minimum,
        ];
        Tensor::stack(&numbers, 0)
    }

    /// Updates the scale after a step. `is_skipped` is a scalar: true if gradients were not finite.
    pub(crate) fn update(&mut self, is_skipped: &Tensor, config: &contract::LossScale) {
        let Self {
            scale,
            iterations,
            since,
            hysteresis,
            ..
        } = &*self;
        let minimum = f64::from(config.min_loss_scale);

        let is_halved = is_skipped.logical_and(&hysteresis.le(1.0));
        let at_minimum = is_halved.logical_and(&scale.le(minimum));
        let halved = (scale / SCALE_FACTOR).clamp_min(minimum);

        let stable = iterations - since;
        let is_window = stable
            .fmod(f64::from(config.loss_scale_window))
            .eq(0.0)
            .logical_and(&stable.gt(0.0));
        let is_doubled = is_window.logical_and(&is_skipped.logical_not());

        let count = is_skipped.to_kind(Kind::Double);
        let fresh = hysteresis.full_like(f64::from(config.hysteresis));
        let worn = hysteresis
            - is_skipped
                .logical_and(&is_halved.logical_not())
                .to_kind(Kind::Double);
        let iterations = iterations + 1.0;
        // A scale at the minimum stays unchanged, for the message.
        let halved = scale.where_self(&at_minimum, &halved);
        *self = Self {
            scale: halved.where_self(&is_halved, &(scale * SCALE_FACTOR).where_self(&is_doubled, scale)),
            since: iterations.where_self(is_skipped, since),
            hysteresis: fresh.where_self(&is_doubled, &worn),
            skipped: &self.skipped + count,
            at_minimum: at_minimum.to_kind(Kind::Double),
            iterations,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `cur_scale` and `cur_hysteresis` of DeepSpeed 0.19.8's `DynamicLossScaler(init_scale=2**4,
    /// scale_window=3, min_scale=2, delayed_shift=2, consecutive_hysteresis=False)` after each of
    /// these steps; `x` is an overflow.
    #[test]
    fn scale_and_hysteresis_move_as_deepspeeds() {
        let config = contract::LossScale {
            initial_scale_power: 4,
            loss_scale_window: 3,
            hysteresis: 2,
            min_loss_scale: 2,
        };
        let mut scale = DeviceLossScale::new(LossScale::new(&config), Device::Cpu);
        let steps = "....x.x....x...xxx";
        for (index, step) in steps.chars().enumerate() {
            scale.update(&Tensor::from(step == 'x'), &config);
            let found = read(&scale).expect("above the minimum");
            let expected = (SCALES[index], HYSTERESES[index]);
            assert_eq!((found.scale, found.hysteresis), expected, "step {index}");
            // As after a restart from a checkpoint.
            scale = DeviceLossScale::new(found, Device::Cpu);
        }
        assert_eq!(read(&scale).expect("a scale").skipped, 6);
    }

    fn read(scale: &DeviceLossScale) -> Result<LossScale, AtMinimum> {
        let numbers: Vec<f64> = Vec::try_from(scale.numbers()).expect("numbers");
        LossScale::from_numbers(numbers.try_into().expect("as many as there are"))
    }

    const SCALES: [f64; 18] = [
        16.0, 16.0, 16.0, 32.0, 32.0, 32.0, 16.0, 16.0, 16.0, 16.0, 32.0, 32.0, 32.0, 32.0, 32.0, 16.0, 8.0,
        4.0,
    ];
    const HYSTERESES: [u32; 18] = [2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 2, 1, 1, 1, 1, 1, 1, 1];

    #[test]
    fn an_overflow_at_the_least_scale_is_an_error() {
        let config = contract::LossScale {
            initial_scale_power: 1,
            hysteresis: 1,
            ..contract::LossScale::default()
        };
        let mut scale = DeviceLossScale::new(LossScale::new(&config), Device::Cpu);
        let overflow = Tensor::from(true);
        scale.update(&overflow, &config);
        let halved = read(&scale).expect("2 becomes 1").scale;
        assert!((halved - 1.0).abs() < f64::EPSILON);
        scale.update(&overflow, &config);
        assert_eq!(read(&scale), Err(AtMinimum { scale: 1.0 }));
    }
}
