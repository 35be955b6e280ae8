//! A pre-norm transformer block: attention, then an MLP, each added to the residual stream.

use contract::ActivationCheckpointing;
use contract::architecture::BlockSpec;
use tch::Tensor;
use torch_ext::Collectives;
use torch_ext::recompute::recompute;

use super::drop_path::KeptImages;
use super::layers::{LayerNorm, Linear};
use super::mlp::Mlp;
use super::parameters::Parameters;
use super::rotary::Rotary;
use super::sequence::Sequence;
use crate::error::TrainError;

#[derive(Debug)]
pub(super) struct Block {
    norm1: LayerNorm,
    qkv: Linear,
    /// Biases of queries and values, if keys have none.
    query_value_biases: Option<[Tensor; 2]>,
    projection: Linear,
    /// Layer scale of the attention branch.
    scale1: Option<Tensor>,
    norm2: LayerNorm,
    mlp: Mlp,
    /// Layer scale of the MLP branch.
    scale2: Option<Tensor>,
    head_width: i64,
    rotary: Option<Rotary>,
}

/// The output tokens of a block.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum OutputTokens {
    All,
    /// Only so many first ones, for the classifiers after the last block.
    First(i64),
}

impl OutputTokens {
    /// Selects these tokens of `x` in dimension `dim`.
    fn select(self, x: &Tensor, dim: i64) -> Result<Tensor, TrainError> {
        Ok(match self {
            Self::All => x.shallow_clone(),
            Self::First(count) => x.f_narrow(dim, 0, count)?,
        })
    }
}

/// The ranks that compute a block together with this one.
#[derive(Clone, Copy)]
pub(super) struct BlockRanks<'a> {
    /// If ranks divide tokens.
    pub(super) sequence: Option<&'a Sequence>,
    /// If ranks divide heads and the MLP's hidden values, with the weights for their part.
    pub(super) tensor: Option<&'a Collectives>,
}

/// Settings of one run of a block.
#[derive(Clone, Copy)]
struct BlockRun<'a> {
    wanted: OutputTokens,
    /// Whether the backward pass recomputes norms and activations.
    selective: bool,
    ranks: BlockRanks<'a>,
}

impl Block {
    /// Registers parameters in timm's order: `norm1, attn, ls1, norm2, mlp, ls2`.
    pub(super) fn new(
        parameters: &mut Parameters,
        spec: &BlockSpec,
        head_width: i64,
        rotary: Option<Rotary>,
    ) -> Self {
        Self {
            norm1: LayerNorm::new(parameters, &spec.norm1),
            qkv: Linear::new(parameters, &spec.qkv),
            query_value_biases: spec
                .query_value_biases
                .as_ref()
                .map(|biases| biases.each_ref().map(|bias| parameters.add(bias))),
            projection: Linear::new(parameters, &spec.projection),
            scale1: spec.scale1.as_ref().map(|scale| parameters.add(scale)),
            norm2: LayerNorm::new(parameters, &spec.norm2),
            mlp: Mlp::new(parameters, &spec.mlp),
            scale2: spec.scale2.as_ref().map(|scale| parameters.add(scale)),
            head_width,
            rotary,
        }
    }

    /// `kept` selects images for both branches, `checkpointing` what the backward pass recomputes.
    pub(super) fn forward(
        &self,
        x_bnd: &Tensor,
        kept: [KeptImages; 2],
        wanted: OutputTokens,
        checkpointing: ActivationCheckpointing,
        ranks: BlockRanks<'_>,
    ) -> Result<Tensor, TrainError> {
        let how = |selective| BlockRun {
            wanted,
            selective,
            ranks,
        };
        match checkpointing {
            ActivationCheckpointing::None => self.run(x_bnd, &kept, how(false)),
            ActivationCheckpointing::Selective => self.run(x_bnd, &kept, how(true)),
            ActivationCheckpointing::Block => {
                let block = self.shallow_clone();
                let sequence = ranks.sequence.map(Sequence::share).transpose()?;
                let tensor = ranks.tensor.map(Collectives::share).transpose()?;
                Ok(recompute(x_bnd, &self.tensors(), move |x_bnd| {
                    let how = BlockRun {
                        wanted,
                        selective: false,
                        ranks: BlockRanks {
                            sequence: sequence.as_ref(),
                            tensor: tensor.as_ref(),
                        },
                    };
                    block.run(x_bnd, &kept, how).map_err(|error| error.to_string())
                })?)
            }
        }
    }

    fn run(
        &self,
        x_bnd: &Tensor,
        [attention, mlp]: &[KeptImages; 2],
        how: BlockRun<'_>,
    ) -> Result<Tensor, TrainError> {
        let x_bnd = attention.add(&how.wanted.select(x_bnd, 1)?, x_bnd, |x_bnd| {
            scaled(self.attention(x_bnd, how)?, self.scale1.as_ref())
        })?;
        mlp.add(&x_bnd, &x_bnd, |x_bnd| {
            let mlp = self
                .mlp
                .forward(&self.norm2, x_bnd, how.selective, how.ranks.tensor)?;
            scaled(mlp, self.scale2.as_ref())
        })
    }

    fn tensors(&self) -> Vec<&Tensor> {
        let biases = self.query_value_biases.iter().flatten();
        let attention = self.qkv.tensors().chain(biases).chain(self.projection.tensors());
        let norms = [&self.norm1, &self.norm2]
            .into_iter()
            .flat_map(LayerNorm::tensors);
        let scales = [&self.scale1, &self.scale2].into_iter().flatten();
        attention
            .chain(self.mlp.tensors())
            .chain(norms)
            .chain(scales)
            .collect()
    }

