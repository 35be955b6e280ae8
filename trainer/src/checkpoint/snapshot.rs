//! A copy of everything in a checkpoint, made between two steps so that training continues while it
//! is written.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Named, Part, State};
use crate::tensor_file::{self, Metadata, PRODUCER};

/// The copy, in host memory.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(super) state: State,
    pub(super) files: Vec<(Part, Named)>,
    /// How long training was paused for it.
    pub(super) took: Duration,
}

impl Snapshot {
    /// From these tensors in host memory, for which training was paused for `took`.
    pub(crate) fn new(state: State, files: Vec<(Part, Named)>, took: Duration) -> Self {
        Self { state, files, took }
    }

    /// Bytes of all tensors. Headers and other files are small in comparison.
    pub(super) fn bytes(&self) -> u64 {
        let tensors = self.files.iter().flat_map(|(_, tensors)| tensors);
        tensors
            .map(|(_, tensor)| tensor_file::bytes_of(tensor) as u64)
            .sum()
    }

    /// The metadata of each safetensors file. Readers in PyTorch's ecosystem need `format`.
    pub(super) fn metadata(&self) -> Metadata {
        let position = self.state.position;
        BTreeMap::from([
            ("format", "pt".into()),
            ("producer", PRODUCER.into()),
            // Not visible in any tensor's shape.
            ("heads", self.state.model.heads.to_string()),
            ("step", position.step.to_string()),
            ("epoch", position.epoch.to_string()),
        ])
    }
}
