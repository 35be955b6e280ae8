//! CUDA devices made of host memory, for tests on machines without a GPU.
//!
//! libtorch's CPU build gets as many CUDA devices as a test asks for, by three libraries: a
//! preloaded driver, `libtorch_cuda.so`, and `libvit_nccl.so`. The program under test is the
//! released one: it finds a GPU and runs the same code as on a real one. No release contains them.
//!
//! # What it tests
//!
//! - **Devices.** One per rank, by `CUDA_VISIBLE_DEVICES`; a current device and stream per thread.
//!   Mixing devices in an operator, or in a tensor and its memory, is an error. Memory is limited
//!   ([`SimulatedGpus::memory`]), with CUDA's message.
//! - **Order.** Each stream has a vector clock, and memory accesses are compared between streams.
//!   If no event orders a read and a write, the later operator fails and names both: a missing wait
//!   is found even if it does no harm. Freed blocks are reused first, to expose early reuse.
//! - **Lateness.** Copies to and from pinned memory, and collectives, end late by a seeded delay.
//!   Until then their output is poisoned (NaN, or `0x5A`), like new and freed memory (`0xFF`).
//! - **NCCL's rules.** Contiguous tensors of one device. A collective that differs between ranks
//!   (group, number, operator, count, type), or that others did not join, ends the process. A dead
//!   peer hangs a collective until it is aborted, or ends the process by NCCL's watchdog.
//! - **Failures.** A device can be lost or hang at an operator of a rank
//!   ([`SimulatedGpus::fault`]), be lost on SIGUSR2, or be slow ([`SimulatedGpus::slow`]).
//!
//! # What it does not test
//!
//! Kernels, formats and speed of a real GPU; `NVLink`, P2P and NCCL's protocols; CUDA graphs and
//! compiled kernels. An operator with a new result computes when launched, so the host rarely runs
//! far ahead of the device. `make gpu-check` covers these.
//!
//! # Adding an operator
//!
//! Most need nothing: a boxed fallback runs the CPU kernel. In `cpp/operators.cpp`, list operators
//! in which the host waits in `waits_for_device`, and register those that only CUDA has. An entry
//! point of the NCCL plugin has its twin in `cpp/plugin.cpp`.
//!
//! # Environment
//!
//! `VIT_SIMULATED_GPUS` (of the machine), `VIT_SIMULATED_DELAY_US` (the longest),
//! `VIT_SIMULATED_SEED`, `VIT_SIMULATED_GPU_BYTES`, `VIT_SIMULATED_COMMUNICATOR_BYTES`,
//! `VIT_SIMULATED_SLOW` (microseconds by rank), `VIT_SIMULATED_FAULT` (`lost@RANK:OPERATOR`,
//! `hangs@RANK:OPERATOR`), `VIT_SIMULATED_KERNEL_FAILURE` (a compiler message),
//! `VIT_SIMULATED_REPORT` (a folder for a JSON file per process, and a file `hangs`).

use std::path::{Path, PathBuf};

/// The longest delay of a copy or collective, microseconds: longer than an early read by the host,
/// but short enough for tests of many steps.
const DELAY_US: u32 = 100;

/// The GPUs of a simulated machine and their failures.
#[derive(Clone, Debug)]
pub struct SimulatedGpus {
    /// Number of GPUs.
    pub count: u32,
    /// Seed of the delays.
    pub seed: u64,
    /// Bytes of each; `None` for as much as the host has.
    pub memory: Option<u64>,
    /// Bytes that each communicator uses on a device.
    pub communicator_memory: u64,
    /// Extra microseconds per operator, by rank; missing ranks have none.
    pub slow: Vec<u32>,
    /// The failure of one rank's device.
    pub fault: Option<Fault>,
    /// Compile error of the trainer's own kernels, if they fail.
    pub kernel_failure: Option<String>,
    /// Folder for each process's report of resource use.
    pub report: Option<PathBuf>,
}

/// A failure of one rank's device at an operator, counted from the process's first.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// Every later call fails.
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
    /// `count` GPUs of unlimited memory, with the seed of `VIT_SIMULATED_SEED`, or 1.
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

    /// Environment variables that give a program these GPUs.
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