    /// The same parameters under other handles.
    fn shallow_clone(&self) -> Self {
        Self {
            norm1: self.norm1.shallow_clone(),
            qkv: self.qkv.shallow_clone(),
            query_value_biases: self
                .query_value_biases
                .as_ref()
                .map(|biases| biases.each_ref().map(Tensor::shallow_clone)),
            projection: self.projection.shallow_clone(),
            scale1: self.scale1.as_ref().map(Tensor::shallow_clone),
            norm2: self.norm2.shallow_clone(),
            mlp: self.mlp.shallow_clone(),
            scale2: self.scale2.as_ref().map(Tensor::shallow_clone),
            head_width: self.head_width,
            rotary: self.rotary.as_ref().map(Rotary::shallow_clone),
        }
    }

    fn attention(&self, x_bnd: &Tensor, how: BlockRun<'_>) -> Result<Tensor, TrainError> {
        let mut qkv_bnk = normed_linear(&self.norm1, &self.qkv, x_bnd, how)?;
        if let Some([queries, values]) = &self.query_value_biases {
            let bias = Tensor::f_cat(&[queries, &queries.f_zeros_like()?, values], 0)?;
            qkv_bnk = qkv_bnk.f_add(&bias.f_to_kind(qkv_bnk.kind())?)?;
        }
        let (batch, tokens, width) = qkv_bnk.size3()?;
        let heads = width / (3 * self.head_width);
        let mut qkv_bn3hd = qkv_bnk.f_view([batch, tokens, 3, heads, self.head_width])?;
        if let Some(sequence) = how.ranks.sequence {
            qkv_bn3hd = sequence.to_heads(&qkv_bn3hd)?;
        }
        // Unbound in place: the gradients of all three are then joined in one pass, in the layout
        // that the projection's gradient needs.
        let parts_bnhd = qkv_bn3hd.f_unbind(2)?;
        let rotated = |x_bnhd: &Tensor| match &self.rotary {
            Some(rotary) => rotary.rotate(x_bnhd),
            None => Ok(x_bnhd.shallow_clone()),
        };
        let queries_bhnd = rotated(&parts_bnhd[0])?.f_transpose(1, 2)?;
        let keys_bhnd = rotated(&parts_bnhd[1])?.f_transpose(1, 2)?;
        let values_bhnd = parts_bnhd[2].f_transpose(1, 2)?;
        let mixed_bhnd = attend(&how.wanted.select(&queries_bhnd, 2)?, &keys_bhnd, &values_bhnd)?;
        let mut mixed_bnhd = mixed_bhnd.f_transpose(1, 2)?;
        if let Some(sequence) = how.ranks.sequence {
            mixed_bnhd = sequence.to_tokens(&mixed_bnhd)?;
        }
        let mixed_bnk = mixed_bnhd.f_flatten(2, 3)?;
        match how.ranks.tensor {
            None => self.projection.forward(&mixed_bnk),
            Some(ranks) => self.projection.forward_parts(&mixed_bnk, ranks),
        }
    }
}

pub(super) fn attend(queries: &Tensor, keys: &Tensor, values: &Tensor) -> Result<Tensor, TrainError> {
    if keys.size()[0] == 0 {
        // Not every attention kernel accepts an empty batch.
        let weights = queries.f_matmul(&keys.f_transpose(2, 3)?)?;
        return Ok(weights.f_matmul(values)?);
    }
    let attention = || {
        Tensor::f_scaled_dot_product_attention(
            queries,
            keys,
            values,
            None::<&Tensor>,
            0.0,
            false,
            None,
            false,
        )
    };
    if is_wrong_in_cudnn(queries.size()[2], keys.size()[2]) {
        return Ok(torch_ext::without_cudnn_attention(attention)??);
    }
    Ok(attention()?)
}

/// Whether the backward pass of cuDNN 9.19, part of libtorch 2.11, can give NaN for these queries
/// and keys on Hopper. It can with a single query (NVIDIA/cudnn-frontend#1072), and with 64 keys
/// more than a multiple of 128 if the scores of a row are very small (pytorch#196678).
fn is_wrong_in_cudnn(queries: i64, keys: i64) -> bool {
    queries == 1 || keys % 128 == 64
}

/// `linear` of normed values; if ranks divide its outputs, each computes a part.
fn normed_linear(
    norm: &LayerNorm,
    linear: &Linear,
    x: &Tensor,
    how: BlockRun<'_>,
) -> Result<Tensor, TrainError> {
    match how.ranks.tensor {
        Some(ranks) => linear.forward(&ranks.used_in_parts(&norm.forward(x)?)?),
        None if how.selective => linear.forward_normed(norm, x),
        None => linear.forward(&norm.forward(x)?),
    }
}

fn scaled(branch: Tensor, scale: Option<&Tensor>) -> Result<Tensor, TrainError> {
    Ok(match scale {
        Some(scale) => branch.f_mul(scale)?,
        None => branch,
    })
}

#[cfg(test)]
mod tests {
    use super::is_wrong_in_cudnn;

    #[test]
    fn shapes_that_cudnn_gets_wrong_are_those_of_the_reports() {
        // ViT-B/16 at 224 pixels with and without a class token; DINOv2; images of 1,024 pixels.
        for tokens in [197, 196, 257, 1025] {
            assert!(!is_wrong_in_cudnn(tokens, tokens), "{tokens}");
            assert!(is_wrong_in_cudnn(1, tokens), "{tokens}");
        }
        // CIFAR in patches of 4, and 384 pixels in patches of 16, without a class token.
        for tokens in [64, 192, 576] {
            assert!(is_wrong_in_cudnn(tokens, tokens), "{tokens}");
        }
    }
}
