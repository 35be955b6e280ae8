//! `kubectl vit`: what ViTTrainingJobs do, why they wait or failed, and what to do about it.
//!
//! ```text
//!   command line --> cluster (kubeconfig, context, namespace)
//!                      |-- jobs ----------------+
//!                      |-- pods, agents, logs --+--> a value --(pure)--> text, JSON or YAML
//!                      +-- nodes ---------------+      |
//!                                                      +-- nodes are judged by the operator's own planner
//! ```
//!
//! Each subcommand has a file, with a pure function that renders its output. [`cluster`], [`gang`] and [`wait`] do the
//! input.
#![forbid(unsafe_code)]

mod cluster;
mod completion;
mod delete;
mod error;
mod events;
mod exposition;
#[cfg(test)]
mod fixtures;
mod gang;
mod kind;
mod list;
mod logs;
mod losses;
#[cfg(test)]
mod mock;
mod nodes;
mod outcomes;
mod output;
mod paint;
mod reference;
mod run;
mod save;
mod scale;
mod span;
mod status;
mod step_times;
mod study;
mod summary;
mod suspend;
mod text;
mod top;
mod version;
mod wait;
mod watch;
mod why;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use crds::ViTTrainingJob;
use tokio::runtime::Runtime;

use cluster::{Cluster, Connection};
use error::{EXIT_CODES, Error, Exit};
use suspend::Action;

/// Inspect and control ViTTrainingJobs: what they do, why they wait or failed, and what to do about it
#[derive(Debug, Parser)]
#[command(name = "kubectl-vit", bin_name = "kubectl vit", version, after_help = EXIT_CODES)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    connection: Connection,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(Box<run::Arguments>),
    List(list::Arguments),
    Status(status::Arguments),
    Watch(watch::Arguments),
    Why(why::Arguments),
    Logs(logs::Arguments),
    Events(events::Arguments),
    Top(top::Arguments),
    /// Checkpoint and stop jobs, releasing their GPUs
    #[command(
        after_help = "Examples:\n  kubectl vit suspend digits --wait\n  kubectl vit suspend -l team=vision"
    )]
    Suspend(suspend::Arguments<ViTTrainingJob>),
    /// Resume suspended jobs from their checkpoints
    #[command(
        after_help = "Examples:\n  kubectl vit resume digits cifar10 --wait --timeout 10m\n  kubectl vit resume --all"
    )]
    Resume(suspend::Arguments<ViTTrainingJob>),
    Save(save::Arguments),
    Scale(scale::Arguments),
    Study(study::Arguments),
    Nodes(nodes::Arguments),
    Delete(delete::Arguments),
    Version(version::Arguments),
    /// Print the reference of all commands as Markdown
    #[command(
        hide = true,
        after_help = "Example: kubectl vit reference > docs/reference/kubectl-vit.md"
    )]
    Reference,
}

fn main() -> ExitCode {
    if completion::is_asked() {
        completion::run();
        return ExitCode::SUCCESS;
    }
    let line = CommandLine::parse();
    let outcome = runtime()
        .map_err(Error::Output)
        .and_then(|runtime| runtime.block_on(execute(&line)));
    let exit = outcome.unwrap_or_else(|error| {
        if !matches!(error, Error::ClosedPipe) {
            output::report(&format!("error: {error}"));
        }
        error.exit()
    });
    ExitCode::from(exit.code())
}

/// The runtime for API calls.
fn runtime() -> std::io::Result<Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

async fn execute(line: &CommandLine) -> Result<Exit, Error> {
    let connection = &line.connection;
    let cluster = || Cluster::connect(connection);
    match &line.command {
        Command::Reference => output::print(&reference::markdown()).map(|()| Exit::Done),
        Command::Run(arguments) => run::run(connection, arguments).await,
        Command::List(arguments) => list::run(&cluster().await?, arguments).await,
        Command::Status(arguments) => status::run(&cluster().await?, arguments).await,
        Command::Watch(arguments) => watch::run(&cluster().await?, arguments).await,
        Command::Why(arguments) => why::run(&cluster().await?, arguments).await,
        Command::Logs(arguments) => Box::pin(logs::run(&cluster().await?, arguments)).await,
        Command::Events(arguments) => events::run(&cluster().await?, arguments).await,
        Command::Top(arguments) => top::run(&cluster().await?, arguments).await,
        Command::Version(arguments) if arguments.client => version::run(None, arguments).await,
        Command::Version(arguments) => version::run(Some(&cluster().await?), arguments).await,
        Command::Suspend(arguments) => suspend::run(&cluster().await?, arguments, Action::Suspend).await,
        Command::Resume(arguments) => suspend::run(&cluster().await?, arguments, Action::Resume).await,
        Command::Save(arguments) => save::run(&cluster().await?, arguments).await,
        Command::Scale(arguments) => scale::run(&cluster().await?, arguments).await,
        Command::Study(arguments) => study::run(&cluster().await?, arguments).await,
        Command::Nodes(arguments) => nodes::run(&cluster().await?, arguments).await,
        Command::Delete(arguments) => Box::pin(delete::run(&cluster().await?, arguments)).await,
    }
}

#[cfg(test)]
mod tests {
    use std::any::TypeId;

    use clap::CommandFactory as _;

    use super::*;

    fn check(command: &clap::Command, path: &str) {
        let help = command.get_after_help().map(ToString::to_string);
        assert!(
            help.is_some_and(|help| help.contains("Example")) || command.has_subcommands(),
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
            // Otherwise, clap takes -1 for a flag and proposes `-- -1`.
            let type_ = argument.get_value_parser().type_id();
            let numbers = [
                TypeId::of::<i32>(),
                TypeId::of::<i64>(),
                TypeId::of::<u32>(),
                TypeId::of::<f64>(),
            ];
            assert!(
                argument.is_allow_negative_numbers_set() || numbers.iter().all(|number| type_ != *number),
                "{path} does not read {} -1",
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
        check(&command, "kubectl vit");
    }
}
