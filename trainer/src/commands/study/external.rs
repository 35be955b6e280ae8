//! Runs another trainer's command as local processes that stand for nodes.

use std::ffi::OsString;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use contract::environment::{self, torchrun};
use contract::{ExitCode, FailureClass, RunConfig};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::process::{Child, Command};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use torch_ext::Rendezvous;

use super::Failure;
use crate::threads;
use crate::visible_gpus;

/// How long processes may take to end after a failure or a stop. torchrun's ranks have 30 s.
const GRACE: Duration = Duration::from_secs(40);
/// Lines of a node's output in an error.
const QUOTED_LINES: usize = 3;

/// Files of another trainer: its configuration, and the log of its rank 0.
pub(super) struct Files<'a> {
    /// A folder for the configuration and the nodes' output.
    pub(super) folder: &'a Path,
    pub(super) log: &'a Path,
}

/// Runs a command for every node of a run on this machine, to its end. An error names the failed
/// node and has its last output.
pub(super) async fn run(
    command: &[String],
    config: &RunConfig,
    files: Files<'_>,
    stop: CancellationToken,
) -> Result<(), Failure> {
    let failed = |error: std::io::Error| error.to_string();
    let gpus =
        visible_gpus::divide(&visible_gpus::of_this_process(), config).map_err(|error| error.to_string())?;
    let run_config = files.folder.join("run.json");
    let json = serde_json::to_vec_pretty(config).map_err(|error| error.to_string())?;
    fs_err::write(&run_config, json).map_err(failed)?;
    if let Some(folder) = files.log.parent() {
        fs_err::create_dir_all(folder).map_err(failed)?;
    }
    let port = Rendezvous::reserve_port(Ipv4Addr::LOCALHOST.into()).map_err(failed)?;
    let mut groups = Vec::new();
    let mut nodes = JoinSet::new();
    for rank in 0..config.nodes as usize {
        let node = torchrun::Node {
            rank,
            nodes: config.nodes as usize,
            ranks_per_node: config.ranks_per_node,
            host: "127.0.0.1",
            port,
        };
        let environment = [
            (environment::RUN_CONFIG, run_config.clone().into_os_string()),
            (environment::LOG, files.log.as_os_str().to_owned()),
        ];
        let threads = threads::of_machine(config.world_size(), threads::is_set);
        let gpus = gpus.get(rank).map(|gpus| (visible_gpus::VISIBLE, gpus.clone()));
        let texts = node.environment().into_iter().chain(threads).chain(gpus);
        let texts = texts.map(|(name, text)| (name, OsString::from(text)));
        let environment = environment.into_iter().chain(texts);
        let child = start(command, environment, &output(files.folder, rank));
        let child = child.map_err(|error| format!("{} cannot be started: {error}", command[0]));
        match child {
            Ok(child) => {
                let id = child.id().and_then(|id| i32::try_from(id).ok());
                groups.extend(id.map(Pid::from_raw));
                nodes.spawn(wait(rank, child));
            }
            Err(error) => {
                nodes.shutdown().await;
                return Err(error.into());
            }
        }
    }
    let Some((node, status)) = follow(&mut nodes, &groups, stop).await else {
        return Ok(());
    };
    let code = status.as_ref().ok().and_then(ExitStatus::code);
    let code = code.and_then(|code| u8::try_from(code).ok());
    let class = code.and_then(|code| ExitCode::from_code(code).failure_class());
    let status = status.map_or_else(|error| error.to_string(), |status| status.to_string());
    Err(Failure {
        message: format!(
            "{} ended with {status} on node {node}{}",
            command[0],
            last_words(&output(files.folder, node))
        ),
        may_pass: class.is_none_or(FailureClass::is_retryable),
    })
}

/// Waits for all nodes. Returns the first that failed.
async fn follow(
    nodes: &mut JoinSet<(usize, std::io::Result<ExitStatus>)>,
    groups: &[Pid],
    stop: CancellationToken,
) -> Option<(usize, std::io::Result<ExitStatus>)> {
    let mut first = None;
    let mut kill_at: Option<Instant> = None;
    loop {
        tokio::select! {
            ended = nodes.join_next() => match ended {
                None => return first,
                Some(Err(error)) => tracing::error!("failed to wait for a node: {error}"),
                Some(Ok((_, Ok(status)))) if status.success() => {}
                Some(Ok(failed)) => {
                    first.get_or_insert(failed);
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

async fn wait(node: usize, mut child: Child) -> (usize, std::io::Result<ExitStatus>) {
    (node, child.wait().await)
}

/// A group whose processes have all ended no longer exists.
fn signal(groups: &[Pid], signal: Signal) {
    for group in groups {
        let _ = killpg(*group, signal);
    }
}

fn output(folder: &Path, node: usize) -> std::path::PathBuf {
    folder.join(format!("node-{node}.txt"))
}

/// The last output of a node.
fn last_words(output: &Path) -> String {
    let bytes = fs_err::read(output).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text
        .lines()
        .map(str::trim)
        // torchrun underlines its messages.
        .filter(|line| !line.trim_matches(['=', '-']).is_empty())
        .collect();
    let last = &lines[lines.len().saturating_sub(QUOTED_LINES)..];
    if last.is_empty() {
        String::new()
    } else {
        format!(": {}", last.join(" | "))
    }
}
