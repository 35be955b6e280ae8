//! The ranks of one attempt: how they meet, on what device each works, and what they do together.

use std::net::IpAddr;
use std::time::Duration;

use tch::{Kind, Tensor};
use torch_ext::{Cuda, CudaError, ProcessGroup, Reducer, Rendezvous, Store};

use crate::error::TrainError;

/// How long ranks wait for one another at the start. Pods of a gang are created together, but images may still have
/// to be pulled.
const RENDEZVOUS_TIMEOUT: Duration = Duration::from_secs(10 * 60);
/// How long a collective may take before the peers count as lost. Rank 0 writes checkpoints while the others wait, so
/// this bounds a slow write too.
const COLLECTIVE_TIMEOUT: Duration = Duration::from_secs(10 * 60);

/// Where this rank's tensors live.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Accelerator {
    Cpu,
    Cuda { cuda: Cuda, index: usize },
}

impl Accelerator {
    /// Finds what the configuration asks for.
    pub(crate) fn find(device: contract::Device, local_rank: u32) -> Result<Self, TrainError> {
        match device {
            contract::Device::Cpu => Ok(Self::Cpu),
            contract::Device::Cuda => Ok(Self::Cuda {
                cuda: torch_ext::load_cuda()?,
                index: local_rank as usize,
            }),
            contract::Device::Auto => match torch_ext::load_cuda() {
                Ok(cuda) => Ok(Self::Cuda {
                    cuda,
                    index: local_rank as usize,
                }),
                Err(reason) => Self::instead_of_cuda(reason, local_rank),
            },
        }
    }

    /// The CPU where there is no GPU. One that is there but cannot be used is a fault: falling back would hide it.
    fn instead_of_cuda(reason: CudaError, local_rank: u32) -> Result<Self, TrainError> {
        if !matches!(reason, CudaError::NoDevice) {
            return Err(TrainError::UnusableGpu(reason));
        }
        if local_rank == 0 {
            tracing::warn!("training on the CPU: {reason}");
        }
        Ok(Self::Cpu)
    }

    pub(crate) fn device(self) -> tch::Device {
        match self {
            Self::Cpu => tch::Device::Cpu,
            Self::Cuda { index, .. } => tch::Device::Cuda(index),
        }
    }
}

/// An error on every rank where some have a GPU and some have none: they would wait for one another over different
/// libraries until the time limit.
fn agree_on_device(control: &ProcessGroup, accelerator: Accelerator, ranks: u32) -> Result<(), TrainError> {
    let mut with_gpu = Tensor::from(i64::from(matches!(accelerator, Accelerator::Cuda { .. })));
    control.all_reduce_sum(&mut with_gpu)?;
    same_device(with_gpu.int64_value(&[]).cast_unsigned(), ranks)
}

fn same_device(with_gpu: u64, ranks: u32) -> Result<(), TrainError> {
    if with_gpu == 0 || with_gpu == u64::from(ranks) {
        Ok(())
    } else {
        Err(TrainError::MixedDevices { with_gpu, ranks })
    }
}

/// Which rank this process is, and where it meets the others.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) rank: u32,
    pub(crate) local_rank: u32,
    pub(crate) world_size: u32,
    pub(crate) coordinator_host: String,
    pub(crate) coordinator_port: u16,
    pub(crate) address: IpAddr,
    pub(crate) attempt: u32,
}

/// All ranks, from the point of view of one.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) rank: u32,
    pub(crate) size: u32,
    /// Gradients and parameters, on the device.
    gradients: ProcessGroup,
    /// Small things, on the CPU.
    control: ProcessGroup,
    _store: Store,
}

