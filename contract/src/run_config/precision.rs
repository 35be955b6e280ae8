//! Number formats, the loss scale for half precision, and the average of weights.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::rules::Rules;

/// Number format of matrix products, and of everything between them with master weights.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Precision {
    /// 32 bits.
    #[default]
    Fp32,
    /// bfloat16: the range of 32 bits, 8 bits of precision.
    Bf16,
    /// float16: 11 bits of precision, the largest number 65,504; needs a loss scale.
    Fp16,
}

impl std::fmt::Display for Precision {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::Fp32 => "fp32",
            Self::Bf16 => "bf16",
            Self::Fp16 => "fp16",
        })
    }
}

/// LossScale keeps fp16 gradients in range: the loss is multiplied by a scale, which is halved when
/// gradients overflow (that step is skipped) and doubled after a while without overflow. Names,
/// defaults and behavior are DeepSpeed's.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct LossScale {
    /// initialScalePower: the first scale is 2 to the power of this.
    #[schemars(range(min = 0, max = 32))]
    pub initial_scale_power: u32,
    /// lossScaleWindow is the number of steps without an overflow after which the scale is doubled.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub loss_scale_window: u32,
    /// hysteresis is the number of overflows before the scale is halved.
    #[schemars(range(min = 1, max = 1000))]
    pub hysteresis: u32,
    /// minLossScale is the minimum scale; an overflow there ends the run.
    #[schemars(range(min = 1, max = 65536))]
    pub min_loss_scale: u32,
}

impl Default for LossScale {
    fn default() -> Self {
        Self {
            initial_scale_power: 16,
            loss_scale_window: 1000,
            hysteresis: 2,
            min_loss_scale: 1,
        }
    }
}

impl LossScale {
    pub(super) fn check(&self, rules: &mut Rules) {
        rules.require(
            u64::from(self.min_loss_scale) <= 1 << self.initial_scale_power.min(32),
            "training.lossScale.minLossScale",
            self.min_loss_scale,
            format!(
                "must be between 1 and 2 to the power of training.lossScale.initialScalePower ({})",
                self.initial_scale_power
            ),
        );
    }
}

/// Ema is an exponential moving average of the weights, as timm's ModelEmaV3.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Ema {
    /// decay is the share of the average that a step keeps.
    #[serde(default = "default_ema_decay")]
    #[schemars(range(min = 0.0, max = 0.999_999_9))]
    pub decay: f64,
    /// warmup increases the decay to its value as 1 - (1 + step)^(-2/3), so that the first weights
    /// fade soon.
    #[serde(default)]
    pub warmup: bool,
}

fn default_ema_decay() -> f64 {
    0.9999
}
