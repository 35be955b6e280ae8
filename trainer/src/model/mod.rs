//! The network.

mod parameters;
mod vit;

pub(crate) use parameters::Parameters;
pub(crate) use vit::VisionTransformer;
