//! The device of a test's ranks. Tests of ranks run on each device, from one list.

use std::cell::Cell;
use std::process::Command;

use simulated_gpu::SimulatedGpus;

/// A device of ranks.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Device {
    Cpu,
    /// CUDA devices of the crate `simulated-gpu`, over its NCCL.
    SimulatedGpus,
}

thread_local! {
    static CURRENT: Cell<Device> = const { Cell::new(Device::Cpu) };
}

/// The simulated machine: it has more GPUs than any job here has ranks.
pub(crate) fn gpus() -> SimulatedGpus {
    SimulatedGpus::new(8)
}

/// Whether `make test-all` runs the tests. `make test` omits cases whose parts are all in others.
pub(crate) fn are_all_cases_wanted() -> bool {
    std::env::var_os("VIT_ALL_CASES").is_some()
}

impl Device {
    /// The running test's device; the CPU by default.
    pub(crate) fn current() -> Self {
        CURRENT.get()
    }

    /// Runs a test on a device.
    pub(crate) fn test(self, test: impl FnOnce()) {
        CURRENT.set(self);
        test();
    }

    /// The first cases, this many on the CPU and on simulated GPUs. With [`are_all_cases_wanted`],
    /// the CPU has all.
    pub(crate) fn cases<T>(self, all: &[T], on_cpu: usize, on_simulated_gpus: usize) -> &[T] {
        match self {
            Self::Cpu if are_all_cases_wanted() => all,
            Self::Cpu => &all[..on_cpu],
            Self::SimulatedGpus => &all[..on_simulated_gpus],
        }
    }

    /// Epochs of a run that is stopped early: on a fast machine it must not end before that.
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

    /// Gives a program the machine's devices, and `gpus` if it has some.
    pub(crate) fn prepare(self, command: &mut Command, gpus: &SimulatedGpus) {
        if self == Self::SimulatedGpus {
            command.envs(gpus.environment());
        }
    }
}

/// Defines a test of each of these functions on each device.
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
