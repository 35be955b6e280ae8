//! Tokens divided among ranks, and heads during attention (DeepSpeed-Ulysses, arXiv 2309.14509).
//!
//! Each rank has equally many tokens; padding at the end is never attended to or read. Everything
//! has gradients on all ranks: an operation that exchanges gradients waits for every rank.
//!
//! Suffixes are as in `vit.rs`; n are a rank's tokens of N, g its heads of h during attention.

use std::ops::Range;

use tch::{Kind, Tensor};
use torch_ext::{Collectives, Member};

use crate::error::TrainError;

/// The ranks that have the same images, and this one's place among them.
#[derive(Debug)]
pub(crate) struct Sequence {
    ranks: Collectives,
    member: Member,
    /// Tokens of each image, without padding.
    tokens: i64,
}

impl Sequence {
    pub(crate) fn new(ranks: Collectives, member: Member, tokens: i64) -> Self {
        Self {
            ranks,
            member,
            tokens,
        }
    }

    /// Another handle, for another thread.
    pub(super) fn share(&self) -> Result<Self, TrainError> {
        Ok(Self {
            ranks: self.ranks.share()?,
            ..*self
        })
    }

    /// The tokens of this rank.
    pub(super) fn own(&self) -> Range<i64> {
        own_tokens(self.tokens, self.member)
    }

    /// Tokens per rank, with padding.
    fn share_size(&self) -> i64 {
        share_size(self.tokens, self.member.size)
    }

    /// `x_bnd` padded to the number of tokens of other ranks.
    pub(super) fn pad(&self, x_bnd: &Tensor) -> Result<Tensor, TrainError> {
        let missing = self.share_size() - x_bnd.size()[1];
        Ok(x_bnd.f_constant_pad_nd([0, 0, 0, missing])?)
    }

    /// From all heads of this rank's tokens to its heads of all tokens.
    pub(super) fn to_heads(&self, x_bn3hd: &Tensor) -> Result<Tensor, TrainError> {
        let [batch, tokens, three, heads, width] = five(&x_bn3hd.size());
        let ranks = i64::from(self.member.size);
        let parts = x_bn3hd
            .f_view([batch, tokens, three, ranks, heads / ranks, width])?
            .f_permute([3, 0, 1, 2, 4, 5])?;
        let received = self.ranks.all_to_all(&parts)?;
        Ok(received
            .f_transpose(0, 1)?
            .f_reshape([batch, ranks * tokens, three, heads / ranks, width])?
            .f_narrow(1, 0, self.tokens)?)
    }

    /// From this rank's heads of all tokens to all heads of its tokens.
    pub(super) fn to_tokens(&self, x_bngd: &Tensor) -> Result<Tensor, TrainError> {
        let (batch, _, heads, width) = x_bngd.size4()?;
        let (ranks, tokens) = (i64::from(self.member.size), self.share_size());
        let missing = ranks * tokens - self.tokens;
        let parts = x_bngd
            .f_constant_pad_nd([0, 0, 0, 0, 0, missing])?
            .f_view([batch, ranks, tokens, heads, width])?
            .f_transpose(0, 1)?;
        let received = self.ranks.all_to_all(&parts)?;
        Ok(received
            .f_permute([1, 2, 0, 3, 4])?
            .f_reshape([batch, tokens, ranks * heads, width])?)
    }

    /// A token of each image, on every rank.
    pub(super) fn token(&self, x_bnd: &Tensor, index: i64) -> Result<Tensor, TrainError> {
        let own = self.own();
        let (is_here, place) = if own.contains(&index) {
            (1.0, index - own.start)
        } else {
            (0.0, 0)
        };
        self.sum(&x_bnd.f_select(1, place)?.f_mul_scalar(is_here)?)
    }

    /// All tokens of each image, on every rank.
    pub(super) fn all(&self, x_bnd: &Tensor) -> Result<Tensor, TrainError> {
        let own = self.own();
        let read = x_bnd.f_narrow(1, 0, own.end - own.start)?;
        self.sum(&read.f_constant_pad_nd([0, 0, own.start, self.tokens - own.end])?)
    }

    /// The mean over the tokens of each image except the first ones, on every rank.
    pub(super) fn mean_after(&self, x_bnd: &Tensor, first: i64) -> Result<Tensor, TrainError> {
        let own = self.own();
        let begin = first.clamp(own.start, own.end) - own.start;
        let read = x_bnd.f_narrow(1, begin, own.end - own.start - begin)?;
        let sum = self.sum(&read.f_sum_dim_intlist([1].as_slice(), false, Kind::Float)?)?;
        Ok(sum.f_div_scalar(self.tokens - first)?.f_to_kind(x_bnd.kind())?)
    }

    fn sum(&self, values: &Tensor) -> Result<Tensor, TrainError> {
        Ok(self.ranks.sum_for_all(values)?)
    }
}

fn share_size(tokens: i64, ranks: u32) -> i64 {
    let ranks = i64::from(ranks);
    (tokens + ranks - 1) / ranks
}

fn own_tokens(tokens: i64, member: Member) -> Range<i64> {
    let share = share_size(tokens, member.size);
    let start = (i64::from(member.rank) * share).min(tokens);
    start..(start + share).min(tokens)
}

fn five(size: &[i64]) -> [i64; 5] {
    size.try_into().expect("five dimensions")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_token_is_on_one_rank() {
        let own = |tokens, size| -> Vec<_> {
            (0..size)
                .map(|rank| own_tokens(tokens, Member { rank, size }))
                .collect()
        };
        assert_eq!(own(8, 2), [0..4, 4..8]);
        assert_eq!(own(5, 3), [0..2, 2..4, 4..5]);
        // The last one has only padding.
        assert_eq!(own(5, 4), [0..2, 2..4, 4..5, 5..5]);
    }
}
