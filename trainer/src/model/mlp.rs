//! The MLP of a block.

use contract::architecture::{self, MlpSpec};
use tch::Tensor;
use torch_ext::Collectives;

use super::layers::{LayerNorm, Linear};
use super::parameters::Parameters;
use crate::error::TrainError;

#[derive(Debug)]
pub(super) struct Mlp {
    kind: architecture::Mlp,
    gate: Option<Linear>,
    fc1: Linear,
    fc2: Linear,
}

impl Mlp {
    /// Registers its parameters.
    pub(super) fn new(parameters: &mut Parameters, spec: &MlpSpec) -> Self {
        Self {
            kind: spec.kind,
            gate: spec.gate.as_ref().map(|gate| Linear::new(parameters, gate)),
            fc1: Linear::new(parameters, &spec.fc1),
            fc2: Linear::new(parameters, &spec.fc2),
        }
    }

    pub(super) fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        let layers = self.gate.iter().chain([&self.fc1, &self.fc2]);
        layers.flat_map(Linear::tensors)
    }

    pub(super) fn shallow_clone(&self) -> Self {
        Self {
            kind: self.kind,
            gate: self.gate.as_ref().map(Linear::shallow_clone),
            fc1: self.fc1.shallow_clone(),
            fc2: self.fc2.shallow_clone(),
        }
    }

    /// The output for `norm(x)`; if ranks divide hidden values, each computes a part. `selective`: the
    /// backward pass recomputes norm and activation.
    pub(super) fn forward(
        &self,
        norm: &LayerNorm,
        x: &Tensor,
        selective: bool,
        ranks: Option<&Collectives>,
    ) -> Result<Tensor, TrainError> {
        let is_recomputed = selective && ranks.is_none();
        let normed = match ranks {
            _ if is_recomputed => None,
            Some(ranks) => Some(ranks.used_in_parts(&norm.forward(x)?)?),
            None => Some(norm.forward(x)?),
        };
        let of_normed = |layer: &Linear| match &normed {
            Some(normed) => layer.forward(normed),
            None => layer.forward_normed(norm, x),
        };
        let hidden = of_normed(&self.fc1)?;
        if is_recomputed && self.kind == architecture::Mlp::Gelu {
            return self.fc2.forward_gelu(&hidden);
        }
        let hidden = match (self.kind, &self.gate) {
            (architecture::Mlp::SwiGlu, Some(gate)) => of_normed(gate)?.f_silu()?.f_mul(&hidden)?,
            (architecture::Mlp::GeluTanh, _) => hidden.f_gelu("tanh")?,
            (architecture::Mlp::QuickGelu, _) => hidden.f_mul_scalar(1.702)?.f_sigmoid()?.f_mul(&hidden)?,
            (architecture::Mlp::Gelu | architecture::Mlp::SwiGlu, _) => hidden.f_gelu("none")?,
        };
        match ranks {
            Some(ranks) => self.fc2.forward_parts(&hidden, ranks),
            None => self.fc2.forward(&hidden),
        }
    }
}
