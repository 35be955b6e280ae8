//! The network.

mod attention_pool;
mod block;
mod drop_path;
mod layers;
mod mlp;
mod parameters;
mod rotary;
mod sequence;
mod split;
mod vit;
mod weights;

#[cfg(test)]
pub(crate) mod fixtures;
#[cfg(test)]
mod footprint;
#[cfg(test)]
mod goldens;

pub(crate) use drop_path::DropSeed;
pub(crate) use parameters::{Parameter, Parameters, seed_values};
pub(crate) use split::SplitTensor;
pub(crate) use vit::{Mode, VisionTransformer};
pub(crate) use weights::{Fit, Naming, Weights};
