//! Number formats: which values use half precision.
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
//! The norms' weights stay in 32 bits on the CPU, whose kernel keeps statistics in the weights'
//! format. CUDA's keeps them in 32 bits, and needs one format for input and weights.

use contract::{AttentionBackend, Training};
use tch::{Device, Kind, Tensor};
use torch_ext::{Arithmetic, Error, autocast};

use crate::error::TrainError;
use crate::model::{Mode, VisionTransformer};

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Precision {
    Full,
    /// Weights in 32 bits are cast on use.
    Autocast(Kind),
    Half(Kind),
}

impl Precision {
    /// Returns the formats, and sets libtorch's global options: TF32 and attention kernels.
    pub(crate) fn begin(training: &Training) -> Result<Self, Error> {
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

    /// The kind of this weight in the model.
    pub(crate) fn kind_of(self, name: &str, weight: &Tensor) -> Kind {
        match self {
            Self::Half(kind) if !stays_full(name, weight.device()) => kind,
            Self::Full | Self::Autocast(_) | Self::Half(_) => Kind::Float,
        }
    }
}

/// Whether a weight stays in 32 bits in a half-precision model.
fn stays_full(name: &str, device: Device) -> bool {
    let is_of_norm = name
        .split('.')
        .any(|part| part.starts_with("norm") || part == "fc_norm");
    is_of_norm && device == Device::Cpu
}
