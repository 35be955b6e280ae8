//! The command line, one module per command.

mod bench;
mod completions;
mod deepspeed;
mod eval;
mod export;
mod fetch;
mod inspect;
mod plan;
mod preflight;
mod run;
mod study;

use clap::{CommandFactory as _, Parser, Subcommand};
use contract::ExitCode;

use crate::error::TrainError;
use crate::output::Output;
use crate::{agent, rank};

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
    /// Check everything that a run needs, before starting it
    Preflight(preflight::Arguments),
    /// Show the memory and communication of each parallel strategy for a job, and recommend one
    Plan(plan::Arguments),
    /// Print the manifest for a DeepSpeed configuration
    ImportDeepspeed(deepspeed::Arguments),
    /// Print a shell's completions for this program
    Completions(completions::Arguments),
    /// Measure training steps of a model on this machine
    Bench(bench::Arguments),
    /// Measure the points of a ViTScalingStudy on this machine, and write the report
    Study(Box<study::Arguments>),
    /// Fetch a data set from a bucket, the Hugging Face Hub or a web server into a folder
    Fetch(fetch::Arguments),
    /// Inspect data sets
    #[command(subcommand)]
    Data(inspect::Command),
    /// Run a pod's ranks: the entry point of the container image
    #[command(
        after_help = "Configuration comes from the environment, as the operator sets it: VIT_RUN_CONFIG, VIT_NODE_RANK, VIT_ATTEMPT, VIT_COORDINATOR_HOST, VIT_COORDINATOR_PORT, VIT_POD_ADDRESS, VIT_NODE_NAME, VIT_AGENT_PORT, VIT_TERMINATION_LOG.\n\nExample: VIT_RUN_CONFIG=run.json VIT_NODE_RANK=0 VIT_ATTEMPT=1 VIT_COORDINATOR_HOST=localhost VIT_POD_ADDRESS=127.0.0.1 vit-trainer agent"
    )]
    Agent {
        /// How progress is written to standard output
        #[arg(long, value_enum, default_value = "text")]
        output: Output,
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

/// Runs the command line of this process. Returns its exit code.
pub(crate) fn main() -> ExitCode {
    let ended = match CommandLine::parse().command {
        Command::Run(arguments) => run::main(&arguments),
        Command::Eval(arguments) => eval::main(&arguments),
        Command::Export(arguments) => export::main(&arguments),
        Command::Preflight(arguments) => preflight::main(&arguments),
        Command::Plan(arguments) => plan::main(&arguments),
        Command::ImportDeepspeed(arguments) => deepspeed::main(&arguments),
        Command::Completions(arguments) => Ok(completions::main(&arguments, &mut CommandLine::command())),
        Command::Bench(arguments) => bench::main(&arguments),
        Command::Study(arguments) => study::main(&arguments),
        Command::Fetch(arguments) => fetch::main(&arguments),
        Command::Data(command) => inspect::main(&command),
        Command::Agent {
            output,
            stop_with_parent,
        } => Ok(agent::main(output, stop_with_parent)),
        Command::Rank => rank::main(),
    };
    ended.unwrap_or_else(|error: TrainError| {
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
