//! Starts, finds and ends processes that outlive the harness.
//!
//! A component's process id is in `pids/NAME` of the cluster's folder. The cluster's network
//! namespace and cgroups identify its processes: no other process is in them.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use fs_err as fs;
use rustix::process::{Pid, Signal, kill_process};

use crate::command::tail_of_file;
use crate::state::State;

/// Time limit for a signaled process to end.
const END_DEADLINE: Duration = Duration::from_secs(30);

/// Starts a component in the cluster's network namespace, detached, with its output in its log.
///
/// `mount_namespace` is a process whose mount namespace it also enters. The returned process id is
/// recorded under `name`, replacing an earlier one.
pub fn start(
    state: &State,
    name: &str,
    mount_namespace: Option<i32>,
    arguments: &[String],
    path: &str,
) -> Result<i32> {
    let pid_file = state.pid_file(name);
    let log = state.log_file(name);
    let _ = fs::remove_file(&pid_file);
    let output = fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(&log)?
        .into_parts()
        .0;
    let mut command = Command::new("setsid");
    // The shell writes its process id and becomes the component. Its parent has ended by then, so
    // the component is init's child and does not become this process's zombie.
    command.args([
        "--fork",
        "sh",
        "-c",
        r#"echo $$ > "$0.part" && mv "$0.part" "$0" && exec "$@""#,
    ]);
    command
        .arg(&pid_file)
        .arg("nsenter")
        .arg(format!("--net={}", state.namespace().path().display()));
    if let Some(pid) = mount_namespace {
        command.arg(format!("--mount=/proc/{pid}/ns/mnt"));
    }
    let status = command
        .arg("--")
        .args(arguments)
        .env("PATH", path)
        .current_dir(state.directory())
        .stdin(std::process::Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output)
        .status()
        .with_context(|| format!("cannot start {name}"))?;
    ensure!(status.success(), "cannot start {name}: {}", tail_of_file(&log, 5));
    let started = Instant::now();
    loop {
        // It counts as running once it has entered the network namespace.
        if let Some(pid) = running(state, name) {
            return Ok(pid);
        }
        let ended = recorded(state, name).is_some_and(|pid| !is_alive(pid));
        ensure!(
            !ended && started.elapsed() < END_DEADLINE,
            "{name} failed to start; tail of {}:\n{}",
            log.display(),
            tail_of_file(&log, 20)
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The recorded process id of a component.
fn recorded(state: &State, name: &str) -> Option<i32> {
    fs::read_to_string(state.pid_file(name)).ok()?.trim().parse().ok()
}

/// The process id of a component that runs in the cluster's network namespace.
pub fn running(state: &State, name: &str) -> Option<i32> {
    let inode = state.namespace().inode()?;
    recorded(state, name).filter(|pid| network_namespace(*pid) == Some(inode) && is_alive(*pid))
}

/// Whether something listens on this TCP port in the network namespace of a running component.
pub fn listens_on(state: &State, name: &str, port: u16) -> bool {
    let table =
        running(state, name).and_then(|pid| std::fs::read_to_string(format!("/proc/{pid}/net/tcp")).ok());
    table.is_some_and(|table| has_listener(&table, port))
}

/// Whether a table in the format of `/proc/net/tcp` has a listening socket (state 0A) on this port.
fn has_listener(table: &str, port: u16) -> bool {
    let end = format!(":{port:04X}");
    table.lines().skip(1).any(|line| {
        let mut words = line.split_whitespace().skip(1);
        words.next().is_some_and(|local| local.ends_with(&end)) && words.nth(1) == Some("0A")
    })
}

/// Fails with the tail of its log if a component has ended.
pub fn check(state: &State, name: &str) -> Result<()> {
    if running(state, name).is_some() {
        return Ok(());
    }
    let log = state.log_file(name);
    bail!(
        "{name} has ended; tail of {}:\n{}",
        log.display(),
        tail_of_file(&log, 20)
    )
}

/// Sends a component a signal and waits until it has ended.
pub fn end(state: &State, name: &str, signal: Signal) -> Result<()> {
    let Some(pid) = running(state, name) else {
        return Ok(());
    };
    send(pid, signal)?;
    let started = Instant::now();
    while is_alive(pid) {
        ensure!(
            started.elapsed() < END_DEADLINE,
            "{name} (process {pid}) did not end after signal {signal:?}"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// A component that stays paused until this is dropped.
#[derive(Debug)]
pub struct Paused(i32);

impl Drop for Paused {
    fn drop(&mut self) {
        // It may have been killed meanwhile.
        let _ = send(self.0, Signal::CONT);
    }
}

/// Pauses a component.
pub fn pause(state: &State, name: &str) -> Result<Paused> {
    check(state, name)?;
    let pid = running(state, name).with_context(|| format!("{name} is not running"))?;
    send(pid, Signal::STOP)?;
    Ok(Paused(pid))
}

/// Kills the processes that `find` returns, until it returns none.
pub fn kill_all(what: &str, find: impl Fn() -> Result<Vec<i32>>) -> Result<()> {
    let started = Instant::now();
    loop {
        let alive = find()?;
        if alive.is_empty() {
            return Ok(());
        }
        ensure!(
            started.elapsed() < END_DEADLINE,
            "{what}: processes {alive:?} did not end after SIGKILL"
        );
        for pid in alive {
            send(pid, Signal::KILL)?;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The live processes in the network namespace with this inode.
pub fn in_network_namespace(inode: u64) -> Result<Vec<i32>> {
    living_where(|pid| network_namespace(pid) == Some(inode))
}

/// The live processes in the mount namespace of `pid`, including itself.
pub fn in_mount_namespace_of(pid: i32) -> Result<Vec<i32>> {
    let Some(namespace) = namespace(pid, "mnt") else {
        return Ok(Vec::new());
    };
    living_where(|other| self::namespace(other, "mnt") == Some(namespace))
}

/// The live processes whose command line contains a path below `folder`.
pub fn mentioning(folder: &Path) -> Result<Vec<i32>> {
    let prefix = format!("{}/", folder.display());
    let mentions = |pid| {
        std::fs::read(format!("/proc/{pid}/cmdline"))
            .is_ok_and(|line| String::from_utf8_lossy(&line).contains(&prefix))
    };
    living_where(mentions)
}

fn living_where(belongs: impl Fn(i32) -> bool) -> Result<Vec<i32>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let Some(pid) = entry?
            .file_name()
            .to_str()
            .and_then(|name| name.parse::<i32>().ok())
        else {
            continue;
        };
        if belongs(pid) && is_alive(pid) {
            found.push(pid);
        }
    }
    Ok(found)
}

/// The processes that are not zombies.
pub fn living(pids: Vec<i32>) -> Vec<i32> {
    pids.into_iter().filter(|pid| is_alive(*pid)).collect()
}

fn network_namespace(pid: i32) -> Option<u64> {
    namespace(pid, "net")
}

fn namespace(pid: i32, kind: &str) -> Option<u64> {
    let link = std::fs::read_link(format!("/proc/{pid}/ns/{kind}")).ok()?;
    parse_namespace(link.to_str()?, kind)
}

/// `net:[4026532000]` of kind `net` -> 4026532000
fn parse_namespace(link: &str, kind: &str) -> Option<u64> {
    link.strip_prefix(kind)?
        .strip_prefix(":[")?
        .strip_suffix(']')?
        .parse()
        .ok()
}

/// Whether a process can still hold files and ports: its other threads may outlive the first.
fn is_alive(pid: i32) -> bool {
    match state_of(pid) {
        None | Some('X') => false,
        Some('Z') => std::fs::read_dir(format!("/proc/{pid}/task")).is_ok_and(|threads| threads.count() > 1),
        Some(_) => true,
    }
}

/// The kernel's state letter of a process's first thread.
fn state_of(pid: i32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // It follows the command in parentheses, which may contain any character.
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

fn send(pid: i32, signal: Signal) -> Result<()> {
    let target = Pid::from_raw(pid).with_context(|| format!("process id {pid}"))?;
    match kill_process(target, signal) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
        Err(error) => Err(error).with_context(|| format!("cannot send {signal:?} to process {pid}")),
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::{
        Duration, END_DEADLINE, Instant, has_listener, is_alive, network_namespace, parse_namespace, state_of,
    };

    #[test]
    fn a_namespace_link_is_read() {
        assert_eq!(parse_namespace("net:[4026532000]", "net"), Some(4_026_532_000));
        assert_eq!(parse_namespace("mnt:[1]", "net"), None);
    }

    #[test]
    fn a_listener_is_found_in_the_kernels_table() {
        let table = "  sl  local_address rem_address   st tx_queue\n   \
            0: 0100007F:094B 00000000:0000 0A 00000000:00000000\n   \
            1: 0100007F:1F90 0100007F:094C 01 00000000:00000000\n";
        assert!(has_listener(table, 2379));
        assert!(!has_listener(table, 2380));
        assert!(!has_listener(table, 8080), "a connection is not a listener");
    }

    #[test]
    fn a_process_is_alive_until_its_last_thread_has_ended() {
        let ends_its_first_thread = "import ctypes, threading, time\n\
            threading.Thread(target=time.sleep, args=(600,)).start()\n\
            ctypes.CDLL(None).pthread_exit(None)";
        let mut child = Command::new("python3")
            .args(["-c", ends_its_first_thread])
            .spawn()
            .expect("starts");
        let pid = child.id() as i32;
        let await_state = |is_wanted: &dyn Fn() -> bool| {
            let started = Instant::now();
            while !is_wanted() {
                assert!(started.elapsed() < END_DEADLINE, "{:?}", state_of(pid));
                std::thread::sleep(Duration::from_millis(10));
            }
        };
        await_state(&|| state_of(pid) == Some('Z'));
        assert!(is_alive(pid));
        child.kill().expect("is killed");
        await_state(&|| !is_alive(pid));
        child.wait().expect("ends");
        assert!(!is_alive(pid));
    }

    #[test]
    fn this_process_is_alive_in_a_network_namespace() {
        let pid = std::process::id() as i32;
        assert!(is_alive(pid));
        assert!(network_namespace(pid).is_some());
    }
}
