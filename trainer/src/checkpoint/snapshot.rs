//! A copy of everything that a checkpoint holds, taken between two steps, so that training may go on while it is
//! written.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tch::{Device, Kind, Tensor};

use super::{Named, Part, State};
use crate::tensor_file::{self, Metadata, PRODUCER};

/// The copy, in host memory.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(super) state: State,
    pub(super) files: Vec<(&'static str, Vec<(String, Tensor)>)>,
    /// How long training stood still for it.
    pub(super) took: Duration,
}

impl Snapshot {
    pub(crate) fn take(state: State, parts: &[Part<'_>]) -> Result<Self, tch::TchError> {
        let start = Instant::now();
        let files = parts
            .iter()
            .map(|part| Ok((part.file, copy(part.tensors)?)))
            .collect::<Result<_, tch::TchError>>()?;
        wait(parts)?;
        Ok(Self {
            state,
            files,
            took: start.elapsed(),
        })
    }

    /// Bytes of all tensors. Headers and the other files are small beside them.
    pub(super) fn bytes(&self) -> u64 {
        let tensors = self.files.iter().flat_map(|(_, tensors)| tensors);
        tensors
            .map(|(_, tensor)| tensor_file::bytes_of(tensor) as u64)
            .sum()
    }

    /// What each safetensors file says of itself. `format` is what readers of PyTorch's ecosystem ask for.
    pub(super) fn metadata(&self) -> Metadata {
        let position = self.state.position;
        BTreeMap::from([
            ("format", "pt".into()),
            ("producer", PRODUCER.into()),
            // What no tensor's shape tells.
            ("heads", self.state.model.heads.to_string()),
            ("step", position.step.to_string()),
            ("epoch", position.epoch.to_string()),
        ])
    }
}

/// Queues the copies, of tensors on a GPU into pinned memory.
fn copy(tensors: &Named) -> Result<Vec<(String, Tensor)>, tch::TchError> {
    tch::no_grad(|| {
        tensors
            .iter()
            .map(|(name, live)| {
                Ok((
                    name.clone(),
                    live.f_to_device_(Device::Cpu, Kind::Float, true, true)?,
                ))
            })
            .collect()
    })
}

/// Returns once what is queued before on the device of these tensors is done.
fn wait(parts: &[Part<'_>]) -> Result<(), tch::TchError> {
    let live = parts.iter().flat_map(|part| part.tensors);
    for (_, tensor) in live.filter(|(_, tensor)| tensor.device() != Device::Cpu).take(1) {
        tensor.f_flatten(0, -1)?.f_get(0)?.f_double_value(&[])?;
    }
    Ok(())
}
