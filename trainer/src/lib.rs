//! Trains Vision Transformers data-parallel, and measures what synchronization costs.
//!
//! ```text
//!   commands/      run, study, plan, eval, export, preflight, bench, fetch, data inspect, import-deepspeed, completions
//!     launch/      a job's agents as local processes
//!       agent/     what a pod runs
//!         rank     one worker process
//!           train/   data -> model -> gradients averaged -> optimizer  (data/, model/, parallel/, distributed, optim/)
//!                    checkpoints, evaluation, measurements             (checkpoint/, evaluation, metrics/)
//! ```
//! Sibling modules have no circular dependencies.
#![forbid(unsafe_code)]

mod agent;
mod calibration;
mod checkpoint;
mod commands;
mod config;
mod data;
mod distributed;
mod error;
mod evaluation;
mod gpu;
mod host_memory;
mod launch;
mod loss_scale;
mod machine;
mod manifest;
mod metrics;
mod model;
mod optim;
mod output;
mod parallel;
mod pass_time;
mod precision;
mod random;
mod rank;
mod schedule;
mod signals;
mod slowdown;
mod speeds;
mod tensor_file;
mod termination;
mod threads;
mod train;
mod visible_gpus;
mod watchdog;

use std::io::{IsTerminal as _, Write as _};

use tracing_subscriber::EnvFilter;

/// Runs the command line of this process, and ends it.
pub fn main() -> ! {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        // A closed standard error must not stop training, which a panic would.
        .log_internal_errors(false)
        .with_env_filter(EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info")))
        .init();
    let code = commands::main().code();
    // A reader that is gone has no use for the rest.
    let _ = std::io::stdout().flush();
    // libtorch's destructors take a quarter of a short command's time, and need not run.
    torch_ext::exit_now(code)
}
