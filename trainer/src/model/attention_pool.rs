//! Pooling by attention of a learned query (SigLIP), as timm's `AttentionPoolLatent`.

use contract::architecture::AttentionPoolSpec;
use tch::Tensor;

use super::block::attend;
use super::layers::{LayerNorm, Linear};
use super::mlp::Mlp;
use super::parameters::Parameters;
use crate::error::TrainError;

#[derive(Debug)]
pub(super) struct AttentionPool {
    latent: Tensor,
    query: Linear,
    key_value: Linear,
    projection: Linear,
    norm: LayerNorm,
    mlp: Mlp,
    head_width: i64,
}

impl AttentionPool {
    /// Registers its parameters.
    pub(super) fn new(parameters: &mut Parameters, spec: &AttentionPoolSpec, head_width: i64) -> Self {
        Self {
            latent: parameters.add(&spec.latent),
            query: Linear::new(parameters, &spec.query),
            key_value: Linear::new(parameters, &spec.key_value),
            projection: Linear::new(parameters, &spec.projection),
            norm: LayerNorm::new(parameters, &spec.norm),
            mlp: Mlp::new(parameters, &spec.mlp),
            head_width,
        }
    }

    /// The pooled token BD of each image.
    pub(super) fn forward(&self, x_bnd: &Tensor) -> Result<Tensor, TrainError> {
        let (batch, tokens, width) = x_bnd.size3()?;
        let (heads, head_width) = (width / self.head_width, self.head_width);
        let query_1d = self.query.forward(&self.latent.f_view([1, width])?)?;
        let query_bh1d = query_1d
            .f_view([1, heads, 1, head_width])?
            .f_expand([batch, -1, -1, -1], false)?;
        let key_value = self.key_value.forward(x_bnd)?;
        let parts_bhnd = key_value
            .f_view([batch, tokens, 2, heads, head_width])?
            .f_permute([2, 0, 3, 1, 4])?
            .f_unbind(0)?;
        let mixed_bd = attend(&query_bh1d, &parts_bhnd[0], &parts_bhnd[1])?.f_reshape([batch, width])?;
        let pooled_bd = self.projection.forward(&mixed_bd)?;
        Ok(pooled_bd.f_add(&self.mlp.forward(&self.norm, &pooled_bd, false, None)?)?)
    }
}
