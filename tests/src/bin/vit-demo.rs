//! `make demo`: one manifest trains a Vision Transformer on a real local cluster.

use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use clap::{Parser, Subcommand};
use vit_tests::demo;

#[derive(Parser)]
#[command(
    name = "vit-demo",
    about = "Trains a Vision Transformer on a real local Kubernetes cluster, from one manifest"
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Recreate the cluster, install the operator, train, and print the results
    Up {
        /// Start time of the whole demo in Unix seconds, for the total in the last line
        #[arg(long)]
        started: Option<u64>,
    },
    /// Remove the cluster and its data
    Down,
}

#[tokio::main]
#[expect(clippy::print_stderr, reason = "a command-line tool")]
async fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        Command::Up { started } => {
            let started = started.map_or_else(SystemTime::now, |seconds| {
                SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
            });
            demo::up(started).await
        }
        Command::Down => demo::down(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("demo: {error:#}");
            ExitCode::FAILURE
        }
    }
}
