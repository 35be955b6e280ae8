//! Processes that outlive the run they belong to.

use std::time::Duration;

use nix::sys::prctl;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use tokio::time::Instant;

/// How long killed processes may take to end.
const GRACE: Duration = Duration::from_secs(40);

/// Processes that a run may leave: children of this process that did not exist before it.
#[derive(Debug)]
pub(super) struct Leftovers {
    /// Children that this process had before, such as those of its launcher.
    others: Vec<Pid>,
}

impl Leftovers {
    /// For processes started from now on. Their orphans become children of this process, whatever
    /// group they are in: ranks of torchrun and of agents have their own.
    pub(super) fn track() -> Result<Self, String> {
        prctl::set_child_subreaper(true).map_err(|error| format!("failed to become a subreaper: {error}"))?;
        Ok(Self { others: children() })
    }

    /// Kills them and their children, which become this process's when they are killed.
    pub(super) async fn kill(self) {
        let give_up_at = Instant::now() + GRACE;
        loop {
            let left: Vec<Pid> = children()
                .into_iter()
                .filter(|child| !self.others.contains(child))
                .collect();
            if left.is_empty() {
                return;
            }
            if Instant::now() > give_up_at {
                tracing::warn!("processes of the run cannot be killed and still run: {left:?}");
                return;
            }
            for child in left {
                let _ = kill(child, Signal::SIGKILL);
                let _ = waitpid(child, Some(WaitPidFlag::WNOHANG));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// This process's children, by the fourth field of `/proc/PID/stat`, the second after the name.
fn children() -> Vec<Pid> {
    let own = std::process::id().to_string();
    let entries = fs_err::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers
        .filter(|pid: &i32| {
            // A name may be truncated within a character.
            let stat = fs_err::read(format!("/proc/{pid}/stat")).unwrap_or_default();
            let stat = String::from_utf8_lossy(&stat);
            let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
            after_name.split_whitespace().nth(1) == Some(own.as_str())
        })
        .map(Pid::from_raw)
        .collect()
}
