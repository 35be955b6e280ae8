//! Rotary positions of patches (RoPE), as in DINOv3 (arXiv 2508.10104) and timm's `RotaryEmbeddingDinoV3`.

use std::f64::consts::TAU;

use tch::{Device, Kind, Tensor};

use crate::error::TrainError;

/// Periods of coordinates from -1 to 1 are powers of this.
const BASE: f64 = 100.0;

/// Sines and cosines by patch and channel of a head.
#[derive(Debug)]
pub(super) struct Rotary {
    /// Tokens before the patches, which are not rotated.
    prefix: i64,
    sine_n1d: Tensor,
    cosine_n1d: Tensor,
}

impl Rotary {
    /// For a square of `side` x `side` patches, and heads whose width is a multiple of 4.
    pub(super) fn new([side, prefix, head_width]: [i64; 3], device: Device) -> Self {
        let options = (Kind::Float, device);
        let centers = (Tensor::arange(side, options) + 0.5) * (2.0 / side as f64) - 1.0;
        let grid = Tensor::meshgrid_indexing(&[&centers, &centers], "ij");
        let coordinates_n2 = Tensor::stack(&grid, -1).view([-1, 2]);
        let exponents = Tensor::arange(head_width / 4, options) * (4.0 / head_width as f64);
        let periods = (exponents * BASE.ln()).exp();
        let angles = (coordinates_n2.unsqueeze(-1) * TAU / periods).flatten(1, -1);
        // The same for both halves of a head.
        let angles_n1d = angles.repeat([1, 2]).unsqueeze(1);
        Self {
            prefix,
            sine_n1d: angles_n1d.sin(),
            cosine_n1d: angles_n1d.cos(),
        }
    }

    pub(super) fn shallow_clone(&self) -> Self {
        Self {
            prefix: self.prefix,
            sine_n1d: self.sine_n1d.shallow_clone(),
            cosine_n1d: self.cosine_n1d.shallow_clone(),
        }
    }

    /// Queries or keys of all tokens, those of patches rotated, in the layout that attention also gives its output,
    /// which then needs no copy.
    pub(super) fn rotate(&self, x_bnhd: &Tensor) -> Result<Tensor, TrainError> {
        let patches = x_bnhd.f_slice(1, self.prefix, None, 1)?;
        let halves = patches.f_chunk(2, -1)?;
        let turned = Tensor::f_cat(&[halves[1].f_neg()?, halves[0].shallow_clone()], -1)?;
        let rotated = patches
            .f_mul(&self.cosine_n1d)?
            .f_add(&turned.f_mul(&self.sine_n1d)?)?;
        let first = x_bnhd.f_narrow(1, 0, self.prefix)?;
        Ok(Tensor::f_cat(&[first, rotated.f_to_kind(x_bnhd.kind())?], 1)?)
    }
}
