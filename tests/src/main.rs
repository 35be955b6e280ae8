//! `vit-cluster`: a real Kubernetes cluster on this machine, brought up and down from the command line.

use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::{Parser, Subcommand, ValueEnum};
use vit_tests::binaries::Binaries;
use vit_tests::progress::{say, step};
use vit_tests::state::State;
use vit_tests::{
    Cluster, ClusterConfig, ClusterName, chart, cluster, control_plane, digits, discovery, image, operator,
    packages,
};

/// A real Kubernetes cluster on this machine, for the demonstration and the end-to-end tests.
#[derive(Parser)]
#[command(version, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Bring a cluster up.
    Up {
        #[command(flatten)]
        cluster: Name,
        /// Which nodes it has.
        #[arg(long, value_enum, default_value_t = Preset::Demo)]
        nodes: Preset,
        /// OCI archive that every node holds; may be given more than once.
        #[arg(long = "image", value_name = "ARCHIVE")]
        images: Vec<PathBuf>,
        /// Take a healthy cluster of this name as it is instead of refusing.
        #[arg(long)]
        reuse: bool,
    },
    /// End a cluster, whole or not, and remove all that belongs to it.
    Down {
        #[command(flatten)]
        cluster: Name,
    },
    /// Tell which clusters there are, and what of each runs. Fails if one is not whole.
    Status,
    /// Run a program with the cluster's KUBECONFIG, and with its kubectl and helm on the PATH.
    Exec {
        #[command(flatten)]
        cluster: Name,
        /// The program and its arguments.
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
    /// Print the path of the cluster's kubeconfig.
    Kubeconfig {
        #[command(flatten)]
        cluster: Name,
    },
    /// Print objects, events and logs of the cluster.
    Dump {
        #[command(flatten)]
        cluster: Name,
    },
    /// Tell the cluster's Prometheus which pods to scrape, until killed; `up` starts it.
    #[command(hide = true)]
    Discover {
        #[command(flatten)]
        cluster: Name,
    },
    /// Build the cluster's programs into the cache.
    Binaries,
    /// Write the handwritten digits as a data set in the CIFAR-10 binary layout.
    Digits {
        /// The folder to write; one that is there is replaced.
        #[arg(long)]
        out: PathBuf,
    },
    /// Build the images of operator and trainer from the built programs; prints the paths of their OCI archives.
    Images,
    /// Build an image from a Dockerfile on the local Debian base; prints the path of its OCI archive.
    Image {
        /// The image's name, such as `localhost/NAME:TAG`.
        #[arg(long)]
        tag: String,
        /// The Dockerfile.
        #[arg(long)]
        file: PathBuf,
        /// The folder that the Dockerfile copies from.
        context: PathBuf,
    },
    /// Import an OCI archive into all nodes of a running cluster.
    Load {
        #[command(flatten)]
        cluster: Name,
        /// The archive.
        archive: PathBuf,
    },
    /// Run the built helm, without a cluster.
    Helm {
        /// Helm's arguments.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Write the chart's README from its values.
    ChartReadme,
    /// Install the system packages that are missing.
    Packages,
}

#[derive(clap::Args)]
struct Name {
    /// The cluster's name.
    #[arg(long, default_value = "demo")]
    name: ClusterName,
}

#[derive(Clone, Copy, ValueEnum)]
enum Preset {
    /// Three nodes of one GPU product, one of another, and Prometheus.
    Demo,
    /// No nodes: the control plane alone.
    None,
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(Arguments::parse().action).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(format_args!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

#[expect(
    clippy::print_stdout,
    reason = "what a command was asked for goes to standard output"
)]
async fn run(action: Action) -> Result<()> {
    match action {
        Action::Up {
            cluster: Name { name },
            nodes,
            images,
            reuse,
        } => {
            let config = match nodes {
                Preset::Demo => ClusterConfig::demo(name, 1),
                Preset::None => ClusterConfig::control_plane(name),
            };
            let config = config.images(images);
            let cluster = if reuse {
                Cluster::attach_or_up(config).await?
            } else {
                Cluster::up(config).await?
            };
            println!("{}", cluster.kubeconfig().display());
        }
        Action::Down {
            cluster: Name { name },
        } => {
            cluster::down(&name)?;
            let left = cluster::leftovers(&name)?;
            if !left.is_empty() {
                bail!(
                    "still there after taking cluster {name} down: {}",
                    left.join(", ")
                );
            }
        }
        Action::Status => {
            let mut broken = Vec::new();
            for state in State::all()? {
                let ended = cluster::ended(&state);
                let condition = match (state.record().complete, ended.is_empty()) {
                    (true, true) => "running".to_owned(),
                    (true, false) => format!("not whole, ended: {}", ended.join(", ")),
                    (false, _) => "not whole, it never came up".to_owned(),
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
            if !broken.is_empty() {
                bail!(
                    "not whole: {}; `vit-cluster down --name NAME` removes the rest",
                    broken.join(", ")
                );
            }
        }
        Action::Exec {
            cluster: Name { name },
            command,
        } => {
            let cluster = Cluster::attach(&name).await?;
            let error = std::process::Command::new(&command[0])
                .args(&command[1..])
                .env("KUBECONFIG", cluster.kubeconfig())
                .env("PATH", cluster.binaries().search_path())
                .exec();
            bail!("cannot run {}: {error}", command[0]);
        }
        Action::Kubeconfig {
            cluster: Name { name },
        } => {
            println!("{}", Cluster::attach(&name).await?.kubeconfig().display());
        }
        Action::Dump {
            cluster: Name { name },
        } => match State::load(&name)? {
            Some(state) => println!("{}", {
                let components = cluster::components(&state);
                vit_tests::dump::dump(&state, &Binaries::build()?, &components)
            }),
            None => bail!("there is no cluster {name}"),
        },
        Action::Discover {
            cluster: Name { name },
        } => match State::load(&name)? {
            Some(state) => discovery::run(&state, control_plane::client(&state).await?).await?,
            None => bail!("there is no cluster {name}"),
        },
        Action::Binaries => say(format_args!(
            "programs in {}",
            Binaries::build()?.folder().display()
        )),
        Action::Digits { out } => {
            let counts = digits::write(&out)?;
            say(format_args!(
                "{}: {} training and {} held-out images",
                out.display(),
                counts.train,
                counts.held_out
            ));
        }
        Action::Images => {
            for archive in operator::images()? {
                println!("{}", archive.display());
            }
        }
        Action::Image { tag, file, context } => {
            println!("{}", image::build(&tag, &file, &context)?.display());
        }
        Action::Load {
            cluster: Name { name },
            archive,
        } => {
            let cluster = Cluster::attach(&name).await?;
            let what = format!("importing {} into all nodes", archive.display());
            step(what, || cluster.load_image(&archive, &cluster.nodes()))?;
        }
        Action::Helm { arguments } => {
            let error = std::process::Command::new(Binaries::build()?.path("helm"))
                .args(arguments)
                .exec();
            bail!("cannot run helm: {error}");
        }
        Action::ChartReadme => chart::write_readme()?,
        Action::Packages => packages::install_missing()?,
    }
    Ok(())
}
