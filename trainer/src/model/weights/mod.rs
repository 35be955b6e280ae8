//! Weights in safetensors files, under the names of timm and other libraries.
//!
//! ```text
//!   file -> Weights::read -> timm's names, 32 bits -> fitted to a model -> its parameters
//!                                                  -> Weights::named  -> a file of either naming
//! ```

mod fit;
mod layouts;
mod names;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use contract::architecture::Position;
use contract::{ExitCode, ModelConfig, Pooling};
use fs_err as fs;
use safetensors::SafeTensors;
use tch::{Kind, Tensor};

use crate::error::Failure;
use crate::tensor_file;

pub(crate) use fit::Fit;
use layouts::TORCHVISION;

/// Channels of torchvision's models.
const COLORS: u32 = 3;

/// The naming of tensors.
#[derive(Clone, Copy, Debug, Eq, PartialEq, serde::Serialize, clap::ValueEnum)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Naming {
    /// Names of timm's `VisionTransformer`
    Timm,
    /// Names of torchvision's `VisionTransformer`
    Torchvision,
}

impl std::fmt::Display for Naming {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::Timm => "timm",
            Self::Torchvision => "torchvision",
        })
    }
}

impl Naming {
    /// Features of a model that these names cannot express.
    pub(crate) fn lacks(self, model: &ModelConfig) -> Vec<String> {
        match self {
            Self::Timm => Vec::new(),
            Self::Torchvision => torchvision_lacks(model),
        }
    }
}

/// An error in a file of weights. Retrying does not help.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WeightsError {
    /// A file that cannot be read. The messages of `fs_err` name the path.
    #[error("failed to read the weights: {0}")]
    Read(#[source] std::io::Error),
    #[error("{path} is not a safetensors file: {message}; convert weights in other formats first")]
    Format { path: PathBuf, message: String },
    #[error("{path}: {name} holds {dtype} values: must be F32, F16, BF16 or F64")]
    Kind {
        path: PathBuf,
        name: String,
        dtype: String,
    },
    #[error("{path} has no tensor {name}, which has shape {expected:?} in the model{hint}")]
    Missing {
        path: PathBuf,
        name: String,
        expected: Vec<i64>,
        hint: &'static str,
    },
    #[error("{path} has a tensor {name} of shape {found:?}, which the model does not have{hint}")]
    Unexpected {
        path: PathBuf,
        name: String,
        found: Vec<i64>,
        hint: &'static str,
    },
    #[error("{path} has a tensor {name}, for which {naming} has no name")]
    Unnamed {
        path: PathBuf,
        name: String,
        naming: Naming,
    },
    #[error(
        "{path} is for {found} attention heads according to its metadata, but model.heads is {expected}: set it to {found}, or use another file"
    )]
    Heads {
        path: PathBuf,
        found: u32,
        expected: u32,
    },
    #[error(
        "{path} has {prefix}{name} instead of {name}, as in files of a model wrapped by DDP or torch.compile: save the state of the wrapped model"
    )]
    Prefixed {
        path: PathBuf,
        name: String,
        prefix: String,
    },
    #[error(
        "{path} has {name}, but no patch embedding under a known name: known are the names of timm, torchvision, Hugging Face (ViT, DeiT, DINOv2, DINOv3, CLIP, SigLIP), open_clip and Meta (DINOv2, DINOv3)"
    )]
    Layout { path: PathBuf, name: String },
    #[error("{path}: {name} has shape {found:?} in the file and {expected:?} in the model{hint}")]
    Shape {
        path: PathBuf,
        name: String,
        found: Vec<i64>,
        expected: Vec<i64>,
        hint: &'static str,
    },
}

impl Failure for WeightsError {
    fn exit_code(&self) -> ExitCode {
        ExitCode::BadConfig
    }
}

