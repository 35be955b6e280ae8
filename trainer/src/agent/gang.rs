//! This pod's ranks, from their start to the end of the last one.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use contract::environment::{self, torchrun};
use contract::{ExitCode, FailureClass, FailureRecord, Heartbeat, RunConfig};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::heartbeats::Pulses;
use super::{Pod, Shown};
use crate::error::TrainError;
use crate::metrics::Report;
use crate::output::{Output, Pace};
use crate::threads;
use crate::visible_gpus;
use ::agent::pulse::GIVEN_UP;

/// How long the other ranks may take to end after one has failed, before they are killed. Their
/// collectives fail at once, but rank 0 may be finishing a checkpoint.
const GRACE_AFTER_FAILURE: Duration = Duration::from_secs(5);
/// How long the others may continue after a rank that only lost its peer: the rank that caused it
/// has closed its connections, and is about to report why.
const SETTLE_AFTER_ECHO: Duration = Duration::from_secs(1);
/// A rank that knows of a lost peer ends by itself, unless it waits for that peer on a GPU.
const GRACE_AFTER_LOSS: Duration = Duration::from_secs(5);
/// How often ranks that should end are checked.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Capacity of the report queue: ranks block rather than fill the agent's memory.
const WAITING_REPORTS: usize = 1024;

#[derive(Debug)]
pub(super) struct Gang {
    first_rank: u32,
    ranks: Vec<RankProcess>,
    events: mpsc::Receiver<Event>,
    pace: Pace,
}

#[derive(Debug)]
struct RankProcess {
    pid: Pid,
    /// The failure that the rank reported, or the agent when it gave the rank up.
    said: Option<FailureRecord>,
    given_up: bool,
    writes: bool,
    /// The lost peer, and since when the rank knows of it.
    lost_peer: Option<(u32, Instant)>,
    ended: Option<ExitCode>,
}

#[derive(Debug)]
enum Event {
    Report(usize, Box<Report>),
    /// The rank has ended and all its reports are delivered.
    Ended(usize, std::io::Result<ExitStatus>),
}

#[derive(Debug)]
pub(super) struct End {
    pub(super) code: ExitCode,
    pub(super) failure: Option<FailureRecord>,
}

impl Gang {
    pub(super) fn start(config: &RunConfig, pod: &Pod, pulses: &Pulses) -> Result<Self, TrainError> {
        let program =
            std::env::current_exe().map_err(TrainError::system("failed to find this program's file"))?;
        let first_rank = pod.node_rank * config.ranks_per_node;
        let gpus = visible_gpus::of_ranks(config)?;
        let (sender, events) = mpsc::channel(WAITING_REPORTS);
        let mut ranks = Vec::new();
        for local_rank in 0..config.ranks_per_node {
            let rank = first_rank + local_rank;
            let mut command = Command::new(&program);
            command
                .arg("rank")
                .env(torchrun::RANK, rank.to_string())
                .env(torchrun::LOCAL_RANK, local_rank.to_string())
                .env(torchrun::WORLD_SIZE, config.world_size().to_string())
                .env(torchrun::LOCAL_WORLD_SIZE, config.ranks_per_node.to_string())
                .env(torchrun::MASTER_ADDR, &pod.coordinator_host)
                .env(torchrun::MASTER_PORT, pod.coordinator_port.to_string())
                .env(environment::ATTEMPT, pod.attempt.to_string());
            if let Some(gpu) = gpus.get(local_rank as usize) {
                command.env(visible_gpus::VISIBLE, gpu);
            }
            let others = [
                // For jemalloc: keep freed memory. Every step frees all activations and allocates
                // them again. The kernel would return released pages one by one, each zeroed first.
                ("MALLOC_CONF", "dirty_decay_ms:-1,muzzy_decay_ms:-1".to_owned()),
                // libtorch returns its errors; it would print them too, with stack traces.
                ("TORCH_CPP_LOG_LEVEL", "FATAL".to_owned()),
                // Collectives in the flight recorder: those of a few steps, so that a stall of a
                // thousand ranks does not fill the storage.
                ("TORCH_FR_BUFFER_SIZE", "256".to_owned()),
                // A lost peer must not end this process, as NCCL's watchdog would by default. The
                // rank names the peer, finishes a running checkpoint, and exits.
                ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0".to_owned()),
                // Nor may a watchdog that waits for a GPU: heartbeats decide whether a rank is
                // stuck.
                ("TORCH_NCCL_ENABLE_MONITORING", "0".to_owned()),
            ];
            for (name, value) in threads::of_container(config.ranks_per_node)
                .into_iter()
                .chain(others)
            {
                if !threads::is_set(name) {
                    command.env(name, value);
                }
            }
            let failed = TrainError::system("failed to start a rank");
            let (child, socket) = spawn(command).map_err(&failed)?;
            let id = child.id().and_then(|id| i32::try_from(id).ok());
            let id = id.ok_or_else(|| failed(std::io::Error::other("it has no process id")))?;
            let pid = Pid::from_raw(id);
            pulses.started(local_rank as usize, pid);
            ranks.push(RankProcess {
                pid,
                said: None,
                given_up: false,
                writes: false,
                lost_peer: None,
                ended: None,
            });
            tokio::spawn(follow(local_rank as usize, child, socket, sender.clone()));
        }
        Ok(Self {
            first_rank,
            ranks,
            events,
            pace: Pace::default(),
        })
    }

