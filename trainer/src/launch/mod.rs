//! Starts the agents of a job as local processes, one per node, and follows them.

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use contract::{ExitCode, FailureClass, FailureRecord, Progress, RunConfig, TerminationRecord, environment};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStderr, ChildStdout, Command};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use torch_ext::Rendezvous;

use crate::error::TrainError;
use crate::threads;
use crate::visible_gpus;

/// How long the other agents may take to end after one has failed.
const GRACE_AFTER_FAILURE: Duration = Duration::from_secs(10);
/// How long a process that an agent left behind may keep its output open.
const GRACE_FOR_LAST_WORDS: Duration = Duration::from_secs(2);
/// File of the run configuration in the folder of a run.
const RUN_CONFIG: &str = "run.json";

#[derive(Debug)]
pub(crate) struct End {
    pub(crate) code: ExitCode,
    pub(crate) failure: Option<FailureRecord>,
    pub(crate) progress: Option<Progress>,
}

/// How to start agents, if not as plain processes on the loopback interface.
#[derive(Debug, Default)]
pub(crate) struct Launch {
    /// Words before the agent's command; `{node}` stands for the node's number.
    pub(crate) launcher: Vec<String>,
    /// The nodes' addresses; loopback if empty.
    pub(crate) addresses: Vec<IpAddr>,
    /// More environment variables, which the ranks inherit.
    pub(crate) environment: Vec<(OsString, OsString)>,
    /// Whether the agents' standard error becomes events instead of being inherited.
    pub(crate) keep_errors: bool,
    /// How long agents may take to stop before they are killed; unlimited if `None`.
    pub(crate) grace_after_stop: Option<Duration>,
}

/// The nodes of a run, from the command line.
#[derive(Clone, Debug, Default, clap::Args, serde::Serialize)]
pub(crate) struct Nodes {
    /// Addresses of the nodes, if not all are on the loopback interface
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',')]
    addresses: Vec<IpAddr>,
    /// Command that starts a node's agent, with {node} for its number, such as 'ip netns exec node{node}'
    #[arg(long, value_name = "COMMAND", default_value = "")]
    launcher: String,
}

impl Nodes {
    /// Whether all nodes are this machine.
    pub(crate) fn are_here(&self) -> bool {
        self.addresses.is_empty() && self.launcher.is_empty()
    }

    /// How to start agents on the first `nodes` of them.
    pub(crate) fn launch(&self, nodes: u32) -> Result<Launch, TrainError> {
        let found = self.addresses.len();
        if found > 0 && found < nodes as usize {
            return Err(TrainError::Config(format!(
                "--addresses is a list of {found}: {nodes} nodes need an address each"
            )));
        }
        Ok(Launch {
            launcher: self.launcher.split_whitespace().map(Into::into).collect(),
            addresses: self.addresses.clone(),
            ..Launch::default()
        })
    }
}

impl Launch {
    /// The ranks' thread variables that are not set otherwise. Set here because all agents share
    /// this machine, while each knows only its own ranks.
    fn threads(&self, ranks: u32) -> impl Iterator<Item = (&'static str, String)> {
        threads::of_machine(ranks, |name| {
            threads::is_set(name) || self.environment.iter().any(|(given, _)| given == name)
        })
    }

    fn address(&self, node: u32) -> IpAddr {
        let address = self.addresses.get(node as usize).copied();
        address.unwrap_or(Ipv4Addr::LOCALHOST.into())
    }

    /// The command that starts `program` for a node.
    fn command(&self, program: PathBuf, node: u32) -> Command {
        let launcher = self.launcher.iter();
        let mut words = launcher
            .map(|word| word.replace("{node}", &node.to_string()).into())
            .chain([program.into_os_string()]);
        let mut command = Command::new(words.next().unwrap_or_default());
        command.args(words).envs(self.environment.iter().cloned());
        command
    }
}

/// A folder that the processes of one run share, removed on drop; `purpose` is part of its name.
pub(crate) fn folder(purpose: &str) -> std::io::Result<TempDir> {
    let prefix = format!("vit-trainer-{purpose}-");
    tempfile::Builder::new().prefix(&prefix).tempdir()
}

fn termination_log(folder: &Path, node: u32) -> PathBuf {
    folder.join(format!("termination-{node}.json"))
}

/// An event while agents run.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event<'a> {
    /// Progress of rank 0.
    Progress(&'a Progress),
    /// A line that an agent or a rank wrote to its standard error.
    Said(&'a str),
}

/// Runs a future to its end on this thread.
pub(crate) fn block_on<F: Future>(future: F) -> Result<F::Output, TrainError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    Ok(runtime
        .map_err(TrainError::system("failed to start"))?
        .block_on(future))
}

