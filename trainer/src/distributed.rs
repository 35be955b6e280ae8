//! The ranks of one attempt: how they meet, on what device each works, and what they do together.

use std::net::IpAddr;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tch::{Kind, Tensor};
use torch_ext::{Compression, Cuda, CudaError, ProcessGroup, Reducer, Rendezvous, Store};

use crate::error::TrainError;

/// How long ranks wait for one another at the start. Pods of a gang are created together, but images may still have
/// to be pulled.
const RENDEZVOUS_TIMEOUT: Duration = Duration::from_secs(10 * 60);
/// How long a collective may take before the peers count as lost. The others wait while rank 0 finishes a checkpoint at
/// the end of an epoch or of training, so this bounds a slow write there too.
const COLLECTIVE_TIMEOUT: Duration = Duration::from_secs(10 * 60);

/// Room for a value that rank 0 gives to the others.
const VALUE_BYTES: usize = 4096;

/// Where this rank's tensors live.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Accelerator {
    Cpu,
    Cuda { cuda: Cuda, index: usize },
}

impl Accelerator {
    pub(crate) fn find(device: contract::Device, local_rank: u32) -> Result<Self, TrainError> {
        if device == contract::Device::Cpu {
            return Ok(Self::Cpu);
        }
        match torch_ext::load_cuda() {
            Ok(cuda) => Ok(Self::Cuda {
                cuda,
                index: local_rank as usize,
            }),
            Err(reason) if device == contract::Device::Cuda => Err(reason.into()),
            Err(reason) => Self::instead_of_cuda(reason, local_rank),
        }
    }

    /// The CPU where there is no GPU. One that is there but cannot be used is a fault, of the node or of the image: falling
    /// back would hide it.
    fn instead_of_cuda(reason: CudaError, local_rank: u32) -> Result<Self, TrainError> {
        if !matches!(reason, CudaError::NoDevice) {
            return Err(TrainError::UnusableGpu(reason));
        }
        if local_rank == 0 {
            tracing::warn!("computing on the CPU: {reason}");
        }
        Ok(Self::Cpu)
    }

    /// Most memory of tensors on the GPU so far, bytes; `None` on the CPU.
    pub(crate) fn peak_bytes(self) -> Result<Option<u64>, TrainError> {
        match self {
            Self::Cpu => Ok(None),
            Self::Cuda { cuda, index } => Ok(Some(cuda.peak_bytes(index)?)),
        }
    }

    /// The GPU's product name; `None` on the CPU.
    pub(crate) fn product(self) -> Option<String> {
        match self {
            Self::Cpu => None,
            Self::Cuda { cuda, index } => Some(cuda.product(index).unwrap_or_else(|| "GPU".into())),
        }
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
    /// Uid of the job, where it has one.
    pub(crate) job: Option<String>,
    pub(crate) attempt: u32,
}

impl Place {
    /// What no other gang has, were it to find this one's rank 0: not another attempt of the job, nor a job of the same name that
    /// was deleted and has not stopped yet.
    fn prefix(&self) -> String {
        let job = self.job.as_deref().unwrap_or("job");
        format!("{job}-attempt-{}", self.attempt)
    }
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
    pub(crate) fn join(place: &Place, accelerator: Accelerator) -> Result<Self, TrainError> {
        let store = Store::connect(&Rendezvous {
            host: place.coordinator_host.clone(),
            port: place.coordinator_port,
            rank: place.rank,
            world_size: place.world_size,
            prefix: place.prefix(),
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

    /// Gives every rank rank 0's value, which takes less than [`VALUE_BYTES`] as JSON.
    pub(crate) fn broadcast_value<T: Serialize + DeserializeOwned>(
        &self,
        value: &T,
    ) -> Result<T, TrainError> {
        let mut json = serde_json::to_vec(value).expect("a plain value");
        json.resize(VALUE_BYTES, b' ');
        let tensor = Tensor::from_slice(&json);
        self.control.broadcast(std::slice::from_ref(&tensor), 0)?;
        let json = Vec::<u8>::try_from(tensor)?;
        Ok(serde_json::from_slice(&json).expect("rank 0's JSON"))
    }

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
        settings: &contract::Parallelism,
    ) -> Result<Reducer, TrainError> {
        let compression = match settings.compress_gradients {
            contract::GradientCompression::None => Compression::None,
            contract::GradientCompression::Bf16 => Compression::Bf16,
        };
        let bytes = parameters.iter().map(bytes_of).sum();
        Ok(Reducer::new(
            parameters,
            &self.gradients,
            &self.control,
            bucket_bytes(bytes, settings.bucket_megabytes as usize * MEBIBYTE),
            compression,
        )?)
    }
}

const MEBIBYTE: usize = 1024 * 1024;
/// Buckets of a model whose gradients would fit few of the largest size.
const LEAST_BUCKETS: usize = 16;

fn bytes_of(tensor: &Tensor) -> usize {
    tensor.numel() * tensor.kind().elt_size_in_bytes()
}

/// Size of a bucket for gradients of `total` bytes. The last bucket of a step is reduced when no computation is left
/// to hide it: with buckets of the 25 MiB that suit ViT-B and larger, ViT-Ti's gradients are a single one.
fn bucket_bytes(total: usize, limit: usize) -> usize {
    (total / LEAST_BUCKETS).clamp(MEBIBYTE.min(limit), limit)
}

#[cfg(test)]
mod tests {
    use contract::ExitCode;

    use super::*;

    #[test]
    fn only_a_machine_without_a_gpu_falls_back_to_the_cpu() {
        let found = Accelerator::instead_of_cuda(CudaError::NoDevice, 0).expect("the CPU");
        assert!(matches!(found, Accelerator::Cpu));
        let (library, message) = ("libtorch_cuda.so", "libcudart.so.13: cannot open".into());
        for (reason, code, named) in [
            (
                CudaError::CpuBuild { library },
                ExitCode::BadConfig,
                "the image whose tag ends in -cuda13",
            ),
            (
                CudaError::Library { library, message },
                ExitCode::DeviceFault,
                "libcudart.so.13",
            ),
            (CudaError::Unusable, ExitCode::DeviceFault, "no usable GPU"),
        ] {
            let error = Accelerator::instead_of_cuda(reason, 0).expect_err("a fault");
            assert_eq!(error.exit_code(), code);
            let message = error.to_string();
            assert!(message.contains(named), "{message}");
            assert!(message.contains("set workers.device to cpu"), "{message}");
        }
    }

    #[test]
    fn a_small_model_has_several_buckets_to_hide_all_but_the_last() {
        let limit = 25 * MEBIBYTE;
        let (tiny, base, giant) = (22 * MEBIBYTE, 330 * MEBIBYTE, 4000 * MEBIBYTE);
        assert_eq!(bucket_bytes(tiny, limit), tiny / 16);
        assert_eq!(bucket_bytes(base, limit), base / 16);
        assert_eq!(bucket_bytes(giant, limit), limit);
        assert_eq!(
            bucket_bytes(1000, limit),
            MEBIBYTE,
            "a message of its own costs too"
        );
        assert_eq!(bucket_bytes(giant, 1000), 1000);
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
