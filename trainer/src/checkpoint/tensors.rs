//! Named tensors in safetensors files.

use std::borrow::Cow;
use std::io::Write as _;
use std::path::Path;

use fs_err as fs;
use safetensors::{Dtype, SafeTensors, View};
use tch::{Kind, Tensor};

use super::{CheckpointError, Named};

/// A tensor as the serializer wants it: its bytes are copied only when its turn comes.
struct FloatView {
    shape: Vec<usize>,
    tensor: Tensor,
}

impl FloatView {
    fn new(tensor: &Tensor) -> Self {
        let tensor = tensor
            .detach()
            .to_device(tch::Device::Cpu)
            .to_kind(Kind::Float)
            .contiguous();
        Self {
            shape: tensor.size().iter().map(|size| *size as usize).collect(),
            tensor,
        }
    }
}

impl View for FloatView {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        let mut bytes = vec![0; self.data_len()];
        self.tensor.copy_data_u8(&mut bytes, self.tensor.numel());
        Cow::Owned(bytes)
    }

    fn data_len(&self) -> usize {
        self.tensor.numel() * size_of::<f32>()
    }
}

/// Writes the tensors and flushes them to storage.
pub(super) fn write(path: &Path, tensors: &Named) -> std::io::Result<()> {
    let views = tensors
        .iter()
        .map(|(name, tensor)| (name.as_str(), FloatView::new(tensor)));
    let bytes = safetensors::serialize(views, None).map_err(std::io::Error::other)?;
    let mut file = fs::File::create(path)?;
    file.write_all(&bytes)?;
    file.sync_all()
}

/// Reads the values of exactly the tensors in `expected`: names and shapes must agree.
pub(super) fn read(path: &Path, expected: &Named) -> Result<Vec<Tensor>, CheckpointError> {
    let corrupt = |message: String| CheckpointError::Corrupt {
        path: path.into(),
        message,
    };
    let bytes = fs::read(path).map_err(CheckpointError::Read)?;
    let file = SafeTensors::deserialize(&bytes).map_err(|error| corrupt(error.to_string()))?;
    if file.len() != expected.len() {
        return Err(corrupt(format!(
            "it has {} tensors instead of {}",
            file.len(),
            expected.len()
        )));
    }
    expected
        .iter()
        .map(|(name, target)| {
            let view = file
                .tensor(name)
                .map_err(|_| corrupt(format!("it has no tensor {name}")))?;
            let shape: Vec<i64> = view.shape().iter().map(|size| *size as i64).collect();
            if view.dtype() != Dtype::F32 || shape != target.size() {
                return Err(corrupt(format!(
                    "{name} is {:?} {shape:?} instead of F32 {:?}",
                    view.dtype(),
                    target.size()
                )));
            }
            Ok(Tensor::from_data_size(view.data(), &shape, Kind::Float))
        })
        .collect()
}

/// Copies values into live tensors, in order.
pub(super) fn copy(values: &[Tensor], targets: &Named) {
    tch::no_grad(|| {
        for (value, (_, target)) in values.iter().zip(targets) {
            target.shallow_clone().copy_(value);
        }
    });
}
