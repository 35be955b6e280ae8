//! A copy of everything that a checkpoint holds, made between two steps, so that training may go on while it is
//! written.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Named, Part, State};
use crate::tensor_file::{self, Metadata, PRODUCER};

/// The copy, in host memory.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(super) state: State,
    pub(super) files: Vec<(Part, Named)>,
    /// How long training stood still for it.
    pub(super) took: Duration,
}

impl Snapshot {
    /// Of these tensors in host memory, for which training stood still so long.
    pub(crate) fn new(state: State, files: Vec<(Part, Named)>, took: Duration) -> Self {
        Self { state, files, took }
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