    /// Follows the ranks until the last one has ended. `stop` asks them to save and stop.
    pub(super) async fn run(mut self, shown: &Shown, output: Output, stop: CancellationToken) -> End {
        let mut stop_passed_on = false;
        let mut look_at: Option<Instant> = None;
        let mut end_at: Option<Instant> = None;
        let mut kill_at: Option<Instant> = None;
        let mut first_failed: Option<usize> = None;
        let mut wanted = shown.wanted.subscribe();
        while self.ranks.iter().any(|rank| rank.ended.is_none()) {
            tokio::select! {
                event = self.events.recv() => match event {
                    Some(Event::Report(rank, report)) => {
                        self.take_in(rank, *report, shown, output);
                        if look_at.is_none() && self.ranks[rank].lost_peer.is_some() {
                            look_at = Some(Instant::now() + CHECK_INTERVAL);
                        }
                    }
                    Some(Event::Ended(rank, status)) => {
                        let code = if self.ranks[rank].given_up {
                            ExitCode::PeerLost
                        } else {
                            exit_code(status, stop_passed_on || kill_at.is_some())
                        };
                        self.ranks[rank].ended = Some(code);
                        if let Some(class) = code.failure_class() {
                            first_failed = Some(self.blame(first_failed, rank));
                            let settle = if class.is_echo() { SETTLE_AFTER_ECHO } else { Duration::ZERO };
                            let soon = Instant::now() + settle;
                            end_at = Some(end_at.map_or(soon, |end_at| end_at.min(soon)));
                        }
                    }
                    // Every follower has ended, so every rank has.
                    None => break,
                },
                // Asked after rank 0's first progress, when it has a handler.
                Ok(()) = wanted.changed() => {
                    if let Some(rank) = self.ranks.first().filter(|rank| rank.ended.is_none()) {
                        // It may have ended.
                        let _ = kill(rank.pid, Signal::SIGUSR1);
                    }
                }
                () = stop.cancelled(), if !stop_passed_on => {
                    stop_passed_on = true;
                    look_at = Some(Instant::now() + CHECK_INTERVAL);
                    self.signal(Signal::SIGTERM);
                }
                () = sleep_until(look_at.unwrap_or_else(Instant::now)), if look_at.is_some() && kill_at.is_none() => {
                    look_at = Some(Instant::now() + CHECK_INTERVAL);
                    self.give_up_stuck(&shown.pulses, stop_passed_on);
                }
                () = sleep_until(end_at.unwrap_or_else(Instant::now)), if end_at.is_some() && kill_at.is_none() => {
                    kill_at = Some(Instant::now() + GRACE_AFTER_FAILURE);
                    self.signal(Signal::SIGTERM);
                }
                () = sleep_until(kill_at.unwrap_or_else(Instant::now)), if kill_at.is_some() => {
                    self.signal(Signal::SIGKILL);
                    kill_at = Some(Instant::now() + GRACE_AFTER_FAILURE);
                }
            }
        }
        self.end(first_failed)
    }

    fn take_in(&mut self, rank: usize, report: Report, shown: &Shown, output: Output) {
        match report {
            Report::Step(step) => {
                shown.metrics.step(rank, &step);
                shown.pulses.stepped(rank, step.step, step.phases.sum());
            }
            Report::Activity { activity } => shown.pulses.turned_to(rank, activity),
            Report::Writing { under_way } => self.ranks[rank].writes = under_way,
            Report::Checkpoint(cost) => shown.metrics.checkpoint(&cost),
            Report::Progress(progress) => {
                shown.metrics.progress(&progress);
                output.progress(&mut self.pace, &progress);
                if let Ok(mut place) = shown.progress.write() {
                    *place = Some(progress);
                }
            }
            Report::LostPeer { peer } => self.ranks[rank].lost_peer = Some((peer, Instant::now())),
            Report::Failed(failure) => self.ranks[rank].said = Some(failure),
        }
    }

    /// The failed rank to report: the first, unless it only lost its peer and the second has
    /// another cause.
    fn blame(&self, first: Option<usize>, second: usize) -> usize {
        let is_echo = |rank: usize| {
            self.ranks[rank]
                .ended
                .and_then(ExitCode::failure_class)
                .is_some_and(FailureClass::is_echo)
        };
        match first {
            Some(first) if !is_echo(first) || is_echo(second) => first,
            _ => second,
        }
    }

