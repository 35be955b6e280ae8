//! Trains Vision Transformers data-parallel, and measures what synchronisation costs.
//!
//! ```text
//!   run -f job.yaml      agents as local processes          (run/)
//!     agent              a pod's first process              (agent/)
//!       rank             one worker: Trainer::train         (rank/, train.rs)
//!         data -> model -> gradients averaged -> optimizer  (data/, model/, distributed.rs, optim.rs)
//!         checkpoints, evaluation, measurements             (checkpoint/, evaluate.rs, metrics/)
//! ```
#![forbid(unsafe_code)]

mod agent;
mod checkpoint;
mod config;
mod data;
mod distributed;
mod error;
mod evaluate;
mod metrics;
mod model;
mod optim;
mod rank;
mod resume;
mod run;
mod schedule;
mod signals;
mod threads;
mod train;

use std::io::IsTerminal as _;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tracing_subscriber::EnvFilter;

#[derive(Debug, Parser)]
#[command(name = "vit-trainer", version, about)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Train the job of a manifest on this machine, without Kubernetes
    Run(run::Arguments),
    /// Run a pod's ranks: the entry point of the container image
    #[command(
        after_help = "Configuration comes from the environment, as the operator sets it: VIT_RUN_CONFIG, VIT_NODE_RANK, VIT_ATTEMPT, VIT_COORDINATOR_HOST, VIT_COORDINATOR_PORT, VIT_POD_ADDRESS, VIT_AGENT_PORT, VIT_TERMINATION_LOG.\n\nExample: VIT_RUN_CONFIG=run.json VIT_NODE_RANK=0 VIT_ATTEMPT=1 VIT_COORDINATOR_HOST=localhost VIT_POD_ADDRESS=127.0.0.1 vit-trainer agent"
    )]
    Agent {
        /// How progress is written to standard output
        #[arg(long, value_enum, default_value = "text")]
        output: agent::Output,
        /// Save and stop when standard input closes
        #[arg(long, hide = true)]
        stop_with_parent: bool,
    },
    /// Run one rank; started by `agent`, with torchrun's environment
    #[command(
        hide = true,
        after_help = "Example: started by `vit-trainer agent`, not by hand"
    )]
    Rank,
}

fn main() -> ExitCode {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .with_env_filter(EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info")))
        .init();
    let code = match CommandLine::parse().command {
        Command::Run(arguments) => run::main(&arguments).unwrap_or_else(|error| {
            tracing::error!("{error}");
            error.exit_code()
        }),
        Command::Agent {
            output,
            stop_with_parent,
        } => agent::main(agent::Options {
            output,
            stop_with_parent,
        }),
        Command::Rank => rank::main(),
    };
    ExitCode::from(code.code())
}
