//! Groups of ranks, by what they exchange.

use std::net::IpAddr;
use std::time::Duration;

use torch_ext::{Member, ProcessGroup, Store};

use super::Accelerator;
use crate::error::TrainError;

/// How long a collective may take before the peers count as lost. The others wait while rank 0 finishes a checkpoint at
/// the end of an epoch or of training, so this bounds a slow write there too.
const COLLECTIVE_TIMEOUT: Duration = Duration::from_secs(10 * 60);

/// What makes groups of ranks.
pub(super) struct Groups<'a> {
    pub(super) store: &'a Store,
    pub(super) accelerator: Accelerator,
    pub(super) address: IpAddr,
}

impl Groups<'_> {
    pub(super) fn on_cpu(&self, name: &str, member: Member) -> Result<ProcessGroup, TrainError> {
        Ok(ProcessGroup::gloo(
            self.store,
            (name, member),
            self.address,
            COLLECTIVE_TIMEOUT,
        )?)
    }

    pub(super) fn on_device(&self, name: &str, member: Member) -> Result<ProcessGroup, TrainError> {
        Ok(match self.accelerator {
            Accelerator::Cpu => self.on_cpu(name, member)?,
            Accelerator::Cuda { cuda, index } => {
                ProcessGroup::nccl(self.store, (name, member), (&cuda, index), COLLECTIVE_TIMEOUT)?
            }
        })
    }

    pub(super) fn pair(&self, name: &str, member: Member) -> Result<Pair, TrainError> {
        Ok(Pair {
            group: self.on_device(name, member)?,
            control: self.on_cpu(&format!("{name}-control"), member)?,
        })
    }
}

/// The same ranks twice: for tensors on the device, and for small things on the CPU.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) group: ProcessGroup,
    pub(super) control: ProcessGroup,
}

impl Pair {
    pub(super) fn groups(&self) -> (&ProcessGroup, &ProcessGroup) {
        (&self.group, &self.control)
    }
}
