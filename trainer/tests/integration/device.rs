//! What the ranks of a test compute on. Tests of ranks run for each device, from one list.

use std::cell::Cell;
use std::process::Command;

use simulated_gpu::SimulatedGpus;

/// A device of ranks.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Device {
    Cpu,
    /// CUDA devices of the crate `simulated-gpu`, over the NCCL that it has.
    SimulatedGpus,
}

thread_local! {
    static CURRENT: Cell<Device> = const { Cell::new(Device::Cpu) };
}

/// The simulated machine: it has more GPUs than any job here has ranks.
pub(crate) fn gpus() -> SimulatedGpus {
    SimulatedGpus::new(8)
}

impl Device {
    /// That of the running test; the CPU where it does not choose.
    pub(crate) fn current() -> Self {
        CURRENT.get()
    }

    /// Runs a test on a device.
    pub(crate) fn test(self, test: impl FnOnce()) {
        CURRENT.set(self);
        test();
    }

    /// All cases on the CPU; on simulated GPUs, which are slow, the first ones, if the others show nothing of a device.
    pub(crate) fn cases<T>(self, all: &[T], on_simulated_gpus: usize) -> &[T] {
        match self {
            Self::Cpu => all,
            Self::SimulatedGpus => &all[..on_simulated_gpus],
        }
    }

    /// Epochs of a run that is stopped in its first ones: on a fast machine it must not end before that.
    pub(crate) fn epochs_to_stop_in(self) -> u32 {
        match self {
            Self::Cpu => 8,
            Self::SimulatedGpus => 4,
        }
    }

    /// `workers.device`.
    pub(crate) fn in_manifest(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::SimulatedGpus => "cuda",
        }
    }

    /// Gives a program the machine's devices: `gpus`, if it has some.
    pub(crate) fn prepare(self, command: &mut Command, gpus: &SimulatedGpus) {
        if self == Self::SimulatedGpus {
            command.envs(gpus.environment());
        }
    }
}

/// Makes a test of each of these functions for each device.
macro_rules! on_each_device {
    ($($test:ident),+ $(,)?) => {
        mod cpu {
            $(#[test] fn $test() { $crate::device::Device::Cpu.test(super::$test); })+
        }
        mod simulated_gpus {
            $(#[test] fn $test() { $crate::device::Device::SimulatedGpus.test(super::$test); })+
        }
    };
}
pub(crate) use on_each_device;
