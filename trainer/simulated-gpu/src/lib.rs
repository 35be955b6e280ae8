//! CUDA devices made of host memory, for tests on machines without a GPU.
//!
//! libtorch's build for the CPU, with three libraries beside it, has as many CUDA devices as a test asks for: a preloaded one in
//! the driver's place, one named `libtorch_cuda.so`, and `libvit_nccl.so`. The program under test is the one that users get: it
//! finds a GPU, loads the two, and runs the code that it runs on a real one. No release holds them.
//!
//! # What it shows
//!
//! - **Place.** A device per agent and rank, as `CUDA_VISIBLE_DEVICES` says; a current device and stream per thread. Tensors of two
//!   devices in one operator, and memory on another device than its tensor's, are errors. Memory is limited
//!   ([`SimulatedGpus::memory`]), with CUDA's own message.
//! - **Order.** Each stream has a vector clock, and each access to memory is compared with those of other streams: where no event
//!   orders a read and a write, the later operator fails and names both. So a missing wait is found whether or not it does harm in
//!   this run. Freed blocks are the next that are given out, to show memory that is used again too early.
//! - **Lateness.** Copies between device and pinned memory, and collectives, end late, on threads of their own. Until then what
//!   they write is poisoned (NaN, or `0x5A` in integers), as all new and freed memory is (`0xFF`). Delays come from a seed.
//! - **NCCL's rules.** Contiguous tensors of one device; every rank's collectives are compared (group, number, operator, count,
//!   type), and a difference, or one that others did not join, ends the process with the lines of both. A peer's death hangs a
//!   collective until it is aborted, or ends the process if NCCL's watchdog is to handle errors.
//! - **Failures.** A device that is lost, or hangs, at an operator of a rank ([`SimulatedGpus::fault`]), or is lost when the
//!   process gets SIGUSR2, or is slow ([`SimulatedGpus::slow`]).
//!
//! # What it does not show
//!
//! Kernels, formats and speed of a real GPU; `NVLink`, P2P and NCCL's own protocols; what CUDA graphs and compiled kernels do.
//! An operator whose result is a new tensor computes where it is launched, so the host rarely runs far ahead of the device. That
//! is what `make gpu-check` is for.
//!
//! # Adding an operator
//!
//! Nothing is to be done for most: a boxed fallback runs the CPU's kernel on the same memory. An operator in which the host waits
//! for the device belongs into `waits_for_device`, and one that CUDA has and the CPU has not needs an entry, both in
//! `cpp/operators.cpp`. An entry of the NCCL plugin has its twin in `cpp/plugin.cpp`.
//!
//! # Environment
//!
//! `VIT_SIMULATED_GPUS` (of the machine), `VIT_SIMULATED_DELAY_US` (the longest), `VIT_SIMULATED_SEED`, `VIT_SIMULATED_GPU_BYTES`,
//! `VIT_SIMULATED_COMMUNICATOR_BYTES`, `VIT_SIMULATED_SLOW` (microseconds by rank), `VIT_SIMULATED_FAULT` (`lost@RANK:OPERATOR`,
//! `hangs@RANK:OPERATOR`), `VIT_SIMULATED_KERNEL_FAILURE` (a compiler's message), `VIT_SIMULATED_REPORT` (a folder that gets a JSON
//! file of each process: devices with the most bytes of tensors, communicators, most pinned bytes; and an empty file `hangs` once
//! a device hangs).

use std::path::{Path, PathBuf};

/// The longest delay of a copy or collective, microseconds: longer than the host takes to read too early, and short enough that
/// tests of many steps take little longer.
const DELAY_US: u32 = 100;

/// The GPUs of a simulated machine, and what befalls them.
#[derive(Clone, Debug)]
pub struct SimulatedGpus {
    /// How many the machine has.
    pub count: u32,
    /// What delays are drawn by.
    pub seed: u64,
    /// Bytes of each; `None` is as much as the host has.
    pub memory: Option<u64>,
    /// Bytes that each communicator takes of a device.
    pub communicator_memory: u64,
    /// By rank, how much longer each operator of its device takes, microseconds; those of ranks beyond take no longer.
    pub slow: Vec<u32>,
    /// The device of a rank that fails.
    pub fault: Option<Fault>,
    /// Why kernels of the trainer's own cannot be compiled, if they cannot.
    pub kernel_failure: Option<String>,
    /// Where each process writes what it used.
    pub report: Option<PathBuf>,
}

/// A device of one rank that fails at an operator, counted from the process's first.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// Every call from then on fails.
    Lost {
        /// The rank whose device it is.
        rank: u32,
        /// The operator's number.
        operator: u64,
    },
    /// The operator never ends.
    Hangs {
        /// The rank whose device it is.
        rank: u32,
        /// The operator's number.
        operator: u64,
    },
}

impl SimulatedGpus {
    /// As many GPUs of unlimited memory. The seed is that of `VIT_SIMULATED_SEED`, or 1.
    pub fn new(count: u32) -> Self {
        let seed = std::env::var("VIT_SIMULATED_SEED").ok();
        Self {
            count,
            seed: seed.and_then(|seed| seed.parse().ok()).unwrap_or(1),
            memory: None,
            communicator_memory: 0,
            slow: Vec::new(),
            fault: None,
            kernel_failure: None,
            report: None,
        }
    }

    /// The environment in which a program has these GPUs.
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        let path = |name: &str| libraries().join(name).display().to_string();
        let names: Vec<String> = (0..self.count).map(|number| number.to_string()).collect();
        let mut variables = vec![
            ("LD_PRELOAD", path("libsimulated_driver.so")),
            ("LD_LIBRARY_PATH", path("")),
            ("CUDA_VISIBLE_DEVICES", names.join(",")),
            ("VIT_SIMULATED_GPUS", self.count.to_string()),
            ("VIT_SIMULATED_DELAY_US", DELAY_US.to_string()),
            ("VIT_SIMULATED_SEED", self.seed.to_string()),
            (
                "VIT_SIMULATED_COMMUNICATOR_BYTES",
                self.communicator_memory.to_string(),
            ),
        ];
        if let Some(bytes) = self.memory {
            variables.push(("VIT_SIMULATED_GPU_BYTES", bytes.to_string()));
        }
        if !self.slow.is_empty() {
            let slow: Vec<String> = self.slow.iter().map(u32::to_string).collect();
            variables.push(("VIT_SIMULATED_SLOW", slow.join(",")));
        }
        if let Some(fault) = self.fault {
            variables.push(("VIT_SIMULATED_FAULT", fault.to_string()));
        }
        if let Some(text) = &self.kernel_failure {
            variables.push(("VIT_SIMULATED_KERNEL_FAILURE", text.clone()));
        }
        if let Some(folder) = &self.report {
            variables.push(("VIT_SIMULATED_REPORT", folder.display().to_string()));
        }
        variables
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Lost { rank, operator } => write!(f, "lost@{rank}:{operator}"),
            Self::Hangs { rank, operator } => write!(f, "hangs@{rank}:{operator}"),
        }
    }
}

/// The folder that holds the libraries.
pub fn libraries() -> &'static Path {
    Path::new(env!("OUT_DIR"))
}