/// Starts an agent per node and follows them until the last has ended; `stop` asks them to save and
/// stop. With [`Launch::keep_errors`] lines of their standard error become events.
pub(crate) async fn run(
    config: &RunConfig,
    launch: &Launch,
    stop: CancellationToken,
    mut on_event: impl FnMut(Event<'_>),
) -> Result<End, TrainError> {
    let failed = TrainError::system;
    let gpus = visible_gpus::divide(&visible_gpus::of_this_process(), config)?;
    let shared = folder("run").map_err(failed("failed to create a temporary folder"))?;
    let json = serde_json::to_vec_pretty(config).map_err(std::io::Error::other);
    json.and_then(|json| fs_err::write(shared.path().join(RUN_CONFIG), json))
        .map_err(failed("failed to write the run configuration"))?;
    let port =
        Rendezvous::reserve_port(Ipv4Addr::LOCALHOST.into()).map_err(failed("failed to find a free port"))?;

    let mut pids = Vec::new();
    let mut agents = JoinSet::new();
    let mut lines = None;
    let (said, mut to_say) = mpsc::unbounded_channel();
    for node in 0..config.nodes {
        let gpus = gpus.get(node as usize).map(String::as_str);
        let mut child = start(shared.path(), launch, node, port, config.world_size(), gpus)
            .map_err(failed("failed to start an agent"))?;
        if let Some(errors) = child.stderr.take() {
            tokio::spawn(collect(errors, said.clone()));
        }
        if node == 0 {
            lines = child.stdout.take().map(|stdout| BufReader::new(stdout).lines());
        }
        let id = child.id().and_then(|id| i32::try_from(id).ok());
        pids.push(id.map(Pid::from_raw));
        agents.spawn(wait(node, child));
    }

    drop(said);
    let mut last = None;
    let mut stop_passed_on = false;
    let mut kill_at: Option<Instant> = None;
    let mut failures: Vec<(ExitCode, u32)> = Vec::new();
    let mut stopped = false;
    loop {
        tokio::select! {
            progress = next_progress(&mut lines) => if let Some(progress) = progress {
                on_event(Event::Progress(&progress));
                last = Some(progress);
            },
            Some(line) = to_say.recv() => on_event(Event::Said(&line)),
            ended = agents.join_next() => match ended {
                None => break,
                Some(Err(error)) => tracing::error!("failed to wait for an agent: {error}"),
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
                kill_at = kill_at.or(launch.grace_after_stop.map(|grace| Instant::now() + grace));
                signal(&pids, Signal::SIGTERM);
            }
            () = sleep_until(kill_at.unwrap_or_else(Instant::now)), if kill_at.is_some() => {
                signal(&pids, Signal::SIGKILL);
                kill_at = Some(Instant::now() + GRACE_AFTER_FAILURE);
            }
        }
    }
    // Agent 0's last output may still be in the pipe, which a rank that it left behind keeps open.
    while lines.is_some()
        && let Ok(progress) = timeout(GRACE_FOR_LAST_WORDS, next_progress(&mut lines)).await
    {
        if let Some(progress) = progress {
            on_event(Event::Progress(&progress));
            last = Some(progress);
        }
    }
    while let Ok(Some(line)) = timeout(GRACE_FOR_LAST_WORDS, to_say.recv()).await {
        on_event(Event::Said(&line));
    }
    // The first failure that is not an echo of another.
    let is_echo = |code: &ExitCode| code.failure_class().is_some_and(FailureClass::is_echo);
    let blamed = failures
        .iter()
        .find(|(code, _)| !is_echo(code))
        .or(failures.first());
    let failure = blamed.and_then(|(_, node)| read_failure(&termination_log(shared.path(), *node)));
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

fn start(
    folder: &Path,
    launch: &Launch,
    node: u32,
    coordinator_port: u16,
    ranks: u32,
    gpus: Option<&str>,
) -> std::io::Result<Child> {
    let mut command = launch.command(std::env::current_exe()?, node);
    command.envs(gpus.map(|gpus| (visible_gpus::VISIBLE, gpus)));
    command.envs(launch.threads(ranks));
    command
        .args(["agent", "--output", "json", "--stop-with-parent"])
        .env(environment::RUN_CONFIG, folder.join(RUN_CONFIG))
        .env(environment::NODE_RANK, node.to_string())
        .env(environment::ATTEMPT, "1")
        .env(environment::COORDINATOR_HOST, launch.address(0).to_string())
        .env(environment::COORDINATOR_PORT, coordinator_port.to_string())
        .env(environment::POD_ADDRESS, launch.address(node).to_string())
        .env(environment::AGENT_PORT, "0")
        .env(environment::TERMINATION_LOG, termination_log(folder, node))
        .stdin(Stdio::piped())
        .stdout(if node == 0 { Stdio::piped() } else { Stdio::null() })
        .stderr(if launch.keep_errors {
            Stdio::piped()
        } else {
            Stdio::inherit()
        })
        // Ctrl-C at a terminal reaches agents only through this process.
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
}

/// Forwards every line that agents and their ranks write to standard error.
async fn collect(errors: ChildStderr, said: mpsc::UnboundedSender<String>) {
    let mut errors = BufReader::new(errors);
    let mut line = Vec::new();
    while errors
        .read_until(b'\n', &mut line)
        .await
        .is_ok_and(|count| count > 0)
    {
        let text = String::from_utf8_lossy(&line).trim_end().to_owned();
        line.clear();
        if said.send(text).is_err() {
            return;
        }
    }
}

async fn wait(node: u32, mut child: Child) -> (u32, ExitCode) {
    // Held open until the agent has ended: its end shows the agent that this process is gone.
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

/// The next record. At the end it returns `None` and clears `lines`; then it waits forever.
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
        // A process that has ended needs no signal.
        let _ = kill(*pid, signal);
    }
}

fn read_failure(path: &Path) -> Option<FailureRecord> {
    let record: TerminationRecord = serde_json::from_slice(&fs_err::read(path).ok()?).ok()?;
    record.failure
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_run_says_of_threads_stays() {
        let launch = Launch {
            environment: vec![("OMP_NUM_THREADS".into(), "7".into())],
            ..Launch::default()
        };
        assert!(launch.threads(1).all(|(name, _)| name != "OMP_NUM_THREADS"));
        assert!(launch.threads(1).any(|(name, _)| name == "OMP_WAIT_POLICY"));
    }
}