/// All tensors of a file, under timm's names and in 32 bits.
#[derive(Debug)]
pub(crate) struct Weights {
    /// For messages.
    path: PathBuf,
    /// Attention heads, if the file has them in its metadata, as this trainer's files do.
    heads: Option<u32>,
    pub(super) tensors: BTreeMap<String, Tensor>,
}

impl Weights {
    pub(crate) fn read(path: &Path) -> Result<Self, WeightsError> {
        Self::parse(path, &fs::read(path).map_err(WeightsError::Read)?)
    }

    /// Like [`Weights::read`], for content already in memory.
    pub(crate) fn parse(path: &Path, content: &[u8]) -> Result<Self, WeightsError> {
        let format = |error: safetensors::SafeTensorError| WeightsError::Format {
            path: path.into(),
            message: error.to_string(),
        };
        let file = SafeTensors::deserialize(content).map_err(format)?;
        let (_, header) = SafeTensors::read_metadata(content).map_err(format)?;
        let mut tensors = BTreeMap::new();
        for (name, view) in file.iter() {
            let tensor = tensor_file::tensor_of(&view).filter(Tensor::is_floating_point);
            let tensor = tensor.ok_or_else(|| WeightsError::Kind {
                path: path.into(),
                name: name.into(),
                dtype: format!("{:?}", view.dtype()),
            })?;
            let tensor = tensor.to_kind(Kind::Float);
            tensors.insert(name.to_owned(), tensor);
        }
        let (tensors, left_out) = names::to_timm(tensors);
        if let Some(name) = left_out.first() {
            tracing::info!(
                "{}: {} tensors are left out that an image classifier does not need, such as {name}",
                path.display(),
                left_out.len()
            );
        }
        Ok(Self {
            path: path.into(),
            heads: header.metadata().as_ref().and_then(heads),
            tensors,
        })
    }

    /// Adds the tensors of another file of the same model.
    pub(crate) fn extend(&mut self, other: Self) {
        self.tensors.extend(other.tensors);
    }

    /// The tensors under the names of a library.
    pub(crate) fn named(
        self,
        naming: Naming,
        model: &ModelConfig,
    ) -> Result<Vec<(String, Tensor)>, WeightsError> {
        let Self { path, tensors, .. } = self;
        let is_eva = model.architecture.position == Position::Rotary;
        let renamed = tensors.into_iter().map(|(name, tensor)| {
            let theirs = match naming {
                Naming::Timm if is_eva => Some(names::in_eva(&name)),
                Naming::Timm => Some(name.clone()),
                Naming::Torchvision => TORCHVISION.own_name(&name),
            };
            match theirs {
                Some(theirs) => Ok((theirs, tensor)),
                None => Err(WeightsError::Unnamed {
                    path: path.clone(),
                    name,
                    naming,
                }),
            }
        });
        renamed.collect()
    }
}

/// Features of a model that torchvision's `VisionTransformer` does not have.
fn torchvision_lacks(model: &ModelConfig) -> Vec<String> {
    let ModelConfig {
        channels,
        pooling,
        register_tokens,
        layer_scale,
        architecture,
        ..
    } = model;
    let mut lacks = Vec::new();
    if *pooling != Pooling::Token {
        lacks.push(format!("{pooling} pooling (model.pooling)"));
    }
    if *register_tokens > 0 {
        lacks.push("register tokens (model.registerTokens)".into());
    }
    if layer_scale.is_some() {
        lacks.push("layer scale (model.layerScale)".into());
    }
    if !architecture.is_plain() {
        lacks.push("parts of this family (model.name)".into());
    }
    if *channels != COLORS {
        lacks.push(format!("images of {channels} channels (model.channels)"));
    }
    lacks
}

/// The heads in metadata written by this trainer.
fn heads(metadata: &HashMap<String, String>) -> Option<u32> {
    let producer = metadata.get("producer")?;
    let heads = metadata
        .get("heads")
        .filter(|_| producer.starts_with("vit-trainer"));
    heads?.parse().ok()
}