impl World {
    /// Meets the other ranks.
    pub(crate) fn join(place: &Place, accelerator: Accelerator) -> Result<Self, TrainError> {
        let store = Store::connect(&Rendezvous {
            host: place.coordinator_host.clone(),
            port: place.coordinator_port,
            rank: place.rank,
            world_size: place.world_size,
            prefix: format!("attempt-{}", place.attempt),
            timeout: RENDEZVOUS_TIMEOUT,
        })?;
        let control = ProcessGroup::gloo(&store, "control", place.address, COLLECTIVE_TIMEOUT)?;
        agree_on_device(&control, accelerator, place.world_size)?;
        let gradients = match accelerator {
            Accelerator::Cpu => ProcessGroup::gloo(&store, "gradients", place.address, COLLECTIVE_TIMEOUT)?,
            Accelerator::Cuda { cuda, .. } => {
                ProcessGroup::nccl(&store, "gradients", &cuda, COLLECTIVE_TIMEOUT)?
            }
        };
        Ok(Self {
            rank: place.rank,
            size: place.world_size,
            gradients,
            control,
            _store: store,
        })
    }

    /// Whether this rank writes what is written once: checkpoints and the log.
    pub(crate) fn is_first(&self) -> bool {
        self.rank == 0
    }

    /// Gives every rank rank 0's values.
    pub(crate) fn broadcast(&self, tensors: &[Tensor]) -> Result<(), TrainError> {
        Ok(self.gradients.broadcast(tensors, 0)?)
    }

    /// Gives every rank rank 0's numbers.
    pub(crate) fn broadcast_numbers<const N: usize>(
        &self,
        numbers: [i64; N],
    ) -> Result<[i64; N], TrainError> {
        let tensor = Tensor::from_slice(&numbers);
        self.control.broadcast(std::slice::from_ref(&tensor), 0)?;
        Ok(std::array::from_fn(|index| tensor.int64_value(&[index as i64])))
    }

    /// Sums of all ranks' counts.
    pub(crate) fn sum<const N: usize>(&self, counts: [u64; N]) -> Result<[u64; N], TrainError> {
        let mut tensor = Tensor::from_slice(&counts.map(u64::cast_signed)).to_kind(Kind::Int64);
        self.control.all_reduce_sum(&mut tensor)?;
        Ok(std::array::from_fn(|index| {
            tensor.int64_value(&[index as i64]).cast_unsigned()
        }))
    }

    /// Returns once every rank is here.
    pub(crate) fn barrier(&self) -> Result<(), TrainError> {
        Ok(self.control.barrier()?)
    }

    /// Averages these parameters' gradients over the ranks from now on.
    pub(crate) fn reducer(
        &self,
        parameters: &[Tensor],
        bucket_megabytes: u32,
    ) -> Result<Reducer, TrainError> {
        let bucket_bytes = bucket_megabytes as usize * 1024 * 1024;
        Ok(Reducer::new(
            parameters,
            &self.gradients,
            &self.control,
            bucket_bytes,
        )?)
    }
}

#[cfg(test)]
mod tests {
    use contract::ExitCode;

    use super::*;

    #[test]
    fn only_a_machine_without_a_gpu_falls_back_to_the_cpu() {
        let found = Accelerator::instead_of_cuda(CudaError::NoDevice, 0).expect("the CPU");
        assert!(matches!(found, Accelerator::Cpu));
        let missing = CudaError::Library {
            library: "libvit_nccl.so",
            message: "cannot open shared object file".into(),
        };
        for (reason, named) in [
            (missing, "libvit_nccl.so"),
            (CudaError::Unusable, "no usable GPU"),
        ] {
            let error = Accelerator::instead_of_cuda(reason, 0).expect_err("a fault");
            assert_eq!(error.exit_code(), ExitCode::DeviceFault);
            let message = error.to_string();
            assert!(message.contains(named), "{message}");
            assert!(message.contains("set workers.device to cpu"), "{message}");
        }
    }

    #[test]
    fn ranks_on_different_devices_are_a_fault() {
        same_device(0, 4).expect("all on the CPU");
        same_device(4, 4).expect("all on GPUs");
        let error = same_device(3, 4).expect_err("one fell back");
        assert_eq!(error.exit_code(), ExitCode::DeviceFault);
        assert!(error.to_string().contains("3 of 4 ranks"), "{error}");
    }
}
