//! A tensor in a checkpoint file, read on demand: a restore holds at most one of them beside the
//! run's own.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;

use fs_err as fs;
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorView};
use tch::Tensor;

use super::CheckpointError;
use crate::tensor_file;

/// Bytes of a header's length.
const LENGTH_BYTES: u64 = 8;

#[derive(Clone, Debug)]
pub(crate) struct Stored {
    file: Arc<fs::File>,
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<usize>,
    start: u64,
    bytes: usize,
}

impl Stored {
    /// The tensors of a safetensors file, by name.
    pub(super) fn from_file(path: &Path) -> Result<BTreeMap<String, Self>, CheckpointError> {
        let corrupt = |message: String| CheckpointError::Corrupt {
            path: path.into(),
            message,
        };
        let mut file = fs::File::open(path).map_err(CheckpointError::Read)?;
        let mut length = [0; LENGTH_BYTES as usize];
        file.read_exact(&mut length).map_err(CheckpointError::Read)?;
        let length = u64::from_le_bytes(length);
        let whole = file.metadata().map_err(CheckpointError::Read)?.len();
        if length > whole.saturating_sub(LENGTH_BYTES) {
            return Err(corrupt(format!("its header of {length} bytes is truncated")));
        }
        let mut header = Vec::new();
        (&mut file)
            .take(length)
            .read_to_end(&mut header)
            .map_err(CheckpointError::Read)?;
        let header: Metadata = serde_json::from_slice(&header).map_err(|error| corrupt(error.to_string()))?;
        let begin = LENGTH_BYTES + length;
        if begin + header.data_len() as u64 != whole {
            return Err(corrupt(format!(
                "its header says {} bytes of values, but it has {}",
                header.data_len(),
                whole - begin
            )));
        }
        let file = Arc::new(file);
        let stored = header.tensors().into_iter().map(|(name, about)| {
            let (start, end) = about.data_offsets;
            let stored = Self {
                file: file.clone(),
                dtype: about.dtype,
                shape: about.shape.clone(),
                start: begin + start as u64,
                bytes: end - start,
            };
            (name, stored)
        });
        Ok(stored.collect())
    }

    /// Whether it has this shape and 32-bit numbers.
    pub(super) fn is(&self, shape: &[i64]) -> bool {
        let sizes = self.shape.iter().map(|size| *size as i64);
        self.dtype == Dtype::F32 && sizes.eq(shape.iter().copied())
    }

    /// Its values.
    pub(crate) fn read(&self) -> Result<Tensor, CheckpointError> {
        let mut bytes = vec![0; self.bytes];
        let path = self.file.path();
        self.file
            .file()
            .read_exact_at(&mut bytes, self.start)
            .map_err(|error| {
                let told = format!("failed to read from file `{}`: {error}", path.display());
                CheckpointError::Read(std::io::Error::new(error.kind(), told))
            })?;
        let corrupt = |message: String| CheckpointError::Corrupt {
            path: path.into(),
            message,
        };
        let view = TensorView::new(self.dtype, self.shape.clone(), &bytes)
            .map_err(|error| corrupt(error.to_string()))?;
        tensor_file::tensor_of(&view).ok_or_else(|| corrupt(format!("{} is not supported", self.dtype)))
    }
}
