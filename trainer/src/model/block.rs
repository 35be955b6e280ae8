//! A pre-norm transformer block: attention, then an MLP, each added to the residual stream.

use contract::{ActivationCheckpointing, ModelConfig};
use tch::Tensor;
use torch_ext::recompute::recompute;

use super::drop_path::Kept;
use super::layers::{Builder, LayerNorm, Linear};
use crate::error::TrainError;

#[derive(Debug)]
pub(super) struct Block {
    norm1: LayerNorm,
    qkv: Linear,
    projection: Linear,
    /// Layer scale of the attention branch.
    scale1: Option<Tensor>,
    norm2: LayerNorm,
    fc1: Linear,
    fc2: Linear,
    /// Layer scale of the MLP branch.
    scale2: Option<Tensor>,
    heads: i64,
}

/// The tokens that are wanted of a block.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Wanted {
    All,
    /// Nothing reads the others: of the last block, a classifier that reads the class token.
    First,
}

impl Wanted {
    /// Those tokens of `x`, which has them in dimension `dim`.
    fn of(self, x: &Tensor, dim: i64) -> Result<Tensor, TrainError> {
        Ok(match self {
            Self::All => x.shallow_clone(),
            Self::First => x.f_narrow(dim, 0, 1)?,
        })
    }
}

impl Block {
    /// Registers parameters in timm's order: `norm1, attn, ls1, norm2, mlp, ls2`.
    pub(super) fn new(builder: &mut Builder, index: usize, config: &ModelConfig) -> Self {
        let (hidden, mlp) = (i64::from(config.hidden_size), i64::from(config.mlp_size));
        let name = |part: &str| format!("blocks.{index}.{part}");
        let scale = |builder: &mut Builder, part: &str| {
            config
                .layer_scale
                .map(|value| builder.constant(&name(part), hidden, value))
        };
        Self {
            norm1: builder.layer_norm(&name("norm1"), hidden),
            qkv: builder.linear(&name("attn.qkv"), hidden, 3 * hidden),
            projection: builder.linear(&name("attn.proj"), hidden, hidden),
            scale1: scale(builder, "ls1.gamma"),
            norm2: builder.layer_norm(&name("norm2"), hidden),
            fc1: builder.linear(&name("mlp.fc1"), hidden, mlp),
            fc2: builder.linear(&name("mlp.fc2"), mlp, hidden),
            scale2: scale(builder, "ls2.gamma"),
            heads: i64::from(config.heads),
        }
    }

    /// `kept` says which images keep the two branches, `checkpointing` what the backward pass computes again.
    pub(super) fn forward(
        &self,
        x_bnd: &Tensor,
        kept: [Kept; 2],
        wanted: Wanted,
        checkpointing: ActivationCheckpointing,
    ) -> Result<Tensor, TrainError> {
        match checkpointing {
            ActivationCheckpointing::None => self.run(x_bnd, &kept, wanted, false),
            ActivationCheckpointing::Selective => self.run(x_bnd, &kept, wanted, true),
            ActivationCheckpointing::Block => {
                let block = self.shallow_clone();
                Ok(recompute(x_bnd, &self.tensors(), move |x_bnd| {
                    block
                        .run(x_bnd, &kept, wanted, false)
                        .map_err(|error| error.to_string())
                })?)
            }
        }
    }

    /// `selective` is whether norms and activations are computed again in the backward pass.
    fn run(
        &self,
        x_bnd: &Tensor,
        [attention, mlp]: &[Kept; 2],
        wanted: Wanted,
        selective: bool,
    ) -> Result<Tensor, TrainError> {
        let x_bnd = attention.add(&wanted.of(x_bnd, 1)?, x_bnd, |x_bnd| {
            scaled(self.attention(x_bnd, wanted, selective)?, self.scale1.as_ref())
        })?;
        mlp.add(&x_bnd, &x_bnd, |x_bnd| {
            scaled(self.mlp(x_bnd, selective)?, self.scale2.as_ref())
        })
    }

    fn tensors(&self) -> Vec<&Tensor> {
        let layers = [
            self.norm1.tensors(),
            self.qkv.tensors(),
            self.projection.tensors(),
            self.norm2.tensors(),
            self.fc1.tensors(),
            self.fc2.tensors(),
        ];
        let scales = [&self.scale1, &self.scale2].into_iter().flatten();
        layers.into_iter().flatten().chain(scales).collect()
    }

    /// The same parameters under other handles.
    fn shallow_clone(&self) -> Self {
        Self {
            norm1: self.norm1.shallow_clone(),
            qkv: self.qkv.shallow_clone(),
            projection: self.projection.shallow_clone(),
            scale1: self.scale1.as_ref().map(Tensor::shallow_clone),
            norm2: self.norm2.shallow_clone(),
            fc1: self.fc1.shallow_clone(),
            fc2: self.fc2.shallow_clone(),
            scale2: self.scale2.as_ref().map(Tensor::shallow_clone),
            ..*self
        }
    }

    fn attention(&self, x_bnd: &Tensor, wanted: Wanted, selective: bool) -> Result<Tensor, TrainError> {
        let (batch, tokens, width) = x_bnd.size3()?;
        let qkv_bn3hd = normed_linear(&self.norm1, &self.qkv, x_bnd, selective)?.f_view([
            batch,
            tokens,
            3,
            self.heads,
            width / self.heads,
        ])?;
        // Unbound where they lie: the gradients of the three are then put together in one pass, in the layout that the
        // projection's own gradient needs.
        let parts_bnhd = qkv_bn3hd.f_unbind(2)?;
        let part = |index: usize| parts_bnhd[index].f_transpose(1, 2);
        let mixed_bhnd = Tensor::f_scaled_dot_product_attention(
            &wanted.of(&part(0)?, 2)?,
            &part(1)?,
            &part(2)?,
            None::<&Tensor>,
            0.0,
            false,
            None,
            false,
        )?;
        let mixed_bnd = mixed_bhnd.f_transpose(1, 2)?.f_reshape([batch, -1, width])?;
        self.projection.forward(&mixed_bnd)
    }

    fn mlp(&self, x_bnd: &Tensor, selective: bool) -> Result<Tensor, TrainError> {
        let hidden = normed_linear(&self.norm2, &self.fc1, x_bnd, selective)?;
        if selective {
            self.fc2.forward_gelu(&hidden)
        } else {
            self.fc2.forward(&hidden.f_gelu("none")?)
        }
    }
}

fn normed_linear(
    norm: &LayerNorm,
    linear: &Linear,
    x: &Tensor,
    selective: bool,
) -> Result<Tensor, TrainError> {
    if selective {
        linear.forward_normed(norm, x)
    } else {
        linear.forward(&norm.forward(x)?)
    }
}

fn scaled(branch: Tensor, scale: Option<&Tensor>) -> Result<Tensor, TrainError> {
    Ok(match scale {
        Some(scale) => branch.f_mul(scale)?,
        None => branch,
    })
}
