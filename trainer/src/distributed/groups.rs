//! Groups of ranks, by purpose.

use std::net::IpAddr;
use std::time::Duration;

use torch_ext::{Member, ProcessGroup, Store};

use super::Accelerator;
use crate::error::TrainError;

/// Timeout of a collective, after which peers count as lost. The others wait while rank 0 finishes
/// a checkpoint at the end of an epoch or of training, so it also bounds a slow write.
const COLLECTIVE_TIMEOUT: Duration = Duration::from_secs(10 * 60);

/// Creates groups of ranks.
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

    pub(super) fn pair(&self, name: &str, member: Member) -> Result<GroupPair, TrainError> {
        Ok(GroupPair {
            group: self.on_device(name, member)?,
            control: self.on_cpu(&format!("{name}-control"), member)?,
        })
    }
}

/// Two groups of the same ranks: for tensors on the device, and for small data on the CPU.
#[derive(Debug)]
pub(super) struct GroupPair {
    pub(super) group: ProcessGroup,
    pub(super) control: ProcessGroup,
}

impl GroupPair {
    pub(super) fn groups(&self) -> (&ProcessGroup, &ProcessGroup) {
        (&self.group, &self.control)
    }
}
