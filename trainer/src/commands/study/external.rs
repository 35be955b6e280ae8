//! Ranks of another trainer, as local processes with torchrun's environment.

use std::ffi::OsString;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use contract::RunConfig;
use contract::environment::{self, torchrun};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::process::{Child, Command};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use torch_ext::Rendezvous;

use super::Failure;
use crate::threads;

/// How long processes have to end, once one has failed or they are told to.
const GRACE: Duration = Duration::from_secs(10);
/// Lines of a rank's output that an error tells.
const TOLD_LINES: usize = 3;

/// Where another trainer finds what it is to do, and where its rank 0 writes its log.
pub(super) struct Files<'a> {
    /// A folder for the configuration and for what ranks print.
    pub(super) folder: &'a Path,
    pub(super) log: &'a Path,
}

/// Runs a command as every rank of a run on this machine, to its end. An error says which rank failed, and what it printed
/// last.
pub(super) async fn run(
    command: &[String],
    config: &RunConfig,
    files: Files<'_>,
    stop: CancellationToken,
) -> Result<(), Failure> {
    let failed = |error: std::io::Error| error.to_string();
    let run_config = files.folder.join("run.json");
    let json = serde_json::to_vec_pretty(config).map_err(|error| error.to_string())?;
    fs_err::write(&run_config, json).map_err(failed)?;
    if let Some(folder) = files.log.parent() {
        fs_err::create_dir_all(folder).map_err(failed)?;
    }
    let port = Rendezvous::reserve_port(Ipv4Addr::LOCALHOST.into()).map_err(failed)?;
    let mut groups = Vec::new();
    let mut ranks = JoinSet::new();
    for rank in 0..config.world_size() {
        let environment = [
            (environment::RUN_CONFIG, run_config.clone().into_os_string()),
            (environment::LOG, files.log.as_os_str().to_owned()),
        ];
        let numbers = place(config, rank, port).map(|(name, number)| (name, OsString::from(number)));
        let threads =
            threads::of_machine(config.world_size()).map(|(name, value)| (name, OsString::from(value)));
        let environment = environment.into_iter().chain(numbers).chain(threads);
        let child = start(command, environment, &output(files.folder, rank));
        let child = child.map_err(|error| format!("{} cannot be started: {error}", command[0]));
        match child {
            Ok(child) => {
                let id = child.id().and_then(|id| i32::try_from(id).ok());
                groups.extend(id.map(Pid::from_raw));
                ranks.spawn(wait(rank, child));
            }
            Err(error) => {
                signal(&groups, Signal::SIGKILL);
                return Err(error.into());
            }
        }
    }
    let ended = follow(&mut ranks, &groups, stop).await;
    // What a rank has started may outlive it.
    signal(&groups, Signal::SIGKILL);
    match ended {
        None => Ok(()),
        Some((rank, status)) => Err(Failure {
            message: format!(
                "rank {rank} of {} ended with {status}{}",
                command[0],
                last_words(&output(files.folder, rank))
            ),
            may_pass: true,
        }),
    }
}

/// Waits for all ranks. Gives the first that failed.
async fn follow(
    ranks: &mut JoinSet<(u32, std::io::Result<ExitStatus>)>,
    groups: &[Pid],
    stop: CancellationToken,
) -> Option<(u32, String)> {
    let mut first = None;
    let mut kill_at: Option<Instant> = None;
    loop {
        tokio::select! {
            ended = ranks.join_next() => match ended {
                None => return first,
                Some(Err(error)) => tracing::error!("a rank could not be followed: {error}"),
                Some(Ok((_, Ok(status)))) if status.success() => {}
                Some(Ok((rank, status))) => {
                    let status = status.map_or_else(|error| error.to_string(), |status| status.to_string());
                    first.get_or_insert((rank, status));
                    if kill_at.is_none() {
                        kill_at = Some(Instant::now() + GRACE);
                        signal(groups, Signal::SIGTERM);
                    }
                }
            },
            () = stop.cancelled(), if kill_at.is_none() => {
                kill_at = Some(Instant::now() + GRACE);
                signal(groups, Signal::SIGTERM);
            }
            () = sleep_until(kill_at.unwrap_or_else(Instant::now)), if kill_at.is_some() => {
                signal(groups, Signal::SIGKILL);
                kill_at = Some(Instant::now() + GRACE);
            }
        }
    }
}

fn start(
    command: &[String],
    environment: impl Iterator<Item = (&'static str, OsString)>,
    output: &Path,
) -> std::io::Result<Child> {
    let output = fs_err::File::create(output)?.into_parts().0;
    Command::new(&command[0])
        .args(&command[1..])
        .envs(environment)
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output)
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
}

async fn wait(rank: u32, mut child: Child) -> (u32, std::io::Result<ExitStatus>) {
    (rank, child.wait().await)
}

/// A group whose processes have all ended is none any more.
fn signal(groups: &[Pid], signal: Signal) {
    for group in groups {
        let _ = killpg(*group, signal);
    }
}

/// The variables by which torchrun tells a rank its place.
fn place(config: &RunConfig, rank: u32, port: u16) -> [(&'static str, String); 7] {
    let per_node = config.ranks_per_node;
    [
        (torchrun::RANK, rank.to_string()),
        (torchrun::WORLD_SIZE, config.world_size().to_string()),
        (torchrun::LOCAL_RANK, (rank % per_node).to_string()),
        (torchrun::LOCAL_WORLD_SIZE, per_node.to_string()),
        (torchrun::GROUP_RANK, (rank / per_node).to_string()),
        (torchrun::MASTER_ADDR, Ipv4Addr::LOCALHOST.to_string()),
        (torchrun::MASTER_PORT, port.to_string()),
    ]
}

fn output(folder: &Path, rank: u32) -> std::path::PathBuf {
    folder.join(format!("rank-{rank}.txt"))
}

/// What a rank printed last.
fn last_words(output: &Path) -> String {
    let bytes = fs_err::read(output).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    let last = &lines[lines.len().saturating_sub(TOLD_LINES)..];
    if last.is_empty() {
        String::new()
    } else {
        format!(": {}", last.join(" | "))
    }
}