    /// Kills ranks that should end but are stuck waiting for another rank or for storage.
    fn give_up_stuck(&mut self, pulses: &Pulses, told_to_stop: bool) {
        for (local, rank) in self.ranks.iter_mut().enumerate() {
            let Some(heartbeat) = pulses.heartbeat(local) else {
                continue;
            };
            if rank.ended.is_some() || rank.writes {
                continue;
            }
            let number = heartbeat.rank;
            let message = match rank.lost_peer {
                Some((peer, since)) if since.elapsed() >= GRACE_AFTER_LOSS => {
                    format!("rank {peer} is lost, and rank {number} was stuck waiting for it")
                }
                _ if told_to_stop && is_stuck(&heartbeat) => format!(
                    "rank {number} did not stop when asked to: it has waited for another rank or for storage for {:.0} s",
                    heartbeat.idle_seconds
                ),
                _ => continue,
            };
            rank.given_up = true;
            rank.said.get_or_insert_with(|| FailureRecord {
                rank: Some(number),
                exit_code: ExitCode::PeerLost.code(),
                class: FailureClass::PeerLost,
                memory: None,
                message,
            });
            // It may have just ended.
            let _ = kill(rank.pid, Signal::SIGKILL);
        }
    }

    fn signal(&self, signal: Signal) {
        for rank in self.ranks.iter().filter(|rank| rank.ended.is_none()) {
            // A rank may have ended while its event is still queued; the kernel then reports no
            // such process.
            let _ = kill(rank.pid, signal);
        }
    }

    fn end(&self, first_failed: Option<usize>) -> End {
        let Some(failed) = first_failed else {
            let all_done = self.ranks.iter().all(|rank| rank.ended == Some(ExitCode::Done));
            return End {
                code: if all_done {
                    ExitCode::Done
                } else {
                    ExitCode::Stopped
                },
                failure: None,
            };
        };
        let rank = &self.ranks[failed];
        let code = rank.ended.unwrap_or(ExitCode::Other(1));
        let number = self.first_rank + failed as u32;
        let failure = rank.said.clone().unwrap_or_else(|| FailureRecord {
            rank: Some(number),
            exit_code: code.code(),
            class: code.failure_class().unwrap_or(FailureClass::Crashed),
            memory: None,
            message: match code {
                ExitCode::Signal(signal) => format!("rank {number} was ended by {}", signal_name(signal)),
                code => format!(
                    "rank {number} exited with code {} without reporting an error",
                    code.code()
                ),
            },
        });
        tracing::error!("rank {number} failed ({}): {}", failure.class, failure.message);
        End {
            code,
            failure: Some(failure),
        }
    }
}

/// Whether a rank that was asked to stop is stuck before the end of its step.
fn is_stuck(heartbeat: &Heartbeat) -> bool {
    GIVEN_UP.is_over(
        heartbeat.activity,
        heartbeat.idle_seconds,
        heartbeat.median_step_seconds,
    )
}

fn signal_name(number: u8) -> String {
    Signal::try_from(i32::from(number)).map_or_else(
        |_| format!("signal {number}"),
        |signal| format!("signal {number} ({signal})"),
    )
}

/// A rank that was stopped before it could listen has nothing to save, and did not fail.
fn exit_code(status: std::io::Result<ExitStatus>, told_to_stop: bool) -> ExitCode {
    let Ok(status) = status else {
        return ExitCode::Other(1);
    };
    match (status.code(), status.signal()) {
        (None, Some(signal)) if told_to_stop && signal == Signal::SIGTERM as i32 => ExitCode::Stopped,
        (Some(code), _) => ExitCode::from_code(u8::try_from(code).unwrap_or(u8::MAX)),
        (None, Some(signal)) => ExitCode::Signal(u8::try_from(signal).unwrap_or(u8::MAX)),
        (None, None) => ExitCode::Other(1),
    }
}

/// Starts a rank with a socket as its standard input, in a separate process group: Ctrl-C at a
/// terminal reaches it only through the agent.
fn spawn(mut command: Command) -> std::io::Result<(Child, UnixStream)> {
    let (ours, theirs) = StdUnixStream::pair()?;
    ours.set_nonblocking(true)?;
    let child = command
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .process_group(0)
        .kill_on_drop(true)
        .spawn()?;
    Ok((child, UnixStream::from_std(ours)?))
}

/// Delivers a rank's reports, and then its end.
async fn follow(rank: usize, mut child: Child, socket: UnixStream, events: mpsc::Sender<Event>) {
    let mut lines = BufReader::new(socket).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        match serde_json::from_str(&line) {
            Ok(report) => {
                if events.send(Event::Report(rank, Box::new(report))).await.is_err() {
                    return;
                }
            }
            Err(error) => tracing::warn!("ignored an unreadable report ({error}): {line}"),
        }
    }
    let status = child.wait().await;
    // The receiver is gone only when the agent is ending.
    let _ = events.send(Event::Ended(rank, status)).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_that_was_told_to_stop_as_it_started_did_not_fail() {
        let ended = |signal: Signal, told| exit_code(Ok(ExitStatus::from_raw(signal as i32)), told);
        assert_eq!(ended(Signal::SIGTERM, true), ExitCode::Stopped);
        assert_eq!(ended(Signal::SIGTERM, false), ExitCode::Signal(15));
        assert_eq!(ended(Signal::SIGKILL, true), ExitCode::Signal(9));
        assert_eq!(
            exit_code(Ok(ExitStatus::from_raw(3 << 8)), true),
            ExitCode::BadData
        );
    }
}
