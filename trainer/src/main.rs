//! Trains Vision Transformers data-parallel, and measures what synchronisation costs.
//!
//! ```text
//!   run -f job.yaml      agents as local processes          (run/)
//!   bench                the same, measured                 (bench/)
//!     agent              a pod's first process              (agent/)
//!       rank             one worker: Trainer::train         (rank/, train/)
//!         data -> model -> gradients averaged -> optimizer  (data/, model/, distributed.rs, optim/)
//!         checkpoints, evaluation, measurements             (checkpoint/, evaluate.rs, metrics/)
//!   eval -f job.yaml     a checkpoint's weights on the held-out images, in this process  (eval/)
//!   export               a checkpoint's weights for timm or torchvision                  (export/)
//! ```
#![forbid(unsafe_code)]

mod agent;
mod allocator;
mod bench;
mod checkpoint;
mod completions;
mod config;
mod data;
mod deepspeed;
mod distributed;
mod error;
mod eval;
mod evaluate;
mod export;
mod flops;
mod loss_scale;
mod metrics;
mod model;
mod optim;
mod precision;
mod preflight;
mod random;
mod rank;
mod resume;
mod run;
mod schedule;
mod signals;
mod tensor_file;
mod threads;
mod train;

use std::io::IsTerminal as _;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};
use tracing_subscriber::EnvFilter;

use crate::error::TrainError;

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
    /// Classify a job's held-out images with the weights of a checkpoint or a file
    Eval(eval::Arguments),
    /// Write a checkpoint's weights as a file that timm or torchvision loads
    Export(export::Arguments),
    /// Check that everything a run needs is there, before it is started
    Preflight(preflight::Arguments),
    /// Print the manifest for a DeepSpeed configuration
    ImportDeepspeed(deepspeed::Arguments),
    /// Print a shell's completions for this program
    Completions(completions::Arguments),
    /// Measure training steps of a model on this machine
    Bench(bench::Arguments),
    /// Look into data sets
    #[command(subcommand)]
    Data(data::inspect::Command),
    /// Run a pod's ranks: the entry point of the container image
    #[command(
        after_help = "Configuration comes from the environment, as the operator sets it: VIT_RUN_CONFIG, VIT_NODE_RANK, VIT_ATTEMPT, VIT_COORDINATOR_HOST, VIT_COORDINATOR_PORT, VIT_POD_ADDRESS, VIT_NODE_NAME, VIT_AGENT_PORT, VIT_TERMINATION_LOG.\n\nExample: VIT_RUN_CONFIG=run.json VIT_NODE_RANK=0 VIT_ATTEMPT=1 VIT_COORDINATOR_HOST=localhost VIT_POD_ADDRESS=127.0.0.1 vit-trainer agent"
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
        // A standard error that is closed is no reason to stop training: it would be a panic.
        .log_internal_errors(false)
        .with_env_filter(EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info")))
        .init();
    let code = match CommandLine::parse().command {
        Command::Run(arguments) => told(run::main(&arguments)),
        Command::Eval(arguments) => told(eval::main(&arguments)),
        Command::Export(arguments) => told(export::main(&arguments)),
        Command::Preflight(arguments) => told(preflight::main(&arguments)),
        Command::ImportDeepspeed(arguments) => told(deepspeed::main(&arguments)),
        Command::Completions(arguments) => completions::main(&arguments, &mut CommandLine::command()),
        Command::Bench(arguments) => told(bench::main(&arguments)),
        Command::Data(command) => told(data::inspect::main(&command)),
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

/// The exit code of a command, with its error told.
fn told(result: Result<contract::ExitCode, TrainError>) -> contract::ExitCode {
    result.unwrap_or_else(|error| {
        tracing::error!("{error}");
        error.exit_code()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(command: &clap::Command, path: &str) {
        let help = command.get_after_help().map(ToString::to_string);
        assert!(
            help.is_some_and(|help| help.contains("Example: ")) || command.has_subcommands(),
            "{path} --help has no example"
        );
        assert!(
            command.get_about().is_some(),
            "{path} --help does not say what it does"
        );
        for argument in command.get_arguments() {
            assert!(
                argument.get_help().is_some(),
                "{path} --help does not explain {}",
                argument.get_id()
            );
        }
        for subcommand in command.get_subcommands() {
            check(subcommand, &format!("{path} {}", subcommand.get_name()));
        }
    }

    #[test]
    fn every_command_explains_itself_with_an_example() {
        let command = CommandLine::command();
        command.clone().debug_assert();
        check(&command, "vit-trainer");
    }
}
