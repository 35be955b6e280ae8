//! The agents of a local run, one process a node.

use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use contract::{ExitCode, FailureClass, FailureRecord, Progress, RunConfig, TerminationRecord, environment};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::error::TrainError;
use crate::threads;

/// How long the other agents have, once one has failed.
const GRACE_AFTER_FAILURE: Duration = Duration::from_secs(10);

/// How a local run ended.
#[derive(Debug)]
pub(super) struct End {
    pub(super) code: ExitCode,
    pub(super) failure: Option<FailureRecord>,
    pub(super) progress: Option<Progress>,
}

/// Files that the agents of one run share.
struct Folder(PathBuf);

impl Folder {
    fn new() -> std::io::Result<Self> {
        let path = std::env::temp_dir().join(format!("vit-trainer-run-{}", std::process::id()));
        fs_err::create_dir(&path)?;
        Ok(Self(path))
    }

    fn run_config(&self) -> PathBuf {
        self.0.join("run.json")
    }

    fn termination_log(&self, node: u32) -> PathBuf {
        self.0.join(format!("termination-{node}.json"))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A leftover in the temporary folder harms nobody.
        let _ = fs_err::remove_dir_all(&self.0);
    }
}

/// Starts an agent a node and follows them until the last has ended; `stop` asks them to save and stop.
pub(super) async fn run(
    config: &RunConfig,
    stop: CancellationToken,
    mut on_progress: impl FnMut(&Progress),
) -> Result<End, TrainError> {
    let failed = |action| move |error| TrainError::System { action, error };
    let folder = Folder::new().map_err(failed("failed to make a temporary folder"))?;
    let json = serde_json::to_vec_pretty(config).map_err(std::io::Error::other);
    json.and_then(|json| fs_err::write(folder.run_config(), json))
        .map_err(failed("failed to write the run configuration"))?;
    let port = free_port().map_err(failed("failed to find a free port"))?;

    let mut pids = Vec::new();
    let mut agents = JoinSet::new();
    let mut lines = None;
    for node in 0..config.nodes {
        let mut child =
            start(&folder, node, port, config.world_size()).map_err(failed("failed to start an agent"))?;
        if node == 0 {
            lines = child.stdout.take().map(|stdout| BufReader::new(stdout).lines());
        }
        pids.push(
            child
                .id()
                .and_then(|id| i32::try_from(id).ok())
                .map(Pid::from_raw),
        );
        agents.spawn(wait(node, child));
    }

    let mut last = None;
    let mut stop_passed_on = false;
    let mut kill_at: Option<Instant> = None;
    let mut failures: Vec<(ExitCode, u32)> = Vec::new();
    let mut stopped = false;
    loop {
        tokio::select! {
            progress = next_progress(&mut lines) => if let Some(progress) = progress {
                on_progress(&progress);
                last = Some(progress);
            },
            ended = agents.join_next() => match ended {
                None => break,
                Some(Err(error)) => tracing::error!("an agent could not be followed: {error}"),
                Some(Ok((node, code))) => {
                    pids[node as usize] = None;
                    stopped |= code == ExitCode::Stopped;
                    if code.failure_class().is_some() {
                        failures.push((code, node));
                        if kill_at.is_none() {
                            kill_at = Some(Instant::now() + GRACE_AFTER_FAILURE);
                            signal(&pids, Signal::SIGTERM);
                        }
                    }
                }
            },
            () = stop.cancelled(), if !stop_passed_on => {
                stop_passed_on = true;
                signal(&pids, Signal::SIGTERM);
            }
            () = sleep_until(kill_at.unwrap_or_else(Instant::now)), if kill_at.is_some() => {
                signal(&pids, Signal::SIGKILL);
                kill_at = Some(Instant::now() + GRACE_AFTER_FAILURE);
            }
        }
    }
    // What agent 0 wrote before it ended may still be in the pipe.
    while lines.is_some() {
        if let Some(progress) = next_progress(&mut lines).await {
            on_progress(&progress);
            last = Some(progress);
        }
    }
    // The first failure that is not only the echo of another.
    let is_echo = |code: &ExitCode| code.failure_class().is_some_and(FailureClass::is_echo);
    let blamed = failures
        .iter()
        .find(|(code, _)| !is_echo(code))
        .or(failures.first());
    let failure = blamed.and_then(|(_, node)| read_failure(&folder.termination_log(*node)));
    let code = match blamed {
        Some((code, _)) => *code,
        None if stopped => ExitCode::Stopped,
        None => ExitCode::Done,
    };
    Ok(End {
        code,
        failure,
        progress: last,
    })
}

fn start(folder: &Folder, node: u32, coordinator_port: u16, ranks: u32) -> std::io::Result<Child> {
    let loopback = Ipv4Addr::LOCALHOST.to_string();
    let mut command = Command::new(std::env::current_exe()?);
    if std::env::var_os(threads::COUNT).is_none() {
        // An agent knows of its own ranks only; here all share one machine.
        command.env(threads::COUNT, threads::per_rank(ranks).to_string());
    }
    command
        .args(["agent", "--output", "json", "--stop-with-parent"])
        .env(environment::RUN_CONFIG, folder.run_config())
        .env(environment::NODE_RANK, node.to_string())
        .env(environment::ATTEMPT, "1")
        .env(environment::COORDINATOR_HOST, &loopback)
        .env(environment::COORDINATOR_PORT, coordinator_port.to_string())
        .env(environment::POD_ADDRESS, &loopback)
        .env(environment::AGENT_PORT, "0")
        .env(environment::TERMINATION_LOG, folder.termination_log(node))
        .stdin(Stdio::piped())
        .stdout(if node == 0 { Stdio::piped() } else { Stdio::null() })
        // Ctrl-C at a terminal reaches agents only through this process.
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
}

async fn wait(node: u32, mut child: Child) -> (u32, ExitCode) {
    // Held open until the agent has ended: its end tells the agent that this process is gone.
    let stdin = child.stdin.take();
    let code = match child.wait().await {
        Ok(status) => {
            let code = status.code().and_then(|code| u8::try_from(code).ok());
            code.map_or(ExitCode::Signal(Signal::SIGKILL as u8), ExitCode::from_code)
        }
        Err(_) => ExitCode::Other(1),
    };
    drop(stdin);
    (node, code)
}

/// The next record; waits for ever once there are no more, and clears `lines` then.
async fn next_progress(lines: &mut Option<Lines<BufReader<ChildStdout>>>) -> Option<Progress> {
    let Some(open) = lines else {
        return std::future::pending().await;
    };
    if let Ok(Some(line)) = open.next_line().await {
        return serde_json::from_str(&line).ok();
    }
    *lines = None;
    None
}

fn signal(pids: &[Option<Pid>], signal: Signal) {
    for pid in pids.iter().flatten() {
        // One that has ended meanwhile needs no signal.
        let _ = kill(*pid, signal);
    }
}

fn read_failure(path: &Path) -> Option<FailureRecord> {
    let record: TerminationRecord = serde_json::from_slice(&fs_err::read(path).ok()?).ok()?;
    record.failure
}

fn free_port() -> std::io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}
