//! `vit-cluster`: starts and removes real Kubernetes clusters on this machine.

use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, bail, ensure};
use clap::{Parser, Subcommand};
use vit_tests::binaries::Binaries;
use vit_tests::progress::say;
use vit_tests::state::State;
use vit_tests::{
    Cluster, ClusterConfig, ClusterName, chart, cluster, control_plane, digits, discovery, dump,
};

/// Runs a real Kubernetes cluster on this machine, for the demo and the end-to-end tests.
#[derive(Parser)]
#[command(version, arg_required_else_help = true)]
struct Arguments {
    /// The cluster's name.
    #[arg(long, global = true, default_value = "demo")]
    name: ClusterName,
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Start a cluster without the operator, and print the path of its kubeconfig.
    Up,
    /// Stop a cluster, healthy or not, and remove everything that belongs to it.
    Down,
    /// List the clusters and their health. Fails if one is unhealthy.
    Status,
    /// Run a program with the cluster's KUBECONFIG, and its kubectl and helm on the PATH.
    Exec {
        /// The program and its arguments.
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
    /// Print the cluster's objects, events and logs.
    Dump,
    /// Keep the scrape targets of the cluster's Prometheus current, until killed; `up` starts it.
    #[command(hide = true)]
    Discover,
    /// Write the handwritten digits in the binary layouts of CIFAR-10 and CIFAR-100.
    Digits {
        /// The folder to write; an existing one is replaced.
        #[arg(long)]
        out: PathBuf,
    },
    /// Run the built helm, without a cluster.
    Helm {
        /// Helm's arguments.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Write the chart's README from its values.
    ChartReadme,
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(Arguments::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(format_args!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

#[expect(clippy::print_stdout, reason = "a command's result goes to standard output")]
async fn run(Arguments { name, action }: Arguments) -> Result<()> {
    let state = || State::load(&name)?.with_context(|| format!("there is no cluster {name}"));
    match action {
        Action::Up => {
            let cluster = Cluster::up(ClusterConfig::demo(name, 1)).await?;
            println!("{}", cluster.kubeconfig().display());
        }
        Action::Down => {
            cluster::down(&name)?;
            let left = cluster::leftovers(&name)?.join(", ");
            ensure!(
                left.is_empty(),
                "still present after removing cluster {name}: {left}"
            );
        }
        Action::Status => {
            let mut broken = Vec::new();
            for state in State::all()? {
                let ended = cluster::ended(&state);
                let condition = match (state.record().complete, ended.is_empty()) {
                    (true, true) => "running".to_owned(),
                    (true, false) => format!("unhealthy, not running: {}", ended.join(", ")),
                    (false, _) => "unhealthy, it never started completely".to_owned(),
                };
                println!(
                    "{}: {condition}; {} nodes; kubeconfig {}",
                    state.name(),
                    state.record().nodes.len(),
                    state.kubeconfig().display()
                );
                if condition != "running" {
                    broken.push(state.name().to_string());
                }
            }
            ensure!(
                broken.is_empty(),
                "unhealthy: {}; remove with `vit-cluster down --name NAME`",
                broken.join(", ")
            );
        }
        Action::Exec { command } => {
            let cluster = Cluster::attach(&name).await?;
            let error = Command::new(&command[0])
                .args(&command[1..])
                .env("KUBECONFIG", cluster.kubeconfig())
                .env("PATH", cluster.binaries().search_path())
                .exec();
            bail!("cannot run {}: {error}", command[0]);
        }
        Action::Dump => {
            let state = state()?;
            let components = cluster::components(&state);
            println!("{}", dump::dump(&state, &Binaries::build()?, &components));
        }
        Action::Discover => {
            let state = state()?;
            discovery::run(&state, control_plane::client(&state).await?).await?;
        }
        Action::Digits { out } => {
            let digits::Counts { train, held_out } = digits::write(&out)?;
            say(format_args!(
                "{}: {train} training and {held_out} held-out images",
                out.display()
            ));
        }
        Action::Helm { arguments } => {
            let helm = Binaries::build()?.path("helm");
            let error = Command::new(helm).args(arguments).exec();
            bail!("cannot run helm: {error}");
        }
        Action::ChartReadme => chart::write_readme()?,
    }
    Ok(())
}
