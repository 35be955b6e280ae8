//! The device of a rank.

use torch_ext::{Cuda, CudaError, FlightRecorder, GpuIdentity};

use crate::error::TrainError;

/// Where this rank's tensors live.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Accelerator {
    Cpu,
    Cuda { cuda: Cuda, index: usize },
}

impl Accelerator {
    /// The one GPU that this process may use ([`crate::visible_gpus::of_ranks`]), or the CPU.
    pub(crate) fn find(device: contract::Device, local_rank: u32) -> Result<Self, TrainError> {
        if device == contract::Device::Cpu {
            return Ok(Self::Cpu);
        }
        match torch_ext::load_cuda() {
            Ok(cuda) => {
                let found = Self::Cuda { cuda, index: 0 };
                found.use_own_kernels();
                Ok(found)
            }
            Err(reason) if device == contract::Device::Cuda => Err(reason.into()),
            Err(reason) => Self::instead_of_cuda(reason, local_rank),
        }
    }

    /// The CPU if there is no GPU. A GPU that cannot be used is a fault of the node or the image;
    /// falling back would hide it.
    fn instead_of_cuda(reason: CudaError, local_rank: u32) -> Result<Self, TrainError> {
        if !matches!(reason, CudaError::NoDevice) {
            return Err(TrainError::UnusableGpu(reason));
        }
        if local_rank == 0 {
            tracing::warn!("computing on the CPU: {reason}");
        }
        Ok(Self::Cpu)
    }

    /// Replaces kernels of libtorch with this project's, or warns. Called again after the first
    /// passes, which compile them. Does nothing on the CPU.
    pub(crate) fn use_own_kernels(self) {
        if let Self::Cuda { cuda, .. } = self
            && let Err(error) = cuda.replace_layer_norm()
        {
            tracing::warn!("{error}");
        }
    }

    /// Peak memory of tensors on the GPU, bytes; `None` on the CPU.
    pub(crate) fn peak_bytes(self) -> Result<Option<u64>, TrainError> {
        match self {
            Self::Cpu => Ok(None),
            Self::Cuda { cuda, index } => Ok(Some(cuda.peak_bytes(index)?)),
        }
    }

    /// Makes a step fail (or no longer) if the host would wait. Does nothing on the CPU.
    pub(crate) fn forbid_waits(self, forbidden: bool) {
        if let Self::Cuda { cuda, .. } = self {
            cuda.forbid_waits(forbidden);
        }
    }

    /// Returns once the GPU has finished its queued work; at once on the CPU.
    pub(crate) fn finish(self) {
        if let Self::Cuda { index, .. } = self {
            tch::Cuda::synchronize(index as i64);
        }
    }

    /// Which GPU it is; `None` on the CPU.
    pub(crate) fn identity(self) -> Result<Option<GpuIdentity>, TrainError> {
        match self {
            Self::Cpu => Ok(None),
            Self::Cuda { cuda, index } => Ok(Some(cuda.identity(index)?)),
        }
    }

    /// Records the collectives of groups on this device and on the CPU.
    pub(crate) fn flight_recorder(self) -> FlightRecorder {
        match self {
            Self::Cpu => FlightRecorder::new(None),
            Self::Cuda { cuda, .. } => FlightRecorder::new(Some(&cuda)),
        }
    }

    pub(crate) fn device(self) -> tch::Device {
        match self {
            Self::Cpu => tch::Device::Cpu,
            Self::Cuda { index, .. } => tch::Device::Cuda(index),
        }
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
}
